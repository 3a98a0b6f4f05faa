"""Parts: the texts of a corpus as they are read, some row groups at a time, by whichever worker is free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.dedupe.memory import keep_freed_memory
from owt_pipeline.engine.dataset import DatasetReader, reading
from owt_pipeline.engine.storage import Storage
from schemas.manifest import ShardFile

_PART_BYTES = 8 << 20  # at least, uncompressed: a row group as we write them, or several smaller ones
_MOST_PARTS = 1024  # or so, of a large corpus: each leaves files, which each range of hashes is picked out of
_BATCH_ROWS = 1024
_FOOTERS_TOGETHER = 16  # read at once: each waits for a bucket


@dataclass(frozen=True)
class Part:
    """Consecutive row groups of a shard's file.

    Attributes:
      shard: the shard's number in its collection.
      path: of the file, in its dataset.
      groups: the row groups.
      first: the row of the shard that comes first.
      rows: how many there are.
    """

    shard: int
    path: str
    groups: range
    first: int
    rows: int


def cut(source: DatasetReader, shards: Iterable[int], before: int = 0) -> list[Part]:
    """The parts of some shards of a dataset in order, one or more a shard.

    They follow from the files alone: the work is cut the same for any number of workers.

    Args:
      source: the dataset.
      shards: numbers of shards, in order.
      before: shards of the collection that come before those of the dataset.
    """
    files = [file for shard in shards for file in source.files("data", shard)]
    with ThreadPoolExecutor(_FOOTERS_TOGETHER) as threads:
        row_groups = list(threads.map(lambda file: _row_groups(source.workdir, file), files))
    least = max(_PART_BYTES, sum(size for groups in row_groups for _, size in groups) // _MOST_PARTS)
    parts: list[Part] = []
    for file, groups in zip(files, row_groups, strict=True):
        shard = before + file.shard
        first = parts[-1].first + parts[-1].rows if parts and parts[-1].shard == shard else 0
        start, rows, size = 0, 0, 0
        for i, (group_rows, group_bytes) in enumerate(groups):
            rows, size = rows + group_rows, size + group_bytes
            if size >= least or i == len(groups) - 1:
                parts.append(Part(shard, file.path, range(start, i + 1), first, rows))
                start, first, rows, size = i + 1, first + rows, 0, 0
        if not groups:
            parts.append(Part(shard, file.path, range(0), first, 0))
    return parts


def _row_groups(folder: Storage, file: ShardFile) -> list[tuple[int, int]]:
    """(rows, uncompressed bytes) of each row group of a file."""
    with reading(folder.path(file.path)), folder.open(file.path) as opened:
        metadata = pq.read_metadata(opened)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


def read_part(
    part: Part, folder: Storage, columns: list[str], rows: np.ndarray | None = None
) -> Iterator[pa.RecordBatch]:
    """A part's documents in batches: all, or those at some of the shard's `rows` (sorted, all of this part)."""
    keep_freed_memory()
    if not part.rows or (rows is not None and not len(rows)):
        return
    first = part.first
    with reading(folder.path(part.path)), folder.open(part.path) as file:
        # By this thread: where all cores are busy, Arrow's own threads would only make it wait.
        batches = pq.ParquetFile(file).iter_batches(
            _BATCH_ROWS, row_groups=list(part.groups), columns=columns, use_threads=False
        )
        for batch in batches:
            if rows is None:
                yield batch
                continue
            mine = rows[slice(*np.searchsorted(rows, [first, first + batch.num_rows]))] - first
            first += batch.num_rows
            if len(mine) == batch.num_rows:
                yield batch
            elif len(mine):
                yield batch.take(pa.array(mine))
            if first > rows[-1]:
                return
