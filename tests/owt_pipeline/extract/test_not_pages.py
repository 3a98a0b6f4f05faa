"""Soft 404s, parked domains and walls have their own reasons.

Real pages are never mistaken for them. Pages that reserve their use are recognized by headers and
markup.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator

from owt_pipeline.formats.messages import Headers
from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.extract.charset import decode
from owt_pipeline.stages.extract.extractor import Page
from owt_pipeline.stages.extract.not_pages import MAX_WORDS, reason_for_no_page
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.pages import Found, extract_body
from owt_pipeline.stages.extract.reserved import reserved
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.runs import ask_owt

# Each case has the reason, which is empty for a page that is kept, and a page with titles and
# scripts as these servers and services send them.
CASES = [
    line.split("\t")
    for line in Path(__file__).with_name("not_pages.txt").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize(("reason", "page"), CASES)
def test_missing_parked_and_walled_pages_are_rejected(reason: str, page: str) -> None:
    assert (reason_for_no_page(Page("", page, 1)) or [""])[0] == reason
    for reject_walls in (True, False):
        result = extract_body(Options(reject_walls=reject_walls), "http://a.example/x", 1, page)
        expected = reason if reason and reject_walls else "no_text"
        assert isinstance(result, Found) or result.reason == expected
    long = f"{page}<p>{'Many words about something else. ' * MAX_WORDS}</p>"
    assert isinstance(extract_body(Options(), "http://a.example/x", 1, long), Found)


def real_pages(testdata: Path) -> Iterator[tuple[str, str]]:
    """Yield the URL and the HTML of real pages."""
    for record in ArchiveIterator(str(testdata / "web" / "wcxb-dev.warc.gz")):
        if record.http_headers:
            yield (
                record.headers["WARC-Target-URI"],
                decode(record.reader.read(), record.http_charset)[0],
            )
    for name in ("trafilatura-eval-dev", "readability-pages"):
        with gzip.open(testdata / "web" / f"{name}.jsonl.gz") as lines:
            for line in lines:
                page = json.loads(line)
                yield page.get("url") or page["name"], page["html"]


@pytest.mark.slow
def test_none_of_the_real_pages_is_rejected(testdata: Path) -> None:
    pages = list(real_pages(testdata))
    assert len(pages) == 1957
    for url, html in pages:
        assert reason_for_no_page(Page(url, html, 1)) is None, url


RESERVED_CASES: list[tuple[Headers, str, str | None]] = [
    ([], '<meta name="robots" content="noai, noimageai">', "noai, noimageai"),
    ([], "<META NAME=ROBOTS CONTENT='NOINDEX,NoAI'>", "noai"),
    (
        [],
        "<meta name=robots content=max-snippet:-1><title>x</title><meta name=robots "
        "content=noimageai>",
        "noimageai",
    ),
    ([("X-Robots-Tag", "noai")], "", "noai"),
    ([("x-robots-tag", "noindex"), ("X-ROBOTS-TAG", "max-snippet: 20, noai")], "", "noai"),
    ([("X-Robots-Tag", "otherbot: noai, noimageai")], "", None),
    ([("X-Robots-Tag", "noaisle, noindex")], "", None),
    ([("TDM-Reservation", "1"), ("X-Robots-Tag", "noai")], "", "noai, tdm-reservation"),
    ([("tdm-reservation", "0")], "", None),
    ([], '<meta name="tdm-reservation" content="1">', "tdm-reservation"),
    ([("tdm-reservation", "1")], '<meta name="tdm-reservation" content="0">', None),
    ([("tdm-reservation", "0")], '<meta name="TDM-Reservation" content="1">', "tdm-reservation"),
    (
        [],
        "<!-- <meta name=robots content=noai> --><script>'<meta name=robots "
        "content=noai>'</script><p>noai",
        None,
    ),
    ([], '<meta name="keywords" content="noai">', None),
    ([("Server", "noai")], "<meta name=robots content='index, follow'>", None),
]


@pytest.mark.parametrize(("headers", "html", "expected"), RESERVED_CASES)
def test_a_reservation_of_a_response_is_found(
    headers: Headers, html: str, expected: str | None
) -> None:
    # Another extractor leaves the page unparsed, and ours has parsed it.
    page = Page("", html, 1)
    assert reserved(headers, page) == expected
    assert page.parsed.metas == page.metas
    assert reserved(headers, page) == expected


PAGES: dict[str, tuple[Headers, str]] = {
    "free": ([], ""),
    "meta": ([], "<meta name=robots content=noai>"),
    "header": ([("TDM-Reservation", "1")], ""),
}
SENTENCE = (
    "The {} was short enough for a single sentence, and nobody in the village had heard it before. "
)


@pytest.mark.slow
def test_reserved_pages_of_an_archive_are_rejected_unless_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    archive = tmp_path / "pages.warc.gz"
    links = tmp_path / "urls.txt"
    records = []
    for number, (name, (headers, head)) in enumerate(PAGES.items()):
        text = "".join(SENTENCE.format(f"{name} story {number * 100 + i}") for i in range(40))
        head = f"<head><title>{name}</title>{head}</head>"
        body = f"<html>{head}<body><article><p>{text}</p></article></body></html>".encode()
        url = f"https://{name}.example.org/a"
        all_headers = [("Content-Type", "text/html"), *headers]
        records.append(response_record(url, 10**9, "HTTP/1.1 200 OK", all_headers, body))
    archive.write_bytes(b"".join(records))
    links.write_text("".join(f"https://{name}.example.org/a\n" for name in PAGES))
    settings = ("--links", links, "--pages_from", archive, "--workers", 1)
    ask_owt("run", run, *settings)
    assert names(run, "documents") == {"free": None, "meta": "noai", "header": "tdm-reservation"}
    assert names(run, "corpus") == {"free": None}
    assert "rejected by clean: reserved" in ask_owt("why", run, "https://meta.example.org/a")
    stats = json.loads((run / "report/stats.json").read_bytes())
    (clean,) = (stage for stage in stats["funnel"] if stage["stage"] == "clean")
    assert [(row["reason"], row["count"]) for row in clean["rejected"]] == [("reserved", 2)]
    rows = stats["figures"]["reserved"]["rows"]
    assert [(row["reserved"], row["pages"]) for row in rows] == [
        ("noai", 1),
        ("tdm-reservation", 1),
    ]
    # The report does not show their texts.
    assert stats["dropped"] == []
    ask_owt("run", run, *settings, "--reserved", "keep")
    assert names(run, "corpus") == names(run, "documents")
    error = ask_owt("run", run, "--reserved", "no", code=2)
    assert "reserved: 'no' is not one of reject, keep" in error


def names(run: Path, dataset: str) -> dict[str, str | None]:
    """Return the reservation of each document's page by the first part of its host."""
    table = DatasetReader.open(Storage(str(run)), dataset).table(columns=["url", "reserved"])
    reservation_by_name = {}
    for row in table.to_pylist():
        name, _, _ = row["url"].removeprefix("https://").partition(".")
        reservation_by_name[name] = row["reserved"]
    return reservation_by_name
