"""Elements whose content is read on its own: what is not shown, formulas and code.

Formulas are given as LaTeX where the page has their source:

- MathML with an `<annotation>` or `alttext`: KaTeX, LaTeXML, Wikipedia, MathJax 3 with assistive
  markup;
- scripts of MathJax 2 (`<script type="math/tex">`), whose drawings are skipped;
- images with the source as alternative text (Wikipedia, WordPress, CodeCogs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from owt_pipeline.stages.extract.html.names import BLOCK, NOT_TEXT

_TEX_ENCODINGS = ("application/x-tex", "application/x-latex", "latex", "tex", "text/x-tex")
_FORMULA_NAME = re.compile(
    r"(?:^|\s)(?:mwe-math|latex|tex|math|katex|mathjax|equation)(?=[\s_-]|$)", re.IGNORECASE
)
_IMAGE_SOURCE = re.compile(r"latex\.codecogs\.com|chart\?cht=tx|/latex\.php|quicklatex\.com")
_LATEX = re.compile(r"[\\^_=]")
_STYLE = re.compile(
    r"^\{\s*\\(?:display|text)style\s*(.*)\}$|^\\(?:display|text)style\b\s*(.*)$", re.DOTALL
)
_DOLLARS = re.compile(r"(\$\$?)([^$]+)\1")
_GUTTER_NAME = re.compile(
    r"(?:^|[\s_-])(?:line-?nos?|linenumbers?|line-?nums?|line-numbers?|ln|lnt|gutter|blob-num"
    r"|rouge-gutter|gl|hljs-ln-numbers|hljs-ln-n|line-numbers-rows|linenodiv|td-line-number)"
    r"(?=[\s_-]|$)",
    re.IGNORECASE,
)
# `line`, `code-line`, `CodeMirror-line`, `codeLine_x8a`, but not `inline`.
_LINE_NAME = re.compile(
    r"(?:^|[\s_-])(?:cl|(?!inline|underline|outline|headline|newline)[A-Za-z]*?[lL]ine)"
    r"(?:[-_]?(?:text|code|content|wrapper))?(?=$|[\s_]|\d|-\d|-[a-z]+\d)"
)
_LANGUAGE = re.compile(
    r"(?:^|\s)lang(?:uage)?-(?!none\b|text\b|plain)([a-z][a-z0-9+#]{0,15})(?=\s|$)", re.IGNORECASE
)
_BREAK, _START, _END = (
    "\x04",
    "\x05",
    "\x06",
)  # until a text is complete: <br>; an element that is a line
_ENDED, _STARTED = re.compile(f"{_END}\n?"), re.compile(f"\n?{_START}+")
_NUMBERS = re.compile(f"[\\d\\s{_BREAK}{_START}{_END}]*")
_SHOWN_AS_FLEX = re.compile(r"display\s*:\s*(?:inline-)?(?:flex|grid)", re.IGNORECASE)
# Not `pre-wrap` and `pre-line`, which editors write for prose.
_KEEPS_SPACES = re.compile(r"white-space\s*:\s*pre\s*(?:!|;|$)", re.IGNORECASE)
_FLEX_NAME = re.compile(r"(?:^|\s)(?:d-|is-|uk-)?(?:inline-)?flex(?=\s|$)")
_SHOWN_AS_BLOCK = re.compile(
    r"display\s*:\s*(?:block|flex|grid|table|list-item)\b(?!-)", re.IGNORECASE
)


class RawElement:
    """An open element that takes the parser's events in it.

    Attributes:
      depth: the number of open elements, with itself.
      kind: what its text is, if it is needed: the type of a script, or "" for the page's title.
    """

    def __init__(self, kind: str | None = None) -> None:
        self.depth = 1
        self.kind = kind
        self.pieces: list[str] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1

    def end(self) -> None:
        self.depth -= 1

    def add(self, text: str) -> None:
        if self.kind is not None:
            self.pieces.append(text)


class Unseen(RawElement):
    """An inline element that is hidden from sight, or from screen readers.

    Attributes:
      is_for_reader: whether it is for screen readers.
    """

    def __init__(self, is_for_reader: bool) -> None:
        super().__init__("unseen")
        self.is_for_reader = is_for_reader

    def text(self) -> str:
        """Return its text in one line."""
        return " ".join("".join(self.pieces).split())


class Formula(RawElement):
    """A `<math>`."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        super().__init__()
        self.is_large = attributes.get("display") == "block" or attributes.get("mode") == "display"
        self._alternative = attributes.get("alttext") or ""
        self._source: list[str] = []
        self._annotation = 0  # depth of an annotation
        self._is_source = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if tag in ("annotation", "annotation-xml"):
            self._annotation = self.depth
            self._is_source = (
                attributes.get("encoding") or ""
            ).lower() in _TEX_ENCODINGS and not self._source

    def add(self, text: str) -> None:
        if not self._annotation or self.depth < self._annotation:
            self.pieces.append(text)
        elif self._is_source:
            self._source.append(text)

    def latex(self) -> str:
        """Its source; "" if the page does not have it."""
        return cleaned("".join(self._source) or self._alternative)

    def text(self) -> str:
        """What it shows, in one line."""
        return " ".join("".join(self.pieces).split())


def of_image(attributes: Mapping[str, str]) -> tuple[str, bool] | None:
    """(LaTeX, whether it is displayed on its own lines) of an image; None for any other image."""
    alternative, classes = attributes.get("alt"), attributes.get("class")
    if not alternative or not (
        (classes and _FORMULA_NAME.search(classes))
        or (_LATEX.search(alternative) and _IMAGE_SOURCE.search(attributes.get("src") or ""))
    ):
        return None
    return cleaned(alternative), classes is not None and "display" in classes


def cleaned(latex: str) -> str:
    latex = " ".join(latex.split())
    if match := _STYLE.match(latex):
        latex = (match[1] or match[2] or "").strip()
    match = _DOLLARS.fullmatch(latex)
    return match[2].strip() if match else latex


class PreText(RawElement):
    """Code, or another preformatted text, without the numbers of its lines."""

    def __init__(self, classes: str) -> None:
        super().__init__()
        self.language = _language_of(classes)
        self._gutters: list[
            tuple[int, int]
        ] = []  # depth of an element of line numbers, its first piece
        self._blocks: list[int] = []  # depths of open elements that are lines of their own
        self._unseen = 0  # depth of an element without text

    def text(self) -> str:
        text = "".join(self.pieces).replace("\r\n", "\n").replace("\r", "\n")
        text = text.replace("\xa0", " ").replace("\u200b", "")
        text = text.replace(_BREAK + _END, _END)  # a <br> that only ends the element's line
        text = _ENDED.sub("\n", text).replace(_BREAK, "\n")
        text = _STARTED.sub("\n", text)
        return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if self._unseen:
            return
        if tag == "br":
            self.pieces.append(_BREAK)
            return
        if "data-cfemail" in attributes:
            self.add(address_in(attributes))
        if tag in NOT_TEXT or "data-cfemail" in attributes:
            self._unseen = self.depth
            return
        classes = attributes.get("class", "")
        if tag in ("code", "pre"):
            self.language = self.language or _language_of(classes)
        if is_line_number(attributes):
            self._gutters.append((self.depth, len(self.pieces)))
        is_block = tag in BLOCK or is_shown_as_block(attributes)
        if is_block:
            self._blocks.append(self.depth)
        if is_block or _names_line(classes) or "data-line" in attributes:
            self.pieces.append(_START)

    def end(self) -> None:
        depth, self.depth = self.depth, self.depth - 1
        if self._unseen:
            if self._unseen == depth:
                self._unseen = 0
            return
        if self._blocks and self._blocks[-1] == depth:
            self._blocks.pop()
            self.pieces.append(_END)
        if self._gutters and self._gutters[-1][0] == depth:
            _, first = self._gutters.pop()
            if _NUMBERS.fullmatch("".join(self.pieces[first:])):
                del self.pieces[first:]

    def add(self, text: str) -> None:
        if self._unseen:
            return
        is_between = self.pieces and self.pieces[-1] == _END and "\n" in text and text.isspace()
        self.pieces.append("\n" if is_between else text)  # between two lines that are elements


def _language_of(classes: str) -> str | None:
    match = _LANGUAGE.search(classes)
    return match[1].lower() if match else None


def is_line_number(attributes: Mapping[str, str]) -> bool:
    """Return whether an element is marked as the number of a line of code."""
    classes = attributes.get("class")
    return (classes is not None and _names_gutter(classes)) or "data-line-number" in attributes


# A page of code has thousands of lines with the same few classes.
@lru_cache(1 << 10)
def _names_gutter(classes: str) -> bool:
    return _GUTTER_NAME.search(classes) is not None


@lru_cache(1 << 10)
def _names_line(classes: str) -> bool:
    return _LINE_NAME.search(classes) is not None


def keeps_spaces(attributes: Mapping[str, str]) -> bool:
    """Return whether an element's own style shows its text as it is written, like code."""
    style = attributes.get("style")
    return style is not None and _KEEPS_SPACES.search(style) is not None


def is_shown_as_block(attributes: Mapping[str, str]) -> bool:
    """Return whether an element's own style shows it as a block, whatever its tag."""
    style = attributes.get("style")
    return style is not None and _SHOWN_AS_BLOCK.search(style) is not None


def names_flex(classes: str) -> bool:
    """Return whether Tailwind, Bootstrap and others show elements of these classes as flex."""
    # Few classes have the word, and searching for it is faster than an expression.
    return "flex" in classes and _FLEX_NAME.search(classes) is not None


def is_flex(attributes: Mapping[str, str]) -> bool:
    """Return whether the elements in an element stand side by side, with space between them."""
    style, classes = attributes.get("style"), attributes.get("class")
    is_styled = style is not None and _SHOWN_AS_FLEX.search(style) is not None
    return is_styled or (classes is not None and names_flex(classes))


def counts_up(text: str) -> bool:
    """Whether a text is at least two consecutive numbers, which are those of the lines next to
    it."""
    numbers = text.split()
    if len(numbers) < 2 or not numbers[0].isdecimal() or len(numbers[0]) > 6:
        return False
    first = int(numbers[0])
    return numbers == [str(first + index) for index in range(len(numbers))]


def address_in(attributes: Mapping[str, str]) -> str:
    """The text that Cloudflare protects from robots: its bytes in hexadecimal, each XORed with
    the first."""
    try:
        key, *text = bytes.fromhex(attributes["data-cfemail"])
    except ValueError:
        return ""
    return bytes(byte ^ key for byte in text).decode("utf-8", "replace")
