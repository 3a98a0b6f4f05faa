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
DIALECTS: dict[str, tuple[str | bytes, list[tuple[int, list[str] | str]]]] = {
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
    "a TSV of pandas, Polars or DuckDB": (
        'id\ttext\tn\n1\t"say ""x"", he said"\t5\n2\t"a\tb"\t6\n3\t"a\n\nb"\t7\n4\t"a\rb"\t""\n',
        [
            (2, ["1", 'say "x", he said', "5"]),
            (3, ["2", "a\tb", "6"]),
            (4, ["3", "a\n\nb", "7"]),
            (7, ["4", "a\rb", ""]),
        ],
    ),
    "such a TSV whose last cells have several lines": (
        'id\ttext\n1\t"a\nb"\n2\t"c"\n3\t"a\r\n""b"""\r\n',
        [(2, ["1", "a\nb"]), (4, ["2", '"c"']), (5, ["3", 'a\r\n"b"'])],
    ),
    "such a TSV whose first cells have several lines": (
        'text\tid\n"a\nb ""c"""\t1\nd\t2\n',
        [(2, ['a\nb "c"', "1"]), (4, ["d", "2"])],
    ),
    "a quotation of two rows of a TSV": (
        'id\ttext\n1\t"It is late.\n2\tLet us go."\n',
        [(2, ["1", '"It is late.']), (3, ["2", 'Let us go."'])],
    ),
    "a quotation mark before a short row of a TSV": (
        'id\ttext\tn\n1\t5\t"x\nragged\n2\t5\ty"\n',
        [
            (2, ["1", "5", '"x']),
            (3, "1 cells; the first row names 3 columns"),
            (4, ["2", "5", 'y"']),
        ],
    ),
    "CRs that end no line": (
        'a,b\r\n1,x\ry\r\n"\r",2\r\n3,z\r',
        [(2, ["1", "x\ry"]), (3, ["\r", "2"]), (4, ["3", "z"])],
    ),
    "CRs that end lines": ('a,b\r1,x\r2,"y\rz"\r', [(2, ["1", "x"]), (3, ["2", "y\rz"])]),
    "escapes outside of quotes": (
        'a,b\n"x, \\"y\\"",1\n\\"z\\",2\nC:\\\\,3\n',
        [(2, ['x, "y"', "1"]), (3, ['"z"', "2"]), (4, ["C:\\", "3"])],
    ),
    "names of several lines": ('"a","b\nc"\n1,2\n', [(3, ["1", "2"])]),
    "names that open quotes": ('a,"b\n1,2\n', [(2, ["1", "2"])]),
    "blank lines before the names": ("\r\n \r\na,b\r\n1,2\r\n", [(4, ["1", "2"])]),
    "a tab as Excel's separator": ("sep=\t\na\tb\n1\t2,5\n", [(3, ["1", "2,5"])]),
    "bars": ('a|b\n1|"x|y"\n', [(2, ["1", "x|y"])]),
    "Hive's separator": ("a\x01b\n1\x01x,y\n", [(2, ["1", "x,y"])]),
    "commas in names in quotes": ('"a, b, c";d\n1;2\n', [(2, ["1", "2"])]),
    "a space after each comma": ('a, b\n1, "x, y"\n', [(2, ["1", "x, y"])]),
    "R's row names": (
        '"a"\t"b"\n"1"\t"x \\"y\\""\t2\n"2"\t"z"\tNA\n',
        [(2, ["1", 'x "y"', "2"]), (3, ["2", "z", "NA"])],
    ),
    "a cell too many": (
        '"a","b"\n"3",1,2\n"1",4,5\n',
        [
            (2, "3 cells; the first row names 2 columns"),
            (3, "3 cells; the first row names 2 columns"),
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


def test_repeated_names_of_columns_get_numbers() -> None:
    assert table_of("url,a,url,url\n").names == ["url", "a", "url.1", "url.2"]


def test_rows_of_r_have_a_name_less_than_cells() -> None:
    table = table_of('"a"\t"b"\n"1"\t2\t3\n')
    list(table)
    assert table.names == ["", "a", "b"]


def test_many_tsv_rows_that_open_quotes_take_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("owt_pipeline.formats.delimited._MAX_REREAD_CHARS", 2_000)
    rows = list(table_of("a\tb\n" + '"c\n' * 10_000))
    assert [row.line for row in rows] == list(range(2, 10_002))
    assert {row.problem for row in rows} == {"1 cells; the first row names 2 columns"}


CELLS = st.text(st.sampled_from('ab",\t\\ ü'), max_size=5)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=12))
def test_what_csv_wrote_is_read_back(rows: list[tuple[str, ...]]) -> None:
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("x", "y", "z"), *rows])
    assert [tuple(row.cells) for row in table_of(file.getvalue())] == rows


PLAIN = st.text(st.sampled_from('ab" ü'), max_size=5)
WITH_TABS = st.text(st.sampled_from('ab"\t ü'), max_size=5)
WITH_LINE_ENDS = st.text(st.sampled_from('ab"\n\r ü'), max_size=5)
# With tabs and line ends, or line ends in two cells, a row may look like several.
TSV_ROWS = (
    st.tuples(WITH_TABS, WITH_TABS, WITH_TABS)
    | st.tuples(WITH_LINE_ENDS, PLAIN, PLAIN)
    | st.tuples(PLAIN, WITH_LINE_ENDS, PLAIN)
    | st.tuples(PLAIN, PLAIN, WITH_LINE_ENDS)
)


@given(st.lists(TSV_ROWS, max_size=8))
def test_what_csv_wrote_as_tsv_is_read_back(rows: list[tuple[str, ...]]) -> None:
    file = io.StringIO()
    csv.writer(file, delimiter="\t").writerows([("x", "y", "z"), *rows])
    assert [tuple(row.cells) for row in table_of(file.getvalue())] == rows


LINES = st.sampled_from(",;\t").flatmap(
    lambda delimiter: st.tuples(
        st.just(delimiter),
        st.lists(
            st.text(st.sampled_from(f'ab"{delimiter}\\'), min_size=1, max_size=8), max_size=12
        ),
    )
)


@given(LINES)
def test_each_physical_line_is_in_a_row_or_a_problem(table_lines: tuple[str, list[str]]) -> None:
    delimiter, lines = table_lines
    table = table_of(f"x{delimiter}y\n" + "".join(f"{line}\n" for line in lines))
    rows = list(table)
    starts = [row.line for row in rows]
    assert starts == sorted(set(starts))
    num_lines = 0
    for row in rows:
        # A row of several lines has their ends in its cells.
        num_lines += 1 if row.problem else 1 + sum(cell.count("\n") for cell in row.cells)
    assert num_lines + (table.unclosed_line is not None) == len(lines)
