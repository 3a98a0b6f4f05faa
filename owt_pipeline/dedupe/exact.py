"""Exact duplicates: documents whose normalised texts have the same hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

PLACED = pa.schema(
    [("place", pa.uint64()), ("url_id", pa.uint64()), ("kept_place", pa.uint64()), ("kept_url_id", pa.uint64())]
)


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
