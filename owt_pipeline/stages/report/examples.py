"""Reads the few rows that the report shows, with URLs and texts, from the shards that the
queries name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from owt_pipeline.formats.takedowns import Takedowns
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.report.tables import Row, Tables

_EXCERPT_CHARACTERS = 3000

Rejects = dict[tuple[str, str], list[Row]]


def rejected(tables: Tables, readers: Mapping[str, DatasetReader]) -> Rejects:
    """Random rows of rejects/, by dataset and reason: url_id, shard, url and detail."""
    chosen: Rejects = {}
    for row in tables.rows("rejected"):
        chosen.setdefault((row.pop("dataset"), row.pop("reason")), []).append(row)
    for dataset, reader in readers.items():
        own = {reason: rows for (name, reason), rows in chosen.items() if name == dataset}
        every = [row for rows in own.values() for row in rows]
        found: dict[tuple[str, int], list[Row]] = {}
        for row in rows_at(reader, every, ["url", "reason", "detail"], kind="rejects"):
            found.setdefault((row.pop("reason"), row["url_id"]), []).append(row)
        for reason, rows in own.items():  # an id may have several rows
            rows[:] = [{**row, **min(found[reason, row["url_id"]], key=repr)} for row in rows]
    return chosen


def dropped(
    tables: Tables, rejects: Sequence[Row], reader: DatasetReader, takedowns: Takedowns
) -> list[Row]:
    """Documents that a filter dropped, as extracted, without those that were taken down."""
    chosen = rejects[: tables.parameters["sample_documents"]]
    found = rows_at(reader, chosen, ["url", "title", "text"])
    ids, urls = (
        np.array([row["url_id"] for row in found], np.uint64),
        pa.array([row["url"] for row in found]),
    )
    gone = {row for row, _ in takedowns.rows_to_forget(ids, urls)}
    texts = {row["url_id"]: row for number, row in enumerate(found) if number not in gone}
    return [
        _excerpt({**texts[row["url_id"]], "detail": row["detail"]})
        for row in chosen
        if row["url_id"] in texts
    ]


def documents(tables: Tables, readers: Mapping[str, DatasetReader]) -> list[Row]:
    """Random documents of the corpus."""
    chosen = tables.rows("sample")
    if not chosen:
        return []
    columns = ["url", "title", "score", "language", "n_words", "text"]
    found = {row["url_id"]: row for row in rows_at(readers["corpus"], chosen, columns)}
    return [_excerpt(found[row["url_id"]]) for row in chosen]


def removals(tables: Tables, readers: Mapping[str, DatasetReader]) -> list[Row]:
    """Random decisions of dedupe, with what was removed and what is kept; without what lies in
    another run."""
    chosen = tables.rows("removals")
    if not chosen or "clean" not in readers or readers["clean"].gone:
        return []
    places = [
        {"url_id": row[f"{side}_id"], "shard": row[f"{side}_shard"]}
        for row in chosen
        for side in _SIDES
    ]
    found = {row["url_id"]: row for row in rows_at(readers["clean"], places, ["url", "text"])}
    return [
        {"rule": row["rule"], "similarity": row["similarity"]}
        | {side: _excerpt(dict(found[row[f"{side}_id"]])) for side in _SIDES}
        for row in chosen
    ]


_SIDES = ("removed", "kept")


def rows_at(
    reader: DatasetReader, places: Iterable[Row], columns: Sequence[str], *, kind: str = "data"
) -> list[Row]:
    """Return the rows with the `shard` and `url_id` of `places`, in the order of the files.

    A row has `url_id` and `columns`.
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
    text = row.pop("text")
    return {**row, "characters": len(text), "text": text[:_EXCERPT_CHARACTERS]}
