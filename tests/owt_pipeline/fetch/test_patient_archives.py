"""Archives that are busy, incomplete or down for a while: no page that they have is lost."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.root import read_manifest
from owt_pipeline.stages.fetch.stage import STAGE, Options
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import AT, DAY, HOST, Answer, ArchiveServer, Way, Wayback
from tests.owt_pipeline.fetch.columnar import INDEX, publish, row, table
from tests.owt_pipeline.fetch.constants import constants
from tests.owt_pipeline.fetch.reading import reader, rejects, responses, why_fetched
from tests.owt_pipeline.fetch.test_wayback import options as of_wayback

CRAWL = "CC-MAIN-2014-10"
HTML = [("Content-Type", "text/html")]


@pytest.fixture
def archive() -> Iterator[ArchiveServer]:
    server = ArchiveServer()
    yield server
    server.close()


def add(server: ArchiveServer, url: str, moment: int) -> None:
    """Add a page to the archive, in a file of its own, and to its index."""
    record = response_record(url, moment, "HTTP/1.1 200 OK", HTML, f"<p>{url} at {moment}".encode())
    file = f"crawl-data/{CRAWL}/{len(server.files)}.warc.gz"
    server.files[file] = record
    server.columnar = [*getattr(server, "columnar", []), row(url, moment, file, 0, len(record))]


def options(server: ArchiveServer, **some: object) -> Options:
    common: dict = {
        "sources": ("commoncrawl",), "user_agent": "TestBot/1.0 (+mailto:a@b.test)",
        "cc_index": f"{server.url}/data/{INDEX}", "cc_crawls": (CRAWL,), "cc_delay": 0.0,
    }  # fmt: skip
    return Options(**{**common, **some})


def fetch(runtime: Runtime, server: ArchiveServer, **some: object) -> Manifest:
    publish(server.files, {CRAWL: table(server.columnar)})
    return search(runtime, server, **some)


def search(runtime: Runtime, server: ArchiveServer, **some: object) -> Manifest:
    """Fetch from the archive as it was published."""
    with constants({"archive_retry_wait": 0.01, **some}) as given:
        return run_stage(STAGE, options(server, **given), runtime)[0]


def texts(runtime: Runtime, manifest: Manifest) -> dict[str, str]:
    return {url: found.body.decode().removeprefix("<p>") for url, found in responses(runtime, manifest).items()}


def half(answer: Answer) -> Way:
    """This answer to half of the requests, by chance."""
    return lambda path, count: answer if random.Random(f"{path} {count}").random() < 0.5 else None


def test_an_archive_that_refuses_half_of_all_requests_loses_no_page(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    for n in range(60):
        add(archive, f"http://a{n}.example/x", n)
    archive.way = half(Answer(503, b"SlowDown"))
    manifest = fetch(write_urls([f"http://a{n}.example/x" for n in range(60)]), archive)
    assert manifest.counts.left == 60


def test_a_url_whose_file_is_always_busy_is_a_reject_while_others_have_their_pages(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    for n in range(12):
        add(archive, f"http://a{n}.example/x", n)
    archive.way = lambda path, count: Answer(503, b"SlowDown") if path.endswith("/5.warc.gz") else None
    runtime = write_urls([f"http://a{n}.example/x" for n in range(12)])
    manifest = fetch(runtime, archive, archive_retries=2)
    assert manifest.counts.left == 11
    ((reason, detail),) = rejects(runtime, manifest).values()
    assert reason == "archive_failed"
    assert "/5.warc.gz: status 503" in detail


def test_an_archive_that_is_down_stops_the_run_and_no_url_has_an_outcome(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    for n in range(6):
        add(archive, f"http://a{n}.example/x", n)
    some = re.compile(r"/[1-5]\.warc\.gz$")
    archive.way = lambda path, count: Answer(503) if some.search(path) else None
    runtime = write_urls([f"http://a{n}.example/x" for n in range(6)], num_shards=1)
    with pytest.raises(UserError, match=r"3 requests in a row to the archive failed.*again later"):
        fetch(runtime, archive, archive_retries=3, archive_failures=3)
    archive.way = lambda path, count: None
    assert fetch(runtime, archive).counts.left == 6


@pytest.mark.parametrize("down", ["/part-00001-", ".parquet"])
@pytest.mark.parametrize("since", ["the start", "the join"])
def test_an_index_that_cannot_be_read_stops_the_run_and_no_url_has_an_outcome(
    down: str, since: str, archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    urls = [f"http://a{n}.example/x" for n in range(12)]
    for n, url in enumerate(urls):
        add(archive, url, n)
    publish(archive.files, {CRAWL: table(archive.columnar)}, 4)
    most = 0 if since == "the start" else 1  # a footer is read before the join
    archive.way = lambda path, count: Answer(500) if down in path and count > most else None
    runtime = write_urls([*urls, "http://unknown.example/"])
    with pytest.raises(UserError, match=r"--cc_index: .*parquet: status 500; .*run again later"):
        search(runtime, archive, archive_retries=1)
    assert read_manifest(runtime.workdir, "pages") is None
    archive.way = lambda path, count: None
    manifest = search(runtime, archive)
    assert (manifest.counts.left, manifest.counts.rejected) == (12, {"not_archived": 1})


@pytest.mark.parametrize("damage", ["missing", "cut short", "cut off", "always busy"])
def test_after_an_unreadable_capture_the_next_best_is_read(
    damage: str, archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    for n in range(10):
        for moment in (100, 200):
            add(archive, f"http://a{n}.example/x", moment)
    nearest = {f"/data/crawl-data/{CRAWL}/{2 * n}.warc.gz" for n in range(0, 10, 3)}

    def amiss(path: str, count: int) -> Answer | None:
        if path not in nearest:
            return None
        content = archive.files[path.removeprefix("/data/")]
        about = {"Content-Range": f"bytes 0-{len(content) - 1}/{len(content)}"}
        return {
            "missing": Answer(404, b"NoSuchKey"),
            "cut short": Answer(206, content[: len(content) // 2], about),
            "cut off": Answer(206, content, about, sent=len(content) // 2),
            "always busy": Answer(503),
        }[damage]

    archive.way = amiss
    runtime = write_urls([(f"http://a{n}.example/x", 100) for n in range(10)])
    manifest = fetch(runtime, archive, archive_retries=2)
    assert texts(runtime, manifest) == {
        f"https://a{n}.example/x": f"http://a{n}.example/x at {100 if n % 3 else 200}" for n in range(10)
    }


def test_an_address_that_is_no_archive_stops_the_run(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    for n in range(30):
        add(archive, f"http://a{n}.example/x", n)
    runtime = write_urls([f"http://a{n}.example/x" for n in range(30)], num_shards=1)
    with pytest.raises(
        UserError, match=r"20 requests in a row to the archive failed.*404.* run the same command again"
    ):
        fetch(runtime, archive, cc_data=f"{archive.url}/elsewhere")


REDIRECTED = {
    "http://a.example/old": ("301 Moved Permanently", "/new"),
    "http://a.example/new": ("302 Found", "https://b.example/newest?utm_source=a"),
    "https://b.example/newest": ("200 OK", ""),
    "http://a.example/https": ("301 Moved Permanently", "https://www.a.example/https"),
    "http://a.example/lost": ("301 Moved Permanently", "/nowhere"),
    "http://a.example/loop": ("301 Moved Permanently", "/loop2"),
    "http://a.example/loop2": ("301 Moved Permanently", "/loop"),
    "http://a.example/mail": ("302 Found", "mailto:a@a.example"),
    "http://a.example/gone": ("404 Not Found", ""),
    "http://a.example/both": ("200 OK", ""),
}
ASKED = [(f"http://a.example/{name}", 5) for name in ("old", "https", "lost", "loop", "mail", "gone", "both")]


def check_redirects(runtime: Runtime, manifest: Manifest) -> None:
    found = responses(runtime, manifest)
    assert {url: answer.url for url, answer in found.items()} == {
        "https://a.example/old": "https://b.example/newest",
        "https://a.example/both": "http://a.example/both",
    }
    details = {url.rpartition("/")[2]: shown for url, shown in rejects(runtime, manifest).items()}
    assert details["https"] == ("not_archived", "archived is only a redirect to another spelling of the URL")
    assert details["lost"][1].startswith("redirects to https://a.example/nowhere: no capture of a page in ")
    assert details["loop"][0] == "redirect_loop"
    assert details["mail"] == ("bad_redirect", "status 302 to no URL that could be archived")
    assert details["gone"][0] == "not_archived"
    assert details["gone"][1].endswith(": 1 of status 404")
    assert why_fetched(runtime, "http://a.example/gone")["detail"] == details["gone"][1]


def check_found_again(runtime: Runtime, manifest: Manifest, again: Runtime) -> None:
    """The pages of a run are found by --pages_from, the redirects that led to them included."""
    files = tuple(runtime.workdir.path(file.path) for file in reader(runtime, manifest).files("warc"))
    found = run_stage(STAGE, Options(pages_from=files), again)[0]
    assert responses(again, found) == responses(runtime, manifest)


def test_redirects_are_followed_within_the_wayback_machine(write_urls: Callable[..., Runtime]) -> None:
    archive = Wayback()
    try:
        for url, (status, location) in REDIRECTED.items():
            archive.captures[url, AT] = b"" if location else b"<p>page"
            target = location if ":" in location else f"http://a.example{location}"
            archive.statuses[url, AT] = (int(status[:3]), target if location else "")
        archive.captures["http://a.example/both", AT - DAY] = b""
        archive.statuses["http://a.example/both", AT - DAY] = (301, "http://a.example/new")
        runtime = write_urls(ASKED)
        manifest = run_stage(STAGE, of_wayback(archive.url), runtime)[0]
        check_redirects(runtime, manifest)
        check_found_again(runtime, manifest, write_urls(ASKED, "again"))
    finally:
        archive.close()


TRACKED = ["x?utm_source=b&utm_medium=c", "x?a=1&utm_campaign=z", "x"]


@pytest.mark.parametrize("way", ["commoncrawl", "wayback"])
def test_captures_with_tracking_parameters_are_found_by_the_canonical_url(
    way: str, write_urls: Callable[..., Runtime], tmp_path: Path
) -> None:
    archive = Wayback() if way == "wayback" else ArchiveServer()
    try:
        urls = [f"http://t{n}.example/{path}" for n, path in enumerate(TRACKED)]
        if isinstance(archive, Wayback):
            archive.captures = {(url, AT): b"<p>page" for url in urls}
        else:
            for url in urls:
                add(archive, url, 5)
                add(archive, url.replace("/x", "/xyz"), 5)
        posted = ["http://t0.example/x", "http://t1.example/x?utm_source=reddit&a=1", "http://t2.example/x?fbclid=1"]
        runtime = write_urls([(url, 5) for url in posted])
        if isinstance(archive, Wayback):
            manifest = run_stage(STAGE, of_wayback(archive.url), runtime)[0]
        else:
            manifest = fetch(runtime, archive)
        assert {found.url for found in responses(runtime, manifest).values()} == set(urls)
    finally:
        archive.close()


def test_wayback_captures_after_retries_are_those_without_failures(write_urls: Callable[..., Runtime]) -> None:
    archive = Wayback()
    try:
        for n in range(20):
            archive.add(str(n))
        archive.way = half(Answer(500, b"oops"))
        with constants({"archive_retry_wait": 0.01}):
            urls = [(f"{HOST}/{n}", AT) for n in range(20)]
            manifest = run_stage(STAGE, of_wayback(archive.url), write_urls(urls))[0]
        assert manifest.counts.left == 20
    finally:
        archive.close()
