"""The rows of CSV and TSV files, by Python's `csv` module in its strict form.

Cells are separated by commas, semicolons or tabs, and may be in quotes (RFC 4180), as pandas,
Polars, DuckDB and Excel write them by default. Quotes of another sort would move or swallow cells,
so they are an error that names the line.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from owt_pipeline.errors import UserError

_SEPARATORS = ",\t;"
_IN_QUOTES = re.compile('"[^"]*"')


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
      line: the number of its first physical line, from 1.
      cells: its cells.
      problem: why the row cannot be used.
    """

    line: int
    cells: Sequence[str]
    problem: str | None = None


class DelimitedTable:
    """The rows of a CSV or TSV file; the first one names the columns.

    Args:
      file: the decompressed content.
      path: the path for messages.
      max_chars: a longer line or cell is an error.

    Attributes:
      names: the names of the columns, which are distinct; none in an empty file.
    """

    def __init__(self, file: io.BufferedReader, path: str, max_chars: int):
        self._path = path
        csv.field_size_limit(max_chars)
        text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
        first_line = text.readline(max_chars)
        outside_quotes = _IN_QUOTES.sub("", first_line)
        # A table of one column has no separator, and its cells may have any character.
        self._separator = max(_SEPARATORS, key=outside_quotes.count)
        if self._separator not in outside_quotes:
            self._separator = "\x1f"
        lines = chain([first_line], _bounded_lines(text, max_chars))
        self._reader = csv.reader(lines, delimiter=self._separator, strict=True)
        names = [cell.strip() for cell in next(self._rows(), Row(1, [])).cells]
        self.names: list[str] = []
        for number, name in enumerate(names):
            num_before = names[:number].count(name)
            # A repeated name gets a number, as in pandas.
            self.names.append(f"{name}.{num_before}" if num_before else name)

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows after the first; blank lines are skipped.

        Raises UserError for quotes of another sort, and for a line that is too long.
        """
        num_columns = len(self.names)
        for row in self._rows():
            if len(row.cells) == num_columns:
                yield row
                continue
            problem = f"{len(row.cells)} cells; the first row names {num_columns} columns"
            yield Row(row.line, row.cells, row.problem or problem)

    def _rows(self) -> Iterator[Row]:
        while True:
            line = self._reader.line_num + 1
            try:
                cells = next(self._reader, None)
            except csv.Error as error:
                raise UserError(self._message(line, error)) from error
            if cells is None:
                return
            if cells:
                yield Row(line, cells, None if _is_unicode(cells) else "not UTF-8")

    def _message(self, line: int, error: csv.Error) -> str:
        problem = str(error)
        if problem == "unexpected end of data":
            problem = "it opens quotes that are never closed"
        is_tsv = self._separator == "\t"
        # In many TSV files, a quotation mark is a character.
        quotes = ", quotechar=''" if is_tsv else ""
        return (
            f"{self._path}, line {line}: not {'TSV' if is_tsv else 'CSV'} with quotes of RFC 4180: "
            f'{problem}; convert it to Parquet (python -c "import sys, duckdb; duckdb.read_csv('
            f"sys.argv[1], all_varchar=True{quotes}).write_parquet(sys.argv[1] + '.parquet')\" "
            f"{shlex.quote(self._path)})"
        )


def _bounded_lines(text: io.TextIOWrapper, max_chars: int) -> Iterator[str]:
    while line := text.readline(max_chars):
        if len(line) == max_chars and not line.endswith(("\n", "\r")):
            raise csv.Error(f"a line of more than {max_chars} characters")
        yield line


def _is_unicode(cells: Sequence[str]) -> bool:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True
