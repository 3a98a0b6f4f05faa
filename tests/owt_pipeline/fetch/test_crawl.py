"""The order in which a shard's URLs are fetched, and what it holds in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.fetch.crawl import rows_by_host


@given(st.lists(st.lists(st.sampled_from(["a.com", "b.com", "c.com", "d.com"]), max_size=8), max_size=4).filter(any))
def test_hosts_with_the_most_urls_begin_and_each_keeps_the_order_of_its_rows(chunks: list[list[str]]) -> None:
    names = np.array([host for chunk in chunks for host in chunk], dtype=object)
    found = [rows.tolist() for rows in rows_by_host(pa.chunked_array(chunks, pa.string()))]
    assert sorted(row for rows in found for row in rows) == list(range(len(names)))
    for rows in found:
        assert rows == np.flatnonzero(names == names[rows[0]]).tolist()
    assert [len(rows) for rows in found] == sorted(map(len, found), reverse=True)


def test_the_order_does_not_hold_the_hosts_names() -> None:
    before = pa.total_allocated_bytes()
    hosts = pa.chunked_array([pa.array([f"host{n % 1000}.example.com" for n in range(50_000)])])
    assert pa.total_allocated_bytes() - before > 1_000_000
    order = rows_by_host(hosts)
    del hosts
    assert pa.total_allocated_bytes() - before < 1_000
    assert len(next(order)) == 50
