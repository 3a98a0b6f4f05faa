"""Archives served by pywb: real pages, found and replayed, are those of the archive itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.stages.fetch.stage import STAGE, Options
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import Answer, ArchiveServer
from tests.owt_pipeline.fetch.reading import reader, rejects, responses
from tests.owt_pipeline.fetch.test_commoncrawl import (
    AGENT,
    EXPECTED,
    SPRING,
    WINTER,
    add_captures,
    archive,
    fetch,
    nearest,
    texts,
)
from tests.servers.pywb import pywb

__all__ = ["archive"]


@pytest.fixture(scope="module")
def pywb_archive(testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ArchiveServer, str]]:
    """pywb's index of real pages and of captures at several times, next to a server of the files."""
    server = ArchiveServer()
    server.collections = {"CC-MAIN-2011-48": WINTER, "CC-MAIN-2011-05": SPRING}
    add_captures(server)
    server.files["pages.warc.gz"] = (testdata / "web" / "wcxb-dev.warc.gz").read_bytes()
    folder = tmp_path_factory.mktemp("pywb")
    for name, content in server.files.items():
        (folder / name).write_bytes(content)
    files = {name.removesuffix(".warc.gz"): folder / name for name in server.files}
    with pywb(folder / "pywb", files) as url:
        listed = [{"id": name, "cdx-api": f"{url}/{name}/cdx", "from": "", "to": ""} for name in server.collections]
        server.way = lambda path, count: Answer(body=json.dumps(listed).encode()) if "collinfo" in path else None
        yield server, url
    server.close()


def test_pages_found_by_pywb_are_those_of_the_archive_itself(
    testdata: Path, pywb_archive: tuple[ArchiveServer, str], write_urls: Callable[..., Runtime]
) -> None:
    server, url = pywb_archive
    file = testdata / "web" / "wcxb-dev.warc.gz"
    urls = [record.headers["WARC-Target-URI"] for record in ArchiveIterator(str(file), parse_http=False)][::10]
    urls.append("https://nowhere.example/page")
    runtime, local = write_urls(urls), write_urls(urls, "local")
    manifest = fetch(runtime, server, cdx_index=f"{url}/pages/cdx")
    expected = run_stage(STAGE, Options(pages_from=(str(file),)), local)[0]
    assert set(rejects(runtime, manifest)) == {"https://nowhere.example/page"}
    assert manifest.counts == expected.counts
    assert manifest.counts.left > 120
    for shard in range(2):
        ours, theirs = (reader(*run).table(shard).to_pylist() for run in ((runtime, manifest), (local, expected)))
        assert {(row["crawl"], row["archive_file"]) for row in ours} == {("pages/cdx", "pages.warc.gz")}
        as_local = {"source": "archive", "crawl": None, "archive_file": file.name, "fetch_ms": 0}
        assert [row | as_local for row in ours] == theirs
        ours, theirs = (reader(*run).files("warc", shard) for run in ((runtime, manifest), (local, expected)))
        assert ours == theirs


def test_pywb_has_the_nearest_capture(
    pywb_archive: tuple[ArchiveServer, str], write_urls: Callable[..., Runtime], archive: ArchiveServer
) -> None:
    runtime = write_urls(add_captures(archive))
    assert nearest(texts(runtime, fetch(runtime, pywb_archive[0]))) == EXPECTED


def test_captures_that_pywb_replays_are_the_archive_s_pages(
    testdata: Path, pywb_archive: tuple[ArchiveServer, str], write_urls: Callable[..., Runtime], archive: ArchiveServer
) -> None:
    def replayed(runtime: Runtime, collection: str) -> Manifest:
        place = f"{pywb_archive[1]}/{collection}"
        options = Options(
            sources=("wayback",), wayback_cdx=f"{place}/cdx", wayback_pages=place, wayback_delay=0.0, user_agent=AGENT
        )
        return run_stage(STAGE, options, runtime)[0]

    file = testdata / "web" / "wcxb-dev.warc.gz"
    urls = [record.headers["WARC-Target-URI"] for record in ArchiveIterator(str(file), parse_http=False)][::30]
    runtime, local = write_urls([*urls, "https://nowhere.example/page"]), write_urls(urls, "local")
    manifest, expected = replayed(runtime, "pages"), run_stage(STAGE, Options(pages_from=(str(file),)), local)[0]
    assert set(rejects(runtime, manifest)) == {"https://nowhere.example/page"}
    assert manifest.counts.left == expected.counts.left > 40
    ours, theirs = responses(runtime, manifest), responses(local, expected)
    for url, answer in theirs.items():
        about = ("url", "date", "status", "content_type", "body")
        assert [getattr(ours[url], name) for name in about] == [getattr(answer, name) for name in about]
    columns = ["url", "archive_offset", "body_bytes", "days_after_submission"]
    found, known = (reader(*run).table(columns=columns) for run in ((runtime, manifest), (local, expected)))
    assert found.sort_by("url").equals(known.sort_by("url"))
    runtime = write_urls(add_captures(archive), "winter")
    days = {name: "day 15329" if name in ("16000", "undated") else "day 15301" for name in EXPECTED}
    assert nearest(texts(runtime, replayed(runtime, "CC-MAIN-2011-48"))) == days
