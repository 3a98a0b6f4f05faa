"""The join with Common Crawl's columnar index: complete, although only a part of the index is
read."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.urls import canonical_url, id_of
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.stages.fetch.answers import FetchFailure, target_time
from owt_pipeline.stages.fetch.archives.commoncrawl import (
    URL_COLUMNS,
    BulkClient,
    bounds_of,
    captures_by_url,
    join,
    lookups_of,
    opened,
    span,
)
from owt_pipeline.stages.fetch.archives.search import ArchiveQuery, Capture, best_capture
from schemas import Reason
from tests.owt_pipeline.fetch.columnar import parquet, row, table

TRIED = 3


class Published:
    """Files of an index in a folder."""

    def __init__(self, folder: str, files: list[list[dict[str, Any]]], **how: Any):
        for number, rows in enumerate(files):
            Path(folder, str(number)).write_bytes(parquet(table(rows), **how))
        self.bounds = sorted(
            bounds_of(f"CC-{number}", f"{folder}/{number}") for number in range(len(files))
        )

    def captures(self, urls: list[str]) -> Mapping[int, list[Capture]]:
        """The captures that a shard gets for its URLs."""
        rows = sorted({(id_of(canonical_url(url)), canonical_url(url), url) for url in urls})
        types = [("url_id", pa.uint64()), ("url", pa.string()), ("posted_url", pa.string())]
        assert [name for name, _ in types] == URL_COLUMNS
        wanted = lookups_of(batch_of(rows, pa.schema(types)), 3)
        keys, found = wanted["key"].to_pylist(), []
        for file in self.bounds:
            some = pa.Table.from_batches([wanted[span(keys, file.min_key, file.max_key)]])
            with opened(file.uri) as index:
                found.append(join(index, file.crawl, some))
        assert all(set(table["shard"].to_pylist()) <= {3} for table in found)
        return captures_by_url(pa.Table.from_batches(found))


class Tried(BulkClient):
    """Reads no record, but notes which it is asked for."""

    def __init__(self, captures: Mapping[int, list[Capture]]) -> None:
        self.holdings, self.captures = "CC", captures
        self.read_captures: list[Capture] = []

    async def read(self, capture: Capture, url: str) -> FetchFailure:
        self.read_captures.append(capture)
        return FetchFailure(Reason.BAD_RESPONSE, "no record")


URLS = [f"http://{host}/{path}" for host in ("a.example", "www.b.example", "c.example", "d.example")
        for path in ("", "x", "X", "x?b=1&a=2", "y?utm_source=reddit")]  # fmt: skip
rows = st.fixed_dictionaries(
    {
        "url": st.sampled_from(URLS),
        "moment": st.integers(0, 30),
        "fetch_status": st.sampled_from([200, 200, 200, 301, 304, 404]),
        "content_mime_detected": st.sampled_from(
            ["text/html", "text/html", "application/pdf", "warc/revisit"]
        ),
        "content_truncated": st.sampled_from([None, None, "length"]),
    }
)


@given(
    st.lists(st.lists(rows, max_size=12), min_size=1, max_size=4),
    st.dictionaries(
        st.sampled_from(URLS), st.none() | st.integers(-5, 40), min_size=1, max_size=12
    ),
    st.sampled_from(["nearest", "earliest", "latest"]),
    st.integers(1, 3),
)
def test_the_join_equals_a_join_of_all_rows_with_all_urls(
    files: list[list[dict[str, Any]]], urls: dict[str, int | None], choice: str, group_rows: int
) -> None:
    index: list[list[dict[str, Any]]] = []
    for number, some in enumerate(files):
        made = [row(file=f"{number}", offset=at, length=1, **each) for at, each in enumerate(some)]
        index.append(sorted(made, key=lambda each: each["url_surtkey"]))
    with tempfile.TemporaryDirectory() as folder:
        found = Published(folder, index, group_rows=group_rows).captures(list(urls))
    for url, created in {
        canonical_url(url): (url, created) for url, created in urls.items()
    }.values():
        moment = target_time(choice, created)
        mine = [
            each for some in index for each in some
            if canonical_url(each["url"]) == canonical_url(url)
            and (each["fetch_status"], each["content_mime_detected"]) == (200, "text/html")
        ]  # fmt: skip
        pages = sorted(
            (
                each["content_truncated"] is not None,
                abs(each["fetch_time"] // 1000 - moment),
                each["fetch_time"] // 1000,
            )
            for each in mine
        )
        captures = found.get(id_of(canonical_url(url)), [])
        assert len(captures) == len(mine)
        tried, asked = Tried(found), ArchiveQuery(canonical_url(url), url, moment)
        answer = asyncio.run(best_capture(tried, asked))
        read = tried.read_captures
        # Captures of the same time may come in any order; all else is settled.
        assert [(each.truncated, abs(each.date - moment), each.date) for each in read] == pages[
            :TRIED
        ]
        assert all(each.place[3] == f"CC-{each.place[0]}" for each in read)
        assert isinstance(answer, FetchFailure)
        assert (answer.reason == Reason.NOT_ARCHIVED) == (not pages)


def test_only_needed_columns_of_wanted_row_groups_are_read(
    tmp_path: Path,
) -> None:
    index = Published(
        str(tmp_path),
        [[row(f"http://site{n:04d}.example/", n, "f", n, 1) for n in range(4000)]],
        group_rows=200,
    )
    with patch.object(
        pq.ParquetFile, "read_row_group", autospec=True, side_effect=pq.ParquetFile.read_row_group
    ) as read:
        found = index.captures(["http://site1300.example/", "http://site1305.example/absent"])
    assert [len(captures) for captures in found.values()] == [1]
    assert {call.args[1] for call in read.call_args_list} == {6}
    names = [call.kwargs["columns"] for call in read.call_args_list]
    assert names[0] == ["url_surtkey"]
    assert not any("digest" in name or name == "url_host_name" for some in names for name in some)


def test_a_row_group_without_statistics_may_hold_any_key(tmp_path: Path) -> None:
    index = Published(
        str(tmp_path), [[row("http://a.example/", 1, "f", 7, 1)]], write_statistics=False
    )
    assert [each.place[1] for (each,) in index.captures(["http://a.example/"]).values()] == [7]
