"""The join with Common Crawl's columnar index: complete, although only a part of the index is read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.errors import UserError
from owt_pipeline.formats.urls import canonical_url, url_id
from owt_pipeline.stages.fetch import cc_join
from owt_pipeline.stages.fetch.cc_index import IndexReader, groups_of, plan_ranges, read_footer, root_of
from owt_pipeline.stages.fetch.cc_join import (
    CAPTURES_KEPT,
    WANTED_WITH,
    captures_by_url,
    join,
    wanted_keys,
)
from owt_pipeline.stages.fetch.cc_records import Try, grouped
from tests.owt_pipeline.fetch.columnar import parquet, row, table


class Published:
    """Files of an index in memory; notes what is read of them."""

    def __init__(self, files: list[list[dict[str, Any]]], group_rows: int = 2):
        self.files = {f"{number}": parquet(table(rows), group_rows) for number, rows in enumerate(files)}
        footers = [read_footer(uri, self._end)[0] for uri in self.files]
        batches = [groups_of(number, uri, footers[number]) for number, uri in enumerate(self.files)]
        self.groups = pa.Table.from_batches(batches)
        self.reader = IndexReader([(f"CC-{uri}", uri) for uri in self.files], footers.__getitem__, self._read)

    def _end(self, uri: str, length: int) -> tuple[bytes, int]:
        return self.files[uri][-length:], len(self.files[uri])

    def _read(self, uri: str, pieces: Any) -> list[bytes]:
        return [self.files[uri][start : start + length] for start, length in pieces]

    def captures(self, urls: list[tuple[str, int | None]], choice: str, at_once: int = 1 << 20) -> dict[int, Any]:
        """The captures that a shard gets for its URLs, through ranges of keys."""
        bounds = plan_ranges(self.groups, 1 << 30)
        rows = {url_id(canonical_url(url)): (canonical_url(url), url, created) for url, created in urls}
        columns = [[i, *row] for i, row in rows.items()]
        types = [pa.uint64(), pa.string(), pa.string(), pa.int64()]
        arrays = [pa.array(list(values), kind) for values, kind in zip(zip(*columns, strict=True), types, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, WANTED_WITH)
        groups, counts, found = self.groups.to_pydict(), Counter[str](), []
        ranges, rows = wanted_keys(batch, 3, bounds, choice)
        for number in np.unique(ranges):
            keys = rows.filter(pa.array(ranges == number))
            for start in range(0, keys.num_rows, at_once):
                wanted = pa.Table.from_batches([keys.slice(start, at_once)])
                found.append(join(wanted, groups, self.reader, counts))
        assert all(set(table["shard"].to_pylist()) <= {3} for table in found)
        return captures_by_url(pa.Table.from_batches(found), "CC")


URLS = [f"http://{host}/{path}" for host in ("a.example", "www.b.example", "c.example", "d.example")
        for path in ("", "x", "X", "x?b=1&a=2", "y?utm_source=reddit")]  # fmt: skip
rows = st.fixed_dictionaries(
    {
        "url": st.sampled_from(URLS),
        "moment": st.integers(0, 30),
        "fetch_status": st.sampled_from([200, 200, 200, 301, 304, 404]),
        "content_mime_detected": st.sampled_from(["text/html", "text/html", "application/pdf", "warc/revisit"]),
        "content_truncated": st.sampled_from([None, None, "length"]),
    }
)


@given(
    st.lists(st.lists(rows, max_size=12), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(URLS), st.none() | st.integers(-5, 40)), min_size=1, max_size=12),
    st.sampled_from(["nearest", "earliest", "latest"]),
    st.integers(1, 3),
    st.integers(1, 5),
)
def test_the_join_equals_a_join_of_all_rows_with_all_urls(
    files: list[list[dict[str, Any]]], urls: list[tuple[str, int | None]], choice: str, group_rows: int, at_once: int
) -> None:
    index: list[list[dict[str, Any]]] = []
    for number, some in enumerate(files):
        made = [row(file=f"{number}", offset=at, length=1, **each) for at, each in enumerate(some)]
        index.append(sorted(made, key=lambda each: each["url_surtkey"]))
    expected = {}
    for url, created in {canonical_url(url): (url, created) for url, created in urls}.values():
        moment = (
            created if choice == "nearest" and created is not None else -(1 << 40) if choice == "earliest" else 1 << 40
        )
        mine = [
            (number, each) for number, some in enumerate(index) for each in some
            if canonical_url(each["url"]) == canonical_url(url)
        ]  # fmt: skip
        pages = []
        for number, each in mine:
            if each["fetch_status"] == 200 and each["content_mime_detected"] == "text/html":
                distance = abs(each["fetch_time"] // 1000 - moment)
                pages.append((each["content_truncated"] is not None, distance, each["fetch_time"], number, each))
        if mine:
            best = sorted(pages, key=lambda page: page[:3])[:CAPTURES_KEPT]
            expected[url_id(canonical_url(url))] = [page[:3] for page in best]
    found = Published(index, group_rows).captures(urls, choice, at_once)
    assert found.keys() == expected.keys()
    for number, (captures, problem) in found.items():
        assert (": " in problem.detail) == (not captures)
        assert len(captures) == len(expected[number])
        of = [index[int(capture["file"])] for capture in captures]
        taken = [next(each for each in some if each["warc_record_offset"] == capture["offset"])
                 for some, capture in zip(of, captures, strict=True)]  # fmt: skip
        # Captures of the same time may come in any order; all else is settled.
        assert [(each["content_truncated"] is not None, each["fetch_time"]) for each in taken] == [
            (truncated, time) for truncated, _, time in expected[number]
        ]
        assert [capture["crawl"] for capture in captures] == [f"CC-{capture['file']}" for capture in captures]


def test_row_groups_without_wanted_keys_are_not_read_and_of_others_only_needed_columns() -> None:
    index = Published([[row(f"http://site{n:03d}.example/", n, "f", n, 1) for n in range(400)]], group_rows=20)
    read: list[tuple[int, tuple[str, ...]]] = []
    columns = index.reader.columns

    def watched(file: int, group: int, names: Any) -> pa.Table:
        read.append((group, tuple(names)))
        return columns(file, group, names)

    index.reader.columns = watched  # type: ignore[method-assign]
    found = index.captures([("http://site130.example/", 0), ("http://site135.example/absent", 0)], "nearest")
    assert [len(captures) for captures, _ in found.values()] == [1]
    assert {group for group, _ in read} == {6}
    assert read[0][1] == ("url_surtkey",)
    assert not any("digest" in name or name == "url_host_name" for _, names in read for name in names)
    assert index.reader.read_bytes < len(index.files["0"]) / 5


def test_a_row_group_without_statistics_may_hold_any_key() -> None:
    index = Published([[row("http://a.example/", 1, "f", 7, 1)]])
    unknown = pa.nulls(1, pa.binary())
    index.groups = index.groups.set_column(3, "least", unknown).set_column(4, "greatest", unknown)
    assert [
        captures[0]["offset"] for captures, _ in index.captures([("http://a.example/", 1)], "nearest").values()
    ] == [7]


def test_more_keys_than_fit_at_once_are_joined_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cc_join, "_JOINED_AT_ONCE", 10)
    tables = [pa.table({"key": list(range(start, start + 4))}) for start in range(0, 40, 4)]
    turns = list(cc_join._at_once(tables))
    assert [len(turn) for turn in turns] == [12, 12, 12, 4]
    assert pa.concat_tables(turns)["key"].to_pylist() == list(range(40))


def test_neighbours_in_a_file_are_one_request() -> None:
    records = {"a": [(0, 10), (10, 10), (1 << 20, 5)], "b": [(5, 10), (4 << 10, 8 << 20), (9 << 20, 1)]}
    tries = [Try(0, "CC", file, *place, "") for file, places in records.items() for place in reversed(places)]
    found = [[(each.file, each.offset) for each in request] for request in grouped(tries)]
    assert found == [[("a", 0), ("a", 10)], [("a", 1 << 20)], [("b", 5)], [("b", 4 << 10)], [("b", 9 << 20)]]


def test_a_file_that_is_not_an_index_is_a_one_line_error() -> None:
    with pytest.raises(UserError, match=r"x\.parquet is not a Parquet file: give Common Crawl"):
        read_footer("x.parquet", lambda uri, length: (b"<html>Welcome</html>", 20))
    rows = [row("http://a.example/", 1, "f", 7, 1)]
    schema = pa.schema([("url", pa.string()), ("fetch_time", pa.int64())])
    content = parquet(table([{name: rows[0][name] for name in schema.names}], schema))
    footer, _ = read_footer("x.parquet", lambda uri, length: (content[-length:], len(content)))
    with pytest.raises(UserError, match=r"x\.parquet has no column url_surtkey, fetch_status, .*: it is no file"):
        groups_of(0, "x.parquet", footer)
    with pytest.raises(UserError, match=r"--cc_index /data/index: not a folder below .*; give the root"):
        root_of("/data/index")
