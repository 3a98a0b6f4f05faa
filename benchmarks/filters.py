"""Compares our filters with the published ones: the decision on each document, and the rate.

    .venv/bin/python benchmarks/filters.py [--peer .venv-peers/bin/python] [--data SHARED_DATA] [--documents 12000]
        [--peer_documents 250]

There are five sets of texts: the main texts of WCXB's pages extracted and repaired by us, the same before repair, those
of datatrove's extractor, all text of the same pages with menus and footers, and unchanged Reddit posts. The peers are
datatrove's filters and, for C4, the code that created it (`peers/published_filters.py`). Without a peer, only our
rejections and rates are printed. The peers are slow, so they judge `--peer_documents` texts of each set, evenly
spaced; ours judge all.

Exits 1 if, over all sets, a filter with datatrove's definitions decides differently on more than 1% of the texts, or
C4's on more than 0.5% or keeps other lines; if Gopher's quality rules differ from datatrove's on more than 1% of the
texts, apart from the definition of a word; or if a filter has less than 8 times datatrove's rate.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from clean import DATA, PEERS, read_texts
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from owt_pipeline.stages.clean.filters import FILTERS, QUALITY_LIMITS
from owt_pipeline.stages.clean.judgement import Judgement, TextView
from owt_pipeline.stages.clean.repair import fix_text, tidy

PEERS_OF = {  # our filter -> theirs, with the share of the decisions that must be the same
    "gopher_repetition": {"gopher_repetition": 0.99},
    "gopher_quality": {"gopher_quality": 0.0},  # judged without the rule that the definition of a word decides
    "c4": {"tfds_c4": 0.995, "c4_numbers": 0.0, "c4": 0.0},
    "fineweb": {"fineweb": 0.99},
}
TITLES = {
    "tfds_c4": "TensorFlow Datasets",
    "c4_numbers": "datatrove, 3 sentences and 5 words",
}
BY_WORDS = "gopher_below_alpha_threshold"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument("--documents", type=int, default=12_000, metavar="N", help="texts of each set, at most")
    parser.add_argument("--peer", metavar="PYTHON", help="the Python that has the peers")
    parser.add_argument("--peer_documents", type=int, default=250, metavar="N", help="of these, for the peers, at most")
    arguments = parser.parse_args()
    most = arguments.peer_documents
    sets = text_sets(arguments.data, arguments.documents, arguments.peer)
    samples = {name: evenly(texts, most) for name, texts in sets.items()}
    theirs = decisions_of(arguments.peer, samples) if arguments.peer else {}
    good = True
    judged, same = Counter[str](), Counter[str]()  # by peer, over all sets
    for name, texts in sets.items():
        print(f"\n{name}: {len(texts)} texts of {sum(len(text.split()) for text in texts) / len(texts):.0f} words")
        for rule in FILTERS:
            good &= compare(rule, texts, theirs.get(name, {}), most, judged, same)
        print_definitions(texts)
    for peers in PEERS_OF.values():
        good &= all(same[peer] >= least * judged[peer] for peer, least in peers.items())
    print()
    first = next(iter(sets))
    good &= compare_rates(sets[first], theirs.get(first, {}), len(samples[first]))
    return int(not good)


T = TypeVar("T")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """`most` of the items, evenly spaced, or all if there are fewer."""
    count = min(most, len(items))
    return [items[k * len(items) // count] for k in range(count)]


def decisions_of(peer: str, sets: dict[str, list[str]]) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(sets, file)
        file.flush()
        command = [peer, PEERS / "published_filters.py", file.name]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)  # type: ignore[no-any-return]


def text_sets(data: Path, count: int, peer: str | None) -> dict[str, list[str]]:
    warc = data / "web" / "wcxb-dev.warc.gz"
    raw = read_texts(warc, count)
    sets = {
        "pages, extracted and repaired": [tidy(fix_text(text, without={"uncurl_quotes"})) for text in raw],
        "pages, extracted": raw,
        "pages, all of their text": list(islice(all_texts(warc), count)),
        "Reddit posts": list(islice(posts(data / "text" / "reddit-posts.jsonl.gz"), count)),
    }
    if peer:
        command = [peer, PEERS / "datatrove_extract.py", warc]
        found = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        sets["pages, extracted by datatrove"] = list(islice(json.loads(found)["texts"].values(), count))
    return sets


def all_texts(warc: Path) -> Iterable[str]:
    """All visible text of each page, as in Common Crawl's WET files."""
    with open(warc, "rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            tree = HTMLTree.parse(record.reader.read().decode("utf-8", "replace"))
            if text := extract_plain_text(tree, main_content=False):
                yield text


def posts(path: Path) -> Iterable[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def compare(
    rule: str, texts: Sequence[str], theirs: dict[str, Any], most: int, judged: Counter[str], same: Counter[str]
) -> bool:
    ours = [FILTERS[rule].judge(TextView(text)) for text in texts]
    rejected = sum(judgement.broken is not None for judgement in ours)
    good = True
    print(f"  {rule}: {rejected} rejected", flush=True)
    for peer, least in PEERS_OF.get(rule, {}).items() if theirs else ():
        verdicts = theirs[peer]["verdicts"]
        pairs = list(zip(evenly(ours, most), verdicts, strict=True))
        agreed = sum((our.broken is None) == (their is None) for our, their in pairs)
        line = f"    {TITLES.get(peer, 'datatrove')}: {sum(map(bool, verdicts))} of {len(pairs)} rejected"
        line += f", {agreed} decisions the same"
        judged[peer] += len(pairs)
        same[peer] += agreed
        if theirs[peer]["kept"]:
            left = theirs[peer]["kept"]
            kept = [(our, text) for (our, their), text in zip(pairs, left, strict=True) if not their]
            other = sum(our.broken is None and our.kept != text for our, text in kept)
            line += f", {other} texts that both keep differ"
            good &= not other or not least
        print(line)
        differences = Counter(difference(*pair) for pair in pairs if (pair[0].broken is None) != (pair[1] is None))
        if rule == "gopher_quality":
            rest = sum(n for what, n in differences.items() if BY_WORDS not in what)
            good &= rest <= 0.01 * len(pairs)
        print("".join(f"      {count} x {what}\n" for what, count in differences.most_common()), end="")
    return good


def difference(ours: Judgement, theirs: str | None) -> str:
    return f"we {ours.broken.partition(' ')[0] if ours.broken else 'keep'}, it {theirs or 'keeps'}"


def print_definitions(texts: Sequence[str]) -> None:
    """Print how many texts have too few words with a letter, by the definition of a word."""
    rejected: Counter[str] = Counter()
    for text in texts:
        view = TextView(text)
        for name, words in {
            "spaCy's tokens": view.distinct_words,
            "white space": Counter(text.split()),
            "white space, with a letter or a digit": view.spaced_words,
        }.items():
            alphabetic = sum(n for word, n in words.items() if any(map(str.isalpha, word)))
            rejected[name] += alphabetic < QUALITY_LIMITS["alphabetic_words"].minimum * words.total()
    print("  fewer than 80% of the words with a letter: " + ", ".join(f"{n} by {name}" for name, n in rejected.items()))


def compare_rates(texts: Sequence[str], theirs: dict[str, Any], judged: int) -> bool:
    """Compare our rates over all texts with theirs over those `judged`."""
    good = True
    for rule in FILTERS:
        started = time.process_time()
        for text in texts:
            FILTERS[rule].judge(TextView(text))
        seconds = max(time.process_time() - started, 1e-6)  # the clock's step, of a few texts
        rate = len(texts) / seconds
        line = f"{rule}: {rate:.0f} texts/s"
        if rule in theirs:
            ratio = rate * theirs[rule]["seconds"] / judged
            good &= ratio >= 8
            line += f", datatrove {judged / theirs[rule]['seconds']:.0f}: {ratio:.0f} times"
        print(line)
    return good


if __name__ == "__main__":
    sys.exit(main())
