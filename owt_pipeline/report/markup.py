"""Pieces of HTML; whatever goes into them is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Markup(str):
    """HTML, as opposed to text that has to be escaped."""


def markup(value: Any) -> Markup:
    """HTML as it is; anything else as text."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def element(name: str, *content: Any, **attributes: str) -> Markup:
    """An element; an attribute's name is without its trailing underscore."""
    given = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{''.join(map(markup, content))}</{name}>")


def joined(parts: Iterable[Any]) -> Markup:
    return Markup("\n".join(map(markup, parts)))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table, which scrolls sideways where it is too wide; numbers are set right."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(row[k].startswith('<td class="number"') for row in cells) for k in range(len(columns))]
    head = element("tr", *(element("th", column, **_number_class(r)) for column, r in zip(columns, right, strict=True)))
    body = joined(element("tr", *row) for row in cells)
    return element("div", element("table", element("thead", head), element("tbody", body)), class_="scroll")


def _cell(value: Any) -> Markup:
    shown = "–" if value is None else number(value) if isinstance(value, int) else value
    digits = str(shown).removesuffix(" %").lstrip("<+-").replace(",", "").replace(".", "")
    return element("td", shown, **_number_class(digits.isdigit() or digits == "–"))


def _number_class(right: bool) -> dict[str, str]:
    return {"class_": "number"} if right else {}


def folded(title: Any, *content: Any, **attributes: str) -> Markup:
    """Content behind a title to be clicked."""
    return element("details", element("summary", title), *content, **attributes)


def link(url: str | None, text: str | None = None) -> Markup:
    """A link, where it is one to the web; else its text."""
    if url and url.startswith(("https://", "http://")):
        return element("a", text or url, href=url, rel="noopener noreferrer")
    return markup(text or url or "without a URL")


def number(value: int | float | None, digits: int = 0) -> str:
    """With thousands separated; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    if share is None:
        return "–"
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.1f} %"


def span(low: int | None, high: int | None) -> str:
    """`≤ 0`, `3`, `5–6` or `≥ 5000`."""
    if low is None or high is None:
        return f"≤ {high}" if low is None else f"≥ {low}"
    return str(low) if low == high else f"{low}–{high}"


def plot(name: str, caption: str) -> Markup:
    """A place for one of `plots`."""
    return element("figure", element("div", id=f"plot-{name}", class_="plot"), element("figcaption", caption))


def absent(what: str) -> Markup:
    """Why something is not shown."""
    return element("p", what, class_="absent")
