"""The rows of CSV and TSV files, each with the number of its physical line.

    comma, semicolon, bar   cells may be in quotes (RFC 4180), also with backslash escapes, as Spark
                            and MySQL write them
    tab                     a quotation mark is a character (IANA's text/tab-separated-values),
                            unless the first row is in quotes

pandas, Polars and DuckDB quote some cells of a TSV: those with a tab, a line end or a quotation
mark, which they double. Such a row is read as they wrote it if that gives it all its cells.

A quotation mark that is never closed must not swallow the rows after it: only its line is a
problem, and reading continues with the next one. So each physical line is in a row or is a problem.
A CR without LF is a character, unless the first line ends so.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_MAX_HEADER_CHARS = 1 << 20

# Lines are read a second time if a quotation mark swallowed them. A hostile file could demand that
# for each of its lines; this many characters take about a second.
_MAX_REREAD_CHARS = 64 << 20

_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # Excel's
_SEPARATORS = ",\t;|\x01"  # the last one is Hive's
_IN_QUOTES = re.compile('"[^"]*"')
_ESCAPED = re.compile(r'\\([\\"])')
_LONE_CR = re.compile(r"\r(?!\n?\Z)")
_FIRST_LINE_END = re.compile(rb"\r\n?|\n")

# The csv module would take these characters for the end of a row or of a cell. While it reads, they
# are surrogates. Bytes that are not UTF-8 are decoded to other surrogates.
_STANDINS = {"\r": "\udc0d", '"': "\udc22", "\\": "\udc5c"}
_OF_STANDINS = str.maketrans({standin: char for char, standin in _STANDINS.items()})


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
      line: the number of its first physical line, from 1.
      cells: its cells, as far as they can be read.
      problem: why the row cannot be used.
    """

    line: int
    cells: Sequence[str]
    problem: str | None = None


class DelimitedTable:
    """The rows of a CSV or TSV file; the first one names the columns.

    Args:
      file: the decompressed content.
      max_chars: a longer row is a problem.

    Attributes:
      names: the names of the columns, which are distinct; none in an empty file.
      unclosed_line: after the last row, the number of the last line of the file if it opens quotes
        that it does not close, as in a file that was cut off; else None.
    """

    def __init__(self, file: io.BufferedReader, max_chars: int):
        self._lines = _PhysicalLines(file, _MAX_HEADER_CHARS)
        self._num_reread_chars = 0
        self.unclosed_line: int | None = None
        csv.field_size_limit(max_chars)
        header = self._first_line()
        delimiter = None
        if declared := _SEPARATOR_LINE.fullmatch(header.strip("\r\n")):
            delimiter = declared[1]
            header = self._first_line()
        # R and others quote all strings of a table, its names too. Without these quotes, a
        # quotation mark in a tab-separated file is a character.
        has_quotes = header.startswith('"')
        outside_quotes = _IN_QUOTES.sub('""', header)
        self._delimiter = delimiter or _delimiter_of(outside_quotes)
        self._is_quoted = self._delimiter != "\t" or has_quotes
        # People write a space after each comma.
        num_spaced = outside_quotes.count(f"{self._delimiter} ")
        self._is_spaced = 0 < num_spaced == outside_quotes.count(self._delimiter)
        # R's tables have no name above the names of their rows.
        self._may_have_row_names = has_quotes
        self.names = self._names_of(header)
        self._lines.max_chars = max_chars

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows after the first; blank lines are skipped."""
        if self._is_quoted:
            yield from self._quoted_rows()
        else:
            yield from self._unquoted_rows()

    def _first_line(self) -> str:
        """Return the next line that is not blank; empty if there is none."""
        try:
            return next((line for line in self._lines if line.strip()), "")
        except csv.Error:
            # It is longer than names of columns are.
            return ""

    def _names_of(self, header: str) -> list[str]:
        """Return the names of the columns; `header` is the line that was read last.

        A name in quotes may have line ends. A repeated name gets a number, as in pandas.
        """
        lines = self._lines
        cells = next(csv.reader([header], delimiter=self._delimiter), [])
        if header and self._is_quoted:
            lines.push_back([header])
            lines.begin_row()
            try:
                cells = next(self._reader(lines))
            except csv.Error:
                lines.push_back(lines.taken[1:])
        num_by_name: Counter[str] = Counter()
        names = []
        for cell in cells:
            name = cell.translate(_OF_STANDINS).strip()
            num_before = num_by_name[name]
            num_by_name[name] += 1
            names.append(f"{name}.{num_before}" if num_before else name)
        return names

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(
            map(self._with_standins, lines),
            delimiter=self._delimiter,
            skipinitialspace=self._is_spaced,
            strict=True,
        )

    def _with_standins(self, line: str) -> str:
        """Return a line for the csv module."""
        if line.find("\r", 0, -2) >= 0:
            line = _LONE_CR.sub(_STANDINS["\r"], line)
        if self._lines.is_escaped:
            return _ESCAPED.sub(_standin_of, line)
        return line

    def _unquoted_rows(self) -> Iterator[Row]:
        lines = self._lines
        while True:
            lines.begin_row()
            try:
                line = next(lines, None)
            except csv.Error as error:
                yield Row(lines.num_read, [], f"not TSV: {error}")
                continue
            if line is None:
                return
            if line.strip("\r\n"):
                yield self._row_of_tabs(line)

    def _row_of_tabs(self, line: str) -> Row:
        """Return the row of a TSV that begins with this line."""
        number = self._lines.num_read
        cells = line.rstrip("\r\n").split("\t")
        if any(cell.startswith('"') for cell in cells):
            is_closed = not cells[-1].startswith('"') or _is_in_quotes(cells[-1])
            was_quoted = any(map(_needs_quotes, cells))
            if was_quoted or not is_closed or len(cells) != len(self.names):
                cells = self._cells_in_quotes(line) or cells
        return self._checked(number, cells)

    def _cells_in_quotes(self, line: str) -> list[str] | None:
        """Return the cells of the row that begins with this line, read as CSV with tabs.

        Returns None if it does not have all cells. Then only this line was read.
        """
        lines = self._lines
        lines.begin_row()
        cells: list[str] = []
        if self._num_reread_chars <= _MAX_REREAD_CHARS:
            with contextlib.suppress(csv.Error):
                cells = next(self._reader(self._lines_until_row(line)))
        if len(cells) == len(self.names):
            return cells
        self._num_reread_chars += sum(map(len, lines.taken))
        lines.push_back(lines.taken)
        return None

    def _lines_until_row(self, line: str) -> Iterator[str]:
        """Yield a line and the lines after it that may belong to its quotes.

        A line with as many tabs as the header is a complete row. The first complete row after the
        given line ends the search. It belongs to the quotes only if the given line is incomplete.
        """
        num_tabs = len(self.names) - 1
        is_row = line.count("\t") == num_tabs
        yield line
        for next_line in self._lines:
            is_next_row = next_line.count("\t") == num_tabs
            if is_row and is_next_row:
                return
            yield next_line
            if is_next_row:
                return

    def _quoted_rows(self) -> Iterator[Row]:
        reader = self._reader(self._lines)
        lines = self._lines
        while True:
            lines.begin_row()
            first_line = lines.num_read + 1
            row = self._next_row(reader, first_line)
            if row is None:
                return
            if row.problem is not None and self._may_be_escaped():
                row = self._with_escapes(reader, row)
            if self.unclosed_line is not None:
                return
            if row.problem is None:
                if row.cells:
                    yield row
                continue
            yield row
            yield from self._after_problem(row)

    def _next_row(self, reader: Iterator[list[str]], first_line: int) -> Row | None:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if str(error) == "unexpected end of data":
                if len(self._lines.taken) == 1:
                    self.unclosed_line = first_line
                return Row(first_line, [], "not CSV: it opens quotes that are never closed")
            return Row(first_line, [], f"not CSV: {error}")
        if cells is None:
            return None
        return self._checked(first_line, cells)

    def _may_be_escaped(self) -> bool:
        has_escape = any('\\"' in line for line in self._lines.taken)
        return has_escape and not self._lines.is_escaped and self._may_reread()

    def _with_escapes(self, reader: Iterator[list[str]], failed: Row) -> Row:
        r"""Read a row again with `\"` for a quotation mark; return `failed` if that fails too.

        If it succeeds, the rest of the file is read in the same way.
        """
        lines = self._lines
        unclosed_line = self.unclosed_line
        num_lines = len(lines.taken)
        lines.push_back(lines.taken)
        lines.begin_row()
        lines.is_escaped = True
        self.unclosed_line = None
        row = self._next_row(reader, failed.line)
        if row is not None and row.problem is None:
            return row
        lines.is_escaped = False
        self.unclosed_line = unclosed_line
        # Back to where the first attempt ended.
        lines.push_back(lines.taken)
        lines.begin_row()
        for _ in range(num_lines):
            next(lines)
        return failed

    def _after_problem(self, row: Row) -> Iterator[Row]:
        """Handle the lines that an unclosed quotation mark swallowed after the row's first line.

        They are read again as rows of their own. If that would take too long, or if they belong to
        the row, each of them is yielded as a problem.
        """
        swallowed = self._lines.taken[1:]
        if not swallowed:
            return
        # The quotes of a row with cells are closed, so its lines belong together.
        is_ragged = bool(row.cells)
        if not is_ragged and self._may_reread():
            self._lines.push_back(swallowed)
            return
        for number in range(len(swallowed)):
            yield Row(row.line + 1 + number, [], f"in the quotes of line {row.line}")

    def _may_reread(self) -> bool:
        self._num_reread_chars += sum(map(len, self._lines.taken))
        return self._num_reread_chars <= _MAX_REREAD_CHARS

    def _checked(self, line: int, cells: list[str]) -> Row:
        if not _is_unicode(cells):
            cells = [cell.translate(_OF_STANDINS) for cell in cells]
            if not _is_unicode(cells):
                return Row(line, cells, "not UTF-8")
        if self._may_have_row_names and cells:
            self._may_have_row_names = False
            if len(cells) == len(self.names) + 1 and cells[0] == "1":
                self.names = ["", *self.names]
        if cells and len(cells) != len(self.names):
            problem = f"{len(cells)} cells; the first row names {len(self.names)} columns"
            return Row(line, cells, problem)
        return Row(line, cells)


class _PhysicalLines:
    """The lines of a file, which can be pushed back.

    Attributes:
      max_chars: a longer line, or row of lines, is an error.
      num_read: the number of the last line, from 1; 0 before the first.
      taken: the lines of the current row.
      is_escaped: whether backslashes escape quotation marks.
    """

    def __init__(self, file: io.BufferedReader, max_chars: int):
        line_end = _FIRST_LINE_END.search(file.peek(max_chars))
        # Otherwise a CR within a line would end it.
        newline = "" if line_end is not None and line_end[0] == b"\r" else "\n"
        self._text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline=newline)
        self.max_chars = max_chars
        self._pending: deque[str] = deque()
        self._num_taken_chars = 0
        self.num_read = 0
        self.taken: list[str] = []
        self.is_escaped = False

    def begin_row(self) -> None:
        """Forget the lines of the last row."""
        self.taken = []
        self._num_taken_chars = 0

    def push_back(self, lines: list[str]) -> None:
        """Read these again next; they are the last ones that were read."""
        self._pending.extendleft(reversed(lines))
        self.num_read -= len(lines)

    def __iter__(self) -> _PhysicalLines:
        return self

    def __next__(self) -> str:
        """Return the next line; raise csv.Error if it or its row is too long."""
        line = self._pending.popleft() if self._pending else self._text.readline(self.max_chars)
        if not line:
            raise StopIteration
        self.num_read += 1
        if len(line) == self.max_chars and not line.endswith(("\n", "\r")):
            self._skip_rest_of_line()
            line = "\n"
            self._num_taken_chars += self.max_chars
        self.taken.append(line)
        self._num_taken_chars += len(line)
        if self._num_taken_chars > self.max_chars:
            raise csv.Error(f"longer than {self.max_chars} characters")
        return line

    def _skip_rest_of_line(self) -> None:
        while (piece := self._text.readline(1 << 20)) and not piece.endswith(("\n", "\r")):
            pass


def _standin_of(escape: re.Match[str]) -> str:
    return _STANDINS[escape[1]]


def _is_in_quotes(cell: str) -> bool:
    """Return whether a cell is in quotes, and the quotes within are doubled."""
    is_within = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return is_within and '"' not in cell[1:-1].replace('""', "")


def _needs_quotes(cell: str) -> bool:
    """Return whether a cell is in quotes for its content: it is empty, or has quotes or a CR."""
    content = cell[1:-1]
    return _is_in_quotes(cell) and (not content or '""' in content or "\r" in content)


def _delimiter_of(header: str) -> str:
    separators = [separator for separator in _SEPARATORS if separator in header]
    # A table of one column has no separator.
    return max(separators, key=header.count) if separators else "\x1f"


def _is_unicode(cells: Sequence[str]) -> bool:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True
