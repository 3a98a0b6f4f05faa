"""Checkpoints: each is complete or absent, and records with checksums what it contains and what it was made from.

OUT/checkpoints/step-00001000/
    checkpoint.json     written last: step, settings, shards, tokenizer, parent, versions, SHA-256 of each file
    model.safetensors   the weights
    training/           optimizers, and each rank's random numbers (`trainer.resume`)
    tokenizer.json      the shards' tokenizer
    model.sig           its signature by OpenSSF's model-signing, if it is signed

A signature covers every file of the folder by its SHA-256. Keys are on the curves P-256, P-384 or P-521:

    openssl ecparam -name prime256v1 -genkey -noout -out key.pem
    openssl ec -in key.pem -pubout -out pub.pem
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import safetensors
import torch
from safetensors.torch import load_file, save_file

from schemas import SettingsError
from trainer.data import Corpora
from trainer.model import GPT, ModelConfig
from trainer.remote import sha256_of

RECORD = "checkpoint.json"
WEIGHTS = "model.safetensors"
TRAINING = "training"
FORMAT = 3
_NAME = re.compile(r"step-(\d{8,})")


class CheckpointError(ValueError):
    """A checkpoint that is damaged, incomplete, or not one at all."""


@dataclass(frozen=True)
class Record:
    """What `checkpoint.json` says.

    Attributes:
      step: optimizer steps done.
      model: the model's shape.
      settings: those of the run.
      data: digest of the token shards.
      history: what the run has read from which step on, as `trainer.data.Phase`; the last entry describes `data`.
      tokenizer: name, sha256, vocab_size, eot.
      parent: digest of the checkpoint this run continued from, or "".
      world_size: number of ranks that wrote it.
      versions: of the libraries that determine the numbers.
      files: length and SHA-256 of each file.
    """

    step: int
    model: dict[str, Any]
    settings: dict[str, Any]
    data: str
    tokenizer: dict[str, Any]
    parent: str
    world_size: int
    versions: dict[str, str]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """SHA-256 over the names and digests of the files."""
        lines = "".join(f"{entry['sha256']}  {name}\n" for name, entry in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig(**self.model)


def make_record(
    step: int, model: ModelConfig, settings: dict[str, Any], corpora: Corpora, parent: str, world_size: int
) -> Record:
    """The record of a run's state after `step` steps, as yet without files."""
    tokenizer = corpora.tokenizer
    known = {key: getattr(tokenizer, key) for key in ("name", "sha256", "vocab_size", "eot")}
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "pyarrow": pyarrow.__version__,
        "safetensors": safetensors.__version__,
    }
    history = [dataclasses.asdict(phase) for phase in corpora.history]
    return Record(
        step, dataclasses.asdict(model), settings, corpora.digest, known, parent, world_size, versions, history=history
    )


def begin(folder: Path, step: int) -> Path:
    """An empty folder for the files of the checkpoint of `step`; `complete` makes it one of those in `folder`."""
    part = folder / f".{_name(step)}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def complete(
    part: Path, record: Record, weights: dict[str, torch.Tensor], tokenizer: Path, signer: Signer | None = None
) -> Path:
    """Add weights, tokenizer and record to `part`, rename it when it is complete, and return the checkpoint's path."""
    final = part.with_name(_name(record.step))
    shutil.copyfile(tokenizer, part / "tokenizer.json")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, part / WEIGHTS)
    shutil.copymode(part / "tokenizer.json", part / WEIGHTS)  # else only its owner can read it
    paths = sorted(path for path in part.rglob("*") if path.is_file())
    files = {
        path.relative_to(part).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in paths
    }
    record = dataclasses.replace(record, files=files)
    entries = {**dataclasses.asdict(record), "digest": record.digest}
    text = json.dumps(entries | {"checksum": _checksum(entries)}, indent=1) + "\n"
    (part / RECORD).write_text(text, encoding="utf-8")
    if signer:
        signer.sign(part)
    for path in [*part.rglob("*"), part]:
        _sync(path)
    if final.exists():  # the run continued from before a damaged checkpoint of this step
        shutil.rmtree(final)
    part.rename(final)
    _sync(part.parent)
    return final


def read_record(folder: Path) -> Record:
    """The record of the checkpoint in `folder`, after checking its files against it.

    Raises:
      CheckpointError: names the file that is missing, truncated or changed.
    """
    path = folder / RECORD
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        changed = entries.pop("checksum") != _checksum(entries)
        digest = entries.pop("digest")
        record = Record(**entries)
        changed |= record.digest != digest
        files = [(folder / name, entry["bytes"], entry["sha256"]) for name, entry in record.files.items()]
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {RECORD}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): the checkpoint is damaged") from error
    if record.format != FORMAT:
        raise CheckpointError(f"{path} is of format {record.format}, this program reads {FORMAT}")
    if changed:
        raise CheckpointError(f"{path} was changed, by hand or by damage: its entries do not match its digest")
    for file, length, sha256 in files:
        if not file.is_file():
            raise CheckpointError(f"{file} is missing: the checkpoint is damaged")
        size = file.stat().st_size
        if size != length:
            state = "truncated" if size < length else "damaged"
            raise CheckpointError(f"{file} has {size} bytes instead of {length}: the checkpoint is {state}")
        if sha256_of(file) != sha256:
            raise CheckpointError(f"{file} was changed: its SHA-256 is not that of {RECORD}")
    return record


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints below `folder`, oldest first, whether or not they are complete."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_step_of)


def latest(folder: Path, report: Callable[[str], None], *, strict: str = "") -> tuple[Path, Record] | None:
    """The newest intact checkpoint, or None if there are no checkpoints.

    Args:
      report: called with a line for each damaged checkpoint that is skipped.
      strict: if not empty, a damaged newest checkpoint is an error, whose message ends in this.

    Raises:
      CheckpointError: all checkpoints are damaged (it says how), or the newest is and `strict` is given.
    """
    damaged = []
    for path in reversed(checkpoints(folder)):
        try:
            found = path, read_record(path)
        except CheckpointError as error:
            if strict:
                raise CheckpointError(f"{error}; {strict}") from error
            damaged.append(str(error))
            continue
        for problem in damaged:
            report(f"{problem}; taking {path.name}, the newest intact one")
        return found
    if damaged:
        raise CheckpointError(f"no checkpoint in {folder} is intact: {'; '.join(damaged)}")
    return None


def prune(newest: Path, keep_last: int, keep_every: int = 0) -> None:
    """Delete all checkpoints but the last `keep_last` and those of every `keep_every` steps.

    Those of later steps than `newest`, the checkpoint just written, are damaged: the run did not continue from them.
    They stay until the run reaches their steps, and do not count.
    """
    folder, last = newest.parent, _step_of(newest)
    found = [path for path in checkpoints(folder) if _step_of(path) <= last]
    kept = set(found[-keep_last:])
    kept |= {path for path in found if keep_every and _step_of(path) % keep_every == 0}
    for path in found:
        if path not in kept:
            # Renamed first: an interrupted deletion must not leave half a checkpoint under its name.
            gone = path.with_name(f".{path.name}.gone")
            path.rename(gone)
            shutil.rmtree(gone)
    for left in [*folder.glob(".step-*.gone"), *folder.glob(".step-*.part")]:
        shutil.rmtree(left, ignore_errors=True)


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[GPT, Record]:
    """The model of a checkpoint, in evaluation mode, and its record; raises CheckpointError."""
    record = read_record(folder)
    model = GPT(record.model_config)
    load_weights(model, folder)
    return model.to(device).eval(), record


def resolve(
    path: str | Path, step: int | None = None, report: Callable[[str], None] = lambda line: None, *, strict: str = ""
) -> Path:
    """The checkpoint in `path`, or, in a run's folder, that of `step` or the newest intact one.

    Args:
      report: called with lines that name the checkpoint taken from a run's folder, and why it is not the newest.
      strict: of `latest`.

    Raises:
      CheckpointError: there is none, or as `latest`.
    """
    folder = Path(path)
    if (folder / RECORD).exists() and step is None:
        return folder
    place = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    if step is not None:
        taken = place / _name(step)
        if not taken.is_dir():
            known = ", ".join(str(_step_of(own)) for own in checkpoints(place)) or "none"
            raise CheckpointError(f"{folder} has no checkpoint of step {step}; it has {known}")
    else:
        found = latest(place, report, strict=strict)
        if found is None:
            raise CheckpointError(f"{folder} is neither a checkpoint nor the folder of a run that has one")
        taken = found[0]
    report(f"taking {taken}")
    return taken


def load_weights(model: GPT, folder: Path) -> None:
    """Load the weights of a checkpoint into `model`."""
    model.load_state_dict(load_file(folder / WEIGHTS))


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _checksum(entries: dict[str, Any]) -> str:
    """SHA-256 of the record's entries, which the digests of its files do not cover."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SIGNATURE = "model.sig"


class SignatureError(ValueError):
    """A model that is unsigned, altered, or signed with another key."""


class Signer:
    """Signs folders with a private key; raises SettingsError if `key` is not one."""

    def __init__(self, key: str) -> None:
        package = _package()
        try:
            self._config = package.signing.Config().use_elliptic_key_signer(private_key=Path(key))
        except Exception as error:  # of the packages model_signing and cryptography, or the file system
            raise SettingsError(f"sign_key: {key} is not a private key that can sign ({error}); {_KEYS}") from error

    def sign(self, folder: Path) -> None:
        """Write `model.sig`, the signature of every other file in `folder`."""
        hashing = _package().hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
        self._config.set_hashing_config(hashing).sign(folder, folder / SIGNATURE)


class Verifier:
    """Checks folders against a public key; raises SettingsError if `key` is not one."""

    def __init__(self, key: str) -> None:
        package = _package()
        self._key = key
        try:
            self._config = package.verifying.Config().use_elliptic_key_verifier(public_key=Path(key))
        except Exception as error:
            raise SettingsError(f"verify_key: {key} is not a public key that can verify ({error}); {_KEYS}") from error

    def check(self, folder: Path) -> None:
        """Raise SignatureError unless the key's owner signed exactly the files in `folder`."""
        if not (folder / SIGNATURE).is_file():
            raise SignatureError(f"{folder} is not signed: it has no {SIGNATURE}; sign it, or leave verify_key out")
        hashing = _package().hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
        try:
            self._config.set_hashing_config(hashing).verify(folder, folder / SIGNATURE)
        except Exception as error:  # of several types
            raise SignatureError(f"{folder} is not what the owner of {self._key} signed: {error}") from error


_KEYS = "make one by: openssl ecparam -name prime256v1 -genkey -noout -out key.pem; openssl ec -in key.pem -pubout"


def _package() -> Any:
    try:
        import model_signing
        import model_signing.hashing
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:
        raise SettingsError(
            f"signatures need the packages of the extra sign ({error}): pip install model-signing pyOpenSSL"
        ) from error
    return model_signing
