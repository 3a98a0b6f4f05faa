"""Archives that are busy, incomplete or down for a while: no page that they have is lost."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.root import read_manifest
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.archive_server import (
    AT,
    CRAWLS,
    DAY,
    HTML,
    Answer,
    CommonCrawl,
    Way,
    Wayback,
)
from tests.owt_pipeline.fetch.columnar import INDEX
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import reader, rejects, responses, why_fetched

URLS = [f"http://a{n}.example/x" for n in range(30)]


@pytest.fixture
def archive(commoncrawl: CommonCrawl) -> CommonCrawl:
    """Serve Common Crawl with a page of each of URLS, in a file of its own."""
    for n, url in enumerate(URLS):
        commoncrawl.add({url: n})
    return commoncrawl


def half(answer: Answer) -> Way:
    """Return this answer to half of the requests, by chance."""
    return lambda path, count: answer if random.Random(f"{path} {count}").random() < 0.5 else None


@pytest.mark.parametrize(
    "status",
    [
        403,
        pytest.param(429, marks=pytest.mark.slow),
        pytest.param(500, marks=pytest.mark.slow),
        503,
    ],
)
def test_an_archive_that_refuses_half_of_requests_loses_no_page(
    status: int, archive: CommonCrawl, wayback: Wayback, write_urls: Write
) -> None:
    wayback.captures = {(url, AT): b"<p>page" for url in URLS[:10]}
    for server, urls in ((archive, URLS), *([(wayback, URLS[:10])] if status != 403 else ())):
        server.way = half(Answer(status, b"SlowDown"))
        runtime = write_urls([(url, AT) for url in urls], type(server).__name__)
        assert server.fetch(runtime).counts.left == len(urls)


@pytest.mark.parametrize("down", [r"/[1-5]\.warc\.gz$", ""], ids=["five files", "all"])
def test_an_archive_that_is_down_stops_the_run(
    down: str, archive: CommonCrawl, write_urls: Write
) -> None:
    archive.publish(4)
    archive.way = lambda path, count: Answer(503) if re.search(down, path) else None
    runtime = write_urls([*URLS[:12], "http://unknown.example/"], num_shards=1)
    with pytest.raises(UserError, match=r"3 requests in a row to the.*again later"):
        archive.fetch(runtime, archive_retries=2, archive_failures=3)
    assert read_manifest(runtime.workdir, "pages") is None
    archive.way = lambda path, count: None
    # The join is finished, so the index is not read again.
    archive.files.update({name: b"" for name in archive.files if INDEX in name})
    manifest = archive.fetch(runtime)
    assert (manifest.counts.left, manifest.counts.rejected) == (12, {"not_archived": 1})


def test_an_address_without_an_archive_stops_the_run(
    archive: CommonCrawl, write_urls: Write
) -> None:
    runtime = write_urls(URLS, num_shards=1)
    with pytest.raises(
        UserError, match=r"20 requests in a row to the archive failed.*404.* the same command again"
    ):
        archive.fetch(runtime, cc_data=f"{archive.url}/elsewhere")


@pytest.mark.parametrize("damage", ["missing", "cut short", "cut off", "always busy"])
def test_after_an_unreadable_capture_the_next_best_is_read(
    damage: str, commoncrawl: CommonCrawl, write_urls: Write
) -> None:
    urls = URLS[:10]
    for url in urls:
        for moment in (100, 200):
            commoncrawl.add({url: moment})
    nearest = {f"/data/crawl-data/{CRAWLS[0]}/warc/{2 * n}.warc.gz" for n in range(0, 10, 3)}

    def x(path: str, count: int) -> Answer | None:
        if path not in nearest:
            return None
        content = commoncrawl.files[path.removeprefix("/data/")]
        headers = {"Content-Range": f"bytes 0-{len(content) - 1}/{len(content)}"}
        return {
            "missing": Answer(404, b"NoSuchKey"),
            "cut short": Answer(206, content[: len(content) // 2], headers),
            "cut off": Answer(206, content, headers, sent=len(content) // 2),
            "always busy": Answer(503),
        }[damage]

    commoncrawl.way = x
    manifest = commoncrawl.fetch(
        runtime := write_urls([(url, 100) for url in urls]), archive_retries=2
    )
    body_by_url = {
        response.url: response.body.decode() for response in responses(runtime, manifest).values()
    }
    assert body_by_url == {
        url: f"<p>{url} at {100 if n % 3 else 200}" for n, url in enumerate(urls)
    }


REDIRECTED = {
    "http://a.example/old": (301, "http://a.example/new"),
    "http://a.example/new": (302, "https://b.example/newest?utm_source=a"),
    "https://b.example/newest": (200, ""),
    "http://a.example/https": (301, "https://www.a.example/https"),
    "http://a.example/lost": (301, "http://a.example/nowhere"),
    "http://a.example/loop": (301, "http://a.example/loop2"),
    "http://a.example/loop2": (301, "http://a.example/loop"),
    "http://a.example/mail": (302, "mailto:a@a.example"),
    "http://a.example/gone": (404, ""),
    "http://a.example/both": (200, ""),
}
REQUESTED = [
    (f"http://a.example/{name}", 5)
    for name in ("old", "https", "lost", "loop", "mail", "gone", "both")
]


@pytest.mark.parametrize("source", ["archive", "wayback"])
def test_redirects_are_followed_within_an_archive(
    source: str, wayback: Wayback, write_urls: Write, tmp_path: Path
) -> None:
    captures = [(url, AT, *status_and_target) for url, status_and_target in REDIRECTED.items()]
    captures.append(("http://a.example/both", AT - DAY, 301, "http://a.example/new"))
    runtime = write_urls(REQUESTED)
    if source == "wayback":
        for url, moment, status, target in captures:
            wayback.captures[url, moment] = b"" if target else b"<p>page"
            wayback.statuses[url, moment] = status, target
        manifest = wayback.fetch(runtime)
    else:
        with open(tmp_path / "a.warc.gz", "wb") as file:
            for url, moment, status, target in captures:
                headers = [("Location", target)] if target else HTML
                file.write(
                    response_record(
                        url, moment, f"HTTP/1.1 {status} X", headers, b"" if target else b"<p>page"
                    )
                )
        manifest = files_of(runtime, str(tmp_path / "a.warc.gz"))
    response_by_url = responses(runtime, manifest)
    assert {url: response.url for url, response in response_by_url.items()} == {
        "https://a.example/old": "https://b.example/newest",
        "https://a.example/both": "http://a.example/both",
    }
    details = {url.rpartition("/")[2]: reject for url, reject in rejects(runtime, manifest).items()}
    assert details["https"] == (
        "not_archived",
        "archived is only a redirect to another spelling of the URL",
    )
    assert details["lost"][1].startswith(
        "redirects to https://a.example/nowhere: no capture of a page in "
    )
    assert details["loop"][0] == "redirect_loop"
    assert details["mail"] == ("bad_redirect", "a redirect to no URL that could be archived")
    assert details["gone"][0] == ("not_archived" if source == "wayback" else "http_404")
    assert why_fetched(runtime, "http://a.example/gone")["detail"] == details["gone"][1]
    # The run's own files have the pages, and the redirects that led to them.
    files = [runtime.workdir.path(file.path) for file in reader(runtime, manifest).files("warc")]
    again = write_urls(REQUESTED, "again")
    assert responses(again, files_of(again, *files)) == response_by_url


def files_of(runtime: Runtime, *files: str) -> Manifest:
    """Fetch the pages of archive files."""
    return run_stage(STAGE, Options(pages_from=files), runtime)[0]


TRACKED = {
    "x?utm_source=b&utm_medium=c": "x",
    "x?a=1&utm_campaign=z": "x?utm_source=reddit&a=1",
    "x": "x?fbclid=1",
    "x?utm_source=d": "x?utm_source=d",
}
"""URLs as archived, and as posted."""


def test_captures_with_tracking_parameters_are_found(
    commoncrawl: CommonCrawl, wayback: Wayback, write_urls: Write, tmp_path: Path
) -> None:
    urls = [f"http://t{n}.example/{path}" for n, path in enumerate(TRACKED)]
    wayback.captures = {(url, AT): b"<p>page" for url in urls}
    for url in urls:
        commoncrawl.add({url: 5, url.replace("/x", "/xyz"): 5})
    (tmp_path / "a.warc.gz").write_bytes(b"".join(commoncrawl.files.values()))
    posted = [(f"http://t{n}.example/{path}", 5) for n, path in enumerate(TRACKED.values())]
    ways: dict[str, Callable[[Runtime], Manifest]] = {
        "commoncrawl": commoncrawl.fetch,
        "wayback": wayback.fetch,
        "archive": lambda runtime: files_of(runtime, str(tmp_path / "a.warc.gz")),
    }
    for name, fetch in ways.items():
        runtime = write_urls(posted, name)
        final_urls = {page.url for page in responses(runtime, fetch(runtime)).values()}
        # The Wayback Machine is searched for the canonical URL and for the posted one.
        assert final_urls == set(urls[2:] if name == "wayback" else urls), name
