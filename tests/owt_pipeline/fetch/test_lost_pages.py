"""What the web has answered is kept: it is asked for again only if segments are lost, and only
with --refetch."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.engine.runner import run_stages
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.stages.collect.stage import STAGE as COLLECT
from owt_pipeline.stages.extract.stage import STAGE as EXTRACT
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.fetch.bad_server import DOMAIN, Request, Serve
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import responses
from tests.owt_pipeline.fetch.test_live import fetch, options_for
from tests.owt_pipeline.runs import copy_of, files_of

HOSTS = [f"host{k}" for k in range(6)]
URLS = [f"http://{host}.{DOMAIN}/page" for host in HOSTS]


class Web:
    """Six hosts with a page each, which count their requests."""

    def __init__(self, serve: Serve, write_urls: Write):
        self.asked: Counter[str] = Counter()
        self.server = serve({host: partial(self.answer, host) for host in HOSTS})
        self.runtime = write_urls(URLS, num_shards=3)

    async def answer(self, host: str, request: Request) -> None:
        self.asked[host] += request.path == "/page"
        await request.answer()

    @property
    def folder(self) -> Path:
        return Path(self.runtime.workdir.uri)

    def pages(self) -> list[tuple[str, str]]:
        return [(file.path, file.sha256) for file in files_of(self.folder, "pages")]


@pytest.fixture
def web(serve: Serve, write_urls: Write) -> Web:
    web = Web(serve, write_urls)
    fetch(web.runtime, web.server)
    assert web.asked == Counter(HOSTS)
    return web


def fetch_and_extract(web: Web, **options: Any) -> None:
    with options_for(web.server, **options) as given:
        run_stages([(STAGE, given), (EXTRACT, EXTRACT.options())], web.runtime)


def test_lost_segments_are_fetched_again_only_with_refetch(
    web: Web,
) -> None:
    shutil.rmtree(web.folder / "warc/part-00001")
    before = Counter(web.asked)
    fetch(web.runtime, web.server)  # nothing needs it
    with pytest.raises(
        UserError, match=r"warc/part-00001/live-.* is missing.* of shard 1 .*--refetch"
    ):
        fetch_and_extract(web)
    assert web.asked == before
    fetch_and_extract(web, refetch=True)
    again = web.asked - before
    assert 0 < len(again) < len(HOSTS), "only the hosts of the lost shard are asked"
    assert set(again.values()) == {1}
    manifest = require_manifest(web.runtime.workdir, "pages")
    assert len(responses(web.runtime, manifest)) == len(HOSTS)
    fetch_and_extract(web, refetch=True)
    assert web.asked - before == again, "nothing is lost any more"


def test_what_is_lost_of_pages_is_made_again_from_segments(web: Web, tmp_path: Path) -> None:
    before, pages, crawled = Counter(web.asked), web.pages(), web.folder
    for pattern in (
        "pages/part-*",
        "ledger/pages/rejects/*",
        "ledger/pages/places/*",
        "ledger/fetch/records/*",
    ):
        web.runtime = Runtime(
            Storage(str(copy_of(crawled, tmp_path / pattern.replace("/", "-").strip("*"))))
        )
        lost = list(web.folder.glob(pattern))
        for path in lost:
            path.unlink()
        fetch_and_extract(web)
        assert (web.asked, web.pages()) == (before, pages), pattern
        assert [path.exists() for path in lost] == [
            "records" not in pattern
        ] * 3  # nothing needs the records


def test_no_option_asks_for_a_page_twice(web: Web) -> None:
    pages, asked = web.pages(), Counter(web.asked)
    fetch(web.runtime, web.server, max_page_bytes=5_000)
    assert web.asked == asked + asked
    fetch(web.runtime, web.server)
    fetch(web.runtime, web.server, max_page_bytes=5_000)
    fetch(web.runtime, web.server)
    assert (web.asked, web.pages()) == (asked + asked, pages)
    fetch(web.runtime, web.server, refetch=True, retry_failed=True)
    assert web.asked == asked + asked


def test_a_url_in_another_generation_is_not_requested_again(
    serve: Serve, write_urls: Write, tmp_path: Path
) -> None:
    web = Web(serve, write_urls)
    for number, scores in enumerate(({0: 5, 1: 5, 2: 1, 3: 1}, {2: 5, 3: 5, 4: 5, 5: 5})):
        lines = [
            {
                "id": f"{number}{k}",
                "url": URLS[k],
                "score": score,
                "created_utc": 1,
                "subreddit": "news",
            }
            for k, score in scores.items()
        ]
        (tmp_path / f"RS_{number}.ndjson").write_text(
            "".join(f"{json.dumps(line)}\n" for line in lines)
        )
    dumps = [str(tmp_path / f"RS_{number}.ndjson") for number in range(2)]
    runtime = Runtime(Storage(str(tmp_path / "grown")), add=True)

    def make(dumps: list[str], shards: int, least: int) -> list[int]:
        """The rows of each shard of pages/."""
        collecting = COLLECT.options(dumps=tuple(dumps), num_shards=shards, min_score=least)
        with options_for(web.server) as given:
            run_stages([(COLLECT, collecting), (STAGE, given)], runtime)
        return DatasetReader.open(runtime.workdir, "pages").rows_of_shards()

    assert sum(make(dumps[:1], 2, 3)) == 2
    before = make(dumps, 3, 3)
    assert (sum(before[:2]), sum(before[2:])) == (2, 4)
    assert web.asked == Counter(HOSTS)
    after = make(dumps, 3, 1)
    assert (sum(after[:2]), sum(after[2:])) == (4, 2)
    assert make(dumps, 3, 3) == before
    assert web.asked == Counter(HOSTS)


def test_a_damaged_root_is_restored_and_no_new_crawl(web: Web) -> None:
    before, root = Counter(web.asked), web.folder / "ledger/manifest.json"
    content = root.read_bytes()
    root.write_bytes(content[:50])
    fetch(web.runtime, web.server)
    assert root.read_bytes() == content
    assert web.asked == before
