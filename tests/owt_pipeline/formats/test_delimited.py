"""CSV and TSV in the dialects that programs write: each physical line is in a row, or a problem."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.delimited import DelimitedTable, Row


def table_of(content: str | bytes, max_chars: int = 1 << 20) -> DelimitedTable:
    data = content.encode() if isinstance(content, str) else content
    return DelimitedTable(io.BufferedReader(io.BytesIO(data)), max_chars)  # type: ignore[arg-type]


def rows_of(content: str | bytes) -> list[tuple[int, list[str] | str]]:
    """Return each row's line, and its cells or its problem."""
    return [(row.line, row.problem or list(row.cells)) for row in table_of(content)]


NEVER_CLOSED = "not CSV: it opens quotes that are never closed"
AFTER_QUOTES = "not CSV: ',' expected after '\"'"
DIALECTS = {
    "in TSV a quotation mark is a character": (
        'id\ttext\n1\t"Hello\r\n2\tsaid "he"\n3\t"all"\n',
        [(2, ["1", '"Hello']), (3, ["2", 'said "he"']), (4, ["3", '"all"'])],
    ),
    "unless the names of the columns are in quotes": (
        '"id"\t"text"\n"1"\t"a ""b""\tc"\n',
        [(2, ["1", 'a "b"\tc'])],
    ),
    "CSV of several lines": ('a,b\n1,"x\ny"\n2,z\n', [(2, ["1", "x\ny"]), (4, ["2", "z"])]),
    "the quotes end nowhere": (
        'a,b\n1,"x\n2,y\n3,z\n',
        [(2, NEVER_CLOSED), (3, ["2", "y"]), (4, ["3", "z"])],
    ),
    "the quotes end in a later row": (
        'a,b\n1,"x\n2,y\n3,"z"\n',
        [(2, AFTER_QUOTES), (3, ["2", "y"]), (4, ["3", "z"])],
    ),
    "backslashes before quotation marks": (
        'a,b\n1,"say \\"x\\""\n2,"\\"x\\\\"\n',
        [(2, ["1", 'say "x"']), (3, ["2", '"x\\'])],
    ),
    "a backslash before the end of a cell": ('a,b\n1,"C:\\"\n', [(2, ["1", "C:\\"])]),
    "backslashes that swallow": (
        'a,b\n1,"say \\"\n2,"x"\n',
        [(2, ["1", "say \\"]), (3, ["2", "x"])],
    ),
    "Excel's first line": ("sep=;\na;b\n1;2,5\n", [(3, ["1", "2,5"])]),
    "a mark, CRLF, blank lines": ("\ufeffa,b\r\n\r\n1,2\r\n", [(3, ["1", "2"])]),
    "rows of other lengths": (
        'a,b\n1\n1,2,3\n4,"5\n6",7\n8,9\n',
        [
            (2, "1 cells; the first row names 2 columns"),
            (3, "3 cells; the first row names 2 columns"),
            (4, "3 cells; the first row names 2 columns"),
            (5, "in the quotes of line 4"),
            (6, ["8", "9"]),
        ],
    ),
    "not UTF-8": (b"a\tb\n1\t\xff\n2\tx\n", [(2, "not UTF-8"), (3, ["2", "x"])]),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_each_dialect_is_read_as_it_was_written(name: str) -> None:
    content, expected = DIALECTS[name]
    assert rows_of(content) == expected


def test_a_file_that_ends_in_quotes_on_its_last_line_was_cut() -> None:
    table = table_of('a,b\n1,2\n3,"four')
    assert list(table) == [Row(2, ["1", "2"])]
    assert table.unclosed_line == 3


def test_a_row_that_is_too_long_does_not_cost_the_next_one() -> None:
    table = table_of("a,b\n" + "x" * 500 + ",1\n2,3\n", max_chars=100)
    long, good = table
    assert "longer than 100" in (long.problem or "")
    assert good == Row(3, ["2", "3"])


def test_quotes_that_swallow_all_lines_take_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("owt_pipeline.formats.delimited._MAX_REREAD_CHARS", 2_000)
    lines = ['b","c'] * 10_000
    rows = list(table_of("a,b\n" + "\n".join(lines) + "\n"))
    assert [row.line for row in rows] == list(range(2, 10_002))
    assert rows[-1].problem == "in the quotes of line 2"


CELLS = st.text(st.sampled_from('ab",\t\\ ü'), max_size=5)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=12))
def test_what_csv_wrote_is_read_back(rows: list[tuple[str, ...]]) -> None:
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("x", "y", "z"), *rows])
    assert [tuple(row.cells) for row in table_of(file.getvalue())] == rows


@given(st.lists(st.text(st.sampled_from('ab",\\'), min_size=1, max_size=8), max_size=12))
def test_each_physical_line_is_in_a_row_or_a_problem(lines: list[str]) -> None:
    table = table_of("x,y\n" + "".join(f"{line}\n" for line in lines))
    rows = list(table)
    starts = [row.line for row in rows]
    assert starts == sorted(set(starts))
    num_lines = 0
    for row in rows:
        # A row of several lines has their ends in its cells.
        num_lines += 1 if row.problem else 1 + sum(cell.count("\n") for cell in row.cells)
    assert num_lines + (table.unclosed_line is not None) == len(lines)
