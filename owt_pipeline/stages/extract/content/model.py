"""The model of main text: for each block of a page, the probability that it belongs to the
page's main text.

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
    """The packaged model."""
    return read(PATH)


def digest() -> str:
    """SHA-256 of the packaged model's file."""
    return hashlib.sha256(PATH.read_bytes()).hexdigest()


def read(path: Path) -> Model:
    """The model in a file written by `benchmarks/extraction_model/fitting.py`."""
    with np.load(path, allow_pickle=False) as arrays:
        odds = Odds(_odds(arrays, "name"), _odds(arrays, "text"))
        first, second, pages = (_forest(arrays, name) for name in ("first", "second", "pages"))
        return Model(first, second, pages, odds)


def _forest(arrays: Mapping[str, np.ndarray], name: str) -> Forest:
    features, cuts, leaves, base = (
        arrays[f"{name}_{part}"] for part in ("features", "cuts", "leaves", "base")
    )
    return Forest(features, cuts, leaves, int(base))


def _odds(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, float]:
    words = arrays[f"{name}_words"].tobytes().decode().split("\n")
    return dict(zip(words, (arrays[f"{name}_odds"] / 100).tolist(), strict=True))


_NAMES_KNOWN = 50_000
_NO_KNOWN_WORD = (0.0, 0.0, 0.0)
_SHORT = 160  # characters up to which a text's words have log-odds
_START = 50  # words of a block that are looked up in others
_MAX_SHORT_WORD = 3  # characters of a word that any text may contain
# From the first probability on, a block surely is main text; up to the second, it surely is not.
_SURE = 0.7
_UNLIKELY = 0.02


def lexical(page: PageView, odds: Odds) -> np.ndarray:
    """Features (n, 13) from the log-odds of words in the names of the containers around a block
    and in short texts."""
    paths = page.paths
    of_names = [odds.of_name(name) for name in paths.names]
    rows: list[tuple[float, ...]] = []
    for name, around in zip(paths.name_of, paths.parent, strict=True):
        low, high, mean = of_names[name]
        if around < 0:
            rows.append((low, high, mean, mean, mean))
        else:
            lowest, highest, total, nearest, _ = rows[around]
            low, high = (
                low if low < lowest else lowest,
                high if high > highest else highest,
            )  # min and max are slow
            rows.append((low, high, total + mean, mean or nearest, mean))
    inherited = table(rows, np.float32)
    up = np.maximum(np.array(paths.parent), 0)
    first = up[page.path_of_block]
    second = up[first]
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
    """The words of a text that have log-odds: those of a short text, and its first two together."""
    if chars > _SHORT or not words:
        return []
    return [*words, b" ".join(words[:2])] if len(words) > 1 else list(words)


class Odds:
    """Log-odds of the words in containers' names and in short texts.

    Those of names are cached, since pages have many containers of the same name.
    """

    def __init__(self, names: Mapping[str, float], texts: Mapping[str, float]):
        self.names, self.texts = names, texts
        self._of_word = {word.encode(): value for word, value in texts.items()}
        self._of_class_word = {word: (word, value) for word, value in names.items()}
        if "comments" in names:
            # Words for comments in other languages count as the English one.
            for word in COMMENT_WORDS:
                self._of_class_word.setdefault(word, ("comments", names["comments"]))
        self.of_name = lru_cache(_NAMES_KNOWN)(self._of_name)
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
        """Lowest, highest and mean log-odds of the words of each short text (3, texts); 0 for
        unknown words."""
        texts = list(map(short_words, words, chars.tolist()))
        counts = np.array(list(map(len, texts)))
        found = np.zeros((3, len(texts)), dtype=np.float32)
        some = np.flatnonzero(counts)
        if len(some):
            values = np.fromiter(
                map(self._of_word.get, chain.from_iterable(texts), repeat(0.0)), np.float64
            )
            lengths = counts[some]
            starts = lengths.cumsum() - lengths
            found[0, some] = np.minimum.reduceat(values, starts)
            found[1, some] = np.maximum.reduceat(values, starts)
            found[2, some] = np.bincount(np.repeat(np.arange(len(some)), lengths), values) / lengths
        return found


def page_row(page: PageView, shared: list[float]) -> np.ndarray:
    """Return what the forest of pages sees: the features that all blocks of a page share."""
    return np.array([*page.shared, *shared], dtype=np.float32)


def contextual(page: PageView, p: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return features (n, features) of each block's surroundings from the probabilities `p` (n) of
    the first pass, and those of them that all blocks share."""
    weight, tree = page.counts.words, page.tree
    mass = weight * p
    columns: Columns = [p]
    for signature in page.signatures:
        columns.append(
            (np.bincount(signature, mass) / np.maximum(np.bincount(signature, weight), 1))[
                signature
            ]
        )
    weights, masses = tree.below(weight), tree.below(mass)
    total = max(float(masses[0]), 1e-6)
    shares = np.array((masses / np.maximum(weights, 1), masses / total))
    columns += [shares.take(level, axis=1) for level in tree.levels(4)]
    for around in windows(np.array((mass, weight)), (1, 2, 5, 10)):
        columns.append(around[0] / np.maximum(around[1], 1))
    columns += shifts(p[None], (1, -1, 2, -2))
    of_runs, heaviest = _of_runs(mass, p)
    columns += of_runs
    total_weight = max(float(weights[0]), 1.0)
    shared = [heaviest / total]
    for share in (0.5, 0.8, 0.95):
        target = int(np.flatnonzero(masses >= share * masses[0])[-1])
        columns.append(_distance(tree, target)[tree.container_of_block])
        shared.append(float(weights[target]) / total_weight)
    before = mass.cumsum()
    columns += [before / total, (before - mass) / total]
    in_comments = float(mass[page.in_comments].sum())
    unsure = float((mass * (1 - p)).sum())
    shared += [
        expected_f1(weight, p),
        total / max(float(weight.sum()), 1.0),
        float(p.max()),
        total,
        unsure / total,
        in_comments / total,
        float(masses[0]) - in_comments,
    ]
    columns.append(_overlap(page, p))
    columns.append(np.array(shared)[:, None])
    return matrix(columns, len(p)), shared


def _of_runs(mass: np.ndarray, p: np.ndarray) -> tuple[Columns, float]:
    """Return features of runs of likely blocks: the mass and length of the block's own run, and
    the distances to the heaviest run and to the ends of all; and the mass of the heaviest run."""
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
    first, last = (likely_blocks[0], likely_blocks[-1]) if len(likely_blocks) else (0, count - 1)
    total = max(float(mass.sum()), 1e-6)
    return [
        (masses / total)[run],
        np.where(likely[starts], lengths, -lengths)[run],
        np.maximum(position - end, 0),
        np.maximum(begin - position, 0),
        position - first,
        last - position,
    ], float(likely_masses[heaviest])


def expected_f1(weight: np.ndarray, p: np.ndarray) -> float:
    """The expected F1 of the best cut, if blocks are kept in order of their probability `p`."""
    order = (-p).argsort(kind="stable")
    kept = weight[order].cumsum()
    found = (weight * p)[order].cumsum()
    return float(np.max(2 * found / (kept + found[-1] + 1e-9))) if len(p) else 0.0


def _overlap(page: PageView, p: np.ndarray) -> np.ndarray:
    """Return the share of the words at an unsure block's start that are long and occur in blocks
    that surely are main text; -1 for sure blocks, which need no look-up."""
    sure_words = set().union(*compress(page.words, (p > _SURE).tolist()))
    known = {word for word in sure_words if len(word) > _MAX_SHORT_WORD}
    shares = np.full(len(p), -1.0)
    for index in np.flatnonzero((p > _UNLIKELY) & (p <= _SURE)).tolist():
        start = page.words[index][:_START]
        if start:
            shares[index] = sum(map(known.__contains__, start)) / len(start)
    return shares


def _distance(tree: Tree, target: int) -> np.ndarray:
    """For each container, how many levels above `target` the innermost container of both is."""
    steps = np.zeros(len(tree.parent) + 1, dtype=np.int64)
    around = target
    while around >= 0:
        steps[around] += 1
        steps[tree.end[around]] -= 1
        around = int(tree.parent[around])
    shared: np.ndarray = steps[:-1].cumsum()
    return shared[target] - shared


SCALE = 1 << 12
"""Scores are log-odds times this as integers, so that their sums do not depend on the order of
addition."""

_ROWS = 2048  # rows evaluated together, so that a page of 100,000 blocks does not take a gigabyte
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
        """The log-odds, in units of 1/SCALE, of each column of `values` (features, rows)."""
        features, cuts, numbers = self._questions
        answers = np.greater(values.take(features, axis=0), cuts).view(np.uint8)
        leaf = answers.take(numbers[-1], axis=0)
        answer = np.empty_like(leaf)
        for question in numbers[-2::-1]:
            np.add(leaf, leaf, out=leaf)  # numpy does not vectorise shifts
            answers.take(question, axis=0, out=answer, mode="clip")  # mode "raise" would copy
            np.bitwise_or(leaf, answer, out=leaf)
        index = leaf.astype(np.intp)
        index += np.arange(0, self.leaves.size, self.leaves.shape[1])[:, None]
        # 32 bits are twice as fast, and 500 trees of leaves below 2^20 cannot overflow.
        found: np.ndarray = self.base + self.leaves.ravel().take(index).sum(axis=0, dtype=np.int32)
        return found

    @cached_property
    def _questions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Feature and cut of each distinct question, and the numbers of each tree's questions
        (depth, trees)."""
        asked = np.stack((self.features.ravel().astype(np.float64), self.cuts.ravel()))
        unique, numbers = np.unique(asked, axis=1, return_inverse=True)
        numbers = np.ascontiguousarray(numbers.reshape(self.features.shape).T)
        return unique[0].astype(np.intp), unique[1].astype(np.float32)[:, None], numbers


def probabilities(forest: Forest, values: np.ndarray) -> np.ndarray:
    """For each row of `values` (rows, features), the probability of a positive label."""
    found = []
    for start in range(0, len(values), _ROWS):
        steps = (
            forest.scores(np.ascontiguousarray(values[start : start + _ROWS].T)) + 16 * SCALE
        ) // _STEP
        found.append(_PROBABILITIES.take(steps, mode="clip"))
    return np.concatenate(found)
