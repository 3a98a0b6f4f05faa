"""Compares author, date, site name, language and title: ours, trafilatura's and htmldate's on the same pages.

    .venv/bin/python benchmarks/metadata.py [--data SHARED_DATA] [--misses FIELD]

The truth is the metadata of Mozilla Readability's test pages, and the titles of a fourth of WCXB's pages. `right` is
the share of pages with a known value for which the same value is found, `wrong` that with another value; for the rest,
none is found. Names are equal if all words of one are in the other (truths contain "By" and dates), dates by day, sites
and titles by their words. Milliseconds are CPU time per page on one core, with parsing. Exits 1 if ours is right less
often.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import htmldate
import trafilatura
from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.stages.extract.charset import decode
from owt_pipeline.stages.extract.head import read_head
from owt_pipeline.stages.extract.metadata import read_metadata
from owt_pipeline.stages.extract.reader import read_page

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
FETCHED_AT = 1_767_225_600
FIELDS = ("title", "author", "date", "site_name", "language")
WORD = re.compile(r"\w+")

Found = dict[str, str | None]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="read every Nth page only")
    parser.add_argument("--misses", choices=FIELDS, metavar="FIELD", help="print where ours differs from the truth")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    pages = (readability_pages(arguments.data) + wcxb_pages(arguments.data))[:: arguments.every]
    counts = {field: sum(bool(truth.get(field)) for _, _, truth in pages) for field in FIELDS}
    print(f"{'':14}{'ms/page':>8}" + "".join(f"{f'{field} ({count})':^18}" for field, count in counts.items()))
    print(f"{'':22}" + "   right   wrong  " * len(FIELDS))
    rights: dict[str, list[float | None]] = {}
    for name, (read, fields) in READERS.items():
        read("http://warm.up/", "<html><head><title>Warm up</title></head><body><p>x</p></body></html>")
        started = time.process_time()
        found = [read(url, page) for url, page, _ in pages]
        milliseconds = (time.process_time() - started) * 1000 / len(pages)
        line, rights[name] = f"{name:14}{milliseconds:8.2f}", []
        for field in FIELDS:
            if field not in fields:
                rights[name].append(None)
                line += " " * 18
                continue
            pairs = [
                (given.get(field), truth[field])
                for given, (_, _, truth) in zip(found, pages, strict=True)
                if truth.get(field)
            ]
            right = sum(same(field, given, truth) for given, truth in pairs) / max(len(pairs), 1)
            wrong = sum(bool(given) and not same(field, given, truth) for given, truth in pairs) / max(len(pairs), 1)
            rights[name].append(right)
            line += f"   {right:.3f}   {wrong:.3f}  "
        print(line.rstrip(), flush=True)
        if name == "ours" and arguments.misses:
            for given, (url, _, truth) in zip(found, pages, strict=True):
                if truth.get(arguments.misses) and not same(
                    arguments.misses, given[arguments.misses], truth[arguments.misses]
                ):
                    print(f"  {url:.60}: {given[arguments.misses]!r}, not {truth[arguments.misses]!r}")
    others = [other for name, other in rights.items() if name != "ours"]
    return int(
        any(
            theirs is not None and mine < theirs
            for other in others
            for mine, theirs in zip(rights["ours"], other, strict=True)
        )
    )  # type: ignore[operator]


def same(field: str, given: str | None, truth: str) -> bool:
    if not given:
        return False
    if field == "date":
        return given == truth[:10]
    if field == "language":
        return given[:2].lower() == truth[:2].lower()
    left, right = WORD.findall(given.lower()), WORD.findall(truth.lower())
    if field == "author":
        return bool(left) and (set(left) <= set(right) or set(right) <= set(left))
    return left == right


def ours(url: str, page: str) -> Found:
    read = read_page(page)
    return dict(read_metadata(read, read_head(read), url, FETCHED_AT))


def with_trafilatura(url: str, page: str) -> Found:
    found = trafilatura.extract_metadata(page, default_url=url)
    if found is None:
        return {}
    return {"title": found.title, "author": found.author, "date": found.date, "site_name": found.sitename}


def with_htmldate(extensive: bool) -> Callable[[str, str], Found]:
    def read(url: str, page: str) -> Found:
        return {"date": htmldate.find_date(page, url=url, original_date=True, extensive_search=extensive)}

    return read


READERS: dict[str, tuple[Callable[[str, str], Found], tuple[str, ...]]] = {
    "ours": (ours, FIELDS),
    "trafilatura": (with_trafilatura, ("title", "author", "date", "site_name")),
    "htmldate": (with_htmldate(True), ("date",)),
    "htmldate, fast": (with_htmldate(False), ("date",)),
}


def readability_pages(data: Path) -> list[tuple[str, str, dict[str, Any]]]:
    pages = []
    with gzip.open(data / "web" / "readability-pages.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            said = row["metadata"]
            truth = {"title": said["title"], "author": said["byline"], "date": day(said["publishedTime"]),
                     "site_name": said["siteName"], "language": said.get("lang")}  # fmt: skip
            pages.append((f"http://fakehost/{row['name']}", row["html"], truth))
    return pages


def day(text: str | None) -> str | None:
    return text[:10] if text and re.match(r"\d{4}-\d\d-\d\d", text) else None


def wcxb_pages(data: Path) -> list[tuple[str, str, dict[str, Any]]]:
    with gzip.open(data / "web" / "wcxb-dev.truth.jsonl.gz", "rt", encoding="utf-8") as lines:
        titles = {row["url"]: row["title"] for row in map(json.loads, lines)}
    with open(data / "web" / "wcxb-dev.warc.gz", "rb") as file:
        records = ArchiveIterator(file, record_types=WarcRecordType.response)
        pages = [(record.headers["WARC-Target-URI"], record.reader.read()) for record in records]
    every = [(url, decode(body, "utf-8")[0], {"title": titles[url]}) for url, body in pages if url in titles]
    return every[::4]  # enough for titles; htmldate takes its time


if __name__ == "__main__":
    sys.exit(main())
