"""Exact duplicates: documents whose normalised texts have the same hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from owt_pipeline.dedupe.chunks import chunked
from owt_pipeline.dedupe.survivors import precedence
from owt_pipeline.dedupe.words import normalise

HASHED = pa.schema(
    [
        ("row", pa.uint32()),
        ("url_id", pa.uint64()),
        ("precedence", pa.int64()),
        ("text_high", pa.uint64()),
        ("text_low", pa.uint64()),
    ]
)
"""A document of a shard: its row there, its precedence among duplicates, the two halves of its text's hash."""

PLACED = pa.schema(
    [("place", pa.uint64()), ("url_id", pa.uint64()), ("kept_place", pa.uint64()), ("kept_url_id", pa.uint64())]
)


def hash_documents(documents: pa.RecordBatch, first_row: int, survivor: str) -> pa.RecordBatch:
    """Rows of HASHED for documents of consecutive rows of a shard, with the columns `survivors.COLUMNS`."""
    digests = b"".join(digest for chunk in chunked(documents["text"]) for digest in hash_texts(chunk))
    halves = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    rows = np.arange(first_row, first_row + len(documents), dtype=np.uint32)
    columns = [pa.array(rows), documents["url_id"], precedence(documents, survivor), *map(pa.array, halves.T)]
    return pa.RecordBatch.from_arrays(columns, schema=HASHED)


def hash_texts(texts: pa.Array) -> list[bytes]:
    """XXH3-128 of each normalised text; of the text itself, with a byte before it, where it has no words."""
    letters, starts, ends = normalise(texts)
    return [
        xxhash.xxh3_128_digest(letters[start:end].data if end > start else b"\x00" + texts[i].as_py().encode())
        for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
    ]


def exact_duplicates(documents: pa.RecordBatch, first_standing: np.uint64) -> pa.RecordBatch:
    """For each document but the first of each group with the same text: which one that is; sorted by place.

    Args:
      documents: text_high and text_low, the hash of the text; precedence; url_id; place. Of a group, the
        document of the least (precedence, url_id) stays.
      first_standing: documents at this place and after it stay in any case.
    """
    high = documents["text_high"].to_numpy()
    again = np.flatnonzero(np.isin(high, _repeated(high)))
    columns = {name: documents[name].to_numpy()[again] for name in documents.schema.names}
    order = np.lexsort([columns[name] for name in ("url_id", "precedence", "text_low", "text_high")])
    columns = {name: values[order] for name, values in columns.items()}
    is_first = np.ones(len(order), bool)
    is_first[1:] = (np.diff(columns["text_high"]) != 0) | (np.diff(columns["text_low"]) != 0)
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    removed = np.flatnonzero(~is_first & (columns["place"] < first_standing))
    removed = removed[np.argsort(columns["place"][removed])]
    kept = first[removed]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns["place"][removed]),
            pa.array(columns["url_id"][removed]),
            pa.array(columns["place"][kept]),
            pa.array(columns["url_id"][kept]),
        ],
        schema=PLACED,
    )


def _repeated(values: np.ndarray) -> np.ndarray:
    """The values that occur more than once, sorted."""
    values = np.sort(values)
    return np.unique(values[1:][values[1:] == values[:-1]])
