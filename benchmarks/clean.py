"""The stage clean on real text: decisions next to the published filters', and rates.

    .venv/bin/python benchmarks/clean.py [--peer .venv-peers/bin/python] [--data SHARED_DATA]
    [--documents 2000]
        [--peer_documents 250]

There are five sets of texts: the main texts of WCXB's pages extracted and repaired by us, the same
before repair, those of datatrove's extractor, all text of the same pages with menus and footers,
and unchanged Reddit posts. The peers are datatrove's filters, the code that created C4
(`peers/published_filters.py`), and ftfy. Without `--peer`, only our rejections and rates are
printed. The peers are slow, so they judge `--peer_documents` texts of each set, evenly spaced; ours
judge all. Rates are per second of CPU time on one core.

Exits 1 if, over all sets, a filter with datatrove's definitions decides differently on more than 1%
of the texts, or C4's on more than 0.5% or keeps other lines; if Gopher's quality rules differ from
datatrove's on more than 1% of the texts, apart from the definition of a word; if a filter has less
than 8 times datatrove's rate; or if a text is repaired otherwise than by ftfy, apart from wide
punctuation.
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
from collections.abc import Callable, Iterable, Sequence
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

DATA = Path(os.environ.get("OWT_TESTDATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
PEERS = Path(__file__).parent / "peers"

PEERS_OF = {  # our filter -> theirs, with the share of the decisions that must be the same
    "gopher_repetition": {"gopher_repetition": 0.99},
    "gopher_quality": {
        "gopher_quality": 0.0
    },  # judged without the rule that the definition of a word decides
    "c4": {"tfds_c4": 0.995, "c4_numbers": 0.0, "c4": 0.0},
    "fineweb": {"fineweb": 0.99},
}
TITLES = {"tfds_c4": "TensorFlow Datasets", "c4_numbers": "datatrove, 3 sentences and 5 words"}
BY_WORDS = "gopher_below_alpha_threshold"


def main() -> int:
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
        help="of these, for the peers, at most",
    )
    arguments = parser.parse_args()
    most = arguments.peer_documents
    sets = text_sets(arguments.data, arguments.documents, arguments.peer)
    raw = sets["pages, extracted"]
    good = measure_ftfy(raw)
    measure_stage(raw)
    samples = {name: evenly(texts, most) for name, texts in sets.items()}
    theirs = decisions_of(arguments.peer, samples) if arguments.peer else {}
    judged, same = Counter[str](), Counter[str]()  # by peer, over all sets
    for name, texts in sets.items():
        print(
            f"\n{name}: {len(texts)} texts of "
            f"{sum(len(text.split()) for text in texts) / len(texts):.0f} words"
        )
        for rule in FILTERS:
            good &= compare(rule, texts, theirs.get(name, {}), most, judged, same)
    for peers in PEERS_OF.values():
        good &= all(same[peer] >= least * judged[peer] for peer, least in peers.items())
    print()
    first = next(iter(sets))
    good &= compare_rates(sets[first], theirs.get(first, {}), len(samples[first]))
    return int(not good)


def measure_ftfy(raw: Sequence[str]) -> bool:
    good = True
    for uncurl in (False, True):
        config = ftfy.TextFixerConfig(uncurl_quotes=uncurl, explain=False)
        plain, plain_seconds = timed(partial(ftfy.fix_text, config=config), raw)
        fast, fast_seconds = timed(partial(fix_text, uncurl_quotes=uncurl), raw)
        # Wide punctuation stays in texts with Chinese, Japanese or Korean characters: all else in
        # them is compared.
        differ = [pair for pair in zip(fast, plain, strict=True) if pair[0] != pair[1]]
        same = all(ftfy.fix_text(ours, config) == theirs for ours, theirs in differ)
        good &= same
        print(
            f"ftfy{' with uncurl_quotes' if uncurl else ''}: {len(raw) / plain_seconds:.0f} "
            f"texts/s, "
            f"ours {len(raw) / fast_seconds:.0f}: {plain_seconds / fast_seconds:.1f} times; "
            + ("the same texts" if same else "DIFFERENT TEXTS")
            + f" ({len(differ)} with wide punctuation that ftfy would make ASCII)"
        )
    return good


def measure_stage(raw: Sequence[str]) -> None:
    for title, rules in {
        "as by default": Options(),
        "every filter on": Options(filters=tuple(BUILT_IN)),
    }.items():
        _, seconds = timed(lambda text, rules=rules: clean_document(text, rules), raw)  # type: ignore[misc]
        print(f"clean, {title}: {len(raw) / seconds:.0f} texts/s")
    _, seconds = timed(detect, raw)
    print(f"language alone: {len(raw) / seconds:.0f} texts/s")


def timed(fn: Callable[[str], Any], texts: Sequence[str]) -> tuple[list[Any], float]:
    fn("It loads what it needs.")
    started = time.process_time()
    results = [fn(text) for text in texts]
    return results, time.process_time() - started


def read_texts(warc: Path, count: int) -> list[str]:
    extract = load(Settings())
    texts = []
    with open(warc, "rb") as file:
        for record in islice(ArchiveIterator(file, record_types=WarcRecordType.response), count):
            found = extract(
                Page("http://h/", record.reader.read().decode("utf-8", "replace"), 1_767_225_600)
            )
            if found and len(found.text) > 300:
                texts.append(found.text)
    return texts


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
        "pages, extracted and repaired": [tidy(fix_text(text)) for text in raw],
        "pages, extracted": raw,
        "pages, all of their text": list(islice(all_texts(warc), count)),
        "Reddit posts": list(islice(posts(data / "text" / "reddit-posts.jsonl.gz"), count)),
    }
    if peer:
        command = [peer, PEERS / "datatrove_extract.py", warc]
        found = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        sets["pages, extracted by datatrove"] = json.loads(found)[:count]
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


def judge(rule: str, text: str) -> str | None:
    return first_violation(FILTERS[rule](text), getattr(Options(), rule))


def compare(
    rule: str,
    texts: Sequence[str],
    theirs: dict[str, Any],
    most: int,
    judged: Counter[str],
    same: Counter[str],
) -> bool:
    ours = [judge(rule, text) for text in texts]
    good = True
    print(f"  {rule}: {sum(broken is not None for broken in ours)} rejected", flush=True)
    for peer, least in PEERS_OF[rule].items() if theirs else ():
        verdicts = theirs[peer]["verdicts"]
        pairs = list(zip(evenly(ours, most), verdicts, strict=True))
        agreed = sum((our is None) == (their is None) for our, their in pairs)
        line = (
            f"    {TITLES.get(peer, 'datatrove')}: {sum(map(bool, verdicts))} of {len(pairs)} "
            f"rejected"
        )
        line += f", {agreed} decisions the same"
        judged[peer] += len(pairs)
        same[peer] += agreed
        if theirs[peer]["kept"]:
            left = zip(pairs, evenly(texts, most), theirs[peer]["kept"], strict=True)
            both = [
                (text, kept) for (our, their), text, kept in left if our is None and their is None
            ]
            other = sum(c4_lines(text)[1] != kept for text, kept in both)
            line += f", {other} texts that both keep differ"
            good &= not other or not least
        print(line)
        differences = Counter(
            difference(*pair) for pair in pairs if (pair[0] is None) != (pair[1] is None)
        )
        if rule == "gopher_quality":
            rest = sum(n for what, n in differences.items() if BY_WORDS not in what)
            good &= rest <= 0.01 * len(pairs)
        print(
            "".join(f"      {count} x {what}\n" for what, count in differences.most_common()),
            end="",
        )
    return good


def difference(ours: str | None, theirs: str | None) -> str:
    return f"we {ours.partition(' ')[0] if ours else 'keep'}, it {theirs or 'keeps'}"


def compare_rates(texts: Sequence[str], theirs: dict[str, Any], judged: int) -> bool:
    """Compare our rates over all texts with theirs over those `judged`."""
    good = True
    for rule in FILTERS:
        _, seconds = timed(partial(judge, rule), texts)
        rate = len(texts) / max(seconds, 1e-6)  # the clock's step, of a few texts
        line = f"{rule}: {rate:.0f} texts/s"
        if rule in theirs:
            ratio = rate * theirs[rule]["seconds"] / judged
            good &= ratio >= 8
            line += f", datatrove {judged / theirs[rule]['seconds']:.0f}: {ratio:.0f} times"
        print(line)
    return good


if __name__ == "__main__":
    sys.exit(main())
