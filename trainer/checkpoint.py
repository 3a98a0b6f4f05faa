"""Checkpoints: each is complete or absent, and has checksums and the origin of its data.

    RUN/checkpoints/step-00001000/
        model.safetensors       the weights
        training.safetensors    the optimizers' state, in tensors named PARAMETER/KEY
        tokenizer.json
        checkpoint.json         the record, written last
    RUN/metrics.jsonl           a record of each step: the newest checkpoint, a validation loss

Generators of random numbers have no state to save: training seeds them each step from (seed, step,
rank).
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

from schemas import SettingsError
from trainer.command_line import note

# Without torch, records can still be read.
with suppress(ImportError):
    import safetensors
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

RECORD = "checkpoint.json"
WEIGHTS = "model.safetensors"
TRAINING = "training.safetensors"
TOKENIZER = "tokenizer.json"
FORMAT = 5
NUM_KEPT = 3  # newest checkpoints of a run
METRICS = "metrics.jsonl"
_NAME = re.compile(r"step-\d{8}")

Tensors = dict[str, "torch.Tensor"]
Hook = Callable[[Path], object]


class CheckpointError(ValueError):
    """A checkpoint that is damaged, incomplete, or not one at all."""


def _versions() -> dict[str, str]:
    """Return the versions of the libraries that determine the numbers."""
    packages = (torch, numpy, pyarrow, safetensors)
    versions = {package.__name__: package.__version__ for package in packages}
    return {"python": platform.python_version(), **versions}


@dataclass(frozen=True)
class Record:
    """The content of `checkpoint.json`."""

    step: int  # optimizer steps done
    model: dict[str, Any]  # the model's shape
    settings: dict[str, Any]  # of the run
    data: list[dict[str, Any]]  # its datasets, by `Corpora.description`
    tokenizer: dict[str, Any]  # name, sha256, vocab_size, eot
    parent: str  # digest of the checkpoint this run continued from, or ""
    world_size: int  # number of ranks
    versions: dict[str, str] = field(default_factory=_versions)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # bytes and sha256 of each
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """SHA-256 over all entries, and so over the digests of the files."""
        entries = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(entries.encode()).hexdigest()


@contextmanager
def naming_path(path: Path) -> Iterator[None]:
    """Name `path` in the OSError if it cannot be written, as on a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if getattr(error, "filename", None):
            raise
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"{path} cannot be written: {reason}") from error


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.part")
    try:
        with naming_path(part):
            part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError:
        # If the run has nothing left to do, no later write would replace it.
        part.unlink(missing_ok=True)
        raise


def step_path(run: Path, step: int) -> Path:
    """Return the folder of a run's checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:08d}"


class Saver:
    """Writes a run's checkpoints in a thread.

    Training waits for a copy in host memory, not for the disk. In the thread, `sign` is called
    with each checkpoint's folder before it appears under its name, and `on_saved` after.
    """

    def __init__(
        self, run: Path, tokenizer: Path, sign: Hook | None = None, on_saved: Hook | None = None
    ) -> None:
        self._run = run
        self._tokenizer = tokenizer
        self._sign = sign
        self._on_saved = on_saved
        # The step of the newest complete checkpoint; `train` sets it when it resumes a run.
        self.last_saved = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, record: Record, weights: Tensors, training: Tensors) -> None:
        """Write a checkpoint of these tensors as they are now, once the one before is written.

        Raises the error of the one before.
        """
        self.wait()
        tensors = {WEIGHTS: _copy_to_host(weights), TRAINING: _copy_to_host(training)}
        self._pending = self._thread.submit(self._write, record, tensors)

    def path_of(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return step_path(self._run, step)

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written, if that is known already."""
        if self._pending and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written; raises OSError if writing failed."""
        pending = self._pending
        self._pending = None
        if pending:
            pending.result()

    def prune(self) -> None:
        """Delete the checkpoint that was the best one until the last validation."""
        self.wait()
        if self.last_saved:
            _prune(self.path_of(self.last_saved))

    def _write(self, record: Record, tensors: dict[str, Tensors]) -> None:
        final = self.path_of(record.step)
        folder = final.parent
        part = folder / f".{final.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            self._write_files(part, record, tensors)
            if self._sign:
                self._sign(part)
            for path in [*part.iterdir(), part]:
                _sync(path)
        except Exception:
            # It would fill a disk that is full already.
            shutil.rmtree(part, ignore_errors=True)
            raise
        # A checkpoint of this step that the run did not continue from: damaged, or saved right
        # before a crash.
        if final.exists():
            shutil.rmtree(final)
        part.rename(final)
        _sync(folder)
        self.last_saved = record.step
        _prune(final)
        if self._on_saved:
            self._on_saved(final)

    def _write_files(self, folder: Path, record: Record, tensors: dict[str, Tensors]) -> None:
        shutil.copyfile(self._tokenizer, folder / TOKENIZER)
        for name, tensors_of_file in tensors.items():
            with naming_path(folder / name):
                save_file(tensors_of_file, folder / name)
            # safetensors makes files that only their owner can read.
            shutil.copymode(folder / TOKENIZER, folder / name)
        files = {}
        for path in sorted(folder.iterdir()):
            files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        record = dataclasses.replace(record, files=files)
        entries = dataclasses.asdict(record) | {"digest": record.digest}
        with naming_path(folder / RECORD):
            (folder / RECORD).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def _copy_to_host(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _prune(newest: Path) -> None:
    """Of the checkpoints up to the one just written, keep the last `NUM_KEPT` and the best.

    The run did not continue from those of later steps: they are damaged.
    """
    run = newest.parents[1]
    written = [path for path in checkpoints(run) if path.name <= newest.name]
    # The newest may become the best one, as it is validated after it is saved.
    kept = [*written[-NUM_KEPT:], best_checkpoint(run)]
    for path in checkpoints(run):
        if path in kept:
            continue
        # Renamed first: an interrupted deletion must not leave half a checkpoint under its name.
        path.rename(path.with_name(f".{path.name}.part"))
    for part in newest.parent.glob(".step-*.part"):
        shutil.rmtree(part, ignore_errors=True)


def read_record(folder: Path) -> Record:
    """Return the record of the checkpoint in `folder`, after a check of every file.

    Raises CheckpointError, which names a file that does not match the record.
    """
    path = folder / RECORD
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        digest = entries.pop("digest")
        record = Record(**entries)
        files = [(name, entry["bytes"], entry["sha256"]) for name, entry in record.files.items()]
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a checkpoint: it has no {RECORD}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): the checkpoint is damaged"
        ) from error
    if record.format != FORMAT:
        raise CheckpointError(f"{path} is of format {record.format}, this program reads {FORMAT}")
    if record.digest != digest:
        raise CheckpointError(
            f"{path} was changed, by hand or by damage: its entries do not match its digest"
        )
    for name, num_bytes, sha256 in files:
        _check_file(folder / name, num_bytes, sha256)
    return record


def sha256_of(path: Path) -> str:
    """Return the hex digest of a file, which is read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(path: Path, num_bytes: int, sha256: str) -> None:
    """Raise CheckpointError if a file of a checkpoint is not as its record describes it."""
    if not path.is_file():
        problem = "is missing"
    elif path.stat().st_size != num_bytes:
        problem = f"has {path.stat().st_size} bytes instead of {num_bytes}"
    elif sha256_of(path) != sha256:
        problem = "has another SHA-256 than its record"
    else:
        return
    raise CheckpointError(f"{path} {problem}: the checkpoint is damaged")


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of the run in this folder, oldest first, intact or not."""
    paths = (run / "checkpoints").glob("step-*")
    return sorted(path for path in paths if _NAME.fullmatch(path.name))


def best_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint of this run with the lowest validation loss; None if none has one.

    Of equal ones it is the earliest. A run that continues from an earlier checkpoint drops later
    records, so that a checkpoint which it did not continue from is never the best.
    """
    losses = {
        step_path(run, record["step"]): record["val_loss"]
        for record in read_metrics(run)
        if "val_loss" in record
    }
    validated = [path for path in checkpoints(run) if path in losses]
    return min(validated, key=losses.__getitem__, default=None)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's steps, without lines that a crash damaged."""
    path = run / METRICS
    records = []
    # What follows the last line end was cut off.
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            # A changed bit may leave valid JSON.
            is_record = isinstance(record, dict) and isinstance(record.get("step"), int)
            if is_record and all(x is None or isinstance(x, (int, float)) for x in record.values()):
                records.append(record)
    return records


def latest(
    run: Path, report: Callable[[str], None], hint: str, *, is_strict: bool = False
) -> tuple[Path, Record] | None:
    """Return the newest intact checkpoint of the run in this folder; None if it has saved none.

    `report` is called with a line for each later one that is damaged or missing. Raises
    CheckpointError, whose message ends in `hint`, if all are, or with `is_strict` if the newest is.
    """
    problems = []
    paths = checkpoints(run)
    newest = step_path(run, max([record.get("saved") or 0 for record in read_metrics(run)] or [0]))
    if newest.name > max([path.name for path in paths], default=step_path(run, 0).name):
        problems.append(f"{newest}, the newest checkpoint that was saved, is missing")
    for path in reversed(paths):
        if is_strict and problems:
            break
        try:
            record = read_record(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            report(f"{problem}; taking {path.name}, the newest intact one")
        return path, record
    if not problems:
        return None
    raise CheckpointError(f"{'; '.join(problems)}; {hint}")


def resolve(path: str | Path, step: int | None = None, *, is_best: bool = False) -> Path:
    """Return the checkpoint in `path`, or, in a run's folder, that of `step`, the best or newest.

    The best one has the lowest validation loss. The error stream names the checkpoint. Raises
    CheckpointError if there is none, or the newest is damaged: damage must not bring back an
    earlier model.
    """
    folder = Path(path)
    is_newest = step is None and not is_best
    if is_newest and (folder / RECORD).exists():
        return folder
    run = folder.parent if folder.name == "checkpoints" else folder
    chosen: Path | None = None
    if is_newest:
        newest = latest(run, note, "restore it, or name another one by --step", is_strict=True)
        if newest is None:
            raise CheckpointError(
                f"{folder} is neither a checkpoint nor the folder of a run that has one"
            )
        chosen = newest[0]
    elif step is None:
        chosen = best_checkpoint(run)
        if chosen is None:
            raise CheckpointError(
                f"{run} has no best checkpoint, as none has a validation loss; leave out "
                f"--checkpoint best"
            )
    elif is_best:
        raise SettingsError("step and checkpoint best name two checkpoints: give one of them")
    else:
        chosen = step_path(run, step)
        if chosen not in checkpoints(run):
            steps = [path.name.removeprefix("step-").lstrip("0") for path in checkpoints(run)]
            raise CheckpointError(
                f"{run} has no checkpoint of step {step}; it has {', '.join(steps) or 'none'}"
            )
    note(f"taking {chosen}")
    return chosen


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming_path(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
