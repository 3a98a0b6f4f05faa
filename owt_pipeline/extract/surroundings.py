"""What a first judgement of a page's blocks says of each one's surroundings, and of the page."""

from __future__ import annotations

import re

import numpy as np

from owt_pipeline.extract.features import Columns, PageView, Tree, grouped, matrix, shift, window

_WORD = re.compile(r"\w{4,}|[\u3040-\u9fff\uac00-\ud7af]{2}")
_ASCII_WORD = re.compile(r"[a-z\d_]{4,}")  # the same, in half the time, of text in lower case
_START = 300  # characters whose words are looked up


def contextual(page: PageView, p: np.ndarray) -> np.ndarray:
    """What the first pass's probabilities `p` (n) say of a block's surroundings (n, features)."""
    weight = page.weight
    mass = weight * p
    tree = Tree(page.container, page.parent, page.end)
    columns: Columns = [p]
    for signature in page.signatures:
        columns.append((grouped(signature, mass) / np.maximum(grouped(signature, weight), 1))[signature])
    weights, masses = tree.below(weight), tree.below(mass)
    total = max(float(masses[0]), 1e-6)
    for level in tree.levels(4):
        columns.append((masses / np.maximum(weights, 1))[level])
        columns.append((masses / total)[level])
    for reach in (1, 2, 5, 10):
        columns.append(window(mass, reach) / np.maximum(window(weight, reach), 1))
    columns += [shift(p, 1), shift(p, -1), shift(p, 2), shift(p, -2)]
    columns += _of_runs(mass, p)
    for share in (0.5, 0.8, 0.95):
        target = int(np.flatnonzero(masses >= share * masses[0])[-1])
        columns.append(_distance(page, target)[page.container])
        columns.append(weights[target] / max(float(weights[0]), 1.0))
    before = np.cumsum(mass)
    columns += [before / total, (before - mass) / total]
    columns += _of_page(weight, p)
    in_comments = float(mass[page.in_comments].sum())
    columns += [in_comments / total, float(masses[0]) - in_comments]
    columns.append(_overlap(page, p))
    return matrix(columns, len(p))


def expected_f1(weight: np.ndarray, p: np.ndarray) -> float:
    """The largest F1 to be expected of any cut: blocks are kept in order of their probability `p`."""
    order = np.argsort(-p, kind="stable")
    kept = np.cumsum(weight[order])
    found = np.cumsum((weight * p)[order])
    return float(np.max(2 * found / (kept + found[-1] + 1e-9))) if len(p) else 0.0


def _of_runs(mass: np.ndarray, p: np.ndarray) -> Columns:
    """Runs of likely blocks: each one's own, the heaviest, and how far it is."""
    likely = p > 0.5
    starts = np.flatnonzero(np.diff(likely, prepend=~likely[:1]))
    run = np.cumsum(np.bincount(starts, minlength=len(p))) - 1
    weights = np.bincount(run, mass)
    masses = np.where(likely[starts], weights, 0)
    heaviest = int(np.argmax(masses))
    begin = int(starts[heaviest])
    finish = int(starts[heaviest + 1]) - 1 if heaviest + 1 < len(starts) else len(p) - 1
    position = np.arange(len(p))
    total = max(float(mass.sum()), 1e-6)
    lengths = np.bincount(run)
    first = int(np.argmax(likely)) if likely.any() else 0
    last = len(p) - 1 - int(np.argmax(likely[::-1])) if likely.any() else len(p) - 1
    return [
        (weights / total)[run],
        lengths[run] * np.where(likely, 1, -1),
        masses[heaviest] / total,
        np.maximum(position - finish, 0),
        np.maximum(begin - position, 0),
        position - first,
        last - position,
    ]


def _of_page(weight: np.ndarray, p: np.ndarray) -> Columns:
    mass = weight * p
    total = max(float(mass.sum()), 1e-6)
    return [
        expected_f1(weight, p),
        total / max(float(weight.sum()), 1.0),
        float(p.max()),
        total,
        float((weight * p * (1 - p)).sum()) / total,
    ]


def _overlap(page: PageView, p: np.ndarray) -> np.ndarray:
    """The share of the words at a block's start that are in other text that surely belongs to the page's."""
    sure = (p > 0.7).tolist()
    in_some: set[str] = set()
    in_two: set[str] = set()
    for text, likely in zip(page.texts, sure, strict=True):
        if likely:
            words = set(_words(text.lower()))
            in_two |= in_some & words
            in_some |= words
    known, twice = in_some.__contains__, in_two.__contains__
    shares = []
    for text, likely in zip(page.texts, sure, strict=True):
        start = _words(text[: _START + 1].lower()[:_START])
        # Of likely text, its own words do not count.
        shares.append(sum(map(twice if likely else known, start)) / len(start) if start else -1.0)
    return np.array(shares)


def _words(text: str) -> list[str]:
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def _distance(page: PageView, target: int) -> np.ndarray:
    """For each container, how many levels above `target` the innermost one is that holds both."""
    steps = np.zeros(len(page.parent) + 1, dtype=np.int64)
    around = target
    while around >= 0:
        steps[around] += 1
        steps[page.end[around]] -= 1
        around = int(page.parent[around])
    shared: np.ndarray = np.cumsum(steps[:-1])
    return shared[target] - shared
