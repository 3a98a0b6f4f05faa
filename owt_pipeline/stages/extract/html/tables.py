"""Tables: the grid of the cells of a table of data, and code with a numbered line in each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import (
    CODE,
    ITEM,
    PREFORMATTED,
    ROW,
    Block,
    Container,
)

MAX_SPAN = 50  # columns or rows; some pages use 1000 for "all"
_MAX_COLUMNS = 100  # in further columns, cells that span several count once
_LONGEST_CELL = 800  # characters; longer ones are the columns of a layout


@dataclass
class Cell:
    """A cell: the columns and rows it spans, its blocks, and whether it is marked as the number
    of a line of code."""

    container: Container
    columns: int
    rows: int
    blocks: list[Block] = field(default_factory=list)
    is_line_number: bool = False


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


def numbered_lines(table: Table, blocks: list[Block]) -> Block | None:
    """Return the code in a table with a line and its number in each row; None for other tables."""
    rows = [row for _, row in table.rows if row]
    if len(rows) < 2 or not all(row[0].is_line_number for row in rows):
        return None
    lines: list[str] = []
    language = next((block.marked for block in blocks if block.form == PREFORMATTED), None)
    for row in rows:
        cells = [cell for cell in row if not cell.is_line_number]
        line_blocks = [block for cell in cells for block in cell.blocks]
        if any(block.form != PREFORMATTED for block in line_blocks):
            return None
        lines.append("\n".join(block.text for block in line_blocks))
    return Block(PREFORMATTED, "\n".join(lines).strip("\n"), 0, table.container, language)


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
        if any(one.tag == "caption" for one in islice(block.container.ancestors(), 2))
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
