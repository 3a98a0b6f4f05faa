"""Markup whose layout is content: tables of data as the grid of their cells, and code as its lines."""

from __future__ import annotations

import re

from lxml import etree

from owt_pipeline.stages.extract.names import BLOCK, NOT_TEXT, finder

_LAYS_OUT = ("table", "h1", "h2", "form", "article", "section", "textarea")  # in a cell, they show a layout table
_PARAGRAPHS = ("p", "div", "ul", "ol", "pre", "dl", "h3", "h4", "h5", "blockquote", "figure", "center")
_ORDER = {"thead": 0, "tfoot": 2}  # in which a table's sections are shown; the foot may be written before the body
_MAX_SPAN = 50  # columns or rows; some pages use 1000 for "all"
_MAX_COLUMNS = 100  # in further columns, cells that span several count once

# The longest cell of a data table in characters, by how certain its other markup is. Without headers and with
# paragraphs in its cells, a table must be a grid of short cells.
_LONGEST_IF_SURE, _LONGEST_IF_LIKELY, _LONGEST_IN_GRID = 2000, 800, 250


Row = tuple[list[etree._Element | None], bool]
"""A row of a table: its cells by column, None if an earlier cell spans; and whether it is a header row."""


def rows_of_data(table: etree._Element) -> list[Row] | None:
    """The rows of a data table; None for a layout table."""
    below = table.iter(*_LAYS_OUT)
    next(below, None)  # the table itself
    if next(below, None) is not None:
        return None
    rows = sorted(table.iter("tr"), key=lambda row: _ORDER.get(row.getparent().tag, 1))
    cells = [[cell for cell in row if cell.tag in ("td", "th")] for row in rows]
    widths = {sum(_span(cell, "colspan") for cell in row) for row in cells if row}
    if not widths or max(widths) < 2:
        return None
    if sum(map(len, cells)) != sum(1 for _ in table.iter("td", "th")):
        return None  # some cells are in no row
    has_headers = next(table.iter("th", "caption", "thead"), None) is not None
    if not has_headers and (len(rows) < 2 or table.get("role") in ("presentation", "none")):
        return None
    has_lines_only = next(table.iter(*_PARAGRAPHS), None) is None
    if not has_headers and not has_lines_only and len(widths) > 1:
        return None
    longest = _LONGEST_IF_SURE if has_headers and has_lines_only else _LONGEST_IF_LIKELY
    if not has_headers and not has_lines_only:
        longest = _LONGEST_IN_GRID
    if any(_length(cell) > longest for row in cells for cell in row):
        return None
    return _grid(rows, cells)


def _grid(rows: list[etree._Element], cells: list[list[etree._Element]]) -> list[Row]:
    grid = []
    below: dict[int, int] = {}  # column → rows further down that a cell still spans
    for row, own in zip(rows, cells, strict=True):
        placed: list[etree._Element | None] = []
        for cell in own:
            _skip_spanned(placed, below)
            rows_spanned = _span(cell, "rowspan") - 1
            for column in range(_span(cell, "colspan")):
                if rows_spanned:
                    below[len(placed)] = rows_spanned
                if not column or len(placed) < _MAX_COLUMNS:
                    placed.append(None if column else cell)
        _skip_spanned(placed, below)
        parent = row.getparent()
        in_head = parent is not None and parent.tag == "thead"
        grid.append((placed, bool(own) and (in_head or all(cell.tag == "th" for cell in own))))
    return grid


def _skip_spanned(placed: list[etree._Element | None], below: dict[int, int]) -> None:
    while len(placed) < _MAX_COLUMNS and below.get(len(placed), 0) > 0:
        below[len(placed)] -= 1
        placed.append(None)


def _span(cell: etree._Element, name: str) -> int:
    value = (cell.get(name) or "1").strip()
    return min(max(int(value), 1), _MAX_SPAN) if value.isdecimal() and len(value) < 6 else 1


def _length(cell: etree._Element) -> int:
    """Approximate number of characters in a cell."""
    if not len(cell):
        return len(cell.text or "")
    return sum(len(piece.strip()) for piece in cell.itertext())


_NAMES_GUTTER = finder(
    re.compile(
        r"(?:^|[\s_-])(?:line-?no|line-?nos|linenumbers?|line-?nums?|line-numbers?|ln|lnt|gutter|blob-num|lineno|linenos"
        r"|rouge-gutter|gl|hljs-ln-numbers|hljs-ln-n|line-numbers-rows|linenodiv|line-number|td-line-number)(?=[\s_-]|$)",
        re.IGNORECASE,
    )
)
_NAMES_LINE = finder(
    re.compile(r"(?:^|\s)(?:line|code-line|token-line|view-line|cl|hljs-ln-line|cm-line|CodeMirror-line)(?:\s|$)")
)
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


_PRE = re.compile(r"white-space\s*:\s*pre\b(?!-line)", re.IGNORECASE)
_MONOSPACE = re.compile(r"font(?:-family)?\s*:[^;]*(?:monospace|consolas|courier|menlo|monaco)", re.IGNORECASE)


def styled_as_code(style: str) -> bool:
    """Whether a `<div>` has the style of code that editors put on the clipboard, with a line in each element."""
    return _MONOSPACE.search(style) is not None and _PRE.search(style) is not None


def is_preformatted(pre: etree._Element) -> bool:
    """Whether a `<pre>` holds lines of text, not a part of a page (because it was never closed)."""
    below = next(pre.iter(*_STRUCTURE), None)
    return below is None or (below.tag == "table" and code_of_table(below) is not None)


def code_of(element: etree._Element, *, keeps_spaces: bool = True) -> str:
    """The lines of `element`. `keeps_spaces`: keep white space, as in `<pre>`; otherwise only `&nbsp;` indents."""
    lines = _Lines(keeps_spaces)
    lines.read(element, 0)
    text = "".join(lines.pieces)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.replace("\xa0", " ").replace("\u200b", "")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def code_of_table(table: etree._Element) -> str | None:
    """The code in a table whose other cells are all line numbers; None for any other table."""
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
    """Whether an element holds only line numbers."""
    classes = element.get("class")
    if classes and _NAMES_GUTTER[classes]:
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
    """The language named by the classes of a `<pre>`, its `<code>` or the elements around it; "" if there is none."""
    inner = element.find(".//code")
    around = element.getparent()
    further = around.getparent() if around is not None else None
    for holder in (inner, element, around, further):
        if holder is not None and (match := _LANGUAGE.search(holder.get("class") or "")):
            return match[1].lower()
    return ""


class _Lines:
    """The walk over an element that collects its lines."""

    def __init__(self, keeps_spaces: bool) -> None:
        self.pieces: list[str] = []
        self._keeps_spaces = keeps_spaces
        self._line_ended = False
        self._after_break = 0  # pieces up to and including the last <br>

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
                self._after_break = len(self.pieces)
            elif tag not in NOT_TEXT and not is_gutter(child):
                starts_line = tag in BLOCK
                if starts_line or (tag == "span" and _NAMES_LINE[child.get("class") or ""]):
                    self._end_line()
                    if self.pieces and not self.pieces[-1].endswith("\n"):
                        self.pieces.append("\n")
                self.read(child, depth + 1)
                if starts_line:
                    self._end_line()
                    if self.pieces and self._after_break == len(self.pieces):
                        self.pieces.pop()  # the <br> only ends the element's line
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
