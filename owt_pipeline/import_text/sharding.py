"""From files to shards in two passes, so that neither needs more memory than a shard's ids and a buffer.

files of group 0 ──> records/part-00000: [shard 0 | shard 1 | … | shard 0 | shard 1 | …]   row groups
files of group 1 ──> records/part-00001: [shard 0 | shard 1 | …]
                                              │
                          shard 0 of the dataset: its row groups of every part, each id once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.engine.batches import Outcome
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.storage import Storage
from owt_pipeline.import_text.documents import PLACED, FieldNames, place, placed_batch
from owt_pipeline.import_text.records import read_records
from schemas import DATASETS, REJECTS, Reason

_BUFFER_BYTES = 64 << 20
_BATCH_BYTES = 4 << 20
_GROUP_BYTES, _GROUP_FILES = 64 << 20, 1000
_DOCUMENTS = DATASETS["documents"].schema


@dataclass(frozen=True)
class SourceFile:
    """A file to be imported: where it is, what to call it, its format and length in bytes."""

    path: str
    name: str
    kind: str
    bytes: int


def group_files(files: Sequence[SourceFile]) -> list[list[SourceFile]]:
    """The files in order, many small ones together: each group is a unit of work and of resume."""
    groups: list[list[SourceFile]] = []
    size = 0
    for file in files:
        if not groups or size + file.bytes > _GROUP_BYTES or len(groups[-1]) == _GROUP_FILES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups


def place_group(
    group: int,
    writer: ShardWriter,
    *,
    groups: Sequence[Sequence[SourceFile]],
    names: FieldNames,
    split_text: str,
    num_shards: int,
) -> None:
    """Write the records of one group of files, each row group holding rows of a single shard."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in _placed_batches(groups[group], names, split_text, num_shards):
        waiting.append(batch)
        size += batch.nbytes
        if size >= _BUFFER_BYTES:
            _write_by_shard(waiting, writer)
            waiting, size = [], 0
    _write_by_shard(waiting, writer)


def merge_shard(shard: int, writer: ShardWriter, *, folder: Storage, paths: Sequence[str]) -> None:
    """Write one shard of the dataset from the parts that `place_group` wrote: of each id the first document."""
    ids = [batch["url_id"].to_numpy() for batch in _rows_of_shard(shard, folder, paths, ["url_id", "shard", "reason"])]
    reasons = [batch["reason"] for batch in _rows_of_shard(shard, folder, paths, ["reason", "shard"])]
    good = np.concatenate([np.zeros(0, bool), *(r.is_null().to_numpy(zero_copy_only=False) for r in reasons)])
    first = np.zeros(len(good), bool)
    rows = np.flatnonzero(good)
    if len(rows):
        first[rows[np.unique(np.concatenate(ids)[rows], return_index=True)[1]]] = True
    start = 0
    for batch in _rows_of_shard(shard, folder, paths, None):
        mask = pa.array(first[start : start + batch.num_rows])
        start += batch.num_rows
        kept = batch.filter(mask).select(_DOCUMENTS.names)
        writer.add(batch.num_rows, Outcome(kept.cast(_DOCUMENTS), _rejects(batch.filter(pc.invert(mask)))))


def _placed_batches(
    files: Sequence[SourceFile], names: FieldNames, split_text: str, num_shards: int
) -> Iterator[pa.RecordBatch]:
    rows: list[dict] = []
    size = 0
    for file in files:
        field_names = FieldNames("text", "", "", "", "", "") if file.kind == "text" else names
        columns = field_names.columns()
        for record in read_records(file.path, file.name, file.kind, columns=columns, split_text=split_text):
            rows.append(place(record, field_names, num_shards))
            size += len(rows[-1]["text"])
            if size >= _BATCH_BYTES or len(rows) == 1024:
                yield placed_batch(rows)
                rows, size = [], 0
    if rows:
        yield placed_batch(rows)


def _write_by_shard(batches: list[pa.RecordBatch], writer: ShardWriter) -> None:
    for shard in sorted({shard for batch in batches for shard in batch["shard"].unique().to_pylist()}):
        for batch in batches:
            writer.write(batch.filter(pc.equal(batch["shard"], shard)))
        writer.flush()


def _rows_of_shard(
    shard: int, folder: Storage, paths: Sequence[str], columns: list[str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of one shard in the order of the files; the row groups' statistics tell where they are."""
    for path in paths:
        with folder.open(path) as source:
            file = pq.ParquetFile(source)
            column = PLACED.get_field_index("shard")
            groups = [
                group
                for group in range(file.metadata.num_row_groups)
                if file.metadata.row_group(group).column(column).statistics.min == shard
            ]
            if groups:
                yield from file.iter_batches(batch_size=256, row_groups=groups, columns=columns)


def _rejects(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Reject rows; those without a reason of their own repeat an earlier record."""
    reason = pc.fill_null(rows["reason"], str(Reason.REPEATED_ID))
    return pa.RecordBatch.from_arrays([rows["url_id"], rows["url"], reason, rows["detail"]], schema=REJECTS)
