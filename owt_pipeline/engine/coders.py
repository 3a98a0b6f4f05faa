"""A Beam coder for record batches."""

from __future__ import annotations

import apache_beam as beam
import pyarrow as pa

from owt_pipeline.engine.batches import from_ipc, to_ipc


class RecordBatchCoder(beam.coders.Coder):
    """Arrow IPC streams; the default, pickle, ships a slice's whole parent."""

    def encode(self, value: pa.RecordBatch) -> bytes:
        return to_ipc(value)

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        return from_ipc(encoded)

    def is_deterministic(self) -> bool:
        return True

    def to_type_hint(self) -> type:
        return pa.RecordBatch


def register() -> None:
    """Make Beam use the coder wherever a PCollection's type is RecordBatch."""
    beam.coders.registry.register_coder(pa.RecordBatch, RecordBatchCoder)
