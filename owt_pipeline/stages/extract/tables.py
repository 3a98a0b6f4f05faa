"""Tables of data as the grid of their cells, decided when a table ends from the blocks in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from owt_pipeline.stages.extract.blocks import CODE, ITEM, PREFORMATTED, ROW, Block, Container

LAYS_OUT = frozenset(("table", "h1", "h2", "form", "article", "section", "textarea"))
"""Elements that show a layout table."""
_MAX_SPAN = 50  # columns or rows; some pages use 1000 for "all"
_MAX_COLUMNS = 100  # in further columns, cells that span several count once
_LONGEST_CELL = 800  # characters; longer ones are the columns of a layout


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
    value = (value or "1").strip()
    return min(max(int(value), 1), _MAX_SPAN) if value.isdecimal() and len(value) < 6 else 1
