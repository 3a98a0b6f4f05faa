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
from owt_pipeline.stages.extract.pages import Found, Rejected, extract_body

# The reason, and a page with titles and scripts as these servers and services send them.
INSTEAD = [line.split("\t") for line in Path(__file__).with_name("not_pages.txt").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("reason", "page"), INSTEAD)
def test_missing_pages_parked_domains_and_walls_are_rejected_with_their_reason(reason: str, page: str) -> None:
    found = extract_body(Options(), "http://a.example/x", 1, page)
    assert isinstance(found, Rejected)
    assert found.reason == reason
    kept = extract_body(Options(reject_walls=False), "http://a.example/x", 1, page)
    assert not isinstance(kept, Rejected) or kept.reason == "no_text"


ARTICLES = [
    "404 pages that made us laugh",
    "404: the story of an error code that everybody knows",
    "The page not found in any library",
    "Why access denied errors cost you customers",
    "Log in to your tree: a guide to forestry",
    "Just a moment: on patience",
    "My house is for sale",
]


@pytest.mark.parametrize("title", ARTICLES)
def test_article_about_such_pages_is_kept(title: str) -> None:
    text = "<p>" + "Many words about something else. " * MAX_WORDS + "</p>"
    assert reason_for_no_page(f"<title>{title}</title>{text}") is None
    page = f"<title>{title}</title>{text}"
    assert isinstance(extract_body(Options(), "http://a.example/x", 1, page), Found)


@pytest.mark.parametrize("title", ARTICLES)
def test_short_post_with_such_words_in_its_title_is_kept(title: str) -> None:
    assert reason_for_no_page(f"<title>{title}</title><p>Few words.</p>") is None


@pytest.mark.parametrize(
    "script",
    [
        "<script src='/cdn-cgi/challenge-platform/scripts/jsd/main.js'></script>",  # Cloudflare's, in any page
        "<script src='/_Incapsula_Resource?SWJIYLWA=719d34d31c8e3a6e6fffd425f7e032f3'></script>",  # Imperva's
        "<script src='https://js.datadome.co/tags.js'></script>",
        "<script src='https://x.token.awswaf.com/x/challenge.js'>AwsWafIntegration</script>",
        "<a href='https://www.bodis.com/'>sell your domain</a>",
    ],
)
def test_short_page_with_a_script_of_such_a_service_is_kept(script: str) -> None:
    assert reason_for_no_page(f"<title>A poem</title>{script}<p>Few words.</p>") is None


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
