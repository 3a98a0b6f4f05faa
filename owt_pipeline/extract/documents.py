"""Rows of `documents/` from pages and what was found on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from owt_pipeline.engine.dataset import Outcome, rejects_batch, replace_columns
from owt_pipeline.extract.pages import Found, Rejected, Result
from schemas import DATASETS


def documents(pages: Sequence[tuple[pa.RecordBatch, Result]]) -> Outcome:
    """What happened to `pages`: pairs of a row of `pages/` and its result."""
    found = [(row, result) for row, result in pages if isinstance(result, Found)]
    rejected = [(row, result) for row, result in pages if isinstance(result, Rejected)]
    schema = DATASETS["documents"].schema
    if found:
        # One chunk: the rows are slices of batches that hold complete records.
        (index,) = pa.Table.from_batches([row for row, _ in found]).combine_chunks().to_batches()
        documents = [result.document for _, result in found]
        kept = replace_columns(
            index,
            schema,
            **{name: [getattr(document, name) for document in documents] for name in _FROM_DOCUMENT},
        )
    else:
        kept = pa.RecordBatch.from_pylist([], schema)
    return Outcome(
        kept,
        rejects_batch((_one(row, "url_id"), _one(row, "url"), r.reason, r.detail) for row, r in rejected),
        Counter(f"charset_{result.charset}" for _, result in found),
    )


_FROM_DOCUMENT = ("title", "author", "date", "site_name", "language", "license", "text")


def _one(row: pa.RecordBatch, column: str):  # type: ignore[no-untyped-def]
    return row[column][0].as_py()
