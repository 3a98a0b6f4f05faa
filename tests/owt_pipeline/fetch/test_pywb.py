"""Archives served by pywb: real pages, found and replayed, are those of the archive itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.warc import response_record
from owt_pipeline.stages.fetch.stage import STAGE, Options
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.reading import reader, rejects, responses
from tests.servers.pywb import pywb

AGENT = "TestBot/1.0 (+mailto:test@bad.test)"
DAY = 86_400

NEAREST = {14_000: 15_000, 15_010: 15_000, 15_020: 15_029, 15_150: 15_029, 15_170: 15_301, 16_000: 15_329}
"""The day of the capture to take, by the day of the submission."""


@pytest.fixture(scope="module")
def place(testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """pywb's collections: real pages (`pages`), and captures of several times (`days`)."""
    folder = tmp_path_factory.mktemp("pywb")
    days = folder / "days.warc.gz"
    with open(days, "wb") as stream:
        for at in [*NEAREST, "undated"]:
            for day in sorted(set(NEAREST.values())):
                url, headers = f"http://www.a.example/some/{at}?b=1&a=2", [("Content-Type", "text/html")]
                stream.write(response_record(url, day * DAY, "HTTP/1.1 200 OK", headers, b"<p>day %d" % day))
    with pywb(folder / "pywb", {"pages": testdata / "web" / "wcxb-dev.warc.gz", "days": days}) as url:
        yield url


def replayed(runtime: Runtime, collection: str) -> Manifest:
    options = Options(
        sources=("wayback",), wayback_cdx=f"{collection}/cdx", wayback_pages=collection, wayback_delay=0.0,
        user_agent=AGENT,
    )  # fmt: skip
    return run_stage(STAGE, options, runtime)[0]


def test_captures_that_pywb_replays_are_the_archive_s_pages(
    testdata: Path, place: str, write_urls: Callable[..., Runtime]
) -> None:
    file = testdata / "web" / "wcxb-dev.warc.gz"
    urls = [record.headers["WARC-Target-URI"] for record in ArchiveIterator(str(file), parse_http=False)][::10]
    runtime, local = write_urls([*urls, "https://nowhere.example/page"]), write_urls(urls, "local")
    manifest, expected = (
        replayed(runtime, f"{place}/pages"),
        run_stage(STAGE, Options(pages_from=(str(file),)), local)[0],
    )
    assert set(rejects(runtime, manifest)) == {"https://nowhere.example/page"}
    assert manifest.counts.left == expected.counts.left > 120
    ours, theirs = responses(runtime, manifest), responses(local, expected)
    for url, answer in theirs.items():
        about = ("url", "date", "status", "content_type", "body")
        assert [getattr(ours[url], name) for name in about] == [getattr(answer, name) for name in about]
    columns = ["url", "archive_offset", "body_bytes", "days_after_submission"]
    found, known = (reader(*run).table(columns=columns) for run in ((runtime, manifest), (local, expected)))
    assert found.sort_by("url").equals(known.sort_by("url"))


def test_pywb_has_the_nearest_capture(place: str, write_urls: Callable[..., Runtime]) -> None:
    dates: list[tuple[object, int | None]] = [*((at, at * DAY) for at in NEAREST), ("undated", None)]
    urls = [(f"https://a.example/some/{at}/?b=1&utm_source=reddit&a=2", moment) for at, moment in dates]
    runtime = write_urls(urls)
    found = responses(runtime, replayed(runtime, f"{place}/days"))
    days = {url.rpartition("/")[2].partition("?")[0]: answer.body.decode()[7:] for url, answer in found.items()}
    assert days == {**{str(at): str(day) for at, day in NEAREST.items()}, "undated": "15329"}
