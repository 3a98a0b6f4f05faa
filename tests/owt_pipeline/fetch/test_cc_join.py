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
import pytest
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

MAX_TRIED = 3


class Published:
    """Files of an index in a folder."""

    def __init__(self, folder: str, files: list[list[dict[str, Any]]], **options: Any):
        for number, rows in enumerate(files):
            Path(folder, str(number)).write_bytes(parquet(table(rows), **options))
        self.bounds = sorted(
            bounds_of(f"CC-{number}", f"{folder}/{number}") for number in range(len(files))
        )

    def captures(self, urls: list[str]) -> Mapping[int, list[Capture]]:
        """Return the captures that a shard gets for its URLs."""
        rows = sorted({(id_of(canonical_url(url)), canonical_url(url), url) for url in urls})
        types = [("url_id", pa.uint64()), ("url", pa.string()), ("posted_url", pa.string())]
        assert [name for name, _ in types] == URL_COLUMNS
        lookups = lookups_of(batch_of(rows, pa.schema(types)), 3)
        keys = lookups["key"].to_pylist()
        captures_of_files = []
        for file in self.bounds:
            keys_of_file = span(keys, file.min_key, file.max_key)
            lookups_in_file = pa.Table.from_batches([lookups[keys_of_file]])
            with opened(file.uri) as index:
                captures_of_files.append(join(index, file.crawl, lookups_in_file))
        assert all(set(table["shard"].to_pylist()) <= {3} for table in captures_of_files)
        return captures_by_url(pa.Table.from_batches(captures_of_files))


class NotingClient(BulkClient):
    """Reads no record, and notes which captures it has to read."""

    def __init__(self, captures: Mapping[int, list[Capture]]) -> None:
        self.holdings = "CC"
        self.captures = captures
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


@pytest.mark.slow
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
    for number, rows_of_file in enumerate(files):
        index_rows = [
            row(file=f"{number}", offset=offset, length=1, **fields)
            for offset, fields in enumerate(rows_of_file)
        ]
        index.append(sorted(index_rows, key=lambda index_row: index_row["url_surtkey"]))
    with tempfile.TemporaryDirectory() as folder:
        captures_by_id = Published(folder, index, group_rows=group_rows).captures(list(urls))
    for url, created in {
        canonical_url(url): (url, created) for url, created in urls.items()
    }.values():
        moment = target_time(choice, created)
        matching_rows = [
            index_row for index_rows in index for index_row in index_rows
            if canonical_url(index_row["url"]) == canonical_url(url)
            and (index_row["fetch_status"], index_row["content_mime_detected"])
            == (200, "text/html")
        ]  # fmt: skip
        pages = sorted(
            (
                index_row["content_truncated"] is not None,
                abs(index_row["fetch_time"] // 1000 - moment),
                index_row["fetch_time"] // 1000,
            )
            for index_row in matching_rows
        )
        captures = captures_by_id.get(id_of(canonical_url(url)), [])
        assert len(captures) == len(matching_rows)
        client = NotingClient(captures_by_id)
        query = ArchiveQuery(canonical_url(url), url, moment)
        answer = asyncio.run(best_capture(client, query))
        captures_read = client.read_captures
        # Captures of the same time may come in any order; all else is settled.
        tried = [
            (capture.truncated, abs(capture.date - moment), capture.date)
            for capture in captures_read
        ]
        assert tried == pages[:MAX_TRIED]
        assert all(capture.place[3] == f"CC-{capture.place[0]}" for capture in captures_read)
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
        captures_by_id = index.captures(
            ["http://site1300.example/", "http://site1305.example/absent"]
        )
    assert [len(captures) for captures in captures_by_id.values()] == [1]
    assert {call.args[1] for call in read.call_args_list} == {6}
    names = [call.kwargs["columns"] for call in read.call_args_list]
    assert names[0] == ["url_surtkey"]
    # The other columns make up most of the index's bytes.
    columns_read = {name for columns in names for name in columns}
    assert not any("digest" in name or name == "url_host_name" for name in columns_read)


def test_a_row_group_without_statistics_may_hold_any_key(tmp_path: Path) -> None:
    index = Published(
        str(tmp_path), [[row("http://a.example/", 1, "f", 7, 1)]], write_statistics=False
    )
    assert [capture.place[1] for (capture,) in index.captures(["http://a.example/"]).values()] == [
        7
    ]
