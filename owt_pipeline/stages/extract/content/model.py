"""The model of main text: the probability of each block that it belongs to the page's main text.

It has two passes of boosted trees. The first uses a block's text, neighbours and markup, and words:
those in the names of the containers around it, in its own text if short, and in the heading above
it. Each word has log-odds: how much more often than on average a block with this word belongs to
the main text (counted by `benchmarks/extraction_model/fitting.py`). The second pass also uses the
probabilities of the first around the block: in the same container, in blocks with the same markup,
before and after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, compress, repeat
from pathlib import Path

import numpy as np

from owt_pipeline.stages.extract.content.arrays import Columns, matrix, shifts, table, windows
from owt_pipeline.stages.extract.content.containers import Tree
from owt_pipeline.stages.extract.content.features import PageView
from owt_pipeline.stages.extract.html.names import COMMENT_WORDS, read_name

PATH = Path(__file__).with_name("model.npz")


@dataclass(frozen=True)
class Model:
    """The forest of each pass, the forest of pages, and the log-odds of words."""

    first: Forest
    second: Forest
    pages: Forest
    odds: Odds

    def judge(self, page: PageView) -> tuple[np.ndarray, float]:
        """Return the probability of each block, and that the page is an article."""
        values = np.concatenate((page.static.T, lexical(page, self.odds).T))
        p = probabilities(self.first, values.T)
        surroundings, shared = contextual(page, p)
        values = np.concatenate((values, surroundings.T))
        article = probabilities(self.pages, page_row(page, shared)[None])
        return probabilities(self.second, values.T), float(article[0])


@lru_cache(maxsize=1)
def load() -> Model:
    """Return the packaged model."""
    return read(PATH)


def digest() -> str:
    """Return the SHA-256 of the packaged model's file."""
    return hashlib.sha256(PATH.read_bytes()).hexdigest()


def read(path: Path) -> Model:
    """Return the model in a file written by `benchmarks/extraction_model/fitting.py`."""
    with np.load(path, allow_pickle=False) as arrays:
        return Model(
            first=_forest(arrays, "first"),
            second=_forest(arrays, "second"),
            pages=_forest(arrays, "pages"),
            odds=Odds(_odds(arrays, "name"), _odds(arrays, "text")),
        )


def _forest(arrays: Mapping[str, np.ndarray], name: str) -> Forest:
    return Forest(
        features=arrays[f"{name}_features"],
        cuts=arrays[f"{name}_cuts"],
        leaves=arrays[f"{name}_leaves"],
        base=int(arrays[f"{name}_base"]),
    )


def _odds(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, float]:
    words = arrays[f"{name}_words"].tobytes().decode().split("\n")
    return dict(zip(words, (arrays[f"{name}_odds"] / 100).tolist(), strict=True))


_MAX_CACHED_NAMES = 50_000
_NO_KNOWN_WORD = (0.0, 0.0, 0.0)
# Words of longer texts have no log-odds.
_MAX_SHORT_CHARS = 160
# The words of a block that are looked up in others.
_NUM_FIRST_WORDS = 50
# A word of at most this length may occur in any text.
_MAX_COMMON_WORD_CHARS = 3
# From the first probability on, a block surely is main text; up to the second, it surely is not.
_SURE = 0.7
_UNLIKELY = 0.02


def lexical(page: PageView, odds: Odds) -> np.ndarray:
    """Return features (n, 13) from the log-odds of words around a block and in short texts.

    The words around a block are those in the names of its containers.
    """
    paths = page.paths
    odds_of_names = [odds.of_name(name) for name in paths.names]
    # For each path the lowest and the highest log-odds, the sum, the mean of the nearest name with
    # known words, and the mean of the last name.
    rows: list[tuple[float, ...]] = []
    for name, parent in zip(paths.name_of, paths.parent, strict=True):
        low, high, mean = odds_of_names[name]
        if parent < 0:
            rows.append((low, high, mean, mean, mean))
            continue
        lowest, highest, total, nearest, _ = rows[parent]
        # Comparisons are faster than min and max.
        if low < lowest:
            lowest = low
        if high > highest:
            highest = high
        rows.append((lowest, highest, total + mean, mean or nearest, mean))
    inherited = table(rows, np.float32)
    path_above = np.maximum(np.array(paths.parent), 0)
    first = path_above[page.path_of_block]
    second = path_above[first]
    of_texts = odds.of_texts(page.words, page.counts.chars)
    of_headings = np.where(page.heading >= 0, of_texts[::2, page.heading], 0)
    return np.concatenate(
        (
            inherited[:, page.path_of_block],
            inherited[4:, first],
            inherited[4:, second],
            inherited[2:3, second],
            of_texts,
            of_headings,
        )
    ).T


def short_words(words: Sequence[bytes], chars: float) -> list[bytes]:
    """Return the words of a text that have log-odds.

    They are the words of a short text, and its first two together; `chars` is its length.
    """
    if chars > _MAX_SHORT_CHARS or not words:
        return []
    return [*words, b" ".join(words[:2])] if len(words) > 1 else list(words)


class Odds:
    """Log-odds of the words in containers' names and in short texts.

    Names are cached, since pages have many containers of the same name.

    Attributes:
      names: the log-odds of words in names.
      texts: the log-odds of words in short texts.
    """

    def __init__(self, names: Mapping[str, float], texts: Mapping[str, float]):
        self.names = names
        self.texts = texts
        self._of_word = {word.encode(): value for word, value in texts.items()}
        self._of_class_word = {word: (word, value) for word, value in names.items()}
        if "comments" in names:
            # Words for comments in other languages count as the English one.
            for word in COMMENT_WORDS:
                self._of_class_word.setdefault(word, ("comments", names["comments"]))
        self.of_name = lru_cache(_MAX_CACHED_NAMES)(self._of_name)
        """Lowest, highest and mean log-odds of the words in a container's name."""

    def _of_name(self, name: str) -> tuple[float, float, float]:
        tag, _, classes = name.partition(" ")
        odds = {tag: self.names[tag]} if tag in self.names else {}
        for class_name in classes.split():
            for word in read_name(class_name)[1]:
                if word in self._of_class_word:
                    known_word, value = self._of_class_word[word]
                    odds[known_word] = value
        if not odds:
            return _NO_KNOWN_WORD
        values = odds.values()
        return min(values), max(values), sum(values) / len(values)

    def of_texts(self, words: Sequence[Sequence[bytes]], chars: np.ndarray) -> np.ndarray:
        """Return the lowest, highest and mean log-odds of the words of each text (3, texts).

        Unknown words have 0, and so have texts that are not short.
        """
        texts = list(map(short_words, words, chars.tolist()))
        counts = np.array(list(map(len, texts)))
        odds = np.zeros((3, len(texts)), dtype=np.float32)
        short = np.flatnonzero(counts)
        if not len(short):
            return odds
        values = np.fromiter(
            map(self._of_word.get, chain.from_iterable(texts), repeat(0.0)), np.float64
        )
        lengths = counts[short]
        starts = lengths.cumsum() - lengths
        odds[0, short] = np.minimum.reduceat(values, starts)
        odds[1, short] = np.maximum.reduceat(values, starts)
        sums = np.bincount(np.repeat(np.arange(len(short)), lengths), values)
        odds[2, short] = sums / lengths
        return odds


def page_row(page: PageView, shared: list[float]) -> np.ndarray:
    """Return the features of a page for the forest of pages: those that all its blocks share."""
    return np.array([*page.shared, *shared], dtype=np.float32)


def contextual(page: PageView, p: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return features of the probabilities around each block, and those that all blocks share.

    `p` (n) is the probabilities of the first pass; the features are (n, features).
    """
    weight = page.counts.words
    tree = page.tree
    mass = weight * p
    columns: Columns = [p]
    for signature in page.signatures:
        weights_of_signature = np.maximum(np.bincount(signature, weight), 1)
        means = np.bincount(signature, mass) / weights_of_signature
        columns.append(means[signature])
    weights = tree.below(weight)
    masses = tree.below(mass)
    total = max(float(masses[0]), 1e-6)
    shares = np.array((masses / np.maximum(weights, 1), masses / total))
    columns += [shares.take(level, axis=1) for level in tree.levels(4)]
    for window in windows(np.array((mass, weight)), (1, 2, 5, 10)):
        columns.append(window[0] / np.maximum(window[1], 1))
    columns += shifts(p[None], (1, -1, 2, -2))
    run_columns, heaviest = _of_runs(mass, p)
    columns += run_columns
    total_weight = max(float(weights[0]), 1.0)
    shared = [heaviest / total]
    for share in (0.5, 0.8, 0.95):
        # The innermost container with this share of the mass.
        target = int(np.flatnonzero(masses >= share * masses[0])[-1])
        columns.append(_distance(tree, target)[tree.container_of_block])
        shared.append(float(weights[target]) / total_weight)
    mass_until = mass.cumsum()
    columns += [mass_until / total, (mass_until - mass) / total]
    shared += _shared_by_page(page, p, total, float(masses[0]))
    columns.append(_overlap(page, p))
    columns.append(np.array(shared)[:, None])
    return matrix(columns, len(p)), shared


def _shared_by_page(page: PageView, p: np.ndarray, total: float, mass: float) -> list[float]:
    """Return features of a page's probabilities.

    `mass` is the expected number of words of main text, and `total` the same or a little more
    than 0.
    """
    weight = page.counts.words
    masses = weight * p
    in_comments = float(masses[page.in_comments].sum())
    unsure = float((masses * (1 - p)).sum())
    return [
        expected_f1(weight, p),
        total / max(float(weight.sum()), 1.0),
        float(p.max()),
        total,
        unsure / total,
        in_comments / total,
        mass - in_comments,
    ]


def _of_runs(mass: np.ndarray, p: np.ndarray) -> tuple[Columns, float]:
    """Return features of runs of likely blocks, and the mass of the heaviest run.

    The features are the mass and the length of the block's own run, and the distances to the
    heaviest run and to the first and the last likely block.
    """
    count = len(p)
    position = np.arange(count)
    likely = p > 0.5
    starts = np.flatnonzero(np.concatenate(([True], likely[1:] != likely[:-1])))
    lengths = np.diff(starts, append=count)
    run = np.repeat(np.arange(len(starts)), lengths)
    masses = np.bincount(run, mass)
    likely_masses = np.where(likely[starts], masses, 0.0)
    heaviest = int(likely_masses.argmax())
    begin = int(starts[heaviest])
    end = begin + int(lengths[heaviest]) - 1
    likely_blocks = np.flatnonzero(likely)
    first = 0
    last = count - 1
    if len(likely_blocks):
        first = likely_blocks[0]
        last = likely_blocks[-1]
    total = max(float(mass.sum()), 1e-6)
    columns = [
        (masses / total)[run],
        np.where(likely[starts], lengths, -lengths)[run],
        np.maximum(position - end, 0),
        np.maximum(begin - position, 0),
        position - first,
        last - position,
    ]
    return columns, float(likely_masses[heaviest])


def expected_f1(weight: np.ndarray, p: np.ndarray) -> float:
    """Return the expected F1 of the best cut, if blocks are kept in order of their probability."""
    if not len(p):
        return 0.0
    order = (-p).argsort(kind="stable")
    kept = weight[order].cumsum()
    shared = (weight * p)[order].cumsum()
    return float(np.max(2 * shared / (kept + shared[-1] + 1e-9)))


def _overlap(page: PageView, p: np.ndarray) -> np.ndarray:
    """Return the share of words at each block's start that are long and occur in sure main text.

    It is -1 for sure blocks, which need no look-up.
    """
    sure_words = set().union(*compress(page.words, (p > _SURE).tolist()))
    long_words = {word for word in sure_words if len(word) > _MAX_COMMON_WORD_CHARS}
    shares = np.full(len(p), -1.0)
    for index in np.flatnonzero((p > _UNLIKELY) & (p <= _SURE)).tolist():
        start = page.words[index][:_NUM_FIRST_WORDS]
        if start:
            shares[index] = sum(map(long_words.__contains__, start)) / len(start)
    return shares


def _distance(tree: Tree, target: int) -> np.ndarray:
    """Return for each container the number of levels from `target` up to what holds both."""
    steps = np.zeros(len(tree.parent) + 1, dtype=np.int64)
    ancestor = target
    while ancestor >= 0:
        steps[ancestor] += 1
        steps[tree.end[ancestor]] -= 1
        ancestor = int(tree.parent[ancestor])
    shared: np.ndarray = steps[:-1].cumsum()
    return shared[target] - shared


SCALE = 1 << 12
"""Scores are log-odds times this as integers, so that their sums do not depend on the order of
addition."""

# Rows evaluated together, so that a page of 100,000 blocks does not take a gigabyte.
_MAX_ROWS = 2048
_STEP = SCALE >> 6
_ODDS = np.arange(-16 * SCALE, 16 * SCALE + 1, _STEP) / SCALE
_PROBABILITIES = np.rint(4096 / (1 + np.exp(-_ODDS))) / 4096
"""Probabilities of scores in steps of 1/64, rounded so that they are the same on every
processor."""


@dataclass(frozen=True)
class Forest:
    """Trees that each ask `depth` questions of a row; the leaf number is the sum of 2^i over
    questions i answered yes.

    Attributes:
      features, cuts (trees, depth): question i of a tree is whether that feature is above that
        value.
      leaves (trees, 2^depth): the scores that a tree adds.
      base: the score without trees.
    """

    features: np.ndarray
    cuts: np.ndarray
    leaves: np.ndarray
    base: int

    def scores(self, values: np.ndarray) -> np.ndarray:
        """Return the log-odds of each column of `values` (features, rows), in units of 1/SCALE."""
        features, cuts, numbers = self._questions
        answers = np.greater(values.take(features, axis=0), cuts).view(np.uint8)
        leaf = answers.take(numbers[-1], axis=0)
        answer = np.empty_like(leaf)
        for question in numbers[-2::-1]:
            # Added, since numpy does not vectorise shifts.
            np.add(leaf, leaf, out=leaf)
            # The mode "raise" would copy.
            answers.take(question, axis=0, out=answer, mode="clip")
            np.bitwise_or(leaf, answer, out=leaf)
        index = leaf.astype(np.intp)
        index += np.arange(0, self.leaves.size, self.leaves.shape[1])[:, None]
        # 32 bits are twice as fast, and 500 trees of leaves below 2^20 cannot overflow.
        sums = self.leaves.ravel().take(index).sum(axis=0, dtype=np.int32)
        scores: np.ndarray = self.base + sums
        return scores

    @cached_property
    def _questions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Feature and cut of each distinct question, and the numbers of each tree's questions
        (depth, trees)."""
        questions = np.stack((self.features.ravel().astype(np.float64), self.cuts.ravel()))
        unique, numbers = np.unique(questions, axis=1, return_inverse=True)
        numbers = np.ascontiguousarray(numbers.reshape(self.features.shape).T)
        return unique[0].astype(np.intp), unique[1].astype(np.float32)[:, None], numbers


def probabilities(forest: Forest, values: np.ndarray) -> np.ndarray:
    """Return for each row of `values` (rows, features) the probability of a positive label."""
    parts = []
    for start in range(0, len(values), _MAX_ROWS):
        columns = np.ascontiguousarray(values[start : start + _MAX_ROWS].T)
        # The table begins at log-odds of -16. Scores beyond its ends get the values at the ends.
        steps = (forest.scores(columns) + 16 * SCALE) // _STEP
        parts.append(_PROBABILITIES.take(steps, mode="clip"))
    return np.concatenate(parts)
