"""Preformatted text: the lines of a piece of code, without the line numbers drawn next to them.

Highlighters write a line as text that ends in a newline, as a `<div>`, as `<span class="line">`, or as a row of a
table whose first cell holds its number; or they put all the numbers into one cell and the code into another.
"""

from __future__ import annotations

import re
from functools import lru_cache

from lxml import etree

from owt_pipeline.extract.names import BLOCK, NOT_TEXT

_GUTTER = re.compile(
    r"(?:^|[\s_-])(?:line-?no|line-?nos|linenumbers?|line-?nums?|line-numbers?|ln|lnt|gutter|blob-num|lineno|linenos"
    r"|rouge-gutter|gl|hljs-ln-numbers|hljs-ln-n|line-numbers-rows|linenodiv|line-number|td-line-number)(?=[\s_-]|$)",
    re.IGNORECASE,
)
_LINE = re.compile(r"(?:^|\s)(?:line|code-line|token-line|view-line|cl|hljs-ln-line)(?:\s|$)")
_CODE = re.compile(
    r"highlight|chroma|rouge|hljs|syntax|lntable|blob|prettyprint|(?:^|[\s_-])code(?=[\s_-]|$)", re.IGNORECASE
)
_LANGUAGE = re.compile(
    r"(?:^|\s)(?:language|lang|highlight-source|highlight|brush:|sourceCode)[-\s]?\s*"
    r"(?!(?:none|text|plaintext|default|source|wrapper|container|box|block|frame)\b)([a-z][a-z0-9+#]{0,15})(?=[\s;]|$)",
    re.IGNORECASE,
)
_STRUCTURE = ("p", "h1", "h2", "h3", "h4", "ul", "form", "table")
_SPACES = re.compile(r"[ \t\r\n]+")
_NUMBERS = re.compile(r"[\d\s]*")


def is_preformatted(pre: etree._Element) -> bool:
    """Whether a `<pre>` holds lines of text, and not a part of a page (as where it was never closed)."""
    below = next(pre.iter(*_STRUCTURE), None)
    return below is None or (below.tag == "table" and code_of_table(below) is not None)


def code_of(element: etree._Element, *, keeps_spaces: bool = True) -> str:
    """The lines of `element`. `keeps_spaces`: white space is text, as in `<pre>`; else only `&nbsp;` indents."""
    lines = _Lines(keeps_spaces)
    lines.read(element, 0)
    text = "".join(lines.pieces)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\xa0", " ").replace("\u200b", "")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def code_of_table(table: etree._Element) -> str | None:
    """The code in a table of which all other cells are line numbers; None where the table is no such one."""
    if next(table.iter("pre", "code"), None) is None and not _CODE.search(table.get("class") or ""):
        return None
    lines, numbered = [], False
    for row in table.iter("tr"):
        cells = [cell for cell in row if cell.tag in ("td", "th")]
        code = [cell for cell in cells if not is_gutter(cell)]
        numbered |= len(code) < len(cells)
        if len(code) > 1:
            return None
        if code:
            lines.append(code_of(code[0]))
    return "\n".join(lines).strip("\n") if numbered and lines else None


def is_gutter(element: etree._Element) -> bool:
    """Whether an element holds the numbers of lines and nothing else."""
    classes = element.get("class")
    if classes and _names_gutter(classes):
        return _NUMBERS.fullmatch("".join(element.itertext())) is not None
    if element.tag not in ("td", "pre"):
        return False
    if element.get("data-line-number") is not None:
        return True
    numbers = " ".join(element.itertext()).split()
    if len(numbers) < 2 or not numbers[0].isdecimal():
        return False
    first = int(numbers[0]) if len(numbers[0]) < 7 else 0
    return numbers == [str(first + index) for index in range(len(numbers))]


def language_of(element: etree._Element) -> str:
    """The language that the classes of a `<pre>`, of the `<code>` in it or of what is around it name; "" if none."""
    inner = element.find(".//code")
    around = element.getparent()
    further = around.getparent() if around is not None else None
    for holder in (inner, element, around, further):
        if holder is not None and (match := _LANGUAGE.search(holder.get("class") or "")):
            return match[1].lower()
    return ""


@lru_cache(maxsize=1024)
def _names_gutter(classes: str) -> bool:
    return _GUTTER.search(classes) is not None


@lru_cache(maxsize=1024)
def _names_line(classes: str | None) -> bool:
    return classes is not None and _LINE.search(classes) is not None


class _Lines:
    def __init__(self, keeps_spaces: bool) -> None:
        self.pieces: list[str] = []
        self._keeps_spaces = keeps_spaces
        self._line_ended = False

    def read(self, element: etree._Element, depth: int) -> None:
        if depth > 200:
            self._add("".join(element.itertext()))
            return
        if element.text:
            self._add(element.text)
        for child in element:
            tag = child.tag
            if tag == "br":
                self._end_line()
                self.pieces.append("\n")
            elif tag not in NOT_TEXT and not is_gutter(child):
                starts_line = tag in BLOCK
                if starts_line or (tag == "span" and _names_line(child.get("class"))):
                    self._end_line()
                    if self.pieces and not self.pieces[-1].endswith("\n"):
                        self.pieces.append("\n")
                self.read(child, depth + 1)
                if starts_line:
                    self._end_line()
                    self._line_ended = True
            if child.tail:
                self._add(child.tail)

    def _add(self, text: str) -> None:
        if not self._keeps_spaces:
            text = _SPACES.sub(" ", text)
            if not self.pieces or self._line_ended or self.pieces[-1].endswith("\n"):
                text = text.lstrip(" ")
            if not text:
                return
        if self._line_ended:
            self._line_ended = False
            if text.isspace() and "\n" in text:
                text = "\n"  # between two lines that are elements
            elif not text.startswith("\n"):
                self.pieces.append("\n")
        self.pieces.append(text)

    def _end_line(self) -> None:
        if self._line_ended:
            self.pieces.append("\n")
            self._line_ended = False
