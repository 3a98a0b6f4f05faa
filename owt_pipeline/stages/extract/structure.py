"""What the start and the end of lists, tables, headings and parts of a page mean for the blocks in them.

Tables of data become the grid of their cells, which is decided when a table ends, from the blocks in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from owt_pipeline.stages.extract.blocks import CAPTION, CODE, ITEM, PARAGRAPH, PREFORMATTED, ROW, Block, Container
from owt_pipeline.stages.extract.inner import Lines, counts_up, language_of
from owt_pipeline.stages.extract.names import COMMENT, HIDDEN, UNSHOWN
from owt_pipeline.stages.extract.text import Text

PREFORMATTED_TAGS = frozenset(("pre", "listing", "xmp", "plaintext"))
_MOST_HEADINGS, _LONGEST_HEADING = 50, 1000
_MOST_IN_FIGURE = 200  # blocks
_MOST_SKIPPED = 4  # most characters of navigation and footers left out, as a multiple of the others'
WITH_END = frozenset(("h1", "article", "main", "td", "th", "table", "figure", "nav", "footer", "noscript"))
SPECIAL = WITH_END | PREFORMATTED_TAGS | {"li", "ol", "tr", "thead", "caption"}

LAYS_OUT = frozenset(("table", "h1", "h2", "form", "article", "section", "textarea"))
"""Elements that show a layout table."""
_MAX_SPAN = 50  # columns or rows; some pages use 1000 for "all"
_MAX_COLUMNS = 100  # in further columns, cells that span several count once
_LONGEST_CELL = 800  # characters; longer ones are the columns of a layout


class Structure(Text):
    """Adds to Text the open parts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self._heading: int | None = None  # number of blocks before an open <h1>
        self._main = 0  # depth of <article> and <main>
        self._around_navigation = 0  # depth of <nav> and <footer>
        self._skipped: list[Block] = []  # those of navigation and footers
        self._tables: list[Table] = []  # open ones

    def _start_special(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        if tag == "li":
            around = container.parent
            if around is not None and around.tag == "ol" and around.number >= 0:
                container.number = _integer(attributes.get("value"), around.number)
                around.number = container.number + 1
        elif tag == "ol":
            container.number = _integer(attributes.get("start"), 1)
        elif tag == "h1":
            self._heading = len(self.blocks)
        elif tag in ("article", "main"):
            self._main += 1
        elif tag in ("figure", "nav", "footer", "noscript"):
            container.number = len(self.blocks)
            self._around_navigation += tag in ("nav", "footer")
        elif tag in ("td", "th"):
            self._start_cell(tag, attributes, container)
        elif tag == "table":
            self._tables.append(Table(container, len(self.blocks)))
            self._tables[-1].is_layout = attributes.get("role") in ("presentation", "none")
        elif not self._tables:
            return
        elif tag == "tr":
            section = container.parent.tag if container.parent is not None else ""
            self._tables[-1].rows.append((section, []))
        elif tag in ("thead", "caption"):
            self._tables[-1].has_headers = True

    def _start_cell(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        if not self._tables:
            return
        table = self._tables[-1]
        if table.rows and (container.parent is not None and container.parent.tag == "tr"):
            table.rows[-1][1].append(cell_of(tag, attributes, len(self.blocks)))
        table.has_headers |= tag == "th"

    def _end_special(self, tag: str, container: Container) -> None:
        if tag == "h1":
            if self._heading is not None and len(self.page.headings) < _MOST_HEADINGS:
                text = " ".join(" ".join(block.text for block in self.blocks[self._heading :]).split())
                self.page.headings.append(text[:_LONGEST_HEADING])
            self._heading = None
        elif tag in ("article", "main"):
            self._main -= 1
        elif tag in ("td", "th"):
            in_row = container.parent is not None and container.parent.tag == "tr"
            if in_row and self._tables and self._tables[-1].rows and self._tables[-1].rows[-1][1]:
                self._tables[-1].rows[-1][1][-1].end = len(self.blocks)
        elif tag == "table":
            self._end_table(self._tables.pop())
        elif tag == "figure":
            if len(self.blocks) - container.number < _MOST_IN_FIGURE:
                found = self.blocks[container.number :]
                if any(block.form in (ROW, PREFORMATTED) for block in found):
                    container.kind &= COMMENT | HIDDEN | UNSHOWN
            container.number = -1
        elif tag == "noscript":
            if all(block.form != PARAGRAPH for block in self.blocks[container.number :]):
                del self.blocks[container.number :]  # not the page for browsers without scripts, but a notice
            container.number = -1
        else:  # nav, footer
            self._around_navigation -= 1
            if not self._main and not self._around_navigation:
                self._skip(container)
            container.number = -1

    def _skip(self, container: Container) -> None:
        """Leave out navigation and a footer that are mostly links, if they are not most of the page."""
        found = self.blocks[container.number :]
        chars = sum(block.chars for block in found)
        links = sum(block.link_chars for block in found)
        if links > 0.6 * chars or (container.tag == "footer" and chars - links < 400):
            self._skipped += found

    def _leave_skipped(self) -> None:
        skipped = set(self._skipped)
        kept = [block for block in self.blocks if block not in skipped]
        chars = sum(block.chars for block in self._skipped)
        if kept and chars <= _MOST_SKIPPED * sum(block.chars for block in kept):
            self.page.blocks = kept

    def _add_lines(self, lines: Lines) -> None:
        text = lines.text()
        if text.strip() and not (self._tables and counts_up(text)):  # the numbers of lines in another cell
            names = [around.names for around in islice(self._at.around(), 3)]
            self.blocks.append(Block(PREFORMATTED, text, 0, self._at, language_of(lines.classes, *names) or None))

    def _end_table(self, table: Table) -> None:
        container = table.container
        rows = rows_of_data(table, self.blocks)
        if rows is None:
            return
        self.blocks[table.start :] = rows
        self._count, container.children = container.index + 1, 0
        for block in rows:
            if block.form != ROW:
                block.container = self._contain("caption", container, CAPTION)
        container.end = self._count


def _integer(text: str | None, otherwise: int) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise


@dataclass
class Cell:
    """A cell: its blocks are those from `start` to `end`."""

    is_header: bool
    columns: int
    rows: int
    start: int
    end: int = 0


@dataclass
class Table:
    """An open table.

    Attributes:
      container: its container.
      start: number of blocks before it.
      rows: (section, cells) of each row.
      is_layout: whether it holds something that a table of data does not.
      has_headers: whether there are headers or a caption.
    """

    container: Container
    start: int
    rows: list[tuple[str, list[Cell]]] = field(default_factory=list)
    is_layout: bool = False
    has_headers: bool = False


def cell_of(tag: str, attributes: Mapping[str, str], start: int) -> Cell:
    return Cell(tag == "th", _span(attributes.get("colspan")), _span(attributes.get("rowspan")), start)


def rows_of_data(table: Table, blocks: list[Block]) -> list[Block] | None:
    """The captions and the rows of a data table whose cells have `blocks`; None for a layout table."""
    rows = table.rows
    widths = {sum(cell.columns for cell in cells) for _, cells in rows if cells}
    if table.is_layout or not widths or max(widths) < 2:
        return None
    found = [b for b in blocks[table.start :] if any(one.tag == "caption" for one in islice(b.container.around(), 2))]
    if len(found) + sum(cell.end - cell.start for _, cells in rows for cell in cells) < len(blocks) - table.start:
        return None  # some text is in no cell
    if not table.has_headers and len(rows) < 2:
        return None
    for _, cells in rows:
        for cell in cells:
            if sum(block.chars for block in blocks[cell.start : cell.end]) > _LONGEST_CELL:
                return None
    grid = _grid([cells for _, cells in rows])
    empty = min(next((i for i, cell in enumerate(row) if cell and cell.end > cell.start), len(row)) for row in grid)
    for (section, cells), placed in zip(rows, grid, strict=True):
        of_cells = [blocks[cell.start : cell.end] if cell else [] for cell in placed]
        text = "\t".join(" ".join(" ".join(b.text.split()) for b in some) for some in of_cells[empty:]).rstrip()
        if text:
            links = sum(block.link_chars for some in of_cells for block in some)
            row = Block(ROW, text, min(links, len(text)), table.container)
            row.cells = tuple("\n".join(map(_in_cell, some)) for some in of_cells)
            row.is_header = bool(cells) and (section == "thead" or all(cell.is_header for cell in cells))
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


def _span(value: str | None) -> int:
    return min(max(_integer(value, 1), 1), _MAX_SPAN)
