"""The work of the stage clean on real text: ftfy's fast path, filters, language detection, and all of it together.

    .venv/bin/python benchmarks/clean.py [--data SHARED_DATA] [--pages 1308] [--peer PYTHON]

The texts are the main texts of WCXB's pages, as our extractor finds them. Rates are of one core's CPU time. With
`--peer .venv-peers/bin/python`, datatrove's filters judge the same texts, verdict by verdict, and other language
detectors the same sentences and pages. Exits 1 where the fast path differs from ftfy or is under 5 times as fast, a
filter is under 10 times datatrove's rate, or fewer than 98 of 100 of its verdicts are datatrove's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import ftfy
from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.clean.documents import Rules, clean_document
from owt_pipeline.clean.filters import FILTERS
from owt_pipeline.clean.language import detect
from owt_pipeline.clean.repair import fix_text
from owt_pipeline.clean.text_view import TextView
from owt_pipeline.clean.whitespace import tidy
from owt_pipeline.extract.extractor import Page, Settings, load

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
PEERS = Path(__file__).parent / "peers"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument("--pages", type=int, default=1308, metavar="N", help="pages to take the text of")
    parser.add_argument("--peer", metavar="PYTHON", help="the Python that has the peers")
    arguments = parser.parse_args()
    raw = read_texts(arguments.data / "web" / "wcxb-dev.warc.gz", arguments.pages)
    print(f"{len(raw)} texts of {sum(len(text.split()) for text in raw) / len(raw):.0f} words on average")
    good = measure_ftfy(raw)
    texts = [tidy(fix_text(text)) for text in raw]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(texts, file)
        file.flush()
        good &= measure_filters(texts, judged_by_datatrove(arguments.peer, file.name) if arguments.peer else {})
        measure_stage(raw)
        if arguments.peer:
            sentences = arguments.data / "text" / "sentences-by-language.jsonl.gz"
            subprocess.run([arguments.peer, PEERS / "language_detectors.py", sentences, file.name], check=True)
    return int(not good)


def measure_ftfy(raw: Sequence[str]) -> bool:
    plain, plain_seconds = timed(ftfy.fix_text, raw)
    fast, fast_seconds = timed(fix_text, raw)
    speedup = plain_seconds / fast_seconds
    print(
        f"ftfy {len(raw) / plain_seconds:.0f} texts/s, fast path {len(raw) / fast_seconds:.0f}: {speedup:.1f} times; "
        + ("the same texts" if fast == plain else "DIFFERENT TEXTS")
    )
    return fast == plain and speedup >= 5


def judged_by_datatrove(peer: str, texts: str) -> dict[str, Any]:
    found = subprocess.run([peer, PEERS / "datatrove_filters.py", texts], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(found)  # type: ignore[no-any-return]


def measure_filters(texts: Sequence[str], theirs: dict[str, Any]) -> bool:
    good = True
    _, seconds = timed(lambda text: TextView(text).words, texts)
    print(f"{'words alone':18}{len(texts) / seconds:6.0f} texts/s")
    for name, rule in FILTERS.items():

        def judge(text: str, rule: Any = rule) -> str | None:
            return rule.judge(TextView(rule.keep_lines(text) if rule.keep_lines else text)).broken  # type: ignore[no-any-return]

        verdicts, seconds = timed(judge, texts)
        line = f"{name:18}{len(texts) / seconds:6.0f} texts/s, {sum(v is not None for v in verdicts):4} rejected"
        if name in theirs:
            pairs = list(zip(verdicts, theirs[name]["verdicts"], strict=True))
            same = sum((ours is None) == (other is None) for ours, other in pairs)
            ratio = theirs[name]["seconds"] / seconds
            good &= ratio >= 10 and same >= 0.98 * len(texts)
            line += f"; datatrove {len(texts) / theirs[name]['seconds']:.0f} texts/s ({ratio:.0f} times); {same} same"
            differences = Counter(
                f"we {ours.partition(' ')[0] if ours else 'keep'}, it {other or 'keeps'}"
                for ours, other in pairs
                if (ours is None) != (other is None)
            )
            line += "".join(f"\n    {count} x {what}" for what, count in differences.most_common())
        print(line, flush=True)
    return good


def measure_stage(raw: Sequence[str]) -> None:
    for title, rules in {
        "as by default": Rules(),
        "no signals": Rules(measured_share=0.0),
        "every filter": Rules(filters=tuple(FILTERS)),
    }.items():
        _, seconds = timed(lambda text, rules=rules: clean_document(text, rules), raw)  # type: ignore[misc]
        print(f"clean, {title:14}{len(raw) / seconds:6.0f} texts/s")
    _, seconds = timed(detect, raw)
    print(f"language alone {len(raw) / seconds:10.0f} texts/s")


def timed(fn: Callable[[str], Any], texts: Sequence[str]) -> tuple[list[Any], float]:
    fn("It loads what it needs.")
    started = time.process_time()
    results = [fn(text) for text in texts]
    return results, time.process_time() - started


def read_texts(warc: Path, count: int) -> list[str]:
    extract = load("blocks", Settings())
    texts = []
    with open(warc, "rb") as file:
        for record in islice(ArchiveIterator(file, record_types=WarcRecordType.response), count):
            found = extract(Page("http://h/", record.reader.read().decode("utf-8", "replace"), 1_767_225_600))
            if found and len(found.text) > 300:
                texts.append(found.text)
    return texts


if __name__ == "__main__":
    sys.exit(main())
