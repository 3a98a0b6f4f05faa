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
    head = element("tr", *(element("th", column) for column in columns))
    body = joined(element("tr", *map(_cell, row)) for row in rows)
    return element("div", element("table", element("thead", head), element("tbody", body)), class_="scroll")


def _cell(value: Any) -> Markup:
    if value is None:
        return element("td", "–", class_="number")
    if isinstance(value, int):
        return element("td", number(value), class_="number")
    digits = str(value).removesuffix(" %").lstrip("<").replace(",", "").replace(".", "")
    return element("td", value, **({"class_": "number"} if digits.isdigit() or digits == "–" else {}))


def folded(title: Any, *content: Any) -> Markup:
    """Content behind a title to be clicked."""
    return element("details", element("summary", title), *content)


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
