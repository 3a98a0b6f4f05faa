"""What words say: how much more often blocks belong to the main text where a name or a short text has this word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.extract.features import PageView
from owt_pipeline.extract.lexicon import name_words

LEAST_HOSTS = 6
_PRIOR = 3.0  # hosts with the average share that every word is taken to have been seen on


@dataclass(frozen=True)
class WordCounts:
    """One page's words, with the weight of the blocks that have them, and the part of it that belongs."""

    host: str
    names: dict[str, tuple[float, float]]
    texts: dict[str, tuple[float, float]]


def count_words(page: PageView, host: str, label: np.ndarray, weight: np.ndarray) -> WordCounts:
    """The words of `page`, whose blocks have these labels; `weight` is how much each block counts."""
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    size = len(page.parent)
    own = np.bincount(page.container, weight, minlength=size)
    good = np.bincount(page.container, weight * label, minlength=size)
    for sums in (own, good):
        running = np.concatenate(([0.0], np.cumsum(sums)))
        sums[:] = running[page.end] - running[:-1]
    words_of = [name_words(name) for name in page.names]
    for name, all_weight, good_weight in zip(page.name_of, own.tolist(), good.tolist(), strict=True):
        if all_weight > 0:
            for word in words_of[name]:
                entry = names[word]
                entry[0] += all_weight
                entry[1] += good_weight
    texts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for words, share, some in zip(page.words, label.tolist(), (weight > 0).tolist(), strict=True):
        if some:
            for word in set(words):
                entry = texts[word]
                entry[0] += 1
                entry[1] += share
    return WordCounts(host, {k: (v[0], v[1]) for k, v in names.items()}, {k: (v[0], v[1]) for k, v in texts.items()})


def name_odds(counts: Iterable[WordCounts], least_hosts: int = LEAST_HOSTS) -> dict[str, float]:
    """Log-odds of the words in names, relative to all words."""
    return _odds([(page.host, page.names) for page in counts], least_hosts)


def text_odds(counts: Iterable[WordCounts], least_hosts: int = LEAST_HOSTS) -> dict[str, float]:
    """Log-odds of the words in short texts, relative to all words."""
    return _odds([(page.host, page.texts) for page in counts], least_hosts)


def _odds(pages: Sequence[tuple[str, dict[str, tuple[float, float]]]], least_hosts: int) -> dict[str, float]:
    """Each host counts once for a word, by the mean share of its blocks."""
    by_word: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for host, words in pages:
        for word, (weight, good) in words.items():
            entry = by_word[word].setdefault(host, [0.0, 0.0])
            entry[0] += weight
            entry[1] += good
    known = {word: hosts for word, hosts in by_word.items() if len(hosts) >= least_hosts}
    shares = {word: [good / weight for weight, good in hosts.values()] for word, hosts in known.items()}
    every = [share for values in shares.values() for share in values]
    average = sum(every) / max(len(every), 1)
    odds = {}
    for word in sorted(shares):
        share = (sum(shares[word]) + _PRIOR * average) / (len(shares[word]) + _PRIOR)
        odds[word] = round(float(np.log(share / (1 - share)) - np.log(average / (1 - average))), 2)
    return odds
