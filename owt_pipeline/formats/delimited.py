"""The rows of CSV and TSV files, each with the number of its physical line.

    comma, semicolon   cells may be in quotes (RFC 4180), also with backslash escapes, as Spark and
                       MySQL write them
    tab                a quotation mark is a character (IANA's text/tab-separated-values), unless
                       the first row is in quotes

A quotation mark that is never closed must not swallow the rows after it: only its line is a
problem, and reading continues with the next one. So each physical line is in a row or is a problem.
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

_MAX_HEADER_CHARS = 1 << 20

# Lines are read a second time if a quotation mark swallowed them. A hostile file could demand that
# for each of its lines; this many characters take about a second.
_MAX_REREAD_CHARS = 64 << 20

_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # Excel's
_ESCAPED = re.compile(r'\\([\\"])')
_BLANK = ("\n", "\r\n", "\r")


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
      names: the names of the columns; none in an empty file.
      unclosed_line: after the last row, the number of the last line of the file if it opens quotes
        that it does not close, as in a file that was cut off; else None.
    """

    def __init__(self, file: BinaryIO, max_chars: int):
        text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
        self._lines = _PhysicalLines(text, max_chars)
        self._reread_chars = 0
        self.unclosed_line: int | None = None
        header = text.readline(_MAX_HEADER_CHARS)
        delimiter = None
        if declared := _SEPARATOR_LINE.fullmatch(header.strip()):
            delimiter = declared[1]
            self._lines.num_read += 1
            header = text.readline(_MAX_HEADER_CHARS)
        self._lines.num_read += 1
        self._delimiter = delimiter or _delimiter_of(header)
        csv.field_size_limit(max_chars)
        names = next(csv.reader([header], delimiter=self._delimiter), [])
        self.names = [name.strip() for name in names]
        # R and others quote all strings of a table, its names too. Without these quotes, a
        # quotation mark in a tab-separated file is a character.
        self._is_quoted = self._delimiter != "\t" or header.startswith('"')

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows after the first; blank lines are skipped."""
        if self._is_quoted:
            yield from self._quoted_rows()
        else:
            yield from self._unquoted_rows()

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
            if line not in _BLANK:
                yield self._checked(lines.num_read, line.rstrip("\r\n").split("\t"))

    def _quoted_rows(self) -> Iterator[Row]:
        reader = csv.reader(self._lines, delimiter=self._delimiter, strict=True)
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

        If it succeeds, the rest of the file is read so.
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
        """Continue with the line after the row's first one, if a quotation mark swallowed it."""
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
        self._reread_chars += sum(map(len, self._lines.taken))
        return self._reread_chars <= _MAX_REREAD_CHARS

    def _checked(self, line: int, cells: list[str]) -> Row:
        if not _is_unicode(cells):
            return Row(line, cells, "not UTF-8")
        if cells and len(cells) != len(self.names):
            problem = f"{len(cells)} cells; the first row names {len(self.names)} columns"
            return Row(line, cells, problem)
        return Row(line, cells)


class _PhysicalLines:
    """The lines of a file, which can be pushed back.

    Attributes:
      num_read: the number of the last line, from 1; 0 before the first.
      taken: the lines of the current row.
      is_escaped: whether backslashes escape quotation marks.
    """

    def __init__(self, text: io.TextIOWrapper, max_chars: int):
        self._text = text
        self._max_chars = max_chars
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
        line = self._pending.popleft() if self._pending else self._text.readline(self._max_chars)
        if not line:
            raise StopIteration
        self.num_read += 1
        if len(line) == self._max_chars and not line.endswith(("\n", "\r")):
            self._skip_rest_of_line()
            line = "\n"
            self._num_taken_chars += self._max_chars
        self.taken.append(line)
        self._num_taken_chars += len(line)
        if self._num_taken_chars > self._max_chars:
            raise csv.Error(f"longer than {self._max_chars} characters")
        if self.is_escaped:
            return _ESCAPED.sub(_unescaped, line)
        return line

    def _skip_rest_of_line(self) -> None:
        while (piece := self._text.readline(1 << 20)) and not piece.endswith(("\n", "\r")):
            pass


def _unescaped(escape: re.Match[str]) -> str:
    return '""' if escape[1] == '"' else escape[1]


def _delimiter_of(header: str) -> str:
    separators = [separator for separator in ",\t;" if separator in header]
    # A table of one column has no separator.
    return max(separators, key=header.count) if separators else "\x1f"


def _is_unicode(cells: Sequence[str]) -> bool:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True
