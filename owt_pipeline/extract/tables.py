"""Which tables hold data, and the grid of their cells; the others lay out a page, and their cells are text."""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

_LAYS_OUT = ("table", "h1", "h2", "form", "article", "section", "textarea")  # in a cell: this is no table of data
_PARAGRAPHS = ("p", "div", "ul", "ol", "pre", "dl", "h3", "h4", "h5", "blockquote", "figure", "center")
_MAX_SPAN = 50  # columns or rows; some pages say 1000 and mean "all"
_MAX_COLUMNS = 100  # beyond which cells that span several count once

# The longest cell of a table of data, in characters, by how sure the rest of its markup makes us: with neither
# headers nor only lines in its cells, it is taken for one only where it is a grid of short cells.
_LONGEST_IF_SURE, _LONGEST_IF_LIKELY, _LONGEST_IN_GRID = 2000, 800, 250


@dataclass(frozen=True)
class Row:
    """A row of a table: its cells in the table's columns, None where an earlier one spans; whether it is of headers."""

    cells: list[etree._Element | None]
    is_header: bool


def rows_of_data(table: etree._Element) -> list[Row] | None:
    """The rows of a table that holds data; None for one that lays out a page."""
    below = table.iter(*_LAYS_OUT)
    next(below, None)  # the table itself
    if next(below, None) is not None:
        return None
    rows = list(table.iter("tr"))
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
        grid.append(Row(placed, bool(own) and (in_head or all(cell.tag == "th" for cell in own))))
    return grid


def _skip_spanned(placed: list[etree._Element | None], below: dict[int, int]) -> None:
    while len(placed) < _MAX_COLUMNS and below.get(len(placed), 0) > 0:
        below[len(placed)] -= 1
        placed.append(None)


def _span(cell: etree._Element, name: str) -> int:
    value = (cell.get(name) or "1").strip()
    return min(max(int(value), 1), _MAX_SPAN) if value.isdecimal() and len(value) < 6 else 1


def _length(cell: etree._Element) -> int:
    """Characters of a cell's text; white space counts as one."""
    if not len(cell):
        return len(cell.text or "")
    return sum(len(piece.strip()) for piece in cell.itertext())
