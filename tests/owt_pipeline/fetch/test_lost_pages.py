"""Lost pages of the live web: an error names them, and they are fetched again only with --refetch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.stage import STAGE, Options
from tests.owt_pipeline.fetch.bad_server import DOMAIN, BadServer, Request
from tests.owt_pipeline.fetch.reading import responses
from tests.owt_pipeline.fetch.test_live import fetch, serve

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
def test_a_lost_page_is_fetched_again_only_with_refetch(web: Web, pattern: str) -> None:
    next(web.folder.glob(pattern)).unlink()
    with pytest.raises(UserError, match=r"shards 1 of pages/ are missing or damaged \(.* is missing\).*--refetch"):
        fetch(web.runtime, web.server)
    before = Counter(web.asked)
    manifest = fetch(web.runtime, web.server, refetch=True)
    again = web.asked - before
    assert 0 < len(again) < len(HOSTS), "only the hosts of the lost shard are asked"
    assert set(again.values()) == {1}
    assert len(responses(web.runtime, manifest)) == len(HOSTS)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:50])])
def test_a_lost_manifest_of_fetched_pages_is_an_error_and_not_a_new_crawl(
    web: Web, damage: Callable[[Path], object]
) -> None:
    before = Counter(web.asked)
    damage(web.folder / "ledger/pages/manifest.json")
    with pytest.raises(UserError, match=r"the manifest of pages/ is missing or damaged .* restore the files"):
        fetch(web.runtime, web.server)
    assert web.asked == before
    assert len(responses(web.runtime, fetch(web.runtime, web.server, refetch=True))) == len(HOSTS)


def test_pages_from_archives_can_be_made_again_and_others_cannot() -> None:
    assert not STAGE.irreplaceable(Options(pages_from=("a.warc.gz",)))
    assert STAGE.irreplaceable(Options())
    assert STAGE.irreplaceable(Options(sources=("archive", "commoncrawl"), pages_from=("a.warc.gz",)))
    assert not STAGE.irreplaceable(Options(refetch=True))
