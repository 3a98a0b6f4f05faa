"""Lost pages of the live web: an error names them, and they are fetched again only with --refetch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.engine.runner import run_stages
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.stages.extract.stage import STAGE as EXTRACT
from owt_pipeline.stages.fetch.stage import STAGE, Options
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.fetch.bad_server import DOMAIN, BadServer, Request
from tests.owt_pipeline.fetch.reading import responses
from tests.owt_pipeline.fetch.test_live import fetch, options_for, serve

__all__ = ["serve"]

HOSTS = [f"host{k}" for k in range(6)]


class Web:
    """Six hosts with a page each, which count their requests."""

    def __init__(self, serve: Callable[..., BadServer], write_urls: Callable[..., Runtime]):
        self.asked: Counter[str] = Counter()
        self.server = serve({host: partial(self.answer, host) for host in HOSTS})
        self.runtime = write_urls([f"http://{host}.{DOMAIN}/page" for host in HOSTS], num_shards=3)

    async def answer(self, host: str, request: Request) -> None:
        self.asked[host] += request.path == "/page"
        await request.answer()

    @property
    def folder(self) -> Path:
        return Path(self.runtime.workdir.uri)


@pytest.fixture
def web(serve: Callable[..., BadServer], write_urls: Callable[..., Runtime]) -> Web:
    web = Web(serve, write_urls)
    fetch(web.runtime, web.server)
    assert web.asked == Counter(HOSTS)
    return web


@pytest.mark.parametrize("pattern", ["warc/part-00001-*", "pages/part-00001-*", "ledger/pages/rejects/part-00001-*"])
def test_a_lost_page_that_something_is_made_from_is_fetched_again_only_with_refetch(web: Web, pattern: str) -> None:
    next(web.folder.glob(pattern)).unlink()
    before = Counter(web.asked)
    fetch(web.runtime, web.server)  # nothing needs it
    with pytest.raises(UserError, match=r"shards 1 of .*pages are missing, .*--refetch"):
        fetch_and_extract(web)
    assert web.asked == before
    fetch_and_extract(web, refetch=True)
    again = web.asked - before
    assert 0 < len(again) < len(HOSTS), "only the hosts of the lost shard are asked"
    assert set(again.values()) == {1}
    manifest = require_manifest(web.runtime.workdir, "pages")
    assert len(responses(web.runtime, manifest)) == len(HOSTS)


def fetch_and_extract(web: Web, **options: Any) -> None:
    with options_for(web.server, **options) as given:
        run_stages([(STAGE, given), (EXTRACT, EXTRACT.options())], web.runtime)


def test_a_damaged_root_is_an_error_and_not_a_new_crawl(web: Web) -> None:
    before, root = Counter(web.asked), web.folder / "ledger/manifest.json"
    root.write_bytes(root.read_bytes()[:50])
    with pytest.raises(UserError, match=r"ledger/manifest\.json"):
        fetch(web.runtime, web.server)
    assert web.asked == before


def test_pages_from_archives_can_be_made_again_and_others_cannot(tmp_path: Path) -> None:
    workdir = Storage(str(tmp_path))
    STAGE.check_gone(Options(pages_from=("a.warc.gz",)), workdir, [1])
    STAGE.check_gone(Options(refetch=True), workdir, [1])
    for options in (Options(), Options(sources=("archive", "commoncrawl"), pages_from=("a.warc.gz",))):
        with pytest.raises(UserError, match="came from the web"):
            STAGE.check_gone(options, workdir, [1])
