"""Archives served by pywb: real pages that it finds and replays equal the pages of the archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from tests.owt_pipeline.fetch.archive_server import AGENT
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import reader, rejects, responses
from tests.owt_pipeline.fetch.test_page_sources import add_library
from tests.servers.pywb import pywb


@pytest.fixture(scope="module")
def place(testdata: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of pywb, whose collection `pages` has real pages."""
    folder = tmp_path_factory.mktemp("pywb")
    with pywb(folder, {"pages": testdata / "web" / "wcxb-dev.warc.gz"}) as url:
        yield url


@pytest.mark.slow
def test_captures_that_pywb_replays_are_the_archive_s_pages(
    testdata: Path, place: str, write_urls: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_library(monkeypatch, f"{place}/pages")
    file = testdata / "web" / "wcxb-dev.warc.gz"
    urls = [
        record.headers["WARC-Target-URI"] for record in ArchiveIterator(str(file), parse_http=False)
    ][::20]
    runtime = write_urls([*urls, "https://nowhere.example/page"])
    local = write_urls(urls, "local")
    manifest, _ = run_stage(STAGE, Options(sources=("library",), user_agent=AGENT), runtime)
    expected = run_stage(STAGE, Options(pages_from=(str(file),)), local)[0]
    assert set(rejects(runtime, manifest)) == {"https://nowhere.example/page"}
    assert manifest.counts.left == expected.counts.left > 60
    responses_of_pywb = responses(runtime, manifest)
    # pywb changes other headers, such as those of caches.
    fields = ("url", "date", "status", "content_type", "body")
    for url, response in responses(local, expected).items():
        replayed_response = responses_of_pywb[url]
        for name in fields:
            assert getattr(replayed_response, name) == getattr(response, name)
    columns = ["url", "body_bytes", "days_after_submission"]
    rows_of_pywb = reader(runtime, manifest).table(columns=columns).sort_by("url")
    rows_of_file = reader(local, expected).table(columns=columns).sort_by("url")
    assert rows_of_pywb.equals(rows_of_file)
