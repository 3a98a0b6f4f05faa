"""Extractors on three labelled sets of pages in one run: F1, junk, lost words, speed, structure
and metadata.

    # once: the environment of the peers; without it, only trafilatura is measured
    make bench-peers
    .venv/bin/python benchmarks/extraction.py [--only NAME ...] [--every N] \
        [--parts text structure metadata]

`text`: our extractor is scored on pages that its model was not fitted on: models are fitted in this
run for three folds of hosts, and with each set left out. `extraction_model/validation.py` defines
the scores; ± is the deviation of the F1 over bootstrap samples of the pages. Rates are pages per
second of CPU time on one core; each extractor has its own process, and ours uses the packaged model
and includes the metadata. The extractors take turns: all of them read a page before the next one,
in rotating order, so that other work on the machine slows all alike.

`structure`: of Mozilla Readability's pages, whose main part is known as HTML, what the Markdown
made of that part has (`extraction_model/structure.py`): share kept, share right, F1. `metadata`: on
the same pages, and with titles also of a fourth of WCXB's, the share of pages with a known value
for which the same value is found, and that with another value. Names are equal if all words of one
are in the other (truths contain "By" and dates), dates by day, sites and titles by their words.
Milliseconds are CPU time per page, with parsing.

Exits 1 if ours has a lower F1 of the structure than another, or is right about the metadata less
often.
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
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import html2text
import trafilatura
from extraction_model import structure
from extraction_model.fitting import examples
from extraction_model.labelled_pages import SETS, LabelledPage, read_labelled
from extraction_model.validation import FETCHED_AT, Score, by_host, by_set, held_out_texts, score

from owt_pipeline.stages.extract.content.metadata import read_head, read_metadata
from owt_pipeline.stages.extract.html.reader import read_page

REPOSITORY = Path(__file__).resolve().parents[1]
PEERS = REPOSITORY / "benchmarks" / "peers" / "extractors.py"
PYTHONS = (Path(sys.executable), REPOSITORY / ".venv-peers" / "bin" / "python")
DATA = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
OURS = "ours"  # in extractors.py
COLUMNS = (
    "trafilatura",
    "wcxb",
    "wcxb article",
    "readability",
    "wcxb service",
    "wcxb forum",
    "wcxb documentation",
    "wcxb listing",
    "wcxb collection",
    "wcxb product",
)
PARTS = ("text", "structure", "metadata")
FIELDS = ("author", "date", "site_name", "language", "title")

Found = dict[str, "str | None"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data"
    )
    parser.add_argument(
        "--parts", nargs="+", default=PARTS, choices=PARTS, help="what to measure (default: all)"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="measure ours and these extractors"
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="read every Nth page only: for the speed"
    )
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    web, good = arguments.data / "web", True
    if "text" in arguments.parts:
        pages = read_labelled(web)[:: arguments.every]
        texts = run_extractors(pages, arguments.only)
        found = examples(pages)
        ours = {
            "ours, three folds": held_out_texts(pages, found, by_host()),
            "ours, set left out": held_out_texts(pages, found, by_set),
        }
        print_scores({name: score(pages, own) for name, own in (ours | texts).items()})
    if "structure" in arguments.parts:
        good &= compare_structure(structure.readability_pages(web)[:: arguments.every])
    if "metadata" in arguments.parts:
        good &= compare_metadata(known_metadata(web)[:: arguments.every])
    return int(not good)


def run_extractors(pages: list[LabelledPage], only: list[str]) -> dict[str, dict[str, str]]:
    """Texts by URL of every peer installed in one of PYTHONS; prints all rates."""
    found: dict[str, Path] = {}  # the first one's where both do
    for python in PYTHONS:
        if not python.exists():
            print(
                f"{python} is missing: run `make bench-peers` to measure all peers", file=sys.stderr
            )
            continue
        for name in subprocess.check_output([python, PEERS], text=True).splitlines():
            if not only or name in (OURS, *only):
                found.setdefault(name, python)
    texts, seconds = run_in_turns(pages, found)
    print_rates(pages, seconds)
    del texts[OURS]  # by a model that was fitted on these pages
    return texts


def run_in_turns(
    pages: list[LabelledPage], extractors: dict[str, Path]
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, float]]]:
    """For each extractor the texts by URL, and CPU seconds by set."""
    texts: dict[str, dict[str, str]] = {name: {} for name in extractors}
    seconds = {name: dict.fromkeys(SETS, 0.0) for name in extractors}
    with ExitStack() as running:
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "text": True,
        }
        processes = {
            name: running.enter_context(subprocess.Popen([python, PEERS, name], **pipes))
            for name, python in extractors.items()
        }
        order = list(processes)
        for page in pages:
            order.append(order.pop(0))
            line = json.dumps({"url": page.url, "html": page.html}) + "\n"
            for name in order:
                processes[name].stdin.write(line)
                processes[name].stdin.flush()
                answer = json.loads(
                    processes[name].stdout.readline() or sys.exit(f"{name} ended at {page.url}")
                )
                texts[name][page.url] = answer["text"]
                seconds[name][page.set] += answer["cpu_seconds"]
    return texts, seconds


def print_scores(scores: dict[str, dict[str, Score]]) -> None:
    print_table("F1", scores, lambda value: f"{value.f1:.3f} ±{value.deviation:.3f}")
    print_table("junk / lost", scores, lambda value: f"{value.junk:.3f} / {value.lost:.3f}")


def print_table(
    title: str, scores: dict[str, dict[str, Score]], cell: Callable[[Score], str]
) -> None:
    pages = next(iter(scores.values()))
    columns = [column for column in COLUMNS if column in pages]
    print_row(title, *(column.removeprefix("wcxb ") for column in columns))
    print("|---" * (len(columns) + 1) + "|")
    print_row("pages", *(pages[column].pages for column in columns))
    for name, row in scores.items():
        print_row(name, *(cell(row[column]) for column in columns))
    print()


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_rates(pages: list[LabelledPage], seconds: dict[str, dict[str, float]]) -> None:
    """Print pages per second of CPU time, and the ratio to trafilatura's with precision."""
    counts = {name: sum(page.set == name for page in pages) for name in SETS} | {"all": len(pages)}
    print_row("pages/s", *(f"{name}, {count} pages" for name, count in counts.items()))
    print("|---" * (len(counts) + 1) + "|")
    totals = {name: spent | {"all": sum(spent.values())} for name, spent in seconds.items()}
    base = totals.get("trafilatura, precision")
    for name, spent in totals.items():
        ratios = (f" ({base[part] / spent[part]:.2f})" if base else "" for part in counts)
        print_row(
            name,
            *(
                f"{counts[part] / spent[part]:.1f}{ratio}"
                for part, ratio in zip(counts, ratios, strict=True)
            ),
        )
    print()


def compare_structure(pages: list[dict]) -> bool:
    """Print what each Markdown has of the pages' structure; returns whether no other has a
    higher F1."""
    wanted = [structure.pieces_of_html(page["expected_html"]) for page in pages]
    counts = (
        f"{sum(len(own[kind]) and own[kind].total() for own in wanted)} {kind}"
        for kind in structure.KINDS
    )
    print_row("kept, right, F1", *counts)
    print("|---" * (len(structure.KINDS) + 1) + "|")
    f1s = {}
    for name, write in WRITERS.items():
        found = [structure.pieces_of_markdown(write(structure.main_part(page))) for page in pages]
        shares = structure.kept_and_right(wanted, found).values()
        f1s[name] = [2 * kept * right / max(kept + right, 1e-9) for kept, right in shares]
        cells = (
            f"{kept:.3f}, {right:.3f}, {f1:.3f}"
            for (kept, right), f1 in zip(shares, f1s[name], strict=True)
        )
        print_row(name, *cells)
    print()
    return all(ours >= max(others) for ours, *others in zip(*f1s.values(), strict=True))


def with_html2text(page: str) -> str:
    writer = html2text.HTML2Text(bodywidth=0)
    writer.ignore_images = writer.ignore_links = True
    return writer.handle(page)


WRITERS: dict[str, Callable[[str], str]] = {
    OURS: structure.ours_without_choice,
    "trafilatura": lambda page: (
        trafilatura.extract(page, output_format="markdown", include_comments=False) or ""
    ),
    "html2text": with_html2text,
}


def compare_metadata(pages: list[tuple[str, str, Found]]) -> bool:
    """Print what each finds of the metadata; returns whether no other is right more often."""
    counts = {field: sum(bool(truth.get(field)) for _, _, truth in pages) for field in FIELDS}
    print_row("right, wrong", "ms/page", *(f"{field} ({count})" for field, count in counts.items()))
    print("|---" * (len(FIELDS) + 2) + "|")
    rights: dict[str, dict[str, float]] = {}
    for name, (read, fields) in READERS.items():
        read(
            "http://warm.up/",
            "<html><head><title>Warm up</title></head><body><p>x</p></body></html>",
        )
        started = time.process_time()
        found = [read(url, page) for url, page, _ in pages]
        cells, rights[name] = [f"{(time.process_time() - started) * 1000 / len(pages):.2f}"], {}
        for field in FIELDS:
            known = [
                (own.get(field), truth[field])
                for own, (_, _, truth) in zip(found, pages, strict=True)
                if truth.get(field)
            ]
            right = sum(same(field, own, truth) for own, truth in known) / max(len(known), 1)
            wrong = sum(bool(own) for own, _ in known) / max(len(known), 1) - right
            if field in fields:
                rights[name][field] = right
            cells.append(f"{right:.3f}, {wrong:.3f}" if field in fields else "")
        print_row(name, *cells)
    return all(
        rights[OURS][field] >= share
        for theirs in rights.values()
        for field, share in theirs.items()
    )


def same(field: str, given: str | None, truth: str | None) -> bool:
    if not given or not truth:
        return False
    if field == "date":
        return given == truth[:10]
    if field == "language":
        return given[:2].lower() == truth[:2].lower()
    left, right = (re.findall(r"\w+", text.lower()) for text in (given, truth))
    if field == "author":
        return bool(left) and (set(left) <= set(right) or set(right) <= set(left))
    return left == right


def our_metadata(url: str, page: str) -> Found:
    read = read_page(page)
    return dict(read_metadata(read, read_head(read), url, FETCHED_AT))


def with_trafilatura(url: str, page: str) -> Found:
    found = trafilatura.extract_metadata(page, default_url=url)
    if found is None:
        return {}
    return {
        "title": found.title,
        "author": found.author,
        "date": found.date,
        "site_name": found.sitename,
    }


READERS: dict[str, tuple[Callable[[str, str], Found], tuple[str, ...]]] = {
    OURS: (our_metadata, FIELDS),
    "trafilatura": (with_trafilatura, ("title", "author", "date", "site_name")),
}


def known_metadata(folder: Path) -> list[tuple[str, str, Found]]:
    """URL, page and truth."""
    pages = []
    for row in structure.readability_pages(folder):
        said = row["metadata"]
        truth = {"title": said["title"], "author": said["byline"], "site_name": said["siteName"]}
        published = said["publishedTime"] or ""
        truth |= {
            "language": said.get("lang"),
            "date": re.match(r"\d{4}-\d\d-\d\d", published) and published[:10],
        }
        pages.append((f"http://fakehost/{row['name']}", row["html"], truth))
    with gzip.open(folder / "wcxb-dev.truth.jsonl.gz", "rt", encoding="utf-8") as lines:
        titles = {row["url"]: row["title"] for row in map(json.loads, lines)}
    some = read_labelled(folder, ("wcxb",))[::4]  # enough for titles
    return pages + [(page.url, page.html, {"title": titles[page.url]}) for page in some]


if __name__ == "__main__":
    sys.exit(main())
