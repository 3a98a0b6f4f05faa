"""Decisions of the published filters: the peers of `clean.py`.

    .venv-peers/bin/python benchmarks/peers/published_filters.py TEXTS.json

TEXTS.json has lists of texts by name. The filters are datatrove's as they come, its C4 filter with
the numbers that C4 was made with, and that code itself: `clean_page` of TensorFlow Datasets. It
counts sentences with NLTK's Punkt where that model is installed (`python -m nltk.downloader
punkt_tab`), else with spaCy's sentencizer, as datatrove.

Prints one JSON object: by list and filter, the seconds it took on one core, for each text the rule
it broke or null, and for each text what is left of it. Filters share the words of a text but in the
first list, which rates are taken on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.text import split_into_parts, split_into_sentences
from nltk.tokenize.punkt import PunktTokenizer
from tensorflow_datasets.text import c4_utils

Judge = Callable[[str], tuple[str | None, str]]


def main() -> None:
    lists = json.loads(Path(sys.argv[1]).read_text())
    judges = {
        "gopher_repetition": by_datatrove(GopherRepetitionFilter()),
        "gopher_quality": by_datatrove(GopherQualityFilter()),
        "fineweb": by_datatrove(FineWebQualityFilter()),
        "c4": by_datatrove(C4QualityFilter()),
        "c4_numbers": by_datatrove(C4QualityFilter(min_num_sentences=3, min_words_per_line=5)),
        "tfds_c4": by_tensorflow_datasets(),
    }
    for judge in judges.values():
        judge("It loads its tokenizer, which takes time.")
    found: dict[str, dict[str, dict[str, object]]] = {}
    for number, (name, texts) in enumerate(lists.items()):
        seconds = dict.fromkeys(judges, 0.0)
        decisions: dict[str, list[tuple[str | None, str]]] = {judge: [] for judge in judges}
        for text in texts:
            for judge, decide in judges.items():
                if number == 0:
                    split_into_parts.cache_clear()
                started = time.process_time()
                decisions[judge].append(decide(text))
                seconds[judge] += time.process_time() - started
        found[name] = {
            judge: {
                "seconds": seconds[judge],
                "verdicts": [verdict for verdict, _ in decisions[judge]],
                "kept": [kept for _, kept in decisions[judge]] if "c4" in judge else [],
            }
            for judge in judges
        }
    print(json.dumps(found))


def by_datatrove(rules: object) -> Judge:
    def judge(text: str) -> tuple[str | None, str]:
        document = Document(text=text, id="")
        verdict = rules.filter(document)  # type: ignore[attr-defined]
        return verdict[1] if isinstance(
            verdict, tuple
        ) else None if verdict else "rejected", document.text

    return judge


def by_tensorflow_datasets() -> Judge:
    try:
        split = PunktTokenizer("english").tokenize
        print("C4's own code counts sentences with NLTK's Punkt", file=sys.stderr)
    except LookupError:
        split = split_into_sentences
        print(
            "C4's own code counts sentences with spaCy: NLTK's model punkt_tab is not installed",
            file=sys.stderr,
        )
    c4_utils._get_sentences = split  # that of the module downloads the model, and needs TensorFlow
    clean = c4_utils.get_clean_page_fn()

    def judge(text: str) -> tuple[str | None, str]:
        events: list[str] = []
        pages = list(
            clean(
                c4_utils.PageFeatures(text=text),
                counter_inc_fn=lambda event, n=1: events.append(event),
            )
        )
        return (None, pages[0].text) if pages else (events[-1].removeprefix("filtered:"), "")

    return judge


if __name__ == "__main__":
    main()
