"""Where an id is: its rows in a dataset's files, found by what the files say of themselves.

A Parquet file knows the least and the greatest id of each row group, and rows of Reddit's URLs are ordered by id
within a shard: one row group is read. Imported text is in the order of its files, and all of its ids are read,
but nothing beside them. An Arrow file is asked for its ids alone, never for the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.engine.dataset import DatasetReader, reading
from schemas.manifest import ShardFile


class Found(NamedTuple):
    """A row of a dataset: the file it is in, its number there from 0, and the row.

    Of `tokens/`, the row holds `url_id` and `n_tokens`.
    """

    file: ShardFile
    number: int
    row: dict[str, Any]


def find_id(reader: DatasetReader, identifier: int, shards: Iterable[int]) -> list[Found]:
    """The rows of the id in the first of `shards` that has any, among its data and its rejects.

    Raises UserError on a damaged file.
    """
    for shard in shards:
        found = [
            row
            for file in (*reader.files("data", shard), *reader.files("rejects", shard))
            if file.rows
            for row in _rows(reader, file, identifier)
        ]
        if found:
            return found
    return []


def arrow_ids(reader: DatasetReader, file: ShardFile) -> Iterator[pa.RecordBatch]:
    """`url_id` and `n_tokens` of a file of `tokens/`, batch by batch: the tokens themselves are not read."""
    with reading(reader.workdir.path(file.path)), reader.workdir.open(file.path) as source:
        about = pa.ipc.open_file(source).schema
        wanted = [about.get_field_index(name) for name in ("url_id", "n_tokens")]
        opened = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=wanted))
        for index in range(opened.num_record_batches):
            yield opened.get_batch(index)


def _rows(reader: DatasetReader, file: ShardFile, identifier: int) -> Iterator[Found]:
    if file.path.endswith(".arrow"):
        yield from _rows_of_arrow(reader, file, identifier)
    else:
        with reading(reader.workdir.path(file.path)), reader.workdir.open(file.path) as source:
            yield from _rows_of_parquet(source, file, identifier)


def _rows_of_parquet(source: pa.NativeFile, file: ShardFile, identifier: int) -> Iterator[Found]:
    parquet = pq.ParquetFile(source)
    column = parquet.schema_arrow.get_field_index("url_id")
    start = 0
    for group in range(parquet.num_row_groups):
        about = parquet.metadata.row_group(group)
        statistics = about.column(column).statistics
        if statistics is None or not statistics.has_min_max or statistics.min <= identifier <= statistics.max:
            ids = parquet.read_row_group(group, columns=["url_id"], use_threads=False)["url_id"].to_numpy()
            places = np.flatnonzero(ids == np.uint64(identifier))
            if len(places):
                table = parquet.read_row_group(group)
                for place in places.tolist():
                    yield Found(file, start + place, table.slice(place, 1).to_pylist()[0])
        start += about.num_rows


def _rows_of_arrow(reader: DatasetReader, file: ShardFile, identifier: int) -> Iterator[Found]:
    start = 0
    for batch in arrow_ids(reader, file):
        for place in np.flatnonzero(batch["url_id"].to_numpy() == np.uint64(identifier)).tolist():
            yield Found(file, start + place, batch.slice(place, 1).to_pylist()[0])
        start += batch.num_rows
