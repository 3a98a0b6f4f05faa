"""hashes: texts are read for what tells copies of one text, and for who of them would stay."""

from __future__ import annotations

from owt_pipeline.dedupe.collection import Collection
from owt_pipeline.dedupe.exact import hash_documents
from owt_pipeline.dedupe.parts import read_part
from owt_pipeline.dedupe.survivors import COLUMNS
from owt_pipeline.engine import progress
from owt_pipeline.engine.commit import ShardWriter


def hash_part(number: int, writer: ShardWriter, *, collection: Collection, survivor: str) -> None:
    """Write the hashes of a part's documents, row for row."""
    part = collection.parts[number]
    row = part.first
    for batch in read_part(part, collection.own.clean.workdir, COLUMNS):
        writer.write(hash_documents(batch, row, survivor))
        row += batch.num_rows
        progress.advance(batch.num_rows)
