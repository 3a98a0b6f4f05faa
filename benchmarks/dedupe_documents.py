"""The documents of dedupe's benchmarks, created from real prose."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORDS = 1140
"""Words of a long document: the mean of OpenWebText's."""

EDITS = (0.01, 0.02, 0.05, 0.10, 0.20, 0.40)
"""Shares of words that are replaced in planted copies."""

_SEGMENT_WORDS = 40


@dataclass(frozen=True)
class Planted:
    """A document, how it was created, and from which other one."""

    text: str
    kind: str
    source: int


def posts(testdata: Path) -> list[str]:
    """Unchanged posts of Reddit."""
    with gzip.open(testdata / "text" / "reddit-posts.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def articles(testdata: Path) -> list[str]:
    """The main content of web pages."""
    with gzip.open(testdata / "web" / "wcxb-dev.truth.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["main_content"] for line in file]


def long_documents(testdata: Path, count: int, seed: int = 0) -> Iterator[str]:
    """Documents of WORDS words in segments of real posts; a tenth are copies, a tenth edited copies."""
    words = " ".join(posts(testdata)).split(" ")
    rng = random.Random(seed)
    recent: list[list[str]] = []
    for i in range(count):
        choice = rng.random()
        if recent and choice < 0.2:
            document = list(rng.choice(recent))
            if choice < 0.1:
                for at in rng.sample(range(len(document)), round(rng.choice(EDITS) * len(document))):
                    document[at] = f"edit{rng.randrange(1000)}"
        else:
            starts = [rng.randrange(len(words) - _SEGMENT_WORDS) for _ in range(WORDS // _SEGMENT_WORDS + 1)]
            document = [word for start in starts for word in words[start : start + _SEGMENT_WORDS]][:WORDS]
        recent = [*recent[-500:], document] if i % 2 else recent
        yield " ".join(document)


def short_documents(count: int, words: int = 60, seed: int = 0) -> Iterator[str]:
    """Documents of `words` words from a realistic vocabulary; a tenth are others with one word replaced."""
    rng, documents = np.random.default_rng(seed), _unlike_documents(words, seed)
    document = next(documents)
    for i in range(count):
        if i % 10 == 9:
            document = document.copy()
            document[rng.integers(words)] = f"x{i}"
        else:
            document = next(documents)
        yield " ".join(document)


def _unlike_documents(words: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng([seed, words])
    vocabulary = np.array([f"w{i}" for i in range(20_000)], object)
    cumulative = np.cumsum(1 / np.arange(10, 20_010))
    cumulative /= cumulative[-1]
    while True:
        yield from vocabulary[np.searchsorted(cumulative, rng.random((1000, words)))]


def planted(testdata: Path, bases: int, seed: int = 0) -> list[Planted]:
    """Real documents with planted copies: verbatim, edited, truncated, joined with another, put into one template."""
    rng = random.Random(seed)
    texts = sorted({text for text in [*posts(testdata), *articles(testdata)] if 150 <= len(text.split()) <= 2500})
    rng.shuffle(texts)
    chosen = [text.split() for text in texts[:bases]]
    template = texts[bases].split()[:120]
    documents = [Planted(" ".join(words), "original", i) for i, words in enumerate(chosen)]
    for i, words in enumerate(chosen):
        other = chosen[(i + 1) % bases]
        made: dict[str, list[str]] = {"verbatim": words}
        for share in EDITS:
            made[f"{share:.0%} of words edited"] = _edited(rng, words, share)
        made["truncated to 90%"] = words[: len(words) * 9 // 10]
        made["truncated to 70%"] = words[: len(words) * 7 // 10]
        made["joined with another"] = words + other
        made["in a template"] = template[:60] + words[:80] + template[60:]
        documents += [Planted(" ".join(copy), kind, i) for kind, copy in made.items()]
    rng.shuffle(documents)
    return documents


def _edited(rng: random.Random, words: list[str], share: float) -> list[str]:
    words = list(words)
    for at in rng.sample(range(len(words)), round(share * len(words))):
        words[at] = f"edit{rng.randrange(100_000)}"
    return words


def jsonl(path: Path, texts: Iterable[str]) -> None:
    """Write the texts for a peer, the i-th with id i."""
    with path.open("w", encoding="utf-8") as file:
        for i, text in enumerate(texts):
            file.write(json.dumps({"id": str(i), "text": text}) + "\n")
