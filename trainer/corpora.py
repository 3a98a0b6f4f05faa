"""The token datasets a run learns from: one, or several mixed by weight."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas import SettingsError
from trainer.data import make_sampler, mix
from trainer.errors import ShardError
from trainer.samplers import Sampler
from trainer.shards import TokenDataset, TokenizerInfo, open_dataset

_MIX_KEY = 0x4D4958  # sets the places of the corpora apart from those of longbiased's two kinds


@dataclass(frozen=True)
class Corpora:
    """Token datasets of one tokenizer, and the share of the samples that each gives (they sum to 1).

    Which corpus sample i is from, and which of its samples, follows from (seed, i) as all else does, and
    each corpus is read in its own order: a corpus with a small share comes round less often.
    """

    datasets: tuple[TokenDataset, ...]
    shares: tuple[float, ...]

    @property
    def tokenizer(self) -> TokenizerInfo:
        return self.datasets[0].tokenizer

    @property
    def digest(self) -> str:
        """The dataset's own digest, or one over those of all and their shares."""
        if len(self.datasets) == 1:
            return self.datasets[0].digest
        lines = "".join(f"{d.digest}  {share!r}\n" for d, share in zip(self.datasets, self.shares, strict=True))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def epoch_tokens(self) -> int:
        """Tokens to predict in one pass over every document, each with its end-of-text."""
        lengths = [dataset.documents("train").lengths for dataset in self.datasets]
        return sum(int(own.sum()) + len(own) for own in lengths)

    def check_ids(self, windows: np.ndarray) -> None:
        """Raises ShardError where `windows` hold an id outside the vocabulary, naming a document that has it."""
        if windows.max() >= self.tokenizer.vocab_size:
            for dataset in self.datasets:
                dataset.check_ids("train")

    def sampler(self, name: str, context: int, seed: int, **options: Any) -> Sampler:
        """The training samples, by `make_sampler` of each corpus; raises ValueError naming one that is empty."""
        samplers = [make_sampler(dataset, "train", name, context, seed, **options) for dataset in self.datasets]
        return mix(samplers, list(self.shares), seed ^ _MIX_KEY)


def open_corpora(data: str, others: Sequence[str], **options: Any) -> Corpora:
    """The corpus `data`, mixed with `others`, each written FOLDER=SHARE; `data` has the rest of the samples.

    Args:
      options: as of `open_dataset`.

    Raises:
      SettingsError: an entry of another form, or shares of 1 or more in all.
      ShardError: as `open_dataset`, or corpora of different tokenizers.
    """
    entries = [_parse(entry) for entry in others]
    rest = 1 - sum(share for _, share in entries)
    if rest < 0 or (entries and math.isclose(rest, 0, abs_tol=1e-9)):
        raise SettingsError(f"mix: the shares sum to {1 - rest:g}, which leaves nothing of data; give less than 1")
    datasets = tuple(open_dataset(folder, **options) for folder in [data, *(folder for folder, _ in entries)])
    for dataset in datasets[1:]:
        if dataset.tokenizer.sha256 != datasets[0].tokenizer.sha256:
            raise ShardError(
                f"{dataset.folder} has the tokenizer {dataset.tokenizer.name}, {datasets[0].folder} has "
                f"{datasets[0].tokenizer.name} (another SHA-256); tokenize both with one"
            )
    return Corpora(datasets, (rest, *(share for _, share in entries)))


def _parse(entry: str) -> tuple[str, float]:
    folder, _, share = entry.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = math.nan
    if not folder or not 0 < value < 1:
        raise SettingsError(f"mix: {entry!r} is not FOLDER=SHARE with a share between 0 and 1, as wiki/tokens=0.2")
    return folder, value
