"""The model of main text: how probable it is of each block of a page that it belongs to the page's main text.

Two passes of boosted trees. The first sees a block's text, neighbours and markup; the second, in addition, what the
first found around the block: in the same container, in blocks with the same markup, before and after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from owt_pipeline.extract.features import PageView
from owt_pipeline.extract.forest import Forest
from owt_pipeline.extract.lexicon import Odds, lexical
from owt_pipeline.extract.surroundings import contextual

PATH = Path(__file__).with_name("model.npz")


@dataclass(frozen=True)
class Model:
    """A forest a pass, and the log-odds of words in names and short texts."""

    first: Forest
    second: Forest
    odds: Odds

    def probabilities(self, page: PageView) -> np.ndarray:
        """For each block of the page."""
        values = np.concatenate((page.static, lexical(page, self.odds)), axis=1)
        p = self.first.probabilities(values)
        return self.second.probabilities(np.concatenate((values, contextual(page, p)), axis=1))


@lru_cache(maxsize=1)
def load() -> Model:
    """The model that comes with the package."""
    return read(PATH)


def digest() -> str:
    """SHA-256 of the model's file: it decides what is extracted."""
    return hashlib.sha256(PATH.read_bytes()).hexdigest()


def read(path: Path) -> Model:
    """The model in a file that `write` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return Model(
            first=_forest(arrays, "first"),
            second=_forest(arrays, "second"),
            odds=Odds(_odds(arrays, "name"), _odds(arrays, "text")),
        )


def write(model: Model, path: Path) -> None:
    """Write `model` as arrays; the same model gives the same bytes."""
    arrays: dict[str, np.ndarray] = {}
    for name, forest in (("first", model.first), ("second", model.second)):
        arrays[f"{name}_features"] = forest.features
        arrays[f"{name}_cuts"] = forest.cuts
        arrays[f"{name}_leaves"] = forest.leaves
        arrays[f"{name}_base"] = np.array(forest.base)
    for name, odds in (("name", model.odds.names), ("text", model.odds.texts)):
        arrays[f"{name}_words"] = np.frombuffer("\n".join(odds).encode(), dtype=np.uint8)
        arrays[f"{name}_odds"] = np.array([round(100 * value) for value in odds.values()], dtype=np.int16)
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _forest(arrays: Mapping[str, np.ndarray], name: str) -> Forest:
    features, cuts, leaves = (arrays[f"{name}_{part}"] for part in ("features", "cuts", "leaves"))
    return Forest(features, cuts, leaves, int(arrays[f"{name}_base"]))


def _odds(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, float]:
    words = arrays[f"{name}_words"].tobytes().decode().split("\n")
    return dict(zip(words, (arrays[f"{name}_odds"] / 100).tolist(), strict=True))
