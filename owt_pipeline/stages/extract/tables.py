"""Tables of data as the grid of their cells, decided when a table ends from the blocks in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from owt_pipeline.stages.extract.blocks import CODE, ITEM, PREFORMATTED, ROW, Block, Container

LAYS_OUT = frozenset(("table", "h1", "h2", "form", "article", "section", "textarea"))
"""Elements that show a layout table."""
PARAGRAPHS = frozenset(("p", "div", "ul", "ol", "pre", "dl", "h3", "h4", "h5", "blockquote", "figure", "center"))
_MAX_SPAN = 50  # columns or rows; some pages use 1000 for "all"
_MAX_COLUMNS = 100  # in further columns, cells that span several count once

# The longest cell of a data table in characters, by how certain its other markup is. Without headers and with
# paragraphs in its cells, a table must be a grid of short cells.
_LONGEST_IF_SURE, _LONGEST_IF_LIKELY, _LONGEST_IN_GRID = 2000, 800, 250


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
      role: its ARIA role.
      rows: (section, cells) of each row.
      is_layout: whether it holds something that a table of data does not.
      has_headers, has_paragraphs: whether there are headers or a caption, and blocks within cells.
      captions: (start, end) of the blocks of captions.
    """

    container: Container
    start: int
    role: str
    rows: list[tuple[str, list[Cell]]] = field(default_factory=list)
    is_layout: bool = False
    has_headers: bool = False
    has_paragraphs: bool = False
    captions: list[tuple[int, int]] = field(default_factory=list)


def cell_of(tag: str, attributes: Mapping[str, str], start: int) -> Cell:
    return Cell(tag == "th", _span(attributes.get("colspan")), _span(attributes.get("rowspan")), start)


def rows_of_data(table: Table, blocks: list[Block]) -> list[Block] | None:
    """The rows of a data table whose cells have `blocks`; None for a layout table."""
    rows = table.rows
    widths = {sum(cell.columns for cell in cells) for _, cells in rows if cells}
    if table.is_layout or not widths or max(widths) < 2:
        return None
    inside = sum(cell.end - cell.start for _, cells in rows for cell in cells)
    if inside + sum(end - start for start, end in table.captions) < len(blocks) - table.start:
        return None  # some text is in no cell
    sure = table.has_headers
    if not sure and (len(rows) < 2 or table.role in ("presentation", "none")):
        return None
    if not sure and table.has_paragraphs and len(widths) > 1:
        return None
    longest = _LONGEST_IF_SURE if sure and not table.has_paragraphs else _LONGEST_IF_LIKELY
    if not sure and table.has_paragraphs:
        longest = _LONGEST_IN_GRID
    for _, cells in rows:
        for cell in cells:
            if sum(block.chars for block in blocks[cell.start : cell.end]) > longest:
                return None
    grid = _grid([cells for _, cells in rows])
    empty = min(next((i for i, cell in enumerate(row) if cell and cell.end > cell.start), len(row)) for row in grid)
    found = []
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
    value = (value or "1").strip()
    return min(max(int(value), 1), _MAX_SPAN) if value.isdecimal() and len(value) < 6 else 1
