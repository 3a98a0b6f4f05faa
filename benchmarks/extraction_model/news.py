"""News pages on which extraction is judged, and on which no model is fitted or tuned.

`fundus-parsers-254.jsonl.xz` holds the test pages of flairNLP/fundus: news of 41 countries in about
25 languages, each with its publisher's own selection of paragraphs. The score is the mean F1 of the
bags of lower-case words, or of characters for Chinese, Japanese and Korean.

A lead that the page's own description begins with belongs to the main text, for us. Some publishers
select it and others do not, so `without_described` gives the score of everything else, too.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from owt_pipeline.stages.extract.content.main_content import start_of
from owt_pipeline.stages.extract.html.reader import read_page

from .labelled_pages import LabelledPage

FILE = "fundus-parsers-254.jsonl.xz"
SET = "fundus"
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)


def read_news(folder: Path) -> list[LabelledPage]:
    """Return the pages of FILE in `folder`; raises FileNotFoundError."""
    pages = []
    with lzma.open(folder / FILE, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            truth = "\n".join(row["body"])
            pages.append(LabelledPage(SET, row["url"], row["html"], SET, truth))
    return pages


def score_news(pages: Sequence[LabelledPage], texts: Sequence[str]) -> Mapping[str, float]:
    """Return `f1`, and `junk` and `lost` pooled over the pages; `texts` are in order of `pages`."""
    rows = []
    for page, text in zip(pages, texts, strict=True):
        rows.append(_count_shared(text, page.truth or ""))
    common, in_text, in_truth = np.array(rows).T
    return {
        "f1": float(np.mean(2 * common / np.maximum(in_text + in_truth, 1))),
        "junk": float(1 - common.sum() / max(in_text.sum(), 1)),
        "lost": float(1 - common.sum() / max(in_truth.sum(), 1)),
    }


def without_described(
    pages: Sequence[LabelledPage], texts: Sequence[str]
) -> tuple[list[LabelledPage], list[str]]:
    """Return pages and texts without the lines that begin like the page's description."""
    other_pages = []
    other_texts = []
    for page, text in zip(pages, texts, strict=True):
        metas = read_page(page.html).metas
        starts = {start_of(metas.get(name, "")) for name in ("description", "og:description")}
        starts.discard("")
        other_pages.append(replace(page, truth=_without_lines(page.truth or "", starts)))
        other_texts.append(_without_lines(text, starts))
    return other_pages, other_texts


def _without_lines(text: str, starts: set[str]) -> str:
    return "\n".join(line for line in text.split("\n") if start_of(line) not in starts)


def _count_shared(text: str, truth: str) -> tuple[int, int, int]:
    """Return the numbers of words in common, in the text and in the truth."""
    text_counts = Counter(_WORD.findall(text.lower()))
    true_counts = Counter(_WORD.findall(truth.lower()))
    return (text_counts & true_counts).total(), text_counts.total(), true_counts.total()
