"""Compares extractors on three labelled sets of pages in one run: F1, junk, lost words, speed.

    make bench-peers    # once: the environment of the peers; without it, only trafilatura is measured
    .venv/bin/python benchmarks/extraction.py [--data DIR] [--only NAME ...] [--seeds N] [--every N] [--cache DIR]

Our extractor is scored on pages that its model was not fitted on: models are fitted in this run for three folds of
hosts, and with each set left out. `extraction_model/validation.py` defines the scores; ± is the deviation of the F1
over bootstrap samples of the pages. Rates are pages per second of CPU time on one core; each extractor has its own
process, and ours uses the packaged model and includes the metadata. The extractors take turns: all of them read a page
before the next one, in rotating order, so that other work on the machine slows all alike. `--stage` adds the complete
stage, from WARC files to documents. `--cache` keeps the pages' features and the peers' texts between runs; no speed is
measured with cached texts.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree
from urllib.parse import urlsplit

from extraction_model.fitting import examples
from extraction_model.labelled_pages import SETS, LabelledPage, read_labelled
from extraction_model.validation import FETCHED_AT, Score, by_host, by_set, held_out_texts, score
from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.formats.warc import response_record

REPOSITORY = Path(__file__).resolve().parents[1]
PEERS = REPOSITORY / "benchmarks" / "peers" / "extractors.py"
PYTHONS = (Path(sys.executable), REPOSITORY / ".venv-peers" / "bin" / "python")
DATA = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
OURS = "ours"  # in extractors.py
COPIES = 4  # of each page: enough for the start not to count
COLUMNS = (
    "trafilatura", "wcxb", "wcxb article", "readability", "wcxb service", "wcxb forum", "wcxb documentation",
    "wcxb listing", "wcxb collection", "wcxb product",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measure ours and these extractors")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="fit with that many seeds, each two rows")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="read every Nth page only: for the speed")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep features and the peers' texts in this folder")
    parser.add_argument("--stage", action="store_true", help="measure the stage, too")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    pages = read_labelled(arguments.data / "web")[:: arguments.every]
    kept_pages = arguments.cache and arguments.cache / f"examples-{arguments.every}"
    names = "-".join(["texts", str(arguments.every), *sorted(arguments.only)])
    peers = run_extractors(pages, arguments.only, arguments.cache and arguments.cache / f"{names}.json")
    if arguments.stage:
        measure_stage(arguments.data / "web" / "wcxb-dev.warc.gz")
    texts = held_out(pages, kept_pages, arguments.seeds) | peers
    if texts:
        print_scores(pages, texts)


def held_out(pages: list[LabelledPage], cache: Path | None, seeds: int) -> dict[str, dict[str, str]]:
    """Texts by models fitted on other pages."""
    texts: dict[str, dict[str, str]] = {}
    found = examples(pages, cache) if seeds else []
    for seed in range(seeds):
        name = f"ours, seed {seed}" if seeds > 1 else "ours"
        texts[f"{name}, three folds"] = held_out_texts(pages, found, by_host(seed), seed)
        texts[f"{name}, set left out"] = held_out_texts(pages, found, by_set, seed)
    return texts


def run_extractors(pages: list[LabelledPage], only: list[str], kept: Path | None) -> dict[str, dict[str, str]]:
    """Texts by URL of every peer installed in one of PYTHONS; prints all rates."""
    if kept is not None and kept.exists():
        texts: dict[str, dict[str, str]] = json.loads(kept.read_text())
        return texts
    found: dict[str, Path] = {}  # the first one's where both do
    for python in PYTHONS:
        if not python.exists():
            print(f"{python} is missing: run `make bench-peers` to measure all peers", file=sys.stderr)
            continue
        for name in subprocess.check_output([python, PEERS], text=True).splitlines():
            if not only or name in (OURS, *only):
                found.setdefault(name, python)
    texts, seconds = run_in_turns(pages, found)
    print_rates(pages, seconds)
    del texts[OURS]  # by a model that was fitted on these pages
    if kept is not None:
        kept.write_text(json.dumps(texts))
    return texts


def run_in_turns(
    pages: list[LabelledPage], extractors: dict[str, Path]
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, float]]]:
    """For each extractor the texts by URL, and CPU seconds by set."""
    texts: dict[str, dict[str, str]] = {name: {} for name in extractors}
    seconds = {name: dict.fromkeys(SETS, 0.0) for name in extractors}
    with ExitStack() as running:
        processes = {
            name: running.enter_context(
                subprocess.Popen(
                    [python, PEERS, name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            for name, python in extractors.items()
        }
        order = list(processes)
        for page in pages:
            order.append(order.pop(0))
            line = json.dumps({"url": page.url, "html": page.html}) + "\n"
            for name in order:
                answer = json.loads(ask(processes[name], line) or sys.exit(f"{name} ended at {page.url}"))
                texts[name][page.url] = answer["text"]
                seconds[name][page.set] += answer["cpu_seconds"]
    return texts, seconds


def ask(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline()


def print_scores(pages: list[LabelledPage], texts: dict[str, dict[str, str]]) -> None:
    scores = {name: score(pages, found) for name, found in texts.items()}
    print_table("F1", scores, lambda value: f"{value.f1:.3f} ±{value.deviation:.3f}")
    print_table("junk / lost", scores, lambda value: f"{value.junk:.3f} / {value.lost:.3f}")


def print_table(title: str, scores: dict[str, dict[str, Score]], cell) -> None:  # type: ignore[no-untyped-def]
    pages = next(iter(scores.values()))
    print(f"\n| {title} | " + " | ".join(column.removeprefix("wcxb ") for column in COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    print("| pages | " + " | ".join(str(pages[column].pages) for column in COLUMNS) + " |")
    for name, row in scores.items():
        print(f"| {name} | " + " | ".join(cell(row[column]) for column in COLUMNS) + " |", flush=True)


def print_rates(pages: list[LabelledPage], seconds: dict[str, dict[str, float]]) -> None:
    """Print pages per second of CPU time, and the ratio to trafilatura's with precision."""
    counts = {name: sum(page.set == name for page in pages) for name in SETS} | {"all": len(pages)}
    print("\n| pages/s | " + " | ".join(f"{name}, {count} pages" for name, count in counts.items()) + " |")
    print("|---" * (len(counts) + 1) + "|")
    totals = {name: spent | {"all": sum(spent.values())} for name, spent in seconds.items()}
    base = totals.get("trafilatura, precision")
    for name, spent in totals.items():
        cells = [
            f"{counts[part] / spent[part]:.1f}" + (f" ({base[part] / spent[part]:.2f})" if base else "")
            for part in counts
        ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def measure_stage(warc: Path) -> None:
    """Print the rate of `owt extract` as users run it, with one worker and with two."""
    with open(warc, "rb") as file:
        pages = {
            record.headers["WARC-Target-URI"]: record.reader.read()
            for record in ArchiveIterator(file, record_types=WarcRecordType.response)
        }
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        copied, workdir = Path(folder) / "pages.warc.gz", Path(folder) / "run"
        with open(copied, "wb") as out:
            out.writelines(copies(pages))
        common = ["--workdir", str(workdir)]
        owt("run", *common, "--warcs", str(copied), "--pages_from", str(copied), "--until", "fetch")
        rates = []
        for workers in (1, 2):
            owt("extract", *common, "--workers", str(workers))
            log = [json.loads(entry) for entry in (workdir / "run-log.jsonl").read_text().splitlines()]
            rates.append(COPIES * len(pages) / [entry for entry in log if "stage" in entry][-1]["seconds"])
            rmtree(workdir / "documents")
            rmtree(workdir / "ledger/documents")
    print(
        f"\n`owt extract`, {COPIES * len(pages):,} pages, by the clock: {rates[0]:.0f} pages/s with one worker, "
        f"{rates[1]:.0f} with two ({rates[1] / rates[0]:.2f} times)"
    )


def copies(pages: dict[str, bytes]) -> Iterator[bytes]:
    """WARC records of every page, COPIES times under different URLs."""
    headers = [("Content-Type", "text/html; charset=utf-8")]
    for copy in range(COPIES):
        for url, body in pages.items():
            parts = urlsplit(url)
            other = parts._replace(netloc=f"copy{copy}.{parts.netloc}").geturl()
            yield response_record(other, FETCHED_AT, "HTTP/1.1 200 OK", headers, body)


def owt(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "owt_pipeline", *arguments], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
