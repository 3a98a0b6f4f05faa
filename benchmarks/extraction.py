"""Compares extractors on three labelled sets of pages: F1, junk, speed, structure and metadata.

    # once: the environment of the peers; without it, only trafilatura is measured
    make bench-peers
    .venv/bin/python benchmarks/extraction.py [--only NAME ...] [--every N] \
        [--parts text structure metadata]

`text`: our extractor is scored on pages that its model was not fitted on. Models are fitted in this
run for three folds of hosts, and with each set left out. `extraction_model/validation.py` defines
the scores; ± is the deviation of the F1 over bootstrap samples of the pages. Rates are pages per
second of CPU time on one core. Each extractor has its own process, and ours uses the packaged model
and includes the metadata. The extractors take turns: all of them read a page before the next one,
in rotating order, so that other work on the machine slows all alike.

`structure`: on Mozilla Readability's pages, whose main part is known as HTML, what the Markdown
keeps of its headings, lists, tables and code (`extraction_model/structure.py`): share kept, share
right, F1.

`metadata`: on the same pages, and with titles also on a fourth of WCXB's, the share of pages with a
known value for which the same value is read, and the share with another value. Names are equal if
all words of one are in the other (truths contain "By" and dates), dates by day, sites and titles by
their words. Milliseconds are CPU time per page, with parsing.

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
from typing import Any

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
# The name of our extractor in `extractors.py`.
OURS = "ours"
# Rates are compared with this extractor's.
BASE = "trafilatura, precision"
# Titles are known for all of WCXB's pages; a part of them is enough.
PAGES_PER_TITLE = 4
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

Metadata = dict[str, "str | None"]
"""Values by field."""


def main() -> int:
    """Print the parts; return 1 if another extractor is better in structure or metadata."""
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
    web = arguments.data / "web"
    is_best = True
    if "text" in arguments.parts:
        compare_texts(read_labelled(web)[:: arguments.every], arguments.only)
    if "structure" in arguments.parts:
        is_best &= compare_structure(structure.readability_pages(web)[:: arguments.every])
    if "metadata" in arguments.parts:
        is_best &= compare_metadata(known_metadata(web)[:: arguments.every])
    return int(not is_best)


def compare_texts(pages: list[LabelledPage], only: list[str]) -> None:
    """Print the rates and the scores of all extractors."""
    peer_texts = run_extractors(pages, only)
    labelled = examples(pages)
    # A model has to be judged on pages that it was not fitted on.
    texts_by_name = {
        "ours, three folds": held_out_texts(pages, labelled, by_host()),
        "ours, set left out": held_out_texts(pages, labelled, by_set),
        **peer_texts,
    }
    print_scores({name: score(pages, texts) for name, texts in texts_by_name.items()})


def run_extractors(pages: list[LabelledPage], only: list[str]) -> dict[str, dict[str, str]]:
    """Print the rates of ours and all peers; return the texts of the peers by URL.

    A peer is run by the first of PYTHONS that has it. With `only`, other peers are left out.
    """
    python_by_name: dict[str, Path] = {}
    for python in PYTHONS:
        if not python.exists():
            print(
                f"{python} is missing: run `make bench-peers` to measure all peers", file=sys.stderr
            )
            continue
        for name in subprocess.check_output([python, PEERS], text=True).splitlines():
            if not only or name in (OURS, *only):
                python_by_name.setdefault(name, python)
    texts, seconds = run_in_turns(pages, python_by_name)
    print_rates(pages, seconds)
    # The packaged model was fitted on these pages.
    del texts[OURS]
    return texts


def run_in_turns(
    pages: list[LabelledPage], python_by_name: dict[str, Path]
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, float]]]:
    """Return for each extractor the texts by URL, and the CPU seconds by set."""
    texts: dict[str, dict[str, str]] = {name: {} for name in python_by_name}
    seconds = {name: dict.fromkeys(SETS, 0.0) for name in python_by_name}
    with ExitStack() as stack:
        processes = {}
        for name, python in python_by_name.items():
            process = subprocess.Popen(
                [python, PEERS, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            processes[name] = stack.enter_context(process)
        order = list(processes)
        # All extractors read a page before the next one, so that other work on the machine slows
        # all alike.
        for page in pages:
            order.append(order.pop(0))
            request = json.dumps({"url": page.url, "html": page.html}) + "\n"
            for name in order:
                result = _read_by(processes[name], request)
                if result is None:
                    sys.exit(
                        f"extractor {name} ended at {page.url}: run "
                        f"`{python_by_name[name]} {PEERS} '{name}'` to see its error"
                    )
                texts[name][page.url] = result["text"]
                seconds[name][page.set] += result["cpu_seconds"]
    return texts, seconds


def _read_by(process: subprocess.Popen[str], request: str) -> dict[str, Any] | None:
    """Return the result of an extractor's process for a page; None if the process has ended."""
    process.stdin.write(request)
    process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line else None


def print_scores(scores: dict[str, dict[str, Score]]) -> None:
    print_table("F1", scores, lambda value: f"{value.f1:.3f} ±{value.deviation:.3f}")
    print_table("junk / lost", scores, lambda value: f"{value.junk:.3f} / {value.lost:.3f}")


def print_table(
    title: str, scores: dict[str, dict[str, Score]], cell: Callable[[Score], str]
) -> None:
    """Print a row of cells for each extractor."""
    first_row = next(iter(scores.values()))
    columns = [column for column in COLUMNS if column in first_row]
    print_row(title, *(column.removeprefix("wcxb ") for column in columns))
    print_rule(len(columns))
    print_row("pages", *(first_row[column].pages for column in columns))
    for name, row in scores.items():
        print_row(name, *(cell(row[column]) for column in columns))
    print()


def print_rule(num_columns: int) -> None:
    """Print the line below the head of a table with as many columns and one for names."""
    print("|---" * (num_columns + 1) + "|")


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_rates(pages: list[LabelledPage], seconds: dict[str, dict[str, float]]) -> None:
    """Print pages per second of CPU time, and the ratio to the rate of BASE if it was run."""
    num_pages = {name: sum(page.set == name for page in pages) for name in SETS}
    num_pages["all"] = len(pages)
    print_row("pages/s", *(f"{name}, {count} pages" for name, count in num_pages.items()))
    print_rule(len(num_pages))
    for spent in seconds.values():
        spent["all"] = sum(spent.values())
    # None with `--only`.
    base_seconds = seconds.get(BASE)
    for name, spent in seconds.items():
        cells = []
        for part, count in num_pages.items():
            ratio = f" ({base_seconds[part] / spent[part]:.2f})" if base_seconds else ""
            cells.append(f"{count / spent[part]:.1f}{ratio}")
        print_row(name, *cells)
    print()


def compare_structure(pages: list[dict]) -> bool:
    """Print the scores of each Markdown's structure; return whether ours has the highest F1s."""
    truths = [structure.pieces_of_html(page["expected_html"]) for page in pages]
    heads = []
    for kind in structure.KINDS:
        # Not every page has pieces of every kind.
        count = sum(len(of_page[kind]) and of_page[kind].total() for of_page in truths)
        heads.append(f"{count} {kind}")
    print_row("kept, right, F1", *heads)
    print_rule(len(structure.KINDS))
    f1s: dict[str, list[float]] = {}
    for name, write in WRITERS.items():
        written = [structure.pieces_of_markdown(write(structure.main_part(page))) for page in pages]
        f1s[name] = []
        cells = []
        for kept, right in structure.kept_and_right(truths, written).values():
            f1 = 2 * kept * right / max(kept + right, 1e-9)
            f1s[name].append(f1)
            cells.append(f"{kept:.3f}, {right:.3f}, {f1:.3f}")
        print_row(name, *cells)
    print()
    highest = [max(of_kind) for of_kind in zip(*f1s.values(), strict=True)]
    return f1s[OURS] == highest


def with_html2text(page: str) -> str:
    """Return html2text's Markdown of a page."""
    writer = html2text.HTML2Text(bodywidth=0)
    writer.ignore_images = True
    writer.ignore_links = True
    return writer.handle(page)


def with_trafilatura(page: str) -> str:
    """Return trafilatura's Markdown of a page."""
    markdown = trafilatura.extract(page, output_format="markdown", include_comments=False)
    return markdown or ""


WRITERS: dict[str, Callable[[str], str]] = {
    OURS: structure.ours_without_choice,
    "trafilatura": with_trafilatura,
    "html2text": with_html2text,
}


def compare_metadata(pages: list[tuple[str, str, Metadata]]) -> bool:
    """Print how often each is right about the metadata; return whether no other is more often.

    `pages` are URLs, pages and their known values.
    """
    num_known = {field: sum(bool(truth.get(field)) for _, _, truth in pages) for field in FIELDS}
    heads = [f"{field} ({count})" for field, count in num_known.items()]
    print_row("right, wrong", "ms/page", *heads)
    print_rule(len(FIELDS) + 1)
    shares_right: dict[str, dict[str, float]] = {}
    for name, (read, fields) in READERS.items():
        # The first page makes it load its modules, which is not measured.
        read(
            "http://warm.up/",
            "<html><head><title>Warm up</title></head><body><p>x</p></body></html>",
        )
        started = time.process_time()
        values = [read(url, page) for url, page, _ in pages]
        milliseconds = (time.process_time() - started) * 1000 / len(pages)
        cells = [f"{milliseconds:.2f}"]
        shares_right[name] = {}
        for field in FIELDS:
            if field not in fields:
                cells.append("")
                continue
            right, wrong = right_and_wrong(field, values, pages)
            shares_right[name][field] = right
            cells.append(f"{right:.3f}, {wrong:.3f}")
        print_row(name, *cells)
    for shares in shares_right.values():
        for field, share in shares.items():
            if shares_right[OURS][field] < share:
                return False
    return True


def right_and_wrong(
    field: str, values: list[Metadata], pages: list[tuple[str, str, Metadata]]
) -> tuple[float, float]:
    """Return the shares of pages with a known value that have the same and another value."""
    num_known = 0
    num_right = 0
    num_given = 0
    for page_values, (_, _, truth) in zip(values, pages, strict=True):
        if not truth.get(field):
            continue
        num_known += 1
        num_given += bool(page_values.get(field))
        num_right += is_same(field, page_values.get(field), truth[field])
    right = num_right / max(num_known, 1)
    return right, num_given / max(num_known, 1) - right


def is_same(field: str, given: str | None, truth: str | None) -> bool:
    """Return whether two values of a field mean the same."""
    if not given or not truth:
        return False
    if field == "date":
        return given == truth[:10]
    if field == "language":
        return given[:2].lower() == truth[:2].lower()
    given_words = re.findall(r"\w+", given.lower())
    true_words = re.findall(r"\w+", truth.lower())
    if field == "author":
        # Truths have "By" and dates around the name.
        is_part = set(given_words) <= set(true_words) or set(true_words) <= set(given_words)
        return bool(given_words) and is_part
    return given_words == true_words


def our_metadata(url: str, page: str) -> Metadata:
    """Return the metadata that we read."""
    parsed = read_page(page)
    return dict(read_metadata(parsed, read_head(parsed), url, FETCHED_AT))


def trafilatura_metadata(url: str, page: str) -> Metadata:
    """Return the metadata that trafilatura reads."""
    document = trafilatura.extract_metadata(page, default_url=url)
    if document is None:
        return {}
    return {
        "title": document.title,
        "author": document.author,
        "date": document.date,
        "site_name": document.sitename,
    }


READERS: dict[str, tuple[Callable[[str, str], Metadata], tuple[str, ...]]] = {
    OURS: (our_metadata, FIELDS),
    "trafilatura": (trafilatura_metadata, ("title", "author", "date", "site_name")),
}
"""The functions that read metadata, and the fields that they read."""


def known_metadata(folder: Path) -> list[tuple[str, str, Metadata]]:
    """Return pages with metadata: URL, page and the known values."""
    pages = []
    for row in structure.readability_pages(folder):
        metadata = row["metadata"]
        published = metadata["publishedTime"] or ""
        truth = {
            "title": metadata["title"],
            "author": metadata["byline"],
            "site_name": metadata["siteName"],
            "language": metadata.get("lang"),
            "date": published[:10] if re.match(r"\d{4}-\d\d-\d\d", published) else None,
        }
        pages.append((f"http://fakehost/{row['name']}", row["html"], truth))
    with gzip.open(folder / "wcxb-dev.truth.jsonl.gz", "rt", encoding="utf-8") as lines:
        title_by_url = {row["url"]: row["title"] for row in map(json.loads, lines)}
    for page in read_labelled(folder, ("wcxb",))[::PAGES_PER_TITLE]:
        pages.append((page.url, page.html, {"title": title_by_url[page.url]}))
    return pages


if __name__ == "__main__":
    sys.exit(main())
