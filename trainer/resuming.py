"""What a run continues from: its newest checkpoint, if it is the same run, or the model of `init_from`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from schemas import SettingsError
from trainer import checkpoint
from trainer.checkpoint import CheckpointError, Record
from trainer.config import SHAPE, TrainConfig
from trainer.corpora import Corpora
from trainer.model import GPT
from trainer.pretrained import load_pretrained
from trainer.signing import Verifier

_FROZEN = SHAPE - {"dropout"} | {
    "preset", "init_from", "seed", "batch_tokens", "optimizer", "sampler", "long_min_tokens", "long_fraction",
    "document_mask",
}  # fmt: skip
"""The settings that a resumed run has to keep."""


def newest(out: Path, say: Callable[[str], None], verify_key: str | None) -> tuple[Path, Record] | None:
    """The run's newest intact checkpoint; None for a new run.

    Raises:
      CheckpointError: there are some and none is intact, or the newest is not and `verify_key` is given.
      SignatureError: the owner of `verify_key` did not sign it.
    """
    strict = "with verify_key, no earlier one is taken in its place" if verify_key else ""
    try:
        found = checkpoint.latest(out / "checkpoints", say, strict=strict)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; restore it from a copy, or move {out} aside to start at step 0") from error
    if found and verify_key:
        Verifier(verify_key).check(found[0])
    return found


def check_same_run(
    path: Path, before: Record, config: TrainConfig, corpora: Corpora, say: Callable[[str], None]
) -> None:
    """Raises SettingsError if the checkpoint is of another run; says which settings have changed."""
    refused = []
    for field in dataclasses.fields(config):
        old, new = before.settings[field.name], getattr(config, field.name)
        # `data` is compared by what the shards hold, not by where they are.
        if field.metadata["shapes_bytes"] and field.name != "data" and old != new:
            change = f"{field.name} was {old}, is {new}"
            if field.name in _FROZEN:
                refused.append(change)
            else:
                say(f"changed since {path.name}: {change}")
    was, now = dataclasses.replace(corpora.tokenizer, **before.tokenizer), corpora.tokenizer
    if not was.same_as(now):
        refused.append(f"the tokenizer was {was}, is {now}")

    data = corpora.description()
    if [(own["digest"], own["share"]) for own in before.data] != [(own["digest"], own["share"]) for own in data]:
        changed = f"the data was {described(before.data)}, is {described(data)}"
        refused.append(f"{changed}: other data is a new run with --init_from {config.out}")
    if refused:
        raise SettingsError(f"{path} is of another run: {'; '.join(refused)}. Use another --out, or the same settings")


def described(data: list[dict[str, Any]]) -> str:
    """The data of a record in a line."""
    return ", ".join(f"{own['folder']} ({own['share']:.1%}, {own['digest'][:12]}…)" for own in data)


def load_weights(
    model: GPT, path: Path | None, config: TrainConfig, corpora: Corpora, say: Callable[[str], None]
) -> Path | None:
    """Load the weights of the run's checkpoint `path`, or else of `init_from`; returns whose optimizer's state to load.

    Raises CheckpointError, ValueError: why `init_from` cannot be loaded.
    """
    if path:
        model.load_state_dict(load_file(path / checkpoint.WEIGHTS))
        return path
    if not config.init_from:
        return None
    trained = load_pretrained(config.init_from, verify_key=config.verify_key)
    trained.check_tokenizer(corpora.tokenizer, corpora.datasets[0].folder)
    ours, theirs = model.config, trained.model.config
    if dataclasses.replace(ours, dropout=0.0) != dataclasses.replace(theirs, dropout=0.0):
        raise CheckpointError(f"{config.init_from} is of another shape: {theirs}; these settings make {ours}")
    model.load_state_dict(trained.model.state_dict())
    same = trained.record is not None and trained.record.settings["optimizer"] == config.optimizer
    say(f"weights{' and state of the optimizer' if same else ''} from {config.init_from}")
    return trained.folder if same else None
