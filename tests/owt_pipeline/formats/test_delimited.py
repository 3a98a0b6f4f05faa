"""CSV and TSV with the quotes of RFC 4180 are read; other quotes are an error that names the line."""

from __future__ import annotations

import csv
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.errors import UserError
from owt_pipeline.formats.delimited import DelimitedTable
from owt_pipeline.formats.records import read_records


def table_of(content: str | bytes, max_chars: int = 1 << 20) -> DelimitedTable:
    data = content.encode() if isinstance(content, str) else content
    return DelimitedTable(io.BufferedReader(io.BytesIO(data)), "a b", max_chars)  # type: ignore[arg-type]


def rows_of(content: str | bytes) -> list[tuple[int, list[str] | str]]:
    """Return each row's line, and its cells or its problem."""
    return [(row.line, row.problem or list(row.cells)) for row in table_of(content)]


READ: dict[str, tuple[str | bytes, list[tuple[int, list[str] | str]]]] = {
    "CSV of several lines": ('a,b\n1,"x\ny"\n2,z\n', [(2, ["1", "x\ny"]), (4, ["2", "z"])]),
    "a mark, CRLF, blank lines": ("\ufeffa,b\r\n\r\n1,2\r\n", [(3, ["1", "2"])]),
    "semicolons": ('"a, b, c";d\n1;2,5\n', [(2, ["1", "2,5"])]),
    "tabs with quotes": ('id\ttext\n1\t"a ""b""\tc"\n', [(2, ["1", 'a "b"\tc'])]),
    "names of several lines": ('"a","b\nc"\n1,2\n', [(3, ["1", "2"])]),
    "one column": ("url\nhttp://a/x,y;z\n", [(2, ["http://a/x,y;z"])]),
    "quotes within a cell": ('a,b\n1,x "y" z\n', [(2, ["1", 'x "y" z'])]),
    "rows of other lengths": (
        'a,b\n1\n1,2,3\n4,"5\n6",7\n8,9\n',
        [
            (2, "1 cells; the first row names 2 columns"),
            (3, "3 cells; the first row names 2 columns"),
            (4, "3 cells; the first row names 2 columns"),
            (6, ["8", "9"]),
        ],
    ),
    "not UTF-8": (b"a\tb\n1\t\xff\n2\tx\n", [(2, "not UTF-8"), (3, ["2", "x"])]),
}


@pytest.mark.parametrize("name", READ)
def test_each_row_is_read_or_a_problem(name: str) -> None:
    content, expected = READ[name]
    assert rows_of(content) == expected


def test_repeated_names_of_columns_get_numbers() -> None:
    assert table_of("url,a,url,url\n").names == ["url", "a", "url.1", "url.2"]


# The file, the line that the message names, and the rows of DuckDB's file.
REFUSED = {
    "backslashes.csv": (
        'a,b\n0,1\n1,"say \\"x\\", he said"\n',
        3,
        [("0", "1"), ("1", 'say "x", he said')],
    ),
    "unclosed.csv": ('a,b\n1,"x\n2,y\n3,z\n', 2, [("1", '"x'), ("2", "y"), ("3", "z")]),
    "characters.tsv": (
        'id\ttext\n1\tx\n2\t"Big" news\n3\t"all\n',
        3,
        [("1", "x"), ("2", '"Big" news'), ("3", '"all')],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_quotes_are_converted_as_advised(name: str, tmp_path: Path) -> None:
    content, line, rows = REFUSED[name]
    path = tmp_path / f"a {name}"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        list(read_records(str(path), name, "csv", columns=None))
    message = str(error.value)
    assert message.startswith(f"{path}, line {line}: not {'TSV' if 'tsv' in name else 'CSV'} ")
    command = message.partition("convert it to Parquet (")[2].removesuffix(")")
    command = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", command)
    subprocess.run(command, shell=True, check=True)
    table = pq.read_table(f"{path}.parquet")
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


def test_a_line_that_is_too_long_is_an_error() -> None:
    with pytest.raises(UserError, match=r"^a b, line 2: .* more than 100 char"):
        list(table_of("a,b\n" + "x" * 500 + ",1\n2,3\n", max_chars=100))


CELLS = st.text(st.sampled_from('ab",;\t\\\r\n ü'), max_size=5)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=8)


@given(ROWS, st.sampled_from(",;\t"), st.sampled_from((csv.QUOTE_ALL, csv.QUOTE_MINIMAL)))
def test_what_csv_wrote_is_read_back(
    rows: list[tuple[str, ...]], separator: str, quoting: int
) -> None:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows([("x", "y", "z"), *rows])
    assert [tuple(row.cells) for row in table_of(file.getvalue())] == rows


TEXTS = ['say "x"', "tab\tand, comma; and", "two\nlines", '"all"', "plain", 'a "\t"\n"']


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize("program", ["pandas", "polars", "duckdb", "pandas on Windows"])
def test_what_programs_write_by_default_is_read(
    program: str, separator: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    columns = {"id": list(range(len(TEXTS))), "text": TEXTS}
    if program == "polars":
        pl.DataFrame(columns).write_csv(path, separator=separator)
    elif program == "duckdb":
        frame = pd.DataFrame(columns)  # noqa: F841
        duckdb.sql("from frame").write_csv(str(path), sep=separator)
    else:
        end = "\r\n" if "Windows" in program else "\n"
        pd.DataFrame(columns).to_csv(path, sep=separator, index=False, lineterminator=end)
    records = list(read_records(str(path), "a", "csv", columns=None))
    assert [(record.fields or {})["text"] for record in records] == TEXTS
