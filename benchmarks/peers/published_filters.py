"""Print the decisions of the published filters, which `clean.py` compares with ours.

    .venv-peers/bin/python benchmarks/peers/published_filters.py TEXTS.json

TEXTS.json holds lists of texts by name. The filters:

- datatrove's, with their defaults
- datatrove's C4 filter, with the numbers that C4 was made with
- the code that made C4: `clean_page` of TensorFlow Datasets. It counts sentences with NLTK's Punkt
  where that model is installed (`python -m nltk.downloader punkt_tab`), otherwise with spaCy's
  sentencizer, as datatrove does.

Prints one JSON object. By list and filter it holds the CPU seconds on one core, for each text the
rule that it broke (null if it passed), and for the C4 filters the lines that are left of each text.
Rates are measured on the first list only, where each filter splits each text into words itself. In
the other lists the filters share the words of a text.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

# The rule that a text breaks (None if it passes), and the text that is left.
Decision = tuple[str | None, str]
Judge = Callable[[str], Decision]


def main() -> None:
    """Judge the texts of the file that the command line names."""
    texts_by_list = json.loads(Path(sys.argv[1]).read_text())
    judges: dict[str, Judge] = {
        "gopher_repetition": DatatroveJudge(GopherRepetitionFilter()),
        "gopher_quality": DatatroveJudge(GopherQualityFilter()),
        "fineweb": DatatroveJudge(FineWebQualityFilter()),
        "c4": DatatroveJudge(C4QualityFilter()),
        "c4_numbers": DatatroveJudge(C4QualityFilter(min_num_sentences=3, min_words_per_line=5)),
        "tfds_c4": C4Judge(),
    }
    for judge in judges.values():
        judge("It loads its tokenizer, which takes time.")
    results = {}
    for number, (name, texts) in enumerate(texts_by_list.items()):
        results[name] = judge_list(judges, texts, is_timed=number == 0)
    print(json.dumps(results))


def judge_list(judges: dict[str, Judge], texts: list[str], is_timed: bool) -> dict[str, Any]:
    """Return the seconds, verdicts and texts that are left, by judge.

    If `is_timed`, no filter takes the words of a text from a filter that judged it before.
    """
    seconds = dict.fromkeys(judges, 0.0)
    decisions: dict[str, list[Decision]] = {name: [] for name in judges}
    for text in texts:
        for name, judge in judges.items():
            if is_timed:
                split_into_parts.cache_clear()
            started = time.process_time()
            decision = judge(text)
            seconds[name] += time.process_time() - started
            decisions[name].append(decision)
    return {
        name: {
            "seconds": seconds[name],
            "verdicts": [verdict for verdict, _ in decisions[name]],
            # Only the C4 filters change a text.
            "kept": [kept for _, kept in decisions[name]] if "c4" in name else [],
        }
        for name in judges
    }


class DatatroveJudge:
    """A filter of datatrove as a Judge."""

    def __init__(self, rules: Any):
        self._rules = rules

    def __call__(self, text: str) -> Decision:
        """Return the filter's reason, and the text as the filter left it."""
        document = Document(text=text, id="")
        verdict = self._rules.filter(document)
        # A filter returns a boolean, or False with its reason.
        if isinstance(verdict, tuple):
            return verdict[1], document.text
        if verdict:
            return None, document.text
        return "rejected", document.text


class C4Judge:
    """The code that made C4 as a Judge."""

    def __init__(self) -> None:
        # The module's own function downloads the model, and needs TensorFlow.
        c4_utils._get_sentences = load_sentence_splitter()
        self._clean = c4_utils.get_clean_page_fn()

    def __call__(self, text: str) -> Decision:
        """Return the last event that was counted if the page is dropped, otherwise its lines."""
        events: list[str] = []

        def count_event(event: str, count: int = 1) -> None:
            events.append(event)

        page = c4_utils.PageFeatures(text=text)
        pages = list(self._clean(page, counter_inc_fn=count_event))
        if pages:
            return None, pages[0].text
        return events[-1].removeprefix("filtered:"), ""


def load_sentence_splitter() -> Callable[[str], list[str]]:
    """Return NLTK's Punkt, or spaCy's sentencizer if the model of Punkt is not installed."""
    try:
        punkt = PunktTokenizer("english")
    except LookupError:
        print(
            "C4's own code counts sentences with spaCy: NLTK's model punkt_tab is not installed",
            file=sys.stderr,
        )
        return split_into_sentences
    print("C4's own code counts sentences with NLTK's Punkt", file=sys.stderr)
    return punkt.tokenize


if __name__ == "__main__":
    main()
