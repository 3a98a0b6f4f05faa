"""`--sources` in any order: the first one with a page wins, and the ledger has the answer of
each."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.engine.parts import at_once
from owt_pipeline.engine.plan import plan_stages
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.errors import UserError
from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.root import read_manifest, read_root
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.recorder import until_stopped, with_client
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.stages.fetch.web.live import rows_by_host
from tests.owt_pipeline.fetch.archive_server import AGENT, HTML, Wayback
from tests.owt_pipeline.fetch.columnar import INDEX, publish, row, table
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import reader, rejects, why_fetched
from tests.servers.web import DOMAIN, Request, WebServer

NAMES = ("live", "archive", "commoncrawl", "wayback")
ORDERS = [
    *list(itertools.permutations(NAMES))[::6],
    ("commoncrawl", "wayback"),
    ("wayback", "live"),
]
HOST = f"http://some.{DOMAIN}"
AT = 1_400_000_000
CRAWL = "CC-MAIN-2014-20"


async def answer(request: Request) -> None:
    """Answer with a page if the path names the live web."""
    if "live" in request.path:
        await request.answer()
    else:
        await request.answer(b"", "404 Not Found")


@pytest.fixture
def servers() -> Iterator[tuple[WebServer, Wayback]]:
    """Serve a live web and a Wayback Machine."""
    with WebServer({"some": answer}) as live, Wayback() as archive:
        yield live, archive


def test_the_first_source_that_has_a_page_wins(
    servers: tuple[WebServer, Wayback], write_urls: Write, tmp_path: Path
) -> None:
    live, archive = servers
    file = tmp_path / "some.warc.gz"
    # A page for each set of sources that have it, whose names are in its path.
    combinations = [set(names) for n in range(5) for names in itertools.combinations(NAMES, n)]
    captures = []
    sources_by_path = {"-".join(sorted(names)) or "nowhere": names for names in combinations}
    for path, sources in sources_by_path.items():
        record = response_record(f"{HOST}/{path}", AT, "HTTP/1.1 200 OK", HTML, b"<p>archived")
        if "archive" in sources:
            with open(file, "ab") as stream:
                stream.write(record)
        if "commoncrawl" in sources:
            archive.files[path] = record
            captures.append(row(f"{HOST}/{path}", AT, path, 0, len(record)))
        if "wayback" in sources:
            archive.captures[f"{HOST}/{path}", AT] = b"<p>archived"
    index: dict[str, bytes] = {}
    publish(index, {CRAWL: table(captures)})
    for name, content in index.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for order in ORDERS:
        live.requests.clear()
        archive.num_by_path.clear()
        runtime = write_urls([f"{HOST}/{path}" for path in sources_by_path], "-".join(order))
        options = Options(
            sources=order,
            pages_from=(str(file),),
            resolve=live.rules,
            host_delay=0.0,
            cc_delay=0.0,
            wayback_delay=0.0,
            user_agent=AGENT,
            wayback_cdx=f"{archive.url}/cdx/search/cdx",
            wayback_pages=f"{archive.url}/web",
            cc_data=f"{archive.url}/data",
            **(
                {"cc_index": str(tmp_path / INDEX), "cc_crawls": (CRAWL,)}
                if "commoncrawl" in order
                else {}
            ),
        )
        manifest = run_stage(STAGE, options, runtime)[0]
        pages = reader(runtime, manifest).table().to_pylist()
        winner_by_path = {page["url"].rpartition("/")[2]: page["source"] for page in pages}
        first_source_by_path = {
            path: min(sources.intersection(order), key=order.index)
            for path, sources in sources_by_path.items()
            if sources.intersection(order)
        }
        assert winner_by_path == first_source_by_path
        for name in order:
            assert manifest.stats[f"from_{name}"] == list(winner_by_path.values()).count(name)
        archived = {
            name: [path for path in archive.num_by_path if path.startswith(name)]
            for name in ("/data/", "/web/")
        }
        requested_paths = {
            "live": {path.strip("/") for (_, path) in live.requests if path != "/robots.txt"},
            "commoncrawl": {path.rpartition("/")[2] for path in archived["/data/"]},
            "wayback": {path.rpartition("/")[2] for path in archived["/web/"]},
        }
        # A source gets requests for the URLs only that no earlier source has.
        for name in set(requested_paths).intersection(order):
            earlier = set(order[: order.index(name)])
            assert requested_paths[name] == {
                path
                for path, sources in sources_by_path.items()
                if (name == "live" or name in sources) and not sources & earlier
            }
        url = f"{HOST.replace('http:', 'https:')}/nowhere"
        reason, detail = rejects(runtime, manifest)[url]
        assert reason == ("http_404" if "live" in order else "not_archived")
        detail_by_source = {
            "live": "live: http_404, status 404",
            "archive": "archive: not_archived, no capture of a page in 1 archive files",
            "commoncrawl": "commoncrawl: not_archived, no capture of a page in CC-MAIN-2014-20",
            "wayback": "wayback: not_archived, no capture of a page in the Wayback Machine",
        }
        assert detail == "; ".join(detail_by_source[name] for name in order)
        assert why_fetched(runtime, url)["detail"] == detail
        for name in order:
            assert why_fetched(runtime, f"{HOST}/{name}")["source"] == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            Options(max_page_bytes=1, resolve=("a.example",), user_agent=AGENT),
            "--resolve: 'a.example' is not",
        ),
        (
            Options(max_page_bytes=1, user_agent=f"{AGENT}\r\nX: y"),
            "--user_agent: 'TestBot/1.* is not plain text such",
        ),
        (
            Options(max_page_bytes=1, sources=("live",), user_agent="Bot/1"),
            "--user_agent: 'Bot/1' has no contact .* as in 'my-crawl/1.0",
        ),
        (Options(max_page_bytes=1, sources=("live",)), "--user_agent: missing; give a name"),
        (
            Options(max_page_bytes=1, user_agent=AGENT, proxy="socks5://a:1"),
            "--proxy: 'socks5://a:1' is not http://HOST:PORT",
        ),
    ],
)
def test_impossible_options_are_a_clear_error_and_lose_no_page(
    options: Options, message: str, tmp_path: Path, write_urls: Write
) -> None:
    runtime = write_urls(["http://a.example/"])
    (tmp_path / "some.warc.gz").write_bytes(
        response_record("http://b.example/", 1, "HTTP/1.1 200 OK", [], b"x")
    )
    manifest, _ = run_stage(STAGE, Options(pages_from=(str(tmp_path / "some.warc.gz"),)), runtime)
    with pytest.raises(UserError, match=message):
        run_stage(STAGE, options, runtime)
    assert read_manifest(runtime.workdir, "pages") == manifest


@pytest.mark.parametrize(
    ("options", "is_finished"),
    [
        ({"sources": ("live",)}, True),
        ({"allowed_ports": (8443, 8080, 8000, 443, 80, 80)}, True),
        ({"archive_choice": "latest", "cc_data": "x", "wayback_pages": "x"}, True),
        ({"sources": ("live", "wayback")}, False),
        ({"allowed_ports": (80,)}, False),
        ({"allow_private_hosts": True}, False),
    ],
)
def test_options_of_unused_sources_fetch_nothing_again(
    servers: tuple[WebServer, Wayback], write_urls: Write, options: dict, is_finished: bool
) -> None:
    runtime = write_urls([f"{HOST}/live"])
    plain = Options(resolve=servers[0].rules, user_agent=AGENT, host_delay=0.0)
    run_stage(STAGE, plain, runtime)
    (plan,) = plan_stages(
        [(STAGE, replace(plain, **options))], runtime.workdir, read_root(runtime.workdir)[0]
    )
    assert plan.finished is is_finished


@given(
    st.lists(
        st.lists(st.sampled_from(["a.com", "b.com", "c.com", "d.com"]), max_size=8), max_size=4
    ).filter(any)
)
def test_hosts_with_the_most_urls_come_first(
    chunks: list[list[str]],
) -> None:
    names = np.array([host for chunk in chunks for host in chunk], dtype=object)
    rows_of_hosts = [rows.tolist() for rows in rows_by_host(pa.chunked_array(chunks, pa.string()))]
    assert sorted(row for rows in rows_of_hosts for row in rows) == list(range(len(names)))
    for rows in rows_of_hosts:
        assert rows == np.flatnonzero(names == names[rows[0]]).tolist()
    assert [len(rows) for rows in rows_of_hosts] == sorted(map(len, rows_of_hosts), reverse=True)


class ClientWithoutRequests:
    """A client without requests."""

    columns = ("url_id",)

    async def ask(self, *_: object) -> None: ...

    async def close(self) -> None: ...


def test_if_a_part_fails_the_requests_of_the_others_end() -> None:
    ended = threading.Event()

    async def never(_: ClientWithoutRequests) -> None:
        recorder: Any = SimpleNamespace(stopped=asyncio.Future())
        try:
            await until_stopped(recorder, asyncio.sleep(3600))
        finally:
            ended.set()

    def make(key: int) -> Any:
        if key == 0:
            return with_client(ClientWithoutRequests, never)
        raise UserError("no network")

    with pytest.raises(UserError, match="no network"):
        list(at_once([0, 1], 2, make, None))
    assert ended.wait(30)
