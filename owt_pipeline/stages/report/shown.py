"""Reads the few rows that the report shows, with URLs, texts and pages, from the shards that the queries name."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import lxml.html
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from lxml_html_clean import Cleaner

from owt_pipeline.formats.takedowns import Takedowns
from owt_pipeline.formats.warc import Response, read_record
from owt_pipeline.ledger.dataset import DatasetReader, reading
from owt_pipeline.stages.report.tables import Row, Tables

_EXCERPT_CHARACTERS = 3000
_MOST_PAGES = 5
_BODY_BYTES, _PAGE_CHARACTERS = 1 << 20, 30_000

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


def dropped(tables: Tables, rejects: Sequence[Row], reader: DatasetReader, takedowns: Takedowns) -> list[Row]:
    """Documents that a filter dropped, as extracted, without those that were taken down."""
    chosen = rejects[: tables.parameters["sample_documents"]]
    found = rows_at(reader, chosen, ["url", "title", "text"])
    ids, urls = np.array([row["url_id"] for row in found], np.uint64), pa.array([row["url"] for row in found])
    gone = {row for row, _ in takedowns.of(ids, urls)}
    texts = {row["url_id"]: row for number, row in enumerate(found) if number not in gone}
    return [_excerpt({**texts[row["url_id"]], "detail": row["detail"]}) for row in chosen if row["url_id"] in texts]


def documents(tables: Tables, readers: Mapping[str, DatasetReader]) -> list[Row]:
    """Random documents of the corpus; the first few with a short page include the page."""
    chosen = tables.rows("sample")
    if not chosen:
        return []
    columns = ["url", "title", "score", "language", "n_words", "text"]
    found = {row["url_id"]: row for row in rows_at(readers["corpus"], chosen, columns)}
    pages = _pages(readers["pages"], chosen) if "pages" in readers else {}
    shown = [row["url_id"] for row in chosen if row["url_id"] in pages][:_MOST_PAGES]
    return [
        _excerpt({**found[row["url_id"]], "page": pages[row["url_id"]] if row["url_id"] in shown else None})
        for row in chosen
    ]


def of_clean(tables: Tables, readers: Mapping[str, DatasetReader], column: str, ids: Set[int]) -> dict[int, Any]:
    """One column of documents, by id, without those of other runs."""
    if "clean" not in readers or not ids:
        return {}
    rows = rows_at(readers["clean"], tables.rows("shards", ids=sorted(ids)), [column])
    return {row["url_id"]: row[column] for row in rows}


def rows_at(reader: DatasetReader, places: Iterable[Row], columns: Sequence[str], *, kind: str = "data") -> list[Row]:
    """The rows with the `shard` and `url_id` of `places`, in the order of the files: `url_id` and `columns`.

    Of a row group without any of them, only ids are read.
    """
    by_shard: dict[int, set[int]] = {}
    for place in places:
        by_shard.setdefault(place["shard"], set()).add(place["url_id"])
    found: list[Row] = []
    for shard, ids in sorted(by_shard.items()):
        wanted = pa.array(sorted(ids), pa.uint64())
        for file in reader.files(kind, shard):
            with reading(reader.workdir.path(file.path)), reader.workdir.open(file.path) as source:
                parquet = pq.ParquetFile(source)
                for group in range(parquet.num_row_groups):
                    mask = pc.is_in(parquet.read_row_group(group, columns=["url_id"])["url_id"], wanted)
                    if pc.any(mask).as_py():
                        rows = parquet.read_row_group(group, columns=["url_id", *columns])
                        found += rows.select(["url_id", *columns]).filter(mask).to_pylist()
    return found


def _excerpt(row: Row) -> Row:
    text = row.pop("text")
    return {**row, "characters": len(text), "text": text[:_EXCERPT_CHARACTERS]}


def _pages(reader: DatasetReader, places: Sequence[Row]) -> dict[int, str]:
    """The readable parts of the pages of documents, by id; a document's page is in the shard of the same number."""
    pages = {}
    shards = {place["url_id"]: place["shard"] for place in places}
    for row in rows_at(reader, places, ["warc_offset", "warc_length"]):
        (warc,) = reader.files("warc", shards[row["url_id"]])
        with reader.workdir.open(warc.path) as file:
            file.seek(row["warc_offset"])
            if page := readable(read_record(file.read(row["warc_length"]))):
                pages[row["url_id"]] = page
    return pages


def readable(response: Response) -> str | None:
    """A short page without scripts, styles, images and links, so that it loads nothing; None for a long page."""
    if len(response.body) > _BODY_BYTES:
        return None
    try:
        encoding = codecs.lookup(response.charset or "").name
    except LookupError:
        encoding = None  # lxml uses the page's declaration
    try:
        tree = lxml.html.document_fromstring(response.body, parser=lxml.html.HTMLParser(encoding=encoding))
        cleaned = lxml.html.tostring(_CLEANER.clean_html(tree), encoding="unicode")
    except (lxml.etree.LxmlError, ValueError, AssertionError):
        return None
    return cleaned if len(cleaned) <= _PAGE_CHARACTERS else None


_CLEANER = Cleaner(
    style=True,
    inline_style=True,
    page_structure=False,
    safe_attrs=frozenset({"title", "colspan", "rowspan", "dir", "lang"}),
    kill_tags=("img", "picture", "svg", "math", "video", "audio", "canvas", "template", "noscript"),
)
