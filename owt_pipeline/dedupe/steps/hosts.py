"""hosts: whose documents go; and a few documents to show."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.alarm import host_of
from owt_pipeline.dedupe.collection import Collection
from owt_pipeline.dedupe.parts import read_part
from owt_pipeline.dedupe.places import row_of
from owt_pipeline.dedupe.step_files import read_step
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.storage import Storage

HOSTS = pa.schema([("host", pa.string()), ("documents", pa.uint32()), ("sample", pa.list_(pa.uint64()))])
"""A host, how many of a shard's documents that go are its own, and the places of some of them."""

_MOST = 20  # hosts of a shard: one that has a share of the corpus is among the first of its shards
_SAMPLE = 5


def count_hosts(shard: int, writer: ShardWriter, *, decisions: Storage, source: DatasetReader) -> None:
    """Write the hosts of most of the shard's documents that go."""
    places = read_step(decisions, [shard], ["place"])["place"].to_numpy()
    urls = source.table(shard, columns=["url"])["url"].take(pa.array(row_of(places))).to_pylist()
    of_host: dict[str, list[int]] = {}
    for url, place in zip(urls, places.tolist(), strict=True):
        of_host.setdefault(host_of(url), []).append(place)
    of_host.pop("", None)
    rows = [
        {"host": host, "documents": len(found), "sample": found[:_SAMPLE]}
        for host, found in sorted(of_host.items(), key=lambda item: (-len(item[1]), item[0]))[:_MOST]
    ]
    writer.write(pa.RecordBatch.from_pylist(rows, HOSTS))


def most(rows: pa.Table) -> list[tuple[str, int, list[int]]]:
    """(host, documents that go, places of some) over all shards, most first."""
    total: dict[str, tuple[int, list[int]]] = {}
    for row in rows.to_pylist():
        documents, sample = total.get(row["host"], (0, []))
        total[row["host"]] = documents + row["documents"], [*sample, *row["sample"]][:_SAMPLE]
    return sorted(((host, *found) for host, found in total.items()), key=lambda found: (-found[1], found[0]))


def read_documents(collection: Collection, places: list[int]) -> list[tuple[str, str]]:
    """(URL, text) of the documents at some places, for a person to see."""
    found = []
    for place in np.array(places, np.uint64):
        part = collection.parts[int(collection.part_of(place))]
        folder = collection.find(part.shard)[0].clean.workdir
        table = pa.Table.from_batches(read_part(part, folder, ["url", "text"], row_of(place)[None]))
        found.append((table["url"][0].as_py(), table["text"][0].as_py()))
    return found
