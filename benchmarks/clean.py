"""The speed of the stage clean on real text: the fast path for ftfy, language detection, and the complete stage.

    .venv/bin/python benchmarks/clean.py [--data SHARED_DATA] [--pages 1308] [--peer PYTHON]

The texts are the main texts of WCXB's pages by our extractor. Rates are per second of CPU time on one core. With
`--peer .venv-peers/bin/python`, other language detectors are given the same sentences and pages. Exits 1 if the fast
path differs from ftfy or is less than 5 times as fast, or if languages differ from py3langid's. `filters.py` measures
the filters.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import ftfy
from fastwarc.warc import ArchiveIterator, WarcRecordType
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from owt_pipeline.stages.clean.documents import clean_document, detect
from owt_pipeline.stages.clean.filters import FILTERS
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.repair import fix_text, tidy
from owt_pipeline.stages.extract.extractor import Page, Settings, load

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
    measure_stage(raw)
    good &= measure_language(raw)
    if arguments.peer:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump([tidy(fix_text(text)) for text in raw], file)
            file.flush()
            sentences = arguments.data / "text" / "sentences-by-language.jsonl.gz"
            subprocess.run([arguments.peer, PEERS / "language_detectors.py", sentences, file.name], check=True)
    return int(not good)


def measure_ftfy(raw: Sequence[str]) -> bool:
    good = True
    for uncurl in (False, True):
        config = ftfy.TextFixerConfig(uncurl_quotes=uncurl, explain=False)
        without = frozenset() if uncurl else frozenset({"uncurl_quotes"})
        plain, plain_seconds = timed(partial(ftfy.fix_text, config=config), raw)
        fast, fast_seconds = timed(partial(fix_text, without=without), raw)
        speedup = plain_seconds / fast_seconds
        # Wide punctuation stays in texts with Chinese, Japanese or Korean characters: all else in them is compared.
        wide = [text for text, ours, theirs in zip(raw, fast, plain, strict=True) if ours != theirs]
        as_wide = config._replace(fix_character_width=False)
        same = all(
            fix_text(text, without=without | {"fix_character_width"}) == ftfy.fix_text(text, as_wide) for text in wide
        )
        changed = sum(text != fixed for text, fixed in zip(raw, fast, strict=True))
        print(
            f"ftfy{' with uncurl_quotes' if uncurl else ''}: {changed} texts changed; {len(raw) / plain_seconds:.0f} "
            f"texts/s, fast path {len(raw) / fast_seconds:.0f}: {speedup:.1f} times; "
            + ("the same texts" if same else "DIFFERENT TEXTS")
            + f" ({len(wide)} with wide punctuation that ftfy would make ASCII)"
        )
        good &= same and speedup >= 5
    return good


def measure_stage(raw: Sequence[str]) -> None:
    for title, rules in {
        "as by default": Options(),
        "no signals": Options(measured_share=0.0),
        "every filter": Options(filters=tuple(FILTERS)),
    }.items():
        _, seconds = timed(lambda text, rules=rules: clean_document(text, rules), raw)  # type: ignore[misc]
        print(f"clean, {title:14}{len(raw) / seconds:6.0f} texts/s")


def measure_language(raw: Sequence[str]) -> bool:
    beginnings = [text[:3000] for text in raw]  # as much as `detect` looks at
    ours, seconds = timed(detect, beginnings)
    theirs, loop = timed(LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True).classify, beginnings)
    same = ours == [(language, round(float(score), 3)) for language, score in theirs]
    print(f"language alone {len(raw) / seconds:.0f} texts/s, py3langid's own loop {len(raw) / loop:.0f}", end=": ")
    print(f"{loop / seconds:.1f} times; " + ("the same languages and scores" if same else "OTHER SCORES"))
    return same


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
            found = extract(Page("http://h/", record.reader.read().decode("utf-8", "replace"), 1_767_225_600))
            if found and len(found.text) > 300:
                texts.append(found.text)
    return texts


if __name__ == "__main__":
    sys.exit(main())
