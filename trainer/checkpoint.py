"""Checkpoints: each is complete or absent, and records with checksums what it contains and what
it was made from.

A folder `RUN/checkpoints/step-00001000` has the weights, the optimizers' state (tensors named
PARAMETER/KEY), the tokenizer and, written last, the record. `RUN/newest` names the newest one, so
that its loss is noticed. Generators of random numbers have no state to save: training seeds them
each step from (seed, step, rank).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pyarrow

from trainer.command_line import note
from trainer.shards import sha256_of

with suppress(ImportError):  # records are read without
    import safetensors
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file
    from torch import nn

RECORD, WEIGHTS, TRAINING, TOKENIZER = (
    "checkpoint.json",
    "model.safetensors",
    "training.safetensors",
    "tokenizer.json",
)
FORMAT = 4
KEPT = 3  # newest checkpoints of a run
_NEWEST = "newest"
_NAME = re.compile(r"step-\d{8}")


class CheckpointError(ValueError):
    """A checkpoint that is damaged, incomplete, or not one at all."""


def _versions() -> dict[str, str]:
    packages = (torch, numpy, pyarrow, safetensors)
    versions = {package.__name__: package.__version__ for package in packages}
    return {"python": platform.python_version(), **versions}


@dataclass(frozen=True)
class Record:
    """What `checkpoint.json` says."""

    step: int  # optimizer steps done
    model: dict[str, Any]  # the model's shape
    settings: dict[str, Any]  # of the run
    data: list[dict[str, Any]]  # what it reads, by `Corpora.description`
    tokenizer: dict[str, Any]  # name, sha256, vocab_size, eot
    parent: str  # digest of the checkpoint this run continued from, or ""
    world_size: int  # number of ranks
    versions: dict[str, str] = field(
        default_factory=_versions
    )  # of the libraries that determine the numbers
    files: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # length and SHA-256 of each file
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """SHA-256 over all entries, and so over the digests of the files."""
        return hashlib.sha256(
            json.dumps(dataclasses.asdict(self), sort_keys=True).encode()
        ).hexdigest()


Call = Callable[[Path], object]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name `path` in the OSError if it cannot be written, as on a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if getattr(error, "filename", None):
            raise
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"{path} cannot be written: {reason}") from error


class Saver:
    """Writes a run's checkpoints in a thread: training waits for a copy in host memory (pinned,
    on CUDA), not the disk.

    In the thread, `sign` is called with each checkpoint's folder before it appears under its name,
    `saved` after.
    """

    def __init__(
        self, run: Path, tokenizer: Path, sign: Call | None = None, saved: Call | None = None
    ) -> None:
        self._run, self._tokenizer, self._sign, self._saved = run, tokenizer, sign, saved
        self.last_saved = 0  # the step of the newest checkpoint that is complete
        self._host: dict[str, torch.Tensor] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(
        self, record: Record, weights: dict[str, torch.Tensor], training: dict[str, torch.Tensor]
    ) -> None:
        """Write a checkpoint of these tensors as they are now, once the one before is written;
        raises what that did."""
        self.wait()
        kinds = [
            self._copied(kind, tensors)
            for kind, tensors in ((WEIGHTS, weights), (TRAINING, training))
        ]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._writing = self._thread.submit(self._write, record, *kinds)

    def wait(self) -> None:
        """Wait until nothing is being written; raises OSError if writing failed, as on a full
        disk."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def _copied(self, kind: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors in host memory that is used again each time."""
        for name, tensor in tensors.items():
            key = f"{kind}/{name}"
            if key not in self._host:
                self._host[key] = torch.empty(
                    tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda
                )
            self._host[key].copy_(tensor.detach(), non_blocking=True)
        return {name: self._host[f"{kind}/{name}"] for name in tensors}

    def _write(
        self, record: Record, weights: dict[str, torch.Tensor], training: dict[str, torch.Tensor]
    ) -> None:
        folder = self._run / "checkpoints"
        final = folder / f"step-{record.step:08d}"
        part = folder / f".{final.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        shutil.copyfile(self._tokenizer, part / TOKENIZER)
        for name, tensors in ((WEIGHTS, weights), (TRAINING, training)):
            with writing(part / name):
                save_file(tensors, part / name)
            shutil.copymode(part / TOKENIZER, part / name)  # else only its owner can read it
        files = {
            p.name: {"bytes": p.stat().st_size, "sha256": sha256_of(p)}
            for p in sorted(part.iterdir())
        }
        record = dataclasses.replace(record, files=files)
        entries = dataclasses.asdict(record) | {"digest": record.digest}
        with writing(part / RECORD):
            (part / RECORD).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        if self._sign:
            self._sign(part)
        for path in [*part.iterdir(), part]:
            _sync(path)
        if final.exists():  # the run continued from before a damaged checkpoint of this step
            shutil.rmtree(final)
        part.rename(final)
        _sync(folder)
        newest = self._run / f".{_NEWEST}.part"
        with writing(newest):
            newest.write_text(final.name, encoding="utf-8")
        _sync(newest)
        newest.replace(self._run / _NEWEST)
        self.last_saved = record.step
        _prune(final)
        if self._saved:
            self._saved(final)


def _prune(newest: Path) -> None:
    """Delete all checkpoints but the last few, up to the one just written.

    Those of later steps are damaged: the run did not continue from them. They stay until it reaches
    their steps.
    """
    for path in [path for path in checkpoints(newest.parents[1]) if path.name <= newest.name][
        :-KEPT
    ]:
        # Renamed first: an interrupted deletion must not leave half a checkpoint under its name.
        path.rename(path.with_name(f".{path.name}.part"))
    for left in newest.parent.glob(".step-*.part"):
        shutil.rmtree(left, ignore_errors=True)


def training_state(
    model: nn.Module, optimizers: list[torch.optim.Optimizer]
) -> dict[str, torch.Tensor]:
    """The optimizers' state, each tensor as PARAMETER/KEY."""
    names: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters()}
    states = [(names[p], own) for optimizer in optimizers for p, own in optimizer.state.items()]
    return {f"{name}/{key}": value for name, own in states for key, value in own.items()}


def load_training(folder: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Set the optimizers to the state in a checkpoint of a model of this shape; they keep their
    settings."""
    known: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in load_file(folder / TRAINING).items():
        parameter, _, key = name.rpartition("/")
        known.setdefault(parameter, {})[key] = value
    names = {p: name for name, p in model.named_parameters()}
    for optimizer in optimizers:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state = {
            number: known[names[p]] for number, p in enumerate(parameters) if names[p] in known
        }
        optimizer.load_state_dict(
            {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
        )


def read_record(folder: Path) -> Record:
    """The record of the checkpoint in `folder`, or CheckpointError, which names a file that does
    not match it."""
    path = folder / RECORD
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        digest, record = entries.pop("digest"), Record(**entries)
        files = [
            (folder / name, entry["bytes"], entry["sha256"]) for name, entry in record.files.items()
        ]
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {RECORD}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): the checkpoint is damaged"
        ) from error
    if record.format != FORMAT:
        raise CheckpointError(f"{path} is of format {record.format}, this program reads {FORMAT}")
    if record.digest != digest:
        raise CheckpointError(
            f"{path} was changed, by hand or by damage: its entries do not match its digest"
        )
    for file, length, sha256 in files:
        size = file.stat().st_size if file.is_file() else None
        if size != length:
            found = "is missing" if size is None else f"has {size} bytes instead of {length}"
            raise CheckpointError(f"{file} {found}: the checkpoint is damaged")
        if sha256_of(file) != sha256:
            raise CheckpointError(f"{file} was changed: its SHA-256 is not that of {RECORD}")
    return record


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of the run in this folder, oldest first, whether or not they are complete."""
    return sorted(
        path for path in (run / "checkpoints").glob("step-*") if _NAME.fullmatch(path.name)
    )


def latest(
    run: Path, report: Callable[[str], None], hint: str, *, strict: bool = False
) -> tuple[Path, Record] | None:
    """The newest intact checkpoint of the run in this folder, or None if it has saved none.

    `report` is called with a line for each later one that is damaged or gone. Raises
    CheckpointError, with the `hint` what to do, if all checkpoints are damaged or gone, or, if it
    is `strict`, if the newest is.
    """
    name, problems = run / _NEWEST, []
    saved = name.read_text(encoding="utf-8") if name.exists() else ""
    # Those of later steps are damaged: the run continued from before them.
    known = [path for path in checkpoints(run) if not saved or path.name <= saved]
    if saved and saved not in [path.name for path in known]:
        problems.append(
            f"{run / 'checkpoints' / saved}, the newest checkpoint that was saved, is gone"
        )
    for path in reversed(known):
        if strict and problems:
            break
        try:
            found = path, read_record(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            report(f"{problem}; taking {path.name}, the newest intact one")
        return found
    if not problems:
        return None
    what = (
        problems[0]
        if strict
        else f"no checkpoint in {run / 'checkpoints'} is intact: {'; '.join(problems)}"
    )
    raise CheckpointError(f"{what}; {hint}")


def resolve(path: str | Path, step: int | None = None) -> Path:
    """The checkpoint in `path`, or, in a run's folder, that of `step` or the newest, which the
    error stream names.

    Raises CheckpointError if there is none, or the newest is damaged: damage must not bring back an
    earlier model.
    """
    folder = Path(path)
    if (folder / RECORD).exists() and step is None:
        return folder
    run = folder.parent if folder.name == "checkpoints" else folder
    if step is not None:
        known = {int(own.name.removeprefix("step-")): own for own in checkpoints(run)}
        if step not in known:
            raise CheckpointError(
                f"{run} has no checkpoint of step {step}; it has {', '.join(map(str, known))}"
            )
        taken = known[step]
    else:
        found = latest(run, note, "restore it, or name another one by --step", strict=True)
        if found is None:
            raise CheckpointError(
                f"{folder} is neither a checkpoint nor the folder of a run that has one"
            )
        taken = found[0]
    note(f"taking {taken}")
    return taken


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
