"""The stage extract beside trafilatura and Resiliparse, on WCXB's development pages: how well, and how fast.

    make bench-peers    # once: datatrove's environment; without it, it is left out
    .venv/bin/python benchmarks/extract.py [--data SHARED_DATA] [--skip_stage]

Words are compared as bags, in lower case; precision, recall and F1 are means over pages. `with` and `without` are
the shares found of the snippets that must be, and must not be, in the text. Pages/s are of one core's CPU time.
At the end, the stage as users run it, from WARC files to documents with their metadata, in worker processes.
"plain" is `trafilatura.extract` without comments, which is better by its F1 than with them. The thresholds of our
extractor were set on one half of these pages and checked on the other, split by host: both are printed. Exits 1
where ours is under the best of trafilatura's F1s on all pages or on articles, or under 1.5 times that one's pages/s.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from shutil import rmtree
from urllib.parse import urlsplit

from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.extract.charset import decode
from owt_pipeline.extract.extractor import Page, Settings, load

REPOSITORY = Path(__file__).resolve().parents[1]
PEER_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"
DATA = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
COPIES = 4
FETCHED_AT = 1_767_225_600
WORD = re.compile(r"\w+")
TYPES = ("article", "service", "forum", "documentation", "listing", "collection", "product")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument("--skip_stage", action="store_true", help="measure the functions alone")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warc = arguments.data / "web" / "wcxb-dev.warc.gz"
    pages = read_pages(warc)
    truth = read_truth(arguments.data / "web" / "wcxb-dev.truth.jsonl.gz")
    print(f"{len(pages)} pages, {sum(map(len, pages.values())) / len(pages) / 1000:.0f} kB of HTML on average")
    print(f"{'':28}pages/s  prec  recall  F1      {'  '.join(f'{kind[:8]:8}' for kind in TYPES)}  with   without")
    best, ours = {"all": 0.0, "article": 0.0, "rate": 0.0}, {"all": 0.0, "article": 0.0, "rate": 0.0}
    contending = {name: partial(run, extract, pages) for name, extract in contenders().items()}
    if PEER_PYTHON.exists():
        contending["datatrove"] = partial(run_datatrove, warc)
    for name, contend in contending.items():
        texts, rate = contend()
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
    if not arguments.skip_stage:
        ours["rate"] = measure_stage(pages)
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
        values = compare(texts.get(url, ""), row["main_content"])
        by_type.setdefault(row["page_type"], []).append(values)
        by_type.setdefault("all", []).append(values)
        text = spaced(texts.get(url, ""))
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


def measure_stage(pages: dict[str, bytes]) -> float:
    """Print the rate of `owt extract` as users run it, one worker and two; returns that of one."""
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        warc, workdir = Path(folder) / "pages.warc.gz", Path(folder) / "run"
        with open(warc, "wb") as file:
            file.writelines(copies(pages))
        common = ["--workdir", str(workdir)]
        owt("run", *common, "--warcs", str(warc), "--pages_from", str(warc), "--until", "fetch")
        rates = {}
        for workers in (1, 2):
            owt("extract", *common, "--workers", str(workers))
            log = json.loads((workdir / "run-log.jsonl").read_text().splitlines()[-1])
            rates[workers] = COPIES * len(pages) / log["seconds"]
            rmtree(workdir / "documents")
            rmtree(workdir / "ledger/documents")
    print(
        f"`owt extract`, {COPIES * len(pages):,} pages, by the clock: {rates[1]:.0f} pages/s with one worker, "
        f"{rates[2]:.0f} with two ({rates[2] / rates[1]:.2f} times)"
    )
    return rates[1]


def copies(pages: dict[str, bytes]) -> Iterator[bytes]:
    """WARC records of every page, COPIES times under different URLs: enough for the start not to count."""
    from owt_pipeline.fetch.warc import response_record

    headers = [("Content-Type", "text/html; charset=utf-8")]
    for copy in range(COPIES):
        for url, body in pages.items():
            parts = urlsplit(url)
            other = parts._replace(netloc=f"copy{copy}.{parts.netloc}").geturl()
            yield response_record(other, FETCHED_AT, "HTTP/1.1 200 OK", headers, body)


def owt(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "owt_pipeline", *arguments], check=True, stderr=subprocess.DEVNULL)


def run_datatrove(warc: Path) -> tuple[dict[str, str], float]:
    """Texts by URL, and pages a second of CPU time, of datatrove's extractor with its defaults, in its sandbox."""
    peer = REPOSITORY / "benchmarks" / "peers" / "datatrove_extract.py"
    output = subprocess.run([PEER_PYTHON, peer, warc], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    result = json.loads(output.stdout)
    return result["texts"], result["pages"] / result["cpu_seconds"]


def read_pages(warc: Path) -> dict[str, bytes]:
    with open(warc, "rb") as file:
        return {
            record.headers["WARC-Target-URI"]: record.reader.read()
            for record in ArchiveIterator(file, record_types=WarcRecordType.response)
        }


def read_truth(path: Path) -> dict[str, dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return {row["url"]: row for row in map(json.loads, lines)}


if __name__ == "__main__":
    sys.exit(main())
