"""Records as rows of documents/, or the reason why one is none; of equal ids the first one stays."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.engine.dataset import Outcome
from owt_pipeline.formats.urls import BadURL, canonical_url, url_id
from owt_pipeline.import_text.records import Record
from schemas import DATASETS, REJECTS, Reason

_DOCUMENTS = DATASETS["documents"].schema

# A row on its way to its shard: a document, or a reject with its reason and detail.
PLACED = pa.schema(
    [
        *_DOCUMENTS,
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string(), nullable=False),
    ]
)

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class FieldNames:
    """Which field of a record holds what; `a.b` is field b of field a. Empty for none."""

    text: str
    url: str
    title: str
    author: str
    date: str
    language: str

    def columns(self) -> set[str]:
        """The top-level fields."""
        named = {self.text, self.url, self.title, self.author, self.date, self.language} - {""}
        return named | {name.partition(".")[0] for name in named}


def place(record: Record, names: FieldNames, url_rules: int) -> dict[str, Any]:
    """The record as a row of `PLACED`, by field.

    The id is the hash of the canonical URL where the record has a URL, else of the text (of its place in the
    files, where it has neither). A URL that is none of http or https counts as no URL. `url_rules` is the
    version of the rules for URLs.
    """
    row: dict[str, Any] = dict.fromkeys(PLACED.names)
    row |= {"text": "", "subreddits": [], "detail": record.where}
    fields = record.fields
    if fields is None:
        return _rejected(row, Reason.BAD_RECORD, record.problem)
    url = _string(fields, names.url)
    if url:
        try:
            row["url"] = canonical_url(url, url_rules)
        except BadURL:
            row["url"] = None
    text = field_value(fields, names.text)
    if text is None and not _has(fields, names.text):
        return _rejected(row, Reason.BAD_RECORD, f"no field '{names.text}'; it has {_some(fields)}")
    if text is not None and not isinstance(text, str):
        return _rejected(row, Reason.BAD_RECORD, f"'{names.text}' is {type(text).__name__}, not text")
    if text is None or not text.strip():
        return _rejected(row, Reason.EMPTY_TEXT, None)
    row["url_id"] = url_id(row["url"]) if row["url"] else xxhash.xxh3_64_intdigest(text.encode())
    row["text"] = text
    row["title"], row["author"] = _string(fields, names.title), _string(fields, names.author)
    row["date"] = _date(fields, names.date)
    row["language"] = _string(fields, names.language)
    return row


def placed_batch(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows of `place` as a batch of schema `PLACED`."""
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], PLACED)


def by_shard(rows: pa.RecordBatch, num_shards: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(shard, its rows): documents go by their id."""
    shards = rows["url_id"].to_numpy() % np.uint64(num_shards)
    for shard in np.unique(shards).tolist():
        yield shard, rows.filter(pa.array(shards == shard))


def first_of_each_id(rows: Iterable[pa.Table]) -> np.ndarray:
    """Which of the rows (of schema `PLACED`, some columns left out) are documents whose id no earlier one has."""
    columns = [(table["url_id"].to_numpy(), table["reason"].is_null().to_numpy()) for table in rows]
    ids = np.concatenate([np.zeros(0, np.uint64), *(ids for ids, _ in columns)])
    good = np.flatnonzero(np.concatenate([np.zeros(0, bool), *(good for _, good in columns)]))
    first = np.zeros(len(ids), bool)
    first[good[np.unique(ids[good], return_index=True)[1]]] = True
    return first


def outcome(rows: pa.RecordBatch, first: np.ndarray) -> Outcome:
    """The documents and the rejects among rows of schema `PLACED`; `first` is that of `first_of_each_id`."""
    others = rows.filter(pa.array(~first))
    reason = pc.fill_null(others["reason"], str(Reason.REPEATED_ID))  # without a reason of its own, it repeats another
    rejects = [others["url_id"], others["url"], reason, others["detail"]]
    kept = rows.filter(pa.array(first)).select(_DOCUMENTS.names).cast(_DOCUMENTS)
    return Outcome(kept, pa.RecordBatch.from_arrays(rejects, schema=REJECTS))


def field_value(fields: Mapping[str, Any], name: str) -> Any:
    """The value of field `name`, where `a.b` is field b of field a; None where there is none."""
    if name in fields:
        return fields[name]
    head, dot, rest = name.partition(".")
    inner = fields.get(head)
    return field_value(inner, rest) if dot and isinstance(inner, Mapping) else None


def _has(fields: Mapping[str, Any], name: str) -> bool:
    head, dot, rest = name.partition(".")
    return name in fields or (bool(dot) and isinstance(fields.get(head), Mapping) and _has(fields[head], rest))


def _rejected(row: dict[str, Any], reason: Reason, problem: str | None) -> dict[str, Any]:
    row["url_id"] = url_id(row["url"]) if row["url"] else xxhash.xxh3_64_intdigest(row["detail"].encode())
    row["reason"] = str(reason)
    if problem:
        row["detail"] += f": {problem}"
    return row


def _string(fields: Mapping[str, Any], name: str) -> str | None:
    value = field_value(fields, name) if name else None
    return value if isinstance(value, str) and value else None


def _date(fields: Mapping[str, Any], name: str) -> str | None:
    value = field_value(fields, name) if name else None
    if isinstance(value, datetime.date):  # a datetime too
        return value.isoformat()[:10]
    found = _DATE.match(value) if isinstance(value, str) else None
    return found[0] if found else None


def _some(fields: Mapping[str, Any]) -> str:
    names = list(fields)
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "none"
