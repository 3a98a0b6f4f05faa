"""A record of the user's files as a document, or as a reject with its reason."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.formats.dates import UnreadDates, moment_of
from owt_pipeline.formats.records import Record, field_value
from owt_pipeline.formats.urls import BadURL, canonical_url, id_of
from owt_pipeline.ledger.dataset import Outcome
from schemas import DATASETS, REJECTS, Reason

FIELDS = ("text", "url", "title", "author", "date", "language")
"""The fields of a document that are read from a record.

The option FIELD_field names the record's field. If it is "", no field is read.
"""

_DOCUMENTS = DATASETS["documents"].schema

PLACED = pa.schema(
    [*_DOCUMENTS, pa.field("reason", pa.string()), pa.field("detail", pa.string(), nullable=False)]
)
"""A row that is sent to its shard: a document, or a reject with its reason and detail."""

_ABSENT = object()
_MAX_NAMES_SHOWN = 8


def place(record: Record, names: Mapping[str, str], unread_dates: UnreadDates) -> dict[str, Any]:
    """Return the record as a row of `PLACED`, by field, and count its date in `unread_dates`.

    The id is the hash of the canonical URL. Without a URL it is the hash of the text. Without a URL
    and a text it is the hash of the record's place in the files. A URL that is not http or https
    counts as missing.
    """
    row: dict[str, Any] = dict.fromkeys(PLACED.names)
    row |= {"text": "", "subreddits": [], "detail": record.where}
    fields = record.fields
    if fields is None:
        return _rejected(row, Reason.BAD_RECORD, record.problem)
    # The URL is first, since it also identifies a record that is rejected for its text.
    with suppress(BadURL):
        row["url"] = canonical_url(_string(fields, names["url"]) or "")
    text_field = names["text"]
    text = field_value(fields, text_field, _ABSENT)
    if text is _ABSENT:
        problem = f"no field '{text_field}'; it has {_names_shown(fields)}"
        return _rejected(row, Reason.BAD_RECORD, problem)
    if text is not None and not isinstance(text, str):
        problem = f"'{text_field}' is {type(text).__name__}, not text"
        return _rejected(row, Reason.BAD_RECORD, problem)
    if text is None or not text.strip():
        return _rejected(row, Reason.EMPTY_TEXT, None)
    row["url_id"] = _id_of(row["url"], text)
    row["text"] = text
    row["title"] = _string(fields, names["title"])
    row["author"] = _string(fields, names["author"])
    date = _value(fields, names["date"])
    row["date"] = _date(date)
    unread_dates.add(date, row["date"] is not None, record.where)
    row["language"] = _string(fields, names["language"])
    return row


def _id_of(url: str | None, text: str) -> int:
    """Return the hash of a canonical URL, or of a text if there is no URL."""
    if url:
        return id_of(url)
    return xxhash.xxh3_64_intdigest(text.encode())


def _rejected(row: dict[str, Any], reason: Reason, problem: str | None) -> dict[str, Any]:
    row["url_id"] = _id_of(row["url"], row["detail"])
    row["reason"] = str(reason)
    if problem:
        row["detail"] += f": {problem}"
    return row


def _string(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field's text; None for an empty text or another type."""
    value = _value(fields, name)
    return value if isinstance(value, str) and value else None


def _date(value: Any) -> str | None:
    """Return a date as YYYY-MM-DD; None for a value that is not understood."""
    # A datetime is also a date.
    if isinstance(value, datetime.date):
        return value.isoformat()[:10]
    moment = moment_of(value)
    return moment.date().isoformat() if moment is not None else None


def _value(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field's value; None if no field is read."""
    if not name:
        return None
    return field_value(fields, name)


def _names_shown(fields: Mapping[str, Any]) -> str:
    names = list(fields)
    if not names:
        return "none"
    shown = ", ".join(names[:_MAX_NAMES_SHOWN])
    if len(names) > _MAX_NAMES_SHOWN:
        shown += ", …"
    return shown


def first_of_each_id(rows: Iterable[pa.Table], seen: np.ndarray) -> np.ndarray:
    """Return whether each row is the first document with its id, as bool (n,).

    Args:
      rows: tables with `url_id` and `reason`. Rejects are never first.
      seen: ids of documents that an earlier generation has, uint64; none of these is first.
    """
    id_arrays = [np.zeros(0, np.uint64)]
    is_document_arrays = [np.zeros(0, bool)]
    for table in rows:
        id_arrays.append(table["url_id"].to_numpy())
        is_document_arrays.append(table["reason"].is_null().to_numpy())
    ids = np.concatenate(id_arrays)
    # Only documents compete for an id: a reject does not remove a document with the same id.
    documents = np.flatnonzero(np.concatenate(is_document_arrays))
    _, first_of_ids = np.unique(ids[documents], return_index=True)
    is_first = np.zeros(len(ids), bool)
    is_first[documents[first_of_ids]] = True
    return is_first & ~np.isin(ids, seen)


def outcome(rows: pa.RecordBatch, is_first: np.ndarray) -> Outcome:
    """Return the documents and rejects among rows of schema `PLACED`.

    `is_first` is the result of `first_of_each_id` for these rows.
    """
    rejected = rows.filter(pa.array(~is_first))
    # A row without a reason that is not the first of its id repeats it.
    reasons = pc.fill_null(rejected["reason"], str(Reason.REPEATED_ID))
    columns = [rejected["url_id"], rejected["url"], reasons, rejected["detail"]]
    rejects = pa.RecordBatch.from_arrays(columns, schema=REJECTS)
    accepted = rows.filter(pa.array(is_first))
    documents = accepted.select(_DOCUMENTS.names).cast(_DOCUMENTS)
    return Outcome(documents, rejects)
