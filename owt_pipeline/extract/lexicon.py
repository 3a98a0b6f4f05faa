"""What words say of blocks: those in the names of the containers around them, and those in short texts.

Each word has its log-odds: how much more often than on average a block belongs to the main text where it occurs
(`training/odds.py` counts them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from owt_pipeline.extract.features import PageView

_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAMES_KNOWN = 50_000


def lexical(page: PageView, odds: Odds) -> np.ndarray:
    """Log-odds that words give: of the names of the containers around a block, and of short texts (n, 13)."""
    lows: list[float] = []
    highs: list[float] = []
    sums: list[float] = []
    nearest: list[float] = []
    means: list[float] = []
    of_names = [odds.of_name(name) for name in page.names]
    for name, around in zip(page.name_of, page.parent.tolist(), strict=True):
        low, high, mean = of_names[name]
        means.append(mean)
        if around < 0:
            lows.append(low)
            highs.append(high)
            sums.append(mean)
            nearest.append(mean)
        else:
            above = lows[around]
            lows.append(low if low < above else above)
            above = highs[around]
            highs.append(high if high > above else above)
            sums.append(sums[around] + mean)
            nearest.append(mean or nearest[around])
    home = page.container
    first = np.maximum(page.parent[home], 0)
    second = np.maximum(page.parent[first], 0)
    inherited = np.array((lows, highs, sums, nearest, means), dtype=np.float32)
    of_texts = np.array([odds.of_words(words) for words in page.words], dtype=np.float32).reshape(-1, 3)
    of_headings = np.where(page.heading[:, None] >= 0, of_texts[page.heading, ::2], 0)
    return np.concatenate(
        (
            inherited[:, home],
            inherited[4:, first],
            inherited[4:, second],
            inherited[2:3, second],
            of_texts.T,
            of_headings.T,
        )
    ).T


class Odds:
    """Log-odds of words: of those in containers' names, and of those in short texts.

    What a name gives is remembered: pages have many containers of the same name.
    """

    def __init__(self, names: Mapping[str, float], texts: Mapping[str, float]):
        self.names, self.texts = names, texts
        self._known: dict[str, tuple[float, float, float]] = {}

    def of_name(self, name: str) -> tuple[float, float, float]:
        """Lowest, highest and mean of the words in what a container is called."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) == _NAMES_KNOWN:
                self._known.clear()
            words = name_words(name)
            found = self._known[name] = _summary([self.names[word] for word in words if word in self.names])
        return found

    def of_words(self, words: tuple[str, ...]) -> tuple[float, float, float]:
        """Lowest, highest and mean of the words of a text; unknown ones count as saying nothing."""
        get = self.texts.get
        return _summary([get(word, 0.0) for word in words])


def _summary(values: list[float]) -> tuple[float, float, float]:
    return (min(values), max(values), sum(values) / len(values)) if values else (0.0, 0.0, 0.0)


def name_words(name: str) -> list[str]:
    """The words in what a container is called, and each class as it is; each once, in order."""
    tag, _, names = name.partition(" ")
    words = {tag: None}
    for full in names.split():
        words[full.lower()] = None
        for word in _NAME.findall(full):
            words[word.lower()] = None
    return list(words)
