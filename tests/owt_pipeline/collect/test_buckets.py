"""The rows of a source are read back by bucket: all of them, in their order, and only those asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from owt_pipeline.collect import buckets
from owt_pipeline.collect.buckets import BucketWriter, read_buckets
from owt_pipeline.collect.rows import ROWS
from owt_pipeline.engine.storage import Storage

NUM_BUCKETS = 7


def batch(rng: np.random.Generator, first: int, n: int) -> pa.RecordBatch:
    rows = [
        {"bucket": int(bucket), "url_id": k, "source": 0, "line": k, "title": f"title {k}"}
        for k, bucket in enumerate(rng.choice([0, 1, 3, 6], n), first)
    ]
    return pa.RecordBatch.from_pylist(rows, ROWS)


@pytest.mark.parametrize("buffer_bytes", [1, 3000, buckets.BUFFER_BYTES])
def test_each_bucket_is_read_back_in_order(tmp_path: Path, buffer_bytes: int) -> None:
    rng = np.random.default_rng(5)
    batches = [batch(rng, 50 * k, 50) for k in range(10)]
    with open(tmp_path / "rows", "wb") as file:
        writer = BucketWriter(file, NUM_BUCKETS, buffer_bytes)
        for rows in batches:
            writer.write(rows)
        writer.close()
    everything = pa.Table.from_batches(batches)
    with Storage(str(tmp_path)).open("rows") as source:
        for wanted in ({0}, {1, 6}, {2, 4, 5}, set(range(NUM_BUCKETS))):
            found = pa.Table.from_batches(read_buckets(source, wanted), ROWS)
            expected = everything.filter(pa.array([b in wanted for b in everything["bucket"].to_pylist()]))
            order = np.argsort(expected["bucket"].to_numpy(), kind="stable")
            assert found.combine_chunks().equals(expected.take(order).combine_chunks())


def test_a_source_without_rows_has_no_buckets(tmp_path: Path) -> None:
    with open(tmp_path / "rows", "wb") as file:
        BucketWriter(file, NUM_BUCKETS).close()
    with Storage(str(tmp_path)).open("rows") as source:
        assert list(read_buckets(source, {0, 6})) == []
