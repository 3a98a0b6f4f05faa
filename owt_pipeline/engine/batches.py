"""Record batches: what travels between transforms, to worker processes and into shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from schemas import REJECTS, Reason


@dataclass(frozen=True)
class Outcome:
    """What happened to one batch's rows: each was kept or rejected.

    Attributes:
      kept: rows for the dataset; by output name where a stage writes several (`train`, `val`).
      rejects: rows of schema `REJECTS`.
      stats: counts to be summed over the run.
    """

    kept: pa.RecordBatch | Mapping[str, pa.RecordBatch]
    rejects: pa.RecordBatch = field(default_factory=lambda: empty(REJECTS))
    stats: Mapping[str, int] = field(default_factory=dict)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def rejects_batch(rows: Iterable[tuple[int, str | None, Reason, str | None]]) -> pa.RecordBatch:
    """Reject rows from (url_id, url, reason, detail)."""
    columns: list[list] = [[], [], [], []]
    for url_id, url, reason, detail in rows:
        columns[0].append(url_id)
        columns[1].append(url)
        columns[2].append(str(reason))
        columns[3].append(detail)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, kind) for values, kind in zip(columns, REJECTS.types, strict=True)], schema=REJECTS
    )


def replace_columns(batch: pa.RecordBatch, schema: pa.Schema, **columns: pa.Array | Sequence) -> pa.RecordBatch:
    """A batch of `schema`: the given columns, and the others as they are in `batch`."""
    arrays = []
    for column in schema:
        values = columns.get(column.name)
        if values is None:
            arrays.append(batch.column(column.name))
        elif isinstance(values, pa.Array):
            arrays.append(values)
        else:
            arrays.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_ipc(batch: pa.RecordBatch) -> bytes:
    """The batch as an Arrow IPC stream; a slice ships its own rows only, where pickle ships its parent's."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.RecordBatch:
    """The batch of `to_ipc`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
