"""Fitting the model on examples.

The second pass learns from the first pass' results on pages that the first was not fitted on, and
both from log-odds of words counted on other pages; otherwise they would trust these features more
than they can on new pages. So the examples are split by host into FOLDS, and each fold's features
come from models fitted on the others.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np

from owt_pipeline.stages.extract.content.features import PageView
from owt_pipeline.stages.extract.content.model import (
    Forest,
    Model,
    Odds,
    contextual,
    lexical,
    page_row,
    probabilities,
)

from .boosting import Growth, binned, borders, fit
from .examples import Example, WordCounts, example
from .labelled_pages import LabelledPage

FOLDS = 4
# A word has log-odds if it is seen on as many sites.
_MIN_HOSTS = 6
# Every word is taken to have been seen on as many further sites with the average share.
_NUM_PRIOR_HOSTS = 3.0
_ARTICLE_KINDS = ("article", "readability")
# The set has pages of many kinds, but does not declare them.
_UNKNOWN_KINDS = ("trafilatura",)
# A block with this probability belongs to the main text.
_LIKELY = 0.5


@dataclass(frozen=True)
class Recipe:
    """The parameters of a model.

    Attributes:
      first: of the first pass, which is fitted once for each fold.
      second: of the second pass, which is fitted `num_second` times.
      pages: of the forest of pages, which is fitted once.
    """

    first: Growth
    second: Growth
    pages: Growth
    num_second: int = 1


RECIPE = Recipe(
    first=Growth(trees=40, rate=0.2),
    second=Growth(trees=160, rate=0.2, rows=50_000),
    # Pages are few: with a ridge as for blocks, the probabilities of articles are too moderate.
    pages=Growth(trees=60, depth=4, rate=0.2, rows=4000, ridge=5.0),
    num_second=2,
)
_SMALL = Recipe(
    first=Growth(trees=40, rate=0.2), second=Growth(trees=100), pages=Growth(trees=20, depth=4)
)


def fit_model(examples: Sequence[Example], seed: int = 0, recipe: Recipe = RECIPE) -> Model:
    """Return a model of `examples`; the same arguments give the same model."""
    table = _Table(examples)
    folds = [labelled.page.fold(FOLDS, seed) for labelled in examples]
    odds = OddsTable([labelled.words for labelled in examples], folds)
    odds_without_fold = [odds.odds(fold) for fold in range(FOLDS)]
    words = []
    for labelled, fold in zip(examples, folds, strict=True):
        words.append(lexical(labelled.view, odds_without_fold[fold]))
    table.add(np.concatenate([labelled.view.static for labelled in examples]))
    table.add(np.concatenate(words))
    surroundings: list[np.ndarray] = [np.empty(0)] * len(examples)
    rows: list[np.ndarray] = [np.empty(0)] * len(examples)
    first_forests = []
    for fold in range(FOLDS):
        is_learnt = [other != fold for other in folds]
        forest = table.fit(is_learnt, recipe.first, 100 * seed + fold)
        first_forests.append(forest)
        for index, labelled in enumerate(examples):
            if folds[index] != fold:
                continue
            values = np.concatenate((labelled.view.static, words[index]), axis=1)
            p = probabilities(forest, values)
            surroundings[index], shared = contextual(labelled.view, p)
            rows[index] = page_row(labelled.view, shared)
    table.add(np.concatenate(surroundings))
    second_forests = []
    for number in range(recipe.num_second):
        second_seed = 100 * seed + 20 + number
        second_forests.append(table.fit([True] * len(examples), recipe.second, second_seed))
    pages = _fit_pages(examples, np.stack(rows), recipe.pages, 100 * seed + 40)
    return Model(_joined(first_forests), _joined(second_forests), pages, odds.odds())


def _fit_pages(examples: Sequence[Example], rows: np.ndarray, growth: Growth, seed: int) -> Forest:
    """Return a forest that separates articles from other pages, fitted on pages of known kind."""
    kinds = [example.page.kind for example in examples]
    has_kind = [kind not in _UNKNOWN_KINDS for kind in kinds]
    known_kinds = [kind for kind in kinds if kind not in _UNKNOWN_KINDS]
    values = rows[has_kind]
    labels = np.array([float(kind in _ARTICLE_KINDS) for kind in known_kinds])
    weights = np.ones(len(known_kinds))
    thresholds = borders(values, weights)
    return fit(binned(values, thresholds), thresholds, labels, weights, growth, seed)


def examples(pages: Sequence[LabelledPage], cache: Path | None = None) -> list[Example]:
    """Return the usable examples among `pages`.

    They are stored in the file `cache`, or read from it if it exists.
    """
    if cache is not None and cache.exists():
        # Of another version of the code, which has moved or renamed a class.
        with contextlib.suppress(AttributeError, ModuleNotFoundError), open(cache, "rb") as file:
            return list(pickle.load(file))
    labelled: list[Example] = []
    for page in pages:
        if page.truth is not None and (usable := example(page, lambda view: [])) is not None:
            labelled.append(usable)
    model = fit_model(labelled, 0, _SMALL)
    for page in pages:
        if page.truth is None:
            usable = example(page, partial(_opinions, page.html, model))
            if usable is not None:
                labelled.append(usable)
    if cache is not None:
        with open(cache, "wb") as file:
            pickle.dump(labelled, file, pickle.HIGHEST_PROTOCOL)
    return labelled


def _opinions(html: str, model: Model, view: PageView) -> list[str]:
    """Return the main text of a page by trafilatura in two modes and by a small model."""
    from trafilatura import extract

    is_likely = (model.judge(view)[0] >= _LIKELY).tolist()
    likely_texts = list(compress(view.texts, is_likely))
    return [
        extract(html, include_comments=False) or "",
        extract(html, include_comments=False, favor_precision=True) or "",
        "\n".join(likely_texts),
    ]


class _Table:
    """The features of the blocks of all examples, as bins."""

    def __init__(self, examples: Sequence[Example]):
        self._labels = np.concatenate([labelled.label for labelled in examples])
        self._weights = np.concatenate([labelled.weight for labelled in examples])
        self._lengths = [len(labelled.label) for labelled in examples]
        self._thresholds: list[np.ndarray] = []
        self._bins = np.empty((0, len(self._labels)), dtype=np.uint8)

    def add(self, values: np.ndarray) -> None:
        """Add features (rows, features)."""
        thresholds = borders(values, self._weights)
        self._thresholds += thresholds
        self._bins = np.concatenate((self._bins, binned(values, thresholds)))

    def fit(self, is_learnt: list[bool], growth: Growth, seed: int) -> Forest:
        """Return a forest fitted to the examples for which `is_learnt` is true."""
        is_row_learnt = np.repeat(is_learnt, self._lengths)
        rows = np.flatnonzero(is_row_learnt & (self._weights > 0))
        return fit(
            bins=np.ascontiguousarray(self._bins[:, rows]),
            thresholds=self._thresholds,
            labels=self._labels[rows],
            weights=self._weights[rows],
            growth=growth,
            seed=seed,
        )


class OddsTable:
    """Odds from the words of all pages, or of the pages outside one fold.

    All pages of a host are in one fold.
    """

    def __init__(self, pages: Sequence[WordCounts], folds: Sequence[int]):
        fold_by_host = {page.host: fold for page, fold in zip(pages, folds, strict=True)}
        self._names = _Shares([(page.host, page.names) for page in pages], fold_by_host)
        self._texts = _Shares([(page.host, page.texts) for page in pages], fold_by_host)

    def odds(self, without: int = -1) -> Odds:
        """Return the log-odds of words, relative to all words, on pages outside fold `without`."""
        return Odds(self._names.odds(without), self._texts.odds(without))


class _Shares:
    """For each word, the mean over hosts of the share of its blocks; each host counts once."""

    def __init__(
        self,
        pages: Sequence[tuple[str, dict[str, tuple[float, float]]]],
        fold_by_host: Mapping[str, int],
    ):
        # For each word and host the weight, and the part of it that belongs to the main text.
        sums_by_word: dict[str, dict[str, list[float]]] = defaultdict(dict)
        for host, words in pages:
            for word, (weight, main_weight) in words.items():
                sums = sums_by_word[word].setdefault(host, [0.0, 0.0])
                sums[0] += weight
                sums[1] += main_weight
        frequent_words = [word for word, hosts in sums_by_word.items() if len(hosts) >= _MIN_HOSTS]
        self._words = sorted(frequent_words)
        rows: list[tuple[int, int, float]] = []
        for number, word in enumerate(self._words):
            for host, (weight, main_weight) in sums_by_word[word].items():
                rows.append((number, fold_by_host[host], main_weight / weight))
        table = np.array(rows, dtype=np.float64).reshape(-1, 3)
        self._word_numbers = table[:, 0].astype(np.intp)
        self._folds = table[:, 1]
        self._shares = table[:, 2]

    def odds(self, without: int) -> dict[str, float]:
        """Return the log-odds of the words that are frequent outside fold `without`."""
        is_counted = self._folds != without
        word_numbers = self._word_numbers[is_counted]
        num_hosts = np.bincount(word_numbers, minlength=len(self._words))
        sums = np.bincount(word_numbers, self._shares[is_counted], minlength=len(self._words))
        is_frequent = num_hosts >= _MIN_HOSTS
        average = sums[is_frequent].sum() / max(num_hosts[is_frequent].sum(), 1)
        shares = (sums + _NUM_PRIOR_HOSTS * average) / (num_hosts + _NUM_PRIOR_HOSTS)
        average_odds = np.log(average / (1 - average))
        odds_by_word = {}
        numbers = np.flatnonzero(is_frequent).tolist()
        for number, share in zip(numbers, shares[is_frequent], strict=True):
            odds = float(np.log(share / (1 - share)) - average_odds)
            odds_by_word[self._words[number]] = round(odds, 2)
        return odds_by_word


def _joined(forests: Sequence[Forest]) -> Forest:
    """Return one forest with the mean scores of `forests`, which have the same depth."""
    leaves = np.concatenate([forest.leaves for forest in forests]) / len(forests)
    return Forest(
        features=np.concatenate([forest.features for forest in forests]),
        cuts=np.concatenate([forest.cuts for forest in forests]),
        leaves=np.rint(leaves).astype(np.int32),
        base=round(sum(forest.base for forest in forests) / len(forests)),
    )


def write(model: Model, path: Path) -> None:
    """Write `model` as arrays; the same model gives the same bytes."""
    arrays: dict[str, np.ndarray] = {}
    forests = {"first": model.first, "second": model.second, "pages": model.pages}
    for name, forest in forests.items():
        arrays[f"{name}_features"] = forest.features
        arrays[f"{name}_cuts"] = forest.cuts
        arrays[f"{name}_leaves"] = forest.leaves
        arrays[f"{name}_base"] = np.array(forest.base)
    for name, odds in {"name": model.odds.names, "text": model.odds.texts}.items():
        words = "\n".join(odds).encode()
        hundredths = [round(100 * value) for value in odds.values()]
        arrays[f"{name}_words"] = np.frombuffer(words, dtype=np.uint8)
        arrays[f"{name}_odds"] = np.array(hundredths, dtype=np.int16)
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
