"""Reading pages/ in tests."""

from __future__ import annotations

from typing import Any

from owt_pipeline.commands.why import asked_for, history, readers_of
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.warc import Response, placed_pages, read_record, read_records
from owt_pipeline.ledger.dataset import DatasetReader
from schemas.manifest import Manifest


def reader(runtime: Runtime, manifest: Manifest) -> DatasetReader:
    """Return a reader of a dataset."""
    return DatasetReader(runtime.workdir, manifest)


def responses(runtime: Runtime, manifest: Manifest) -> dict[str, Response]:
    """Return the page of each canonical URL."""
    dataset = reader(runtime, manifest)
    page_by_url = {}
    for shard in range(dataset.num_shards):
        for batch in placed_pages(dataset, shard):
            records = read_records(runtime.workdir, batch)
            for url, record in zip(batch["url"].to_pylist(), records, strict=True):
                page_by_url[url] = read_record(record)
    return page_by_url


def records(runtime: Runtime, manifest: Manifest) -> dict[int, bytes]:
    """Return the WARC record of each page, by url_id."""
    places = reader(runtime, manifest).table(kind="places").to_pylist()
    read = runtime.workdir.read_range
    return {
        place["url_id"]: read(place["segment"], place["offset"], place["length"])
        for place in places
    }


def rejects(runtime: Runtime, manifest: Manifest) -> dict[str, tuple[str, str]]:
    """Return the reason and detail of each rejected URL."""
    rows = reader(runtime, manifest).table(kind="rejects").to_pylist()
    return {row["url"]: (row["reason"], row["detail"]) for row in rows}


def why_fetched(runtime: Runtime, url: str) -> dict[str, Any]:
    """Return the entry of `owt why` about fetch."""
    shown = history(readers_of(runtime.workdir), asked_for(url))
    assert shown is not None
    return next(entry for entry in shown["stages"] if entry["stage"] == "fetch")
