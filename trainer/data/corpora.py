"""Token datasets with one tokenizer, mixed by weight: the data of a run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import SettingsError
from trainer.config import TrainConfig
from trainer.data.mapped_documents import Documents
from trainer.data.samplers import Packed, Sampler, longbiased, mix
from trainer.data.shards import ShardError, TokenDataset, TokenizerInfo, open_dataset


@dataclass(frozen=True)
class Corpora:
    """Token datasets with one tokenizer, and each one's share of the samples (they sum to 1).

    i determines which dataset sample i is from, and which of its samples it is. `tokens` are the
    targets of each dataset in one pass over its documents, each with its end-of-text.
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
        """Return each dataset as a run's record describes it.

        It has the folder, the digest, the number of files of each split, and the share.
        """
        entries = []
        for dataset, share in zip(self.datasets, self.shares, strict=True):
            num_files = {split: len(files) for split, files in dataset.files.items()}
            entries.append(
                {
                    "folder": dataset.folder,
                    "digest": dataset.digest,
                    "files": num_files,
                    "share": share,
                }
            )
        return entries

    def warn_unread(self, samples: int, say: Callable[[str], None]) -> None:
        """Report datasets that have grown since the run began, or have none of its `samples`."""
        for dataset, share, tokens in zip(self.datasets, self.shares, self.tokens, strict=True):
            if dataset.has_grown:
                say(
                    f"{dataset.folder} has grown: this run goes on with its first files; "
                    f"--init_from starts with all"
                )
            if tokens and share * samples < 1:
                say(
                    f"{dataset.folder} has a share of {share:.1g}: none of this run's {samples:,} "
                    f"samples is from it"
                )

    def sampler(self, config: TrainConfig) -> Sampler:
        """Return the training samples of all datasets by the config's sampler.

        Raises ShardError if there are too few tokens, or no long document for `longbiased`.
        """
        block_size = config.model_config(self.tokenizer.vocab_size).block_size
        check_length(sum(self.tokens), block_size, f"{self.names}, split train")
        used = [k for k, tokens in enumerate(self.tokens) if tokens]
        all_documents = [self.datasets[k].documents("train") for k in used]
        if config.sampler == "longbiased" and not any(
            _has_long(documents, config.long_min_tokens) for documents in all_documents
        ):
            raise ShardError(
                f"{self.names}, split train: no document has {config.long_min_tokens} tokens; use "
                f"packed"
            )
        samplers = [self._sampler_of(documents, block_size, config) for documents in all_documents]
        return mix(samplers, [self.shares[k] for k in used])

    def _sampler_of(self, documents: Documents, block_size: int, config: TrainConfig) -> Sampler:
        eot = self.tokenizer.eot
        # A dataset without a long document gives samples of all its documents.
        if config.sampler == "longbiased" and _has_long(documents, config.long_min_tokens):
            return longbiased(
                documents,
                block_size,
                eot,
                config.seed,
                long_min_tokens=config.long_min_tokens,
                long_fraction=config.long_fraction,
            )
        return Packed(documents, block_size, eot, config.seed)


def _has_long(documents: Documents, min_tokens: int) -> bool:
    return bool((documents.lengths >= min_tokens).any())


def open_corpora(data: str | Sequence[str], begun: Sequence[dict[str, Any]] = ()) -> Corpora:
    """Open the token shards in folders, or in several folders as FOLDER=WEIGHT.

    Without weights they are sampled in proportion to their tokens. `begun` is the `description` of
    the corpora that a run has begun with: datasets that have grown since are opened as they were.
    Raises SettingsError if an entry is invalid or only some have weights; ShardError as
    `open_dataset`, or if the tokenizers differ, or if a dataset is named twice.
    """
    entries = [data] if isinstance(data, str) else data
    if not entries or not all(entries):
        raise SettingsError("data: name a folder of token shards, WORKDIR/tokens")
    weighted = [_parse(entry) for entry in entries]
    without_weight = [folder for folder, weight in weighted if weight is None]
    if 0 < len(without_weight) < len(weighted):
        flag = shlex.quote(f"{without_weight[0]}=WEIGHT")
        raise SettingsError(
            f"data: {without_weight[0]} has no weight, others have; write {flag}, or give none a "
            f"weight"
        )
    datasets = [open_dataset(folder) for folder, _ in weighted]
    _check_distinct(datasets)
    if len(datasets) == len(begun):
        datasets = [
            dataset.first(entry["files"]) for dataset, entry in zip(datasets, begun, strict=True)
        ]
    tokens = []
    parts: list[float] = []
    for dataset, (_, weight) in zip(datasets, weighted, strict=True):
        lengths = dataset.documents("train").lengths
        tokens.append(int(lengths.sum()) + len(lengths))
        # A dataset without a document in `train` has no share, whatever its weight.
        if weight and tokens[-1]:
            parts.append(weight)
        else:
            parts.append(tokens[-1])
    shares = [part / (sum(parts) or 1) for part in parts]
    return Corpora(tuple(datasets), tuple(shares), tuple(tokens))


def _check_distinct(datasets: Sequence[TokenDataset]) -> None:
    """Raise ShardError if tokenizers differ, or if two datasets have the same tokens."""
    first = datasets[0]
    dataset_by_digest: dict[str, TokenDataset] = {}
    for dataset in datasets:
        if not dataset.tokenizer.same_as(first.tokenizer):
            raise ShardError(
                f"{dataset.folder} has the tokenizer {dataset.tokenizer}, {first.folder} has the "
                f"tokenizer {first.tokenizer}; tokenize both with one"
            )
        if not dataset.files:
            continue
        same = dataset_by_digest.setdefault(dataset.digest, dataset)
        if same is not dataset:
            raise ShardError(
                f"{same.folder} and {dataset.folder} are the same tokens; name them once"
            )


def _parse(entry: str) -> tuple[str, float | None]:
    """Return the folder and the weight of FOLDER=WEIGHT; None if it has no weight."""
    folder, sign, text = entry.rpartition("=")
    if not sign:
        return entry, None
    try:
        weight = float(text)
    except ValueError:
        # A folder may have the sign in its name.
        return entry, None
    if not folder or not 0 < weight < math.inf:
        raise SettingsError(
            f"data: {entry!r} is not FOLDER=WEIGHT with a weight above 0, as wiki/tokens=0.3"
        )
    return folder, weight


def check_length(tokens: int, block_size: int, where: str) -> None:
    """Raise ShardError unless `tokens`, end-of-text included, fill a window of `block_size`."""
    if tokens > block_size:
        return
    if not tokens:
        raise ShardError(f"{where}: there is no document; run tokenize on more text")
    raise ShardError(
        f"{where}: {tokens:,} tokens, end-of-text included, are fewer than the {block_size + 1:,} "
        f"of a window; give a smaller block_size, or run tokenize on more text"
    )
