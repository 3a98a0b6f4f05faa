"""A working directory with a urls/ dataset, as collect writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.urls import canonicalize, host_hash, id_of
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.owt_pipeline.fetch.archive_server import commoncrawl, wayback
from tests.owt_pipeline.making import write_dataset
from tests.servers.web import Behaviour, WebServer

__all__ = ["commoncrawl", "wayback"]

URLS = DATASETS["urls"].schema

Serve = Callable[[Mapping[str, Behaviour]], WebServer]
"""Starts a web server with the behaviours of hosts."""

Write = Callable[..., Runtime]
"""Writes urls/ of posted URLs."""

Posted = str | tuple[str, int | None]
"""A posted URL, or one with the time of its submission."""


def _write_urls(shard: int, writer: ShardWriter, posted: list[Posted], num_shards: int) -> None:
    rows = {}
    for entry in posted:
        url, created = (entry, 1_400_000_000) if isinstance(entry, str) else entry
        canonical, host = canonicalize(url)
        if host_hash(host) % num_shards == shard:
            rows[id_of(canonical)] = {
                "url_id": id_of(canonical),
                "url": canonical,
                "posted_url": url,
                "host": host,
                "title": None,
                "score": 5,
                "created_utc": created,
                "subreddits": ["news"],
                "num_comments": 1,
                "submission_ids": ["x1"],
                "link_sources": ["reddit"],
            }
    writer.enter(len(rows))
    writer.write(pa.RecordBatch.from_pylist([rows[i] for i in sorted(rows)], URLS))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a web server, which is closed at the end of the test."""
    with ExitStack() as servers:
        yield lambda behaviours: servers.enter_context(WebServer(behaviours))


@pytest.fixture
def write_urls(tmp_path: Path) -> Write:
    """Write urls/ of the posted URLs into a working directory, which is returned as a Runtime."""

    def write(posted: Iterable[Posted], name: str = "run", num_shards: int = 2) -> Runtime:
        return write_urls_to(tmp_path / name, posted, num_shards)

    return write


def write_urls_to(folder: Path | str, posted: Iterable[Posted], num_shards: int) -> Runtime:
    workdir = Storage(str(folder))
    write = partial(_write_urls, posted=list(posted), num_shards=num_shards)
    write_dataset(workdir, "urls", write, num_shards)
    return Runtime(workdir)
