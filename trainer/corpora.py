"""Token datasets with one tokenizer, mixed by weight: what a run reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import SettingsError
from trainer.config import TrainConfig
from trainer.samplers import Packed, Sampler, longbiased, mix
from trainer.shards import ShardError, TokenDataset, TokenizerInfo, open_dataset


@dataclass(frozen=True)
class Corpora:
    """Token datasets with one tokenizer, and each one's share of the samples (they sum to 1).

    i determines which dataset sample i is from, and which of its samples it is. `tokens` are what
    each dataset has to predict in one pass over its documents, each with its end-of-text.
    """

    datasets: tuple[TokenDataset, ...]
    shares: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def tokenizer(self) -> TokenizerInfo:
        return self.datasets[0].tokenizer

    @property
    def names(self) -> str:
        return ", ".join(dataset.folder for dataset in self.datasets)

    def description(self) -> list[dict[str, Any]]:
        """Each dataset as a run's record describes it: folder, digest, number of files of each
        split, share."""
        counts = [
            {split: len(files) for split, files in own.files.items()} for own in self.datasets
        ]
        return [
            {"folder": own.folder, "digest": own.digest, "files": count, "share": share}
            for own, count, share in zip(self.datasets, counts, self.shares, strict=True)
        ]

    def say_what_is_not_read(self, samples: int, say: Callable[[str], None]) -> None:
        """Say which datasets have grown since the run began, and of which its `samples` have
        none."""
        for dataset, share, tokens in zip(self.datasets, self.shares, self.tokens, strict=True):
            if dataset.grown:
                say(
                    f"{dataset.folder} has grown: this run goes on with its first files; "
                    f"--init_from starts with all"
                )
            if tokens and share * samples < 1:
                say(
                    f"{dataset.folder} has a share of {share:.1g}: none of this run's {samples:,} "
                    f"samples is of it"
                )

    def sampler(self, config: TrainConfig) -> Sampler:
        """Return the training samples of all datasets by the config's sampler; raises ShardError
        if there are too few."""
        context = config.model_config(self.tokenizer.vocab_size).context
        check_length(sum(self.tokens), context, f"{self.names}, split train")
        used = [k for k, tokens in enumerate(self.tokens) if tokens]
        documents = [self.datasets[k].documents("train") for k in used]
        samplers: list[Sampler] = [
            Packed(own, context, self.tokenizer.eot, config.seed) for own in documents
        ]
        if config.sampler == "longbiased":  # a dataset without a long document gives of all its own
            least = config.long_min_tokens
            long = [k for k, own in enumerate(documents) if (own.lengths >= least).any()]
            if not long:
                raise ShardError(
                    f"{self.names}, split train: no document has {least} tokens; use packed"
                )
            for k in long:
                how = self.tokenizer.eot, config.seed, least, config.long_fraction
                samplers[k] = longbiased(documents[k], context, *how)
        return mix(samplers, [self.shares[k] for k in used])


def open_corpora(data: str | Sequence[str], begun: Sequence[dict[str, Any]] = ()) -> Corpora:
    """The token shards in folders, sampled in proportion to their tokens, or with FOLDER=WEIGHT
    to the weights.

    `begun` is the `description` of the corpora that a run has begun with: datasets that have grown
    since are opened as they were. Raises SettingsError: an entry is invalid, or only some have
    weights; ShardError: as `open_dataset`, or the tokenizers differ, or a dataset is named twice.
    """
    data = [data] if isinstance(data, str) else data
    if not data or not all(data):
        raise SettingsError("data: name a folder of token shards, WORKDIR/tokens")
    folders, weights = zip(*map(_parse, data), strict=True)
    if len({weight is None for weight in weights}) > 1:
        folder = folders[weights.index(None)]
        raise SettingsError(
            f"data: {folder} has no weight, others have; write {folder}=WEIGHT, or give none a "
            f"weight"
        )
    datasets = [open_dataset(folder) for folder in folders]
    known: dict[str, TokenDataset] = {}
    for dataset in datasets:
        if not dataset.tokenizer.same_as(datasets[0].tokenizer):
            both = ", ".join(
                f"{own.folder} has the tokenizer {own.tokenizer}" for own in (dataset, datasets[0])
            )
            raise ShardError(f"{both}; tokenize both with one")
        if dataset.files and (other := known.setdefault(dataset.digest, dataset)) is not dataset:
            raise ShardError(
                f"{other.folder} and {dataset.folder} are the same tokens; name them once"
            )
    if len(datasets) == len(begun):
        datasets = [
            dataset.first(entry["files"]) for dataset, entry in zip(datasets, begun, strict=True)
        ]
    counts = [
        int((lengths := dataset.documents("train").lengths).sum()) + len(lengths)
        for dataset in datasets
    ]
    # A dataset without a document in `train` has no share.
    parts = [
        weight if weight and count else count for weight, count in zip(weights, counts, strict=True)
    ]
    return Corpora(
        tuple(datasets), tuple(part / (sum(parts) or 1) for part in parts), tuple(counts)
    )


def _parse(entry: str) -> tuple[str, float | None]:
    folder, sign, text = entry.rpartition("=")
    try:
        weight = float(text) if sign else None
    except ValueError:
        weight = None  # a folder may have the sign in its name
    if weight is None:
        return entry, None
    if not folder or not 0 < weight < math.inf:
        raise SettingsError(
            f"data: {entry!r} is not FOLDER=WEIGHT with a weight above 0, as wiki/tokens=0.3"
        )
    return folder, weight


def check_length(tokens: int, context: int, where: str) -> None:
    """Raises ShardError unless `tokens`, end-of-text included, fill a window of `context`."""
    if tokens <= context:
        few = (
            f"{tokens:,} tokens, end-of-text included, are fewer than the {context + 1:,} of a "
            f"window; "
        )
        few = f"{few}give a smaller context, or" if tokens else "there is no document;"
        raise ShardError(f"{where}: {few} run tokenize on more text")
