"""Soft 404s, parked domains and walls have their own reasons; real pages are never mistaken for them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.stages.extract.charset import decode
from owt_pipeline.stages.extract.not_pages import MAX_WORDS, reason_for_no_page
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.pages import Found, extract_body

# The reason (none for a page that is kept), and a page with titles and scripts as these servers and services send them.
CASES = [line.split("\t") for line in Path(__file__).with_name("not_pages.txt").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("reason", "page"), CASES)
def test_missing_pages_parked_domains_and_walls_are_rejected_and_pages_like_them_kept(reason: str, page: str) -> None:
    assert (reason_for_no_page(page) or [""])[0] == reason
    for reject_walls in (True, False):
        found = extract_body(Options(reject_walls=reject_walls), "http://a.example/x", 1, page)
        assert isinstance(found, Found) or found.reason == (reason if reason and reject_walls else "no_text")
    long = f"{page}<p>{'Many words about something else. ' * MAX_WORDS}</p>"
    assert isinstance(extract_body(Options(), "http://a.example/x", 1, long), Found)


def real_pages(testdata: Path) -> Iterator[tuple[str, str]]:
    for record in ArchiveIterator(str(testdata / "web" / "wcxb-dev.warc.gz")):
        if record.http_headers:
            yield record.headers["WARC-Target-URI"], decode(record.reader.read(), record.http_charset)[0]
    for name in ("trafilatura-eval-dev", "readability-pages"):
        with gzip.open(testdata / "web" / f"{name}.jsonl.gz") as lines:
            for line in lines:
                page = json.loads(line)
                yield page.get("url") or page["name"], page["html"]


def test_none_of_the_real_pages_is_rejected(testdata: Path) -> None:
    pages = list(real_pages(testdata))
    assert len(pages) == 1957
    assert [(url, what) for url, page in pages if (what := reason_for_no_page(page)) is not None] == []
