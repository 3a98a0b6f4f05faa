"""How a run continues or starts from another model: its checkpoint, its settings, its weights."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from schemas import SettingsError
from trainer.checkpoint import (
    WEIGHTS,
    CheckpointError,
    Record,
    Saver,
    latest,
    read_metrics,
)
from trainer.config import SHAPE, ModelConfig, TrainConfig
from trainer.data.corpora import Corpora
from trainer.distributed import Ranks, run_lock
from trainer.model import GPT
from trainer.pretrained import load_pretrained
from trainer.publish import PUBLISHABLE, Publisher
from trainer.signing import signer_of, verifier_of

Say = Callable[[str], None]

# The settings that a resumed run has to keep.
_FROZEN = SHAPE - {"dropout"} | {
    "preset",
    "init_from",
    "seed",
    "batch_tokens",
    "optimizer",
    "sampler",
    "long_min_tokens",
    "long_fraction",
    "document_mask",
}


def open_run(
    config: TrainConfig, ranks: Ranks, say: Say, closing: ExitStack
) -> tuple[Path | None, Record | None]:
    """Lock the run's folder; return the checkpoint to continue from, which rank 0 chooses."""
    out = Path(config.out)
    if not config.out:
        raise SettingsError("out: name a folder for the run")
    if "://" in config.out:
        remedy = "give one"
        if config.out.startswith(PUBLISHABLE):
            remedy += f", and --publish {shlex.quote(config.out)}"
        raise SettingsError(f"out: {config.out} is not a local folder; {remedy}")
    if out.exists() and not out.is_dir():
        raise SettingsError(f"out: {out} is a file; give a folder instead")
    if config.sign_key:
        # A wrong key is reported before anything is written.
        signer_of(config.sign_key)
    newest = None
    if ranks.is_main:
        closing.enter_context(run_lock(out, say))
        newest = _newest_checkpoint(out, say, config.verify_key)
    return ranks.gather(newest)[0] or (None, None)


def _newest_checkpoint(out: Path, say: Say, verify_key: str | None) -> tuple[Path, Record] | None:
    """Return the run's newest intact checkpoint with its record; None for a new run.

    `say` reports newer ones that are damaged or missing. Raises CheckpointError if all are, or if
    the newest is and has to be signed; SignatureError if it is not signed by `verify_key`.
    """
    hint = f"restore it from a copy, or move {out} aside to start at step 0"
    if verify_key:
        hint = f"with verify_key, no earlier one is taken in its place; {hint}"
    checkpoint = latest(out, say, hint, is_strict=bool(verify_key))
    if checkpoint and verify_key:
        verifier_of(verify_key)(checkpoint[0])
    return checkpoint


def resolve_config(config: TrainConfig, model: GPT | None, corpora: Corpora) -> TrainConfig:
    """Return the settings with the shape of `model`, if it is given, and with all defaults."""
    vocab_size = corpora.tokenizer.vocab_size
    if model:
        if model.config.vocab_size < vocab_size:
            raise SettingsError(
                f"the model has {model.config.vocab_size} token ids, fewer than the {vocab_size} "
                f"of {corpora.names}: make it with vocab_size={vocab_size}"
            )
        shape = {name: getattr(model.config, name) for name in SHAPE}
        config = dataclasses.replace(config, **shape)
    block_size = config.model_config(vocab_size).block_size
    step_tokens = config.windows_per_batch(block_size) * block_size
    return config.resolved(steps_an_epoch=-(-sum(corpora.tokens) // step_tokens))


def open_saver(
    config: TrainConfig, tokenizer: Path, ranks: Ranks, say: Say, closing: ExitStack
) -> Saver:
    """Return the writer of the run's checkpoints, which also signs and publishes them."""
    sign = signer_of(config.sign_key) if config.sign_key else None
    publish = None
    if config.publish and ranks.is_main:
        publisher = Publisher(config.publish, Path(config.out), say)
        closing.callback(publisher.close)
        publish = publisher.push
    saver = Saver(Path(config.out), tokenizer, sign=sign, on_saved=publish)
    closing.callback(saver.wait)
    return saver


def new_record(
    config: TrainConfig, model: GPT, corpora: Corpora, parent: Record | None, ranks: Ranks
) -> Record:
    """Return the record of the run's checkpoints, without their step and files."""
    tokenizer = corpora.tokenizer
    return Record(
        step=0,
        model=dataclasses.asdict(model.config),
        settings=dataclasses.asdict(config),
        data=corpora.description(),
        tokenizer={
            "name": tokenizer.name,
            "sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "eot": tokenizer.eot,
        },
        parent=parent.digest if parent else "",
        world_size=ranks.world_size,
    )


def owes_validation(config: TrainConfig, start: int) -> bool:
    """Return whether a run ended between the checkpoint of step `start` and its validation.

    `config` is `resolved`. A step is validated if `eval_every` says so, or if it is the last.
    """
    if not config.eval_every or (start % config.eval_every and start != config.max_steps):
        return False
    records = [record for record in read_metrics(Path(config.out)) if record["step"] == start]
    return bool(records) and "val_loss" not in records[-1]


def check_same_run(
    path: Path,
    before: Record,
    config: TrainConfig,
    model: GPT | None,
    corpora: Corpora,
    say: Say,
) -> None:
    """Raise SettingsError if the checkpoint `path` with the record `before` is of another run.

    `model` is the one that replaces the one of `config`. `say` names the settings that have changed
    and may.
    """
    refused = []
    shape = model.config if model else config.model_config(corpora.tokenizer.vocab_size)
    if before.model | {"dropout": shape.dropout} != dataclasses.asdict(shape):
        refused.append(f"the model was {ModelConfig(**before.model)}, is {shape}")
    old_config = TrainConfig(**before.settings)
    for field in dataclasses.fields(config):
        # `data` is compared by the shards' digests, not by where they are.
        if not field.metadata["shapes_bytes"] or field.name == "data":
            continue
        old = getattr(old_config, field.name)
        new = getattr(config, field.name)
        if old == new:
            continue
        change = f"{field.name} was {old}, is {new}"
        if field.name in _FROZEN:
            refused.append(change)
        else:
            say(f"changed since {path.name}: {change}")

    old_tokenizer = dataclasses.replace(corpora.tokenizer, **before.tokenizer)
    if not old_tokenizer.same_as(corpora.tokenizer):
        refused.append(f"the tokenizer was {old_tokenizer}, is {corpora.tokenizer}")

    data = corpora.description()
    old_samples = [(dataset["digest"], dataset["share"]) for dataset in before.data]
    new_samples = [(dataset["digest"], dataset["share"]) for dataset in data]
    if old_samples != new_samples:
        change = f"the data was {described(before.data)}, is {described(data)}"
        flag = f"--init_from {shlex.quote(config.out)}"
        refused.append(f"{change}: other data is a new run with {flag}")
    if refused:
        raise SettingsError(
            f"{path} is of another run: {'; '.join(refused)}. Use another --out, or the same "
            f"settings"
        )


def described(data: list[dict[str, Any]]) -> str:
    """Return the data of a record in a line."""
    datasets = [
        f"{dataset['folder']} ({dataset['share']:.1%}, {dataset['digest'][:12]}…)"
        for dataset in data
    ]
    return ", ".join(datasets)


def load_weights(
    model: GPT, path: Path | None, config: TrainConfig, corpora: Corpora, say: Say
) -> Path | None:
    """Load the weights of the checkpoint `path`, or otherwise of `init_from`, if there is one.

    Return the checkpoint whose optimizer's state continues; None if that starts at zero. Raises
    CheckpointError if the model of `init_from` has another shape or tokenizer.
    """
    if path:
        model.load_state_dict(load_file(path / WEIGHTS))
        return path
    if not config.init_from:
        return None
    trained = load_pretrained(config.init_from, verify_key=config.verify_key)
    trained.check_tokenizer(corpora.tokenizer, corpora.datasets[0].folder)
    ours = model.config
    theirs = trained.model.config
    block_size = min(ours.block_size, theirs.block_size)
    shortened = dataclasses.replace(theirs, dropout=ours.dropout, block_size=block_size)
    differences = [
        f"{name} {value} in place of {getattr(ours, name)}"
        for name, value in dataclasses.asdict(shortened).items()
        if value != getattr(ours, name)
    ]
    if differences:
        raise CheckpointError(
            f"{config.init_from} is of another shape: {', '.join(differences)}; give the preset "
            f"and the settings that it was made with"
        )
    state = trained.model.state_dict()
    if not ours.rope:
        # A shorter context has the first positions, as nanoGPT's crop_block_size.
        state["wpe.weight"] = state["wpe.weight"][: ours.block_size]
    model.load_state_dict(state)
    if ours.block_size < theirs.block_size:
        say(
            f"weights from {config.init_from}, of whose {theirs.block_size} positions the first "
            f"{ours.block_size} are kept; no state of the optimizer"
        )
        return None
    if trained.record and trained.record.settings.get("optimizer", "adamw") == config.optimizer:
        say(f"weights and state of the optimizer from {config.init_from}")
        return trained.folder
    say(f"weights from {config.init_from}")
    return None
