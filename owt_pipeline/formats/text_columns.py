"""Columns of texts from Arrow, Polars, pandas or NumPy, as arrays of strings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.formats.batches import slices_of


def column_of(texts: Any) -> pa.Array | pa.ChunkedArray | None:
    """Return the column of Arrow, Polars, pandas or NumPy; None for other sequences."""
    if isinstance(texts, (pa.Array, pa.ChunkedArray)):
        return texts
    # Columns of Polars and pandas.
    if hasattr(texts, "__arrow_c_stream__"):
        return pa.chunked_array(texts)
    # Columns of NumPy, and of pandas without Arrow.
    if hasattr(texts, "dtype"):
        return pa.array(texts, from_pandas=True)
    return None


def arrays_of_column(column: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield a column in arrays of strings of bounded size. Raises TypeError for other types."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    first = 0
    for chunk in chunks:
        if pa.types.is_dictionary(chunk.type):
            chunk = _decode_dictionary(chunk)
        if not _has_strings(chunk.type):
            raise TypeError(f"texts is a column of {chunk.type}, not of strings")
        for array in slices_of(chunk):
            yield _valid_strings(pc.cast(array, pa.string()), first)
            first += len(array)


def _decode_dictionary(array: pa.DictionaryArray) -> pa.Array:
    values = array.dictionary
    # Polars writes string views, and Arrow cannot take rows from these.
    if pa.types.is_string_view(values.type):
        values = pc.cast(values, pa.string())
    return values.take(array.indices)


def _has_strings(kind: pa.DataType) -> bool:
    """Return whether a type is one of strings; a column of nulls only has the type null."""
    types = pa.types
    is_string = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return is_string or types.is_null(kind)


def _valid_strings(texts: pa.Array, first: int) -> pa.Array:
    """Return `texts`, the first of which has the number `first`; raise ValueError if not UTF-8."""
    try:
        # A full validation decodes the strings.
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"from texts[{first}] on: {error}") from error
    return texts
