"""From the parser's events to blocks of text, and what lists, tables, headings and parts of a
page mean for them.

Tables of data become the grid of their cells, which is decided when a table ends, from the blocks
in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import (
    CODE,
    DISPLAY,
    FORMULA,
    HEADING,
    ITEM,
    OTHER,
    PARAGRAPH,
    PREFORMATTED,
    ROW,
    Block,
    Container,
)
from owt_pipeline.stages.extract.html.inner import Inner, Lines, counts_up
from owt_pipeline.stages.extract.html.marks import Marks, PageRead
from owt_pipeline.stages.extract.html.names import CHROME

BREAK = "\x00"
"""Represents `<br>` until a block is complete; parsed text has no zero characters."""
INITIAL = re.compile(r"[\"“‘'«¿¡]?[^\W\d_a-z]{1,2}")
"""A letter that begins a text and is larger than it."""
_LINE_ENDS, _EMPTY_LINES = re.compile("\n+"), re.compile("\n{3,}")
_LINKS_TO_SELF = frozenset(("¶", "#", "🔗", "↩", "↩︎", "⤴", "⏎"))
_LONGEST_SCRIPT = 20  # pieces of text
# Superscripts that keep meaning after a digit, a bracket or a word of one or two letters; `e` and
# `o` are ordinals.
_EXPONENT = re.compile(r"[-−–+]?(?:\d+[a-z]?|[bijkmnpqtxyzA-Z])(?:[-−–+](?:\d+|[a-z]))?[-−–+]?")
_BASE = re.compile(r"(?:[\d)\]}]|(?<![^\W\d_])[^\W\d_]{1,2})$")

Opened = Container | Callable[[], None] | None
"""An open element: a container, what to do at the end of another one, or None for nothing."""

PREFORMATTED_TAGS = frozenset(("pre", "listing", "xmp", "plaintext"))
_MOST_HEADINGS, _LONGEST_HEADING = 50, 1000
_MOST_IN_FIGURE = 200  # blocks
_MOST_SKIPPED = (
    4  # most characters of navigation and footers left out, as a multiple of the others'
)
WITH_END = frozenset(("h1", "td", "th", "table", "figure", "nav", "footer", "noscript"))
SPECIAL = PREFORMATTED_TAGS | {"li", "ol", "table", "tr", "td", "th", "thead", "caption"}

_OF_PAGE = frozenset(("article", "main", "nav", "footer"))
"""Elements in which navigation and footers are not those of the page."""
LAYS_OUT = frozenset(("table", "h1", "h2", "form", "article", "section", "textarea"))
"""Elements that show a layout table."""
_MAX_SPAN = 50  # columns or rows; some pages use 1000 for "all"
_MAX_COLUMNS = 100  # in further columns, cells that span several count once
_LONGEST_CELL = 800  # characters; longer ones are the columns of a layout


class Structure:
    """The blocks and containers so far, the open parts of the page, and the text since the end
    of the last block."""

    def __init__(self) -> None:
        self.page = PageRead()
        self.blocks = self.page.blocks
        self._marks = Marks(self.page)
        self._open_marks = self._marks.open
        self._inner: Inner | None = None
        self._at = self._body = Container(
            0, "body", None, OTHER
        )  # the container of the text that follows
        self._count = 1  # containers so far
        self._stack: list[Opened] = []
        self._pieces: list[str] = []
        self._link_chars = self._links = self._images = 0
        self._links_around = 0
        self._initial = ""  # a letter that is an image
        self._skipped: list[Block] = []  # those of navigation and footers
        self._tables: list[Table] = []  # open ones

    def data(self, text: str) -> None:
        """Take text from the parser."""
        if self._inner is not None:
            self._inner.add(text)
            return
        if self._open_marks:
            self._marks.add(text)
        if (
            not self._pieces and text.isspace() and "\xa0" not in text
        ):  # half of all texts, between two blocks
            return
        if self._initial:
            start = text.lstrip()
            text = self._initial + start if start[:1].islower() else text
            self._initial = ""
        if self._links_around:
            if text in _LINKS_TO_SELF:
                return
            self._link_chars += len(text.strip())
        self._pieces.append(text)

    def _end_block(self) -> None:
        joined = "".join(self._pieces)
        marked = None
        if (
            joined.isprintable() and "  " not in joined
        ):  # nothing but text and single blanks, which is quickly known
            text = joined.strip()
        elif not (BREAK in joined or CODE in joined or FORMULA in joined or DISPLAY in joined):
            text = " ".join(joined.split())
        else:
            lines = "\n".join(
                " ".join(line.split()) for line in joined.replace(CODE + CODE, "").split(BREAK)
            )
            if lines.count(CODE) % 2:  # code begins or ends around other blocks
                lines = lines.replace(CODE, "")
            unmarked = lines.replace(CODE, "").replace(FORMULA, "").replace(DISPLAY, "")
            text = _LINE_ENDS.sub("\n", unmarked).strip()
            marked = _EMPTY_LINES.sub("\n\n", lines.strip("\n"))
        if text:
            self._marks.end_block(text)
            container = self._at
            block = Block(
                container.form,
                text,
                min(self._link_chars, len(text)),
                container,
                marked if marked != text else None,
            )
            block.links, block.images, self._images = self._links, self._images, 0
            last = self.blocks[-1] if self.blocks else None
            if last is not None and last.chars < 4 and _is_initial(last, block):
                self.blocks.pop()
                block.text = last.text + text
                block.marked = block.marked and last.text + block.marked
                block.chars = len(block.text)
            self.blocks.append(block)
        self._pieces, self._link_chars, self._links, self._initial = [], 0, 0, ""

    def _add_formula(self, latex: str, is_large: bool) -> None:
        if not latex or (self._pieces and self._pieces[-1].strip(FORMULA + DISPLAY) == latex):
            return  # the same formula as MathML and as an image
        mark = DISPLAY if is_large else FORMULA
        self._pieces.append(f"{mark}{latex}{mark}")

    def _end_code(self) -> None:
        self._pieces.append(CODE)

    def _end_quote(self, blocks: int, start: int) -> None:
        """Close a `<q>`, whose quotation mark is the piece `start`, unless it has its own or a
        block ended in it."""
        if blocks < len(self.blocks):
            return
        inner = "".join(self._pieces[start + 1 :]).strip()
        if not inner or inner[0] in '"“”„«»‘‚「':
            del self._pieces[start]
        else:
            self._pieces.append("”")

    def _end_superscript(self, blocks: int, start: int, link_chars: int) -> None:
        """Write a superscript, which is the text from the piece `start` on: `10^6` is not 106."""
        if blocks < len(self.blocks) or len(self._pieces) >= start + _LONGEST_SCRIPT:
            return
        text, before = (
            "".join(self._pieces[start:]),
            "".join(self._pieces[max(start - 8, 0) : start]),
        )
        script = text.strip()
        is_note = self._link_chars > link_chars
        if is_note and script.isdecimal():
            self._pieces[start:] = [f"[{script}]"]
        elif not is_note and _EXPONENT.fullmatch(script) and _BASE.search(before):
            written = script if script.lstrip("-−–+").isalnum() else f"{{{script}}}"
            self._pieces[start:] = [f"^{written}", text[len(text.rstrip()) :]]

    def _start_special(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        around = container.parent or container
        if tag in PREFORMATTED_TAGS:
            self._inner = Lines(container.names)
        elif tag == "li":
            if around.tag == "ol":
                container.number = _integer(attributes.get("value"), around.number)
                around.number = container.number + 1
        elif tag == "ol":
            container.number = _integer(attributes.get("start"), 1)
        elif tag == "table":
            self._tables.append(
                Table(container, attributes.get("role") in ("presentation", "none"))
            )
        elif self._tables:
            table = self._tables[-1]
            table.has_headers |= tag in ("th", "thead", "caption")
            if tag == "tr":
                table.rows.append((around.tag == "thead", []))
            elif tag in ("td", "th") and table.rows and around.tag == "tr":
                spans = (_integer(attributes.get(name), 1) for name in ("colspan", "rowspan"))
                columns, rows = (min(max(span, 1), _MAX_SPAN) for span in spans)
                table.rows[-1][1].append(Cell(container, columns, rows))

    def _end_special(self, tag: str, container: Container) -> None:
        found = self.blocks[container.start :]
        if tag == "h1":
            if len(self.page.headings) < _MOST_HEADINGS:
                text = " ".join(" ".join(block.text for block in found).split())
                self.page.headings.append(text[:_LONGEST_HEADING])
        elif tag in ("td", "th"):
            cells = self._tables[-1].rows[-1][1] if self._tables and self._tables[-1].rows else []
            if cells and cells[-1].container is container:
                cells[-1].blocks = found
        elif tag == "table":
            self._end_table(self._tables.pop(), found)
        elif tag == "figure":
            if any(block.form in (ROW, PREFORMATTED) for block in found[:_MOST_IN_FIGURE]):
                container.kind &= ~CHROME
        elif tag == "noscript":
            if all(block.form != PARAGRAPH for block in found):
                del self.blocks[
                    container.start :
                ]  # not the page for browsers without scripts, but a notice
        elif all(around.tag not in _OF_PAGE for around in islice(container.around(), 1, None)):
            # Navigation and a footer that are mostly links, if they are not most of the page.
            chars = sum(block.chars for block in found)
            links = sum(block.link_chars for block in found)
            if links > 0.6 * chars or (tag == "footer" and chars - links < 400):
                self._skipped += found

    def _leave_skipped(self) -> None:
        skipped = set(self._skipped)
        kept = [block for block in self.blocks if block not in skipped]
        chars = sum(block.chars for block in self._skipped)
        if kept and chars <= _MOST_SKIPPED * sum(block.chars for block in kept):
            self.page.blocks = kept

    def _add_lines(self, lines: Lines) -> None:
        text = lines.text()
        if text.strip() and not (
            self._tables and counts_up(text)
        ):  # the numbers of lines in another cell
            self.blocks.append(Block(PREFORMATTED, text, 0, self._at, lines.language))

    def _end_table(self, table: Table, found: list[Block]) -> None:
        container = table.container
        rows = rows_of_data(table, found)
        if rows is not None:
            self.blocks[container.start :] = rows
            self._count, container.children = container.index + 1, 0
            for block in rows:
                if block.form != ROW:
                    block.container = Container(self._count, "caption", container, OTHER)
                    self._count += 1
                    container.children += 1
            container.end = self._count


def _is_initial(last: Block, block: Block) -> bool:
    """Whether the block before is the first letter of this one, which an element of its own
    makes large."""
    if last.form in (ITEM, HEADING, ROW) or block.form in (ITEM, HEADING):
        return False
    return block.text[0].islower() and INITIAL.fullmatch(last.text) is not None


def _integer(text: str | None, otherwise: int) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise


@dataclass
class Cell:
    """A cell: the columns and rows it spans, and its blocks."""

    container: Container
    columns: int
    rows: int
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Table:
    """An open table.

    Attributes:
      container: its container.
      is_layout: whether it holds something that a table of data does not.
      has_headers: whether there are headers or a caption.
      rows: whether each row is in the table's head, and its cells.
    """

    container: Container
    is_layout: bool
    has_headers: bool = False
    rows: list[tuple[bool, list[Cell]]] = field(default_factory=list)


def rows_of_data(table: Table, blocks: list[Block]) -> list[Block] | None:
    """The captions and the rows of a data table with these blocks; None for a layout table."""
    cells = [cell for _, row in table.rows for cell in row]
    widths = {sum(cell.columns for cell in row) for _, row in table.rows if row}
    if (
        table.is_layout
        or max(widths, default=0) < 2
        or (not table.has_headers and len(table.rows) < 2)
    ):
        return None
    found = [
        block
        for block in blocks
        if any(one.tag == "caption" for one in islice(block.container.around(), 2))
    ]
    if len(found) + sum(len(cell.blocks) for cell in cells) < len(blocks):
        return None  # some text is in no cell
    if any(sum(block.chars for block in cell.blocks) > _LONGEST_CELL for cell in cells):
        return None
    grid = _grid([row for _, row in table.rows])
    empty = min(
        next((i for i, cell in enumerate(row) if cell and cell.blocks), len(row)) for row in grid
    )
    for (is_head, row_cells), placed in zip(table.rows, grid, strict=True):
        of_cells = [cell.blocks if cell else [] for cell in placed]
        text = "\t".join(
            " ".join(" ".join(b.text.split()) for b in some) for some in of_cells[empty:]
        ).rstrip()
        if text:
            links = sum(block.link_chars for some in of_cells for block in some)
            row = Block(ROW, text, min(links, len(text)), table.container)
            row.cells = tuple("\n".join(map(_in_cell, some)) for some in of_cells)
            row.is_header = is_head or all(cell.container.tag == "th" for cell in row_cells)
            found.append(row)
    return found


def _in_cell(block: Block) -> str:
    if block.form == PREFORMATTED:
        return "\n".join(f"{CODE}{line}{CODE}" for line in block.text.split("\n") if line)
    return f"- {block.marked or block.text}" if block.form == ITEM else block.marked or block.text


def _grid(rows: list[list[Cell]]) -> list[list[Cell | None]]:
    """The cells of each row by column; None if another cell spans."""
    grid = []
    below: dict[int, int] = {}  # column → rows further down that a cell still spans
    for own in rows:
        placed: list[Cell | None] = []
        for cell in own:
            _skip_spanned(placed, below)
            for column in range(cell.columns):
                if cell.rows > 1:
                    below[len(placed)] = cell.rows - 1
                if not column or len(placed) < _MAX_COLUMNS:
                    placed.append(None if column else cell)
        _skip_spanned(placed, below)
        grid.append(placed)
    return grid


def _skip_spanned(placed: list[Cell | None], below: dict[int, int]) -> None:
    while len(placed) < _MAX_COLUMNS and below.get(len(placed), 0) > 0:
        below[len(placed)] -= 1
        placed.append(None)
