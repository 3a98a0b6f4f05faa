"""Tables: the grid of the cells of a table of data, and code with a numbered line in each row."""

from __future__ import annotations

from collections.abc import Mapping
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

# Columns or rows that one cell spans. Some pages write 1000 for "all".
_MAX_SPAN = 50
# In further columns, a cell that spans several counts once.
_MAX_COLUMNS = 100
# A longer cell is a column of a layout.
_MAX_CELL_CHARS = 800


@dataclass
class Cell:
    """A cell of a table.

    Attributes:
      container: its container.
      columns, rows: the numbers of columns and rows that it spans.
      blocks: its text.
      is_line_number: whether it is marked as the number of a line of code.
    """

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
    """Return the code in a table with a line and its number in each row; None for other tables.

    The numbers are marked by a class or an attribute.
    """
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
    if not any(lines):
        return None
    return Block(PREFORMATTED, "\n".join(lines).strip("\n"), 0, table.container, language)


def awaits_line(table: Table) -> bool:
    """Return whether the next cell of the open row is a line of code.

    The cells before it are marked as the number of the line.
    """
    cells = table.rows[-1][1] if table.rows else []
    if not cells or not cells[0].is_line_number:
        return False
    if not all(cell.is_line_number or not cell.blocks for cell in cells):
        return False
    return all(block.text.isdecimal() for cell in cells for block in cell.blocks)


def rows_of_data(table: Table, blocks: list[Block]) -> list[Block] | None:
    """Return the captions and the rows of a data table; None for a layout table.

    `blocks` are those in the table.
    """
    if not _is_data(table):
        return None
    cells = [cell for _, row in table.rows for cell in row]
    captions = [block for block in blocks if _is_in_caption(block)]
    if len(captions) + sum(len(cell.blocks) for cell in cells) < len(blocks):
        # Some text is in no cell.
        return None
    if any(sum(block.chars for block in cell.blocks) > _MAX_CELL_CHARS for cell in cells):
        return None
    grid = _grid([row for _, row in table.rows])
    num_empty = min(map(_num_empty_at_start, grid))
    rows = captions
    for (is_head, row_cells), placed in zip(table.rows, grid, strict=True):
        blocks_by_column = [cell.blocks if cell else [] for cell in placed]
        texts = [_plain_cell(cell_blocks) for cell_blocks in blocks_by_column[num_empty:]]
        text = "\t".join(texts).rstrip()
        if not text:
            continue
        link_chars = sum(block.link_chars for column in blocks_by_column for block in column)
        row = Block(ROW, text, min(link_chars, len(text)), table.container)
        row.cells = tuple("\n".join(map(_in_cell, column)) for column in blocks_by_column)
        row.is_header = is_head or all(cell.container.tag == "th" for cell in row_cells)
        rows.append(row)
    return rows


def _is_data(table: Table) -> bool:
    """Return whether a table has several columns, and headers or several rows."""
    if table.is_layout or (not table.has_headers and len(table.rows) < 2):
        return False
    return any(sum(cell.columns for cell in row) > 1 for _, row in table.rows)


def _is_in_caption(block: Block) -> bool:
    return any(container.tag == "caption" for container in islice(block.container.ancestors(), 2))


def _num_empty_at_start(row: list[Cell | None]) -> int:
    """Return the number of columns before the first one with text; all if none has text."""
    for column, cell in enumerate(row):
        if cell and cell.blocks:
            return column
    return len(row)


def _plain_cell(blocks: list[Block]) -> str:
    return " ".join(" ".join(block.text.split()) for block in blocks)


def _in_cell(block: Block) -> str:
    """Return the text of a block as a line or lines of a cell in Markdown."""
    if block.form == PREFORMATTED:
        return "\n".join(f"{CODE}{line}{CODE}" for line in block.text.split("\n") if line)
    text = block.marked or block.text
    return f"- {text}" if block.form == ITEM else text


def _grid(rows: list[list[Cell]]) -> list[list[Cell | None]]:
    """Return the cells of each row by column; None where another cell spans."""
    grid = []
    # For each column the number of rows further down that a cell still spans.
    rows_spanned: dict[int, int] = {}
    for row in rows:
        placed: list[Cell | None] = []
        for cell in row:
            _skip_spanned(placed, rows_spanned)
            for column in range(cell.columns):
                if cell.rows > 1:
                    rows_spanned[len(placed)] = cell.rows - 1
                if not column or len(placed) < _MAX_COLUMNS:
                    placed.append(None if column else cell)
        _skip_spanned(placed, rows_spanned)
        grid.append(placed)
    return grid


def _skip_spanned(placed: list[Cell | None], rows_spanned: dict[int, int]) -> None:
    """Append the columns that a cell of an earlier row spans."""
    while len(placed) < _MAX_COLUMNS and rows_spanned.get(len(placed), 0) > 0:
        rows_spanned[len(placed)] -= 1
        placed.append(None)


def span_in(attributes: Mapping[str, str], name: str) -> int:
    """Return the number of columns or rows that a cell spans."""
    return min(max(integer_in(attributes.get(name), 1), 1), _MAX_SPAN)


def integer_in(text: str | None, otherwise: int) -> int:
    """Return the number in an attribute; `otherwise` for anything else."""
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise
