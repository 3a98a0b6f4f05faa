"""The stage extract beside trafilatura and Resiliparse, on WCXB's development pages: how well, and how fast.

    .venv/bin/python benchmarks/extract.py [--data SHARED_DATA] [--skip_workers]

Words are compared as bags, in lower case; precision, recall and F1 are means over pages. `with` and `without` are
the shares found of the snippets that must be, and must not be, in the text. Pages/s are of one core's CPU time;
at the end, of the wall clock of the stage's worker processes, from WARC records to documents with their metadata.
"plain" is `trafilatura.extract` without comments, which is better by its F1 than with them. The thresholds of our
extractor were set on one half of these pages and checked on the other, split by host: both are printed. Exits 1
where ours is under the best of trafilatura's F1s on all pages or on articles, or under 1.5 times that one's pages/s.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.extract.charset import decode
from owt_pipeline.extract.extractor import Page, Settings, load

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FETCHED_AT = 1_767_225_600
WORD = re.compile(r"\w+")
TYPES = ("article", "service", "forum", "documentation", "listing", "collection", "product")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument("--skip_workers", action="store_true", help="measure the functions alone")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warc = arguments.data / "web" / "wcxb-dev.warc.gz"
    pages = read_pages(warc)
    truth = read_truth(arguments.data / "web" / "wcxb-dev.truth.jsonl.gz")
    print(f"{len(pages)} pages, {sum(map(len, pages.values())) / len(pages) / 1000:.0f} kB of HTML on average")
    print(f"{'':28}pages/s  prec  recall  F1      {'  '.join(f'{kind[:8]:8}' for kind in TYPES)}  with   without")
    best, ours = {"all": 0.0, "article": 0.0, "rate": 0.0}, {"all": 0.0, "article": 0.0, "rate": 0.0}
    for name, extract in contenders().items():
        texts, rate = run(extract, pages)
        scores = score(texts, truth)
        report(name, rate, scores)
        if name.startswith("plain") and scores["all"][2] > best["all"]:
            best = {"all": scores["all"][2], "article": scores["article"][2], "rate": rate}
        if name == "blocks":
            ours = {"all": scores["all"][2], "article": scores["article"][2], "rate": rate}
            for half in (0, 1):
                urls = {url for url in truth if zlib.crc32(urlsplit(url).netloc.encode()) % 2 == half}
                part = score({u: texts[u] for u in urls}, {u: truth[u] for u in urls})
                report("  set on" if half == 0 else "  checked on", rate, part)
    if not arguments.skip_workers:
        measure_workers(warc)
    print(f"ours: {ours['rate'] / best['rate']:.1f} times the pages/s of the best trafilatura")
    return int(any(ours[key] < best[key] for key in ("all", "article")) or ours["rate"] < 1.5 * best["rate"])


def contenders() -> dict[str, Callable[[str, bytes], str]]:
    import trafilatura

    def of_ours(name: str, **settings: object) -> Callable[[str, bytes], str]:
        extract = load(name, Settings(**settings))  # type: ignore[arg-type]

        def texts(url: str, body: bytes) -> str:
            found = extract(Page(url, decode(body, "utf-8")[0], FETCHED_AT))
            return found.text if found else ""

        return texts

    def plain(**options: bool) -> Callable[[str, bytes], str]:
        return lambda url, body: trafilatura.extract(body, url=url, include_comments=False, **options) or ""

    found = {
        "blocks": of_ours("blocks"),
        "blocks, precision": of_ours("blocks", favor="precision"),
        "blocks, recall": of_ours("blocks", favor="recall"),
        "plain trafilatura": plain(),
        "plain trafilatura, fast": plain(fast=True),
        "plain trafilatura, precision": plain(favor_precision=True),
        "plain trafilatura, recall": plain(favor_recall=True),
    }
    try:
        found["resiliparse"] = of_ours("resiliparse")
    except ImportError:
        print("resiliparse is not installed: left out", file=sys.stderr)
    return found


def run(extract: Callable[[str, bytes], str], pages: dict[str, bytes]) -> tuple[dict[str, str], float]:
    """Texts by URL, and pages a second of CPU time."""
    extract("http://warm.up/", b"<html><body><p>It loads what it needs.</p></body></html>")
    started = time.process_time()
    texts = {url: extract(url, body) for url, body in pages.items()}
    return texts, len(pages) / (time.process_time() - started)


def score(texts: dict[str, str], truth: dict[str, dict]) -> dict[str, tuple[float, ...]]:
    """Mean (precision, recall, F1) of all pages and by type; `with` and `without` as shares of snippets."""
    by_type: dict[str, list[tuple[float, float, float]]] = {}
    found, count = Counter[str](), Counter[str]()
    for url, row in truth.items():
        values = compare(texts[url], row["main_content"])
        by_type.setdefault(row["page_type"], []).append(values)
        by_type.setdefault("all", []).append(values)
        text = spaced(texts[url])
        for key in ("with", "without"):
            found[key] += sum(spaced(snippet) in text for snippet in row[key])
            count[key] += len(row[key])
    means: dict[str, tuple[float, ...]] = {
        kind: tuple(sum(column) / len(column) for column in zip(*values, strict=True))
        for kind, values in by_type.items()
    }
    return means | {key: (found[key] / count[key],) for key in count}


def compare(found: str, wanted: str) -> tuple[float, float, float]:
    left, right = Counter(WORD.findall(found.lower())), Counter(WORD.findall(wanted.lower()))
    common, n_left, n_right = sum((left & right).values()), sum(left.values()), sum(right.values())
    if not n_left or not n_right:
        return (1.0, 1.0, 1.0) if n_left == n_right else (float(not n_right), float(not n_left), 0.0)
    return common / n_left, common / n_right, 2 * common / (n_left + n_right)


def spaced(text: str) -> str:
    return " ".join(text.lower().split())


def report(name: str, rate: float, scores: dict[str, tuple[float, ...]]) -> None:
    precision, recall, f1 = scores["all"]
    kinds = "  ".join(f"{scores[kind][2]:<8.4f}" for kind in TYPES)
    print(
        f"{name:28}{rate:7.1f}  {precision:.3f} {recall:.3f}   {f1:.4f}  {kinds}  {scores['with'][0]:.3f}  "
        f"{scores['without'][0]:.3f}",
        flush=True,
    )


def measure_workers(warc: Path) -> None:
    """Print the rate of the stage's own worker processes, one and two."""
    import pyarrow as pa

    from owt_pipeline.extract.pages import Work
    from owt_pipeline.extract.pool import extract_all

    records = read_records(warc)
    rows = [
        pa.RecordBatch.from_pydict({"final_url": [url], "fetched_at": [FETCHED_AT], "record": [record]})
        for url, record in records
    ]
    work = Work("blocks", Settings(), 20.0, 1 << 30)
    seconds = {}
    for workers in (1, 2):
        list(extract_all(rows[:8], work, workers))  # starts the workers
        started = time.perf_counter()
        assert sum(1 for _ in extract_all(rows, work, workers)) == len(rows)
        seconds[workers] = time.perf_counter() - started
    print(
        f"in worker processes, from WARC records: {len(rows) / seconds[1]:.0f} pages/s with one worker, "
        f"{len(rows) / seconds[2]:.0f} with two ({seconds[1] / seconds[2]:.2f} times)"
    )


def read_pages(warc: Path) -> dict[str, bytes]:
    with open(warc, "rb") as file:
        return {
            record.headers["WARC-Target-URI"]: record.reader.read()
            for record in ArchiveIterator(file, record_types=WarcRecordType.response)
        }


def read_records(warc: Path) -> list[tuple[str, bytes]]:
    """Each page as a record of its own, as `pages/` holds it."""
    from owt_pipeline.fetch.warc import response_record

    headers = [("Content-Type", "text/html; charset=utf-8")]
    return [
        (url, response_record(url, FETCHED_AT, "HTTP/1.1 200 OK", headers, body))
        for url, body in read_pages(warc).items()
    ]


def read_truth(path: Path) -> dict[str, dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return {row["url"]: row for row in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
