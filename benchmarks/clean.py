"""Do our quality filters decide like the published ones, and how fast is the stage clean?

    .venv/bin/python benchmarks/clean.py [--peer .venv-peers/bin/python] [--data SHARED_DATA] \
        [--documents 2000] [--peer_documents 250]

There are five sets of real texts:

- the main texts of WCXB's pages, extracted and repaired by us
- the same texts before they are repaired
- all text of these pages, with menus and footers
- unchanged posts of Reddit
- the main texts of the pages as datatrove extracts them (only with `--peer`)

The peers are datatrove's filters, the code that created C4 (`peers/published_filters.py`), and
ftfy. ftfy is a dependency of ours, so it is always compared. Without `--peer`, our rejections and
rates are printed without the other peers. They are slow, so they judge `--peer_documents` texts of
each set, evenly spaced; ours judge all. A rate is texts per second of CPU time on one core.

Exits 1 if one of these holds:

- over all sets, a filter with datatrove's definitions decides differently on more than 1% of the
  texts
- over all sets, C4's filter decides differently on more than 0.5%, or keeps other lines
- Gopher's quality rules differ from datatrove's on more than 1% of the texts of a set, apart from
  the rule that the definition of a word decides
- a filter has less than 8 times datatrove's rate
- a text is repaired otherwise than by ftfy, apart from wide punctuation
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import ftfy
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from owt_pipeline.stages.clean.documents import clean_document, detect
from owt_pipeline.stages.clean.filters import FILTERS, c4_lines, first_violation
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.repair import fix_text, tidy
from owt_pipeline.stages.extract.extractor import Page, Settings, load
from schemas.filters import BUILT_IN

T = TypeVar("T")

DATA = Path(os.environ.get("OWT_TESTDATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
PEERS = Path(__file__).parent / "peers"

# By our filter: the peers, with the share of the decisions that must be the same.
MIN_AGREEMENT = {
    "gopher_repetition": {"gopher_repetition": 0.99},
    # It is judged without the rule that the definition of a word decides.
    "gopher_quality": {"gopher_quality": 0.0},
    "c4": {"tfds_c4": 0.995, "c4_numbers": 0.0, "c4": 0.0},
    "fineweb": {"fineweb": 0.99},
}
TITLES = {"tfds_c4": "TensorFlow Datasets", "c4_numbers": "datatrove, 3 sentences and 5 words"}
# The share of words with a letter. datatrove's words are spaCy's, which makes words of punctuation.
RULE_OF_WORDS = "gopher_below_alpha_threshold"
MAX_GOPHER_DIFFERENCES = 0.01
MIN_SPEEDUP = 8
# The main text of a page is used if it is longer than this.
MIN_CHARACTERS = 300


@dataclass
class Agreement:
    """How often the peers decided like our filters, over the sets so far."""

    judged: Counter[str] = field(default_factory=Counter)
    same: Counter[str] = field(default_factory=Counter)

    def is_reached(self) -> bool:
        """Return whether each peer agrees with us on the share that MIN_AGREEMENT requires."""
        for minimums in MIN_AGREEMENT.values():
            for peer, minimum in minimums.items():
                if self.same[peer] < minimum * self.judged[peer]:
                    return False
        return True


def main() -> int:
    """Measure repair, the stage, decisions and rates; return the exit status."""
    arguments = parse_arguments()
    texts_by_set = read_sets(arguments.data, arguments.documents, arguments.peer)
    raw = texts_by_set["pages, extracted"]
    is_good = measure_ftfy(raw)
    measure_stage(raw)

    samples = {
        name: evenly_spaced(texts, arguments.peer_documents) for name, texts in texts_by_set.items()
    }
    peer_results = judge_by_peers(arguments.peer, samples) if arguments.peer else {}
    agreement = Agreement()
    for name, texts in texts_by_set.items():
        num_words = sum(len(text.split()) for text in texts)
        print(f"\n{name}: {len(texts)} texts of {num_words / len(texts):.0f} words")
        for rule in FILTERS:
            results = peer_results.get(name, {})
            is_good &= compare_decisions(
                rule, texts, results, max_texts=arguments.peer_documents, agreement=agreement
            )
    is_good &= agreement.is_reached()

    print()
    # The peers' rates are those of their first set.
    first_set = next(iter(texts_by_set))
    is_good &= compare_rates(
        texts_by_set[first_set], peer_results.get(first_set, {}), len(samples[first_set])
    )
    return int(not is_good)


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data"
    )
    parser.add_argument(
        "--documents", type=int, default=2000, metavar="N", help="texts of each set, at most"
    )
    parser.add_argument("--peer", metavar="PYTHON", help="the Python that has the peers")
    parser.add_argument(
        "--peer_documents",
        type=int,
        default=250,
        metavar="N",
        help="texts of each set for the peers, at most",
    )
    return parser.parse_args()


def measure_ftfy(texts: Sequence[str]) -> bool:
    """Print the rates of ftfy and of our repair; return whether they repair texts alike."""
    is_good = True
    for uncurl_quotes in (False, True):
        config = ftfy.TextFixerConfig(uncurl_quotes=uncurl_quotes, explain=False)
        peer_texts, peer_seconds = time_texts(partial(ftfy.fix_text, config=config), texts)
        our_texts, our_seconds = time_texts(partial(fix_text, uncurl_quotes=uncurl_quotes), texts)
        # Our repair leaves wide punctuation in texts with Chinese, Japanese or Korean characters.
        # With ftfy applied to our text as well, everything else in them is compared.
        different = [pair for pair in zip(our_texts, peer_texts, strict=True) if pair[0] != pair[1]]
        is_same = all(ftfy.fix_text(ours, config) == theirs for ours, theirs in different)
        is_good &= is_same
        title = "ftfy with uncurl_quotes" if uncurl_quotes else "ftfy"
        verdict = "the same texts" if is_same else "DIFFERENT TEXTS"
        print(
            f"{title}: {len(texts) / peer_seconds:.0f} texts/s, "
            f"ours {len(texts) / our_seconds:.0f}: {peer_seconds / our_seconds:.1f} times; "
            f"{verdict} ({len(different)} with wide punctuation that ftfy would make ASCII)"
        )
    return is_good


def measure_stage(texts: Sequence[str]) -> None:
    """Print the rates of the stage with few and with all filters, and of the language."""
    options_by_title = {
        "as by default": Options(),
        "every filter on": Options(filters=tuple(BUILT_IN)),
    }
    for title, options in options_by_title.items():
        _, seconds = time_texts(partial(clean_document, options=options), texts)
        print(f"clean, {title}: {len(texts) / seconds:.0f} texts/s")
    _, seconds = time_texts(detect, texts)
    print(f"language alone: {len(texts) / seconds:.0f} texts/s")


def time_texts(function: Callable[[str], Any], texts: Sequence[str]) -> tuple[list[Any], float]:
    """Return the result for each text, and the CPU seconds for all of them."""
    function("It loads its models and tables, which takes time.")
    started = time.process_time()
    results = [function(text) for text in texts]
    return results, time.process_time() - started


def evenly_spaced(items: Sequence[T], max_items: int) -> list[T]:
    """Return at most `max_items` of the items, evenly spaced."""
    count = min(max_items, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def judge_by_peers(peer: str, texts_by_set: dict[str, list[str]]) -> dict[str, Any]:
    """Return the output of `peers/published_filters.py`, by set."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(texts_by_set, file)
        file.flush()
        command = [peer, PEERS / "published_filters.py", file.name]
        process = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(process.stdout)  # type: ignore[no-any-return]


def read_sets(data: Path, max_texts: int, peer: str | None) -> dict[str, list[str]]:
    """Return the sets of texts by their name."""
    warc = data / "web" / "wcxb-dev.warc.gz"
    raw = read_main_texts(warc, max_texts)
    posts = read_posts(data / "text" / "reddit-posts.jsonl.gz")
    texts_by_set = {
        "pages, extracted and repaired": [tidy(fix_text(text)) for text in raw],
        "pages, extracted": raw,
        "pages, all of their text": list(islice(read_complete_texts(warc), max_texts)),
        "Reddit posts": list(islice(posts, max_texts)),
    }
    if peer:
        command = [peer, PEERS / "datatrove_extract.py", warc]
        process = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        texts_by_set["pages, extracted by datatrove"] = json.loads(process.stdout)[:max_texts]
    return texts_by_set


def read_html(warc: Path) -> Iterator[str]:
    """Yield the HTML of each page of a WARC file."""
    with open(warc, "rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            yield record.reader.read().decode("utf-8", "replace")


def read_main_texts(warc: Path, max_pages: int) -> list[str]:
    """Return the main texts of the first pages that have enough of it."""
    extract = load(Settings())
    texts = []
    for html in islice(read_html(warc), max_pages):
        page = Page("http://h/", html, fetched_at=1_767_225_600)
        extraction = extract(page)
        if extraction and len(extraction.text) > MIN_CHARACTERS:
            texts.append(extraction.text)
    return texts


def read_complete_texts(warc: Path) -> Iterator[str]:
    """Yield all visible text of each page, as Common Crawl's WET files have it."""
    for html in read_html(warc):
        text = extract_plain_text(HTMLTree.parse(html), main_content=False)
        if text:
            yield text


def read_posts(path: Path) -> Iterator[str]:
    """Yield the posts of a compressed file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def judge(rule: str, text: str) -> str | None:
    """Return what breaks a filter with its default options; None if the text passes."""
    options = Options()
    return first_violation(FILTERS[rule](text), getattr(options, rule))


def compare_decisions(
    rule: str,
    texts: Sequence[str],
    peer_results: dict[str, Any],
    *,
    max_texts: int,
    agreement: Agreement,
) -> bool:
    """Print and count how the peers of a filter decide; return whether a set's limits hold."""
    our_verdicts = [judge(rule, text) for text in texts]
    num_rejected = sum(verdict is not None for verdict in our_verdicts)
    print(f"  {rule}: {num_rejected} rejected", flush=True)
    if not peer_results:
        return True
    is_good = True
    for peer, min_agreement in MIN_AGREEMENT[rule].items():
        peer_verdicts = peer_results[peer]["verdicts"]
        pairs = list(zip(evenly_spaced(our_verdicts, max_texts), peer_verdicts, strict=True))
        num_same = sum((ours is None) == (theirs is None) for ours, theirs in pairs)
        agreement.judged[peer] += len(pairs)
        agreement.same[peer] += num_same
        line = (
            f"    {TITLES.get(peer, 'datatrove')}: {sum(map(bool, peer_verdicts))} of {len(pairs)} "
            f"rejected, {num_same} decisions the same"
        )
        peer_texts = peer_results[peer]["kept"]
        if peer_texts:
            sample = evenly_spaced(texts, max_texts)
            num_different = count_different_lines(sample, peer_texts, pairs)
            line += f", {num_different} texts that both keep differ"
            is_good &= not num_different or not min_agreement
        print(line)

        differences = Counter(
            describe_difference(ours, theirs)
            for ours, theirs in pairs
            if (ours is None) != (theirs is None)
        )
        for difference, count in differences.most_common():
            print(f"      {count} x {difference}")
        if rule == "gopher_quality":
            num_unexplained = sum(
                count
                for difference, count in differences.items()
                if RULE_OF_WORDS not in difference
            )
            is_good &= num_unexplained <= MAX_GOPHER_DIFFERENCES * len(pairs)
    return is_good


def count_different_lines(
    texts: Sequence[str],
    peer_texts: Sequence[str],
    verdicts: Sequence[tuple[str | None, str | None]],
) -> int:
    """Return the number of texts that both keep, with other lines."""
    num_different = 0
    for text, peer_text, (ours, theirs) in zip(texts, peer_texts, verdicts, strict=True):
        if ours is None and theirs is None:
            num_different += c4_lines(text)[1] != peer_text
    return num_different


def describe_difference(ours: str | None, theirs: str | None) -> str:
    """Return how our verdict and a peer's differ. Ours is given without its numbers."""
    our_decision = ours.partition(" ")[0] if ours else "keep"
    return f"we {our_decision}, it {theirs or 'keeps'}"


def compare_rates(texts: Sequence[str], peer_results: dict[str, Any], num_judged: int) -> bool:
    """Print our rates over all texts next to datatrove's over the texts that it judged.

    Return whether each of our filters is MIN_SPEEDUP times as fast.
    """
    is_good = True
    for rule in FILTERS:
        _, seconds = time_texts(partial(judge, rule), texts)
        # The clock's step may be longer than a filter takes for a few texts.
        rate = len(texts) / max(seconds, 1e-6)
        line = f"{rule}: {rate:.0f} texts/s"
        if rule in peer_results:
            peer_rate = num_judged / peer_results[rule]["seconds"]
            speedup = rate / peer_rate
            is_good &= speedup >= MIN_SPEEDUP
            line += f", datatrove {peer_rate:.0f}: {speedup:.0f} times"
        print(line)
    return is_good


if __name__ == "__main__":
    sys.exit(main())
