"""Which of several duplicates stays: one rule for exact and for near ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ["url_id", "text", "score", "created_utc"]
"""What is looked at of each document."""


def precedence(documents: pa.RecordBatch, survivor: str) -> pa.Array:
    """int64 a document: of duplicates, the one with the least stays; ties by url_id.

    `longest`: most characters first; `highest_score`: highest Reddit score first, documents without one last;
    `earliest`: earliest submission first, documents without one last.
    """
    last = np.iinfo(np.int64).max
    if survivor == "longest":
        return pc.negate(pc.cast(pc.utf8_length(documents["text"]), pa.int64()))
    if survivor == "highest_score":
        return pc.fill_null(pc.negate(pc.cast(documents["score"], pa.int64())), last)
    return pc.fill_null(pc.cast(documents["created_utc"], pa.int64()), last)
