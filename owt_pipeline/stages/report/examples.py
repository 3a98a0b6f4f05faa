"""Reads the few rows that the report shows with URLs and texts.

The queries choose the rows, and return the shard and the id of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from owt_pipeline.engine.takedowns import Takedowns
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.report.tables import Row, Tables

_EXCERPT_CHARACTERS = 3000

Rejects = dict[tuple[str, str], list[Row]]


def rejected(tables: Tables, readers: Mapping[str, DatasetReader]) -> Rejects:
    """Return random rows of rejects/ by dataset and reason.

    A row has `url_id`, `shard`, `url` and `detail`.
    """
    sample: Rejects = {}
    for row in tables.rows("rejected"):
        key = row.pop("dataset"), row.pop("reason")
        sample.setdefault(key, []).append(row)
    for dataset, reader in readers.items():
        rows_by_reason = {
            reason: rows for (name, reason), rows in sample.items() if name == dataset
        }
        places = list(itertools.chain.from_iterable(rows_by_reason.values()))
        stored_rows: dict[tuple[str, int], list[Row]] = {}
        for row in rows_at(reader, places, ["url", "reason", "detail"], kind="rejects"):
            key = row.pop("reason"), row["url_id"]
            stored_rows.setdefault(key, []).append(row)
        for reason, rows in rows_by_reason.items():
            for row in rows:
                # An id may have several rows with the same reason.
                row.update(min(stored_rows[reason, row["url_id"]], key=repr))
    return sample


def dropped(
    tables: Tables, rejects: Sequence[Row], reader: DatasetReader, takedowns: Takedowns
) -> list[Row]:
    """Return documents that a filter dropped, as extracted, without documents that were taken
    down."""
    sample = rejects[: tables.parameters["sample_documents"]]
    rows = rows_at(reader, sample, ["url", "title", "text"])
    ids = np.array([row["url_id"] for row in rows], np.uint64)
    urls = pa.array([row["url"] for row in rows])
    taken_down = {number for number, _ in takedowns.rows_to_forget(ids, urls)}
    documents_by_id: dict[int, Row] = {}
    for number, row in enumerate(rows):
        if number not in taken_down:
            documents_by_id[row["url_id"]] = row
    excerpts: list[Row] = []
    for reject in sample:
        document = documents_by_id.get(reject["url_id"])
        if document is not None:
            excerpts.append(_excerpt({**document, "detail": reject["detail"]}))
    return excerpts


def documents(tables: Tables, readers: Mapping[str, DatasetReader]) -> list[Row]:
    """Return random documents of the corpus."""
    sample = tables.rows("sample")
    if not sample:
        return []
    columns = ["url", "title", "score", "language", "n_words", "text"]
    rows_by_id = {row["url_id"]: row for row in rows_at(readers["corpus"], sample, columns)}
    return [_excerpt(rows_by_id[row["url_id"]]) for row in sample]


def removals(tables: Tables, readers: Mapping[str, DatasetReader]) -> list[Row]:
    """Return random decisions of dedupe, each with the removed document and the kept one.

    Decisions in favour of a document of another run are left out.
    """
    sample = tables.rows("removals")
    if not sample or "clean" not in readers or readers["clean"].gone:
        return []
    places: list[Row] = []
    for decision in sample:
        for side in _SIDES:
            place = {"url_id": decision[f"{side}_id"], "shard": decision[f"{side}_shard"]}
            places.append(place)
    rows_by_id = {row["url_id"]: row for row in rows_at(readers["clean"], places, ["url", "text"])}
    decisions: list[Row] = []
    for decision in sample:
        shown = {"rule": decision["rule"], "similarity": decision["similarity"]}
        for side in _SIDES:
            # A copy, since several decisions may share a document.
            document = dict(rows_by_id[decision[f"{side}_id"]])
            shown[side] = _excerpt(document)
        decisions.append(shown)
    return decisions


_SIDES = ("removed", "kept")


def rows_at(
    reader: DatasetReader, places: Iterable[Row], columns: Sequence[str], *, kind: str = "data"
) -> list[Row]:
    """Return the rows with the `shard` and `url_id` of `places`, in the order of the files.

    A row has `url_id` and the `columns`.
    """
    ids_by_shard: dict[int, set[int]] = {}
    for place in places:
        ids_by_shard.setdefault(place["shard"], set()).add(place["url_id"])
    rows: list[Row] = []
    for shard, ids in sorted(ids_by_shard.items()):
        located = reader.rows_by_id(shard, ids, kind=kind, columns=["url_id", *columns])
        rows.extend(row.row for row in located)
    return rows


def _excerpt(row: Row) -> Row:
    """Return a row with the beginning of its text, and the number of characters of all of it."""
    text = row.pop("text")
    return {**row, "characters": len(text), "text": text[:_EXCERPT_CHARACTERS]}
