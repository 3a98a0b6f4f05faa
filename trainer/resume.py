"""The state of a run, read from its newest checkpoint and written to the next."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from schemas import SettingsError
from trainer import checkpoint
from trainer.checkpoint import TRAINING, CheckpointError, Signer, Verifier
from trainer.config import TrainConfig, changes
from trainer.data import Corpora, Phase
from trainer.distributed import Ranks
from trainer.metrics import Diverged, has_saved
from trainer.model import GPT, ModelConfig
from trainer.pretrained import load_pretrained

# torch warns of a checkpoint that one process saves, even where that is what it was asked for (`no_dist`).
warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)


class RunCheckpoints:
    """The checkpoints in a run's folder.

    Args:
      saved: called with each complete checkpoint, in the thread that writes it.

    Attributes:
      path: the checkpoint that the run continues from, or None.
      step: its step, or 0.
      corpora: the data, continued from where the checkpoint stopped reading.

    Raises:
      SettingsError: the newest intact checkpoint is of another run.
      CheckpointError: there are checkpoints, and none is intact.
      SignatureError: the one to continue from is not signed by the owner of `verify_key`.
    """

    def __init__(
        self,
        config: TrainConfig,
        corpora: Corpora,
        shape: ModelConfig,
        ranks: Ranks,
        say: Callable[[str], None],
        saved: Callable[[Path], None],
    ) -> None:
        self._config, self._corpora, self._shape, self._ranks, self._say = config, corpora, shape, ranks, say
        self._after = saved
        self._signer = Signer(config.sign_key) if config.sign_key else None
        self._verifier = Verifier(config.verify_key) if config.verify_key else None
        self._folder, self._saver = Path(config.out) / "checkpoints", BackgroundSaver(ranks)
        # Only rank 0 looks, so that all ranks continue from the same checkpoint.
        found = ranks.from_main(self._newest() if ranks.main else None)
        self.path: Path | None = None
        self.step, self._parent, self._world_size = 0, "", 0
        history: list[Phase] = []
        if found:
            self.path, record = found
            self._check(self.path, record)
            history = [Phase.from_json(entry) for entry in record.history]
            self.step, self._parent, self._world_size = record.step, record.digest, record.world_size
        self.corpora = corpora.continuing(history, self.step, config.windows_per_batch(shape.context))
        if self.step and self.corpora.history[-1].step == self.step:
            say(f"the data changes at step {self.step}: was {history[-1]}, is {self.corpora.history[-1]}")
        self._saved = self.step

    def _newest(self) -> tuple[Path, checkpoint.Record] | None:
        strict = "with verify_key, no earlier one is taken in its place" if self._verifier else ""
        ways = f"restore it from a copy, or move {self._folder.parent} aside to start at step 0"
        try:
            found = checkpoint.latest(self._folder, self._say, strict=strict)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {ways}") from error
        # A run killed during its first checkpoint leaves a part of it.
        if not found and not any(self._folder.glob(".step-*.part")) and has_saved(self._folder.parent):
            raise CheckpointError(
                f"{self._folder.parent} has figures of a run that saved checkpoints, {self._folder} has none; {ways}"
            )
        return found

    def _check(self, path: Path, record: checkpoint.Record) -> None:
        if self._verifier:
            self._verifier.check(path)
        refused, noted = changes(record.settings, self._config)
        before, now = record.tokenizer, self._corpora.tokenizer
        if any(before[key] != getattr(now, key) for key in ("sha256", "vocab_size", "eot")):
            refused.append(
                f"the tokenizer was {before['name']} ({before['sha256'][:12]}…, end-of-text {before['eot']}), is "
                f"{now.name} ({now.sha256[:12]}…, end-of-text {now.eot})"
            )
        if refused:
            raise SettingsError(
                f"{path} is of another run: {'; '.join(refused)}. Use another --out, or the same settings"
            )
        for note in noted:
            self._say(f"changed since {path.name}: {note}")

    def load_weights(self, model: GPT) -> None:
        """Load the weights of the run's checkpoint, or else of `init_from` if given; raises CheckpointError."""
        if self.path:
            checkpoint.load_weights(model, self.path)
        elif self._config.init_from:
            load_initial(self._config.init_from, self._corpora, model, self._config.verify_key)
            self._say(f"weights from {self._config.init_from}")

    def load_training(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Load the state of the optimizers and the random numbers, if the run has a checkpoint."""
        if not self.path:
            return
        load_training_state(self.path / TRAINING, optimizers, self._ranks, self._world_size)
        self._say(f"resumed from {self.path} at step {self.step}")

    def save(self, step: int, model: GPT, optimizers: list[torch.optim.Optimizer]) -> None:
        """Save the state after `step` steps, in the background, then delete old checkpoints; every rank calls it."""
        if step == self._saved:
            return
        config, ranks = self._config, self._ranks
        record = checkpoint.make_record(
            step, self._shape, dataclasses.asdict(config), self.corpora, self._parent, ranks.world_size
        )
        self._saver.wait()
        part = ranks.from_main(checkpoint.begin(self._folder, step) if ranks.main else None)

        def finish(weights: dict[str, torch.Tensor]) -> None:
            path = checkpoint.complete(part, record, weights, self._corpora.tokenizer.path, self._signer)
            self._after(path)
            checkpoint.prune(path, config.keep_last, config.keep_every)

        state = training_state(optimizers, ranks)
        # XLA's tensors cannot be copied in the background.
        weights = {name: w.cpu() if w.device.type == "xla" else w for name, w in model.state_dict().items()}
        if ranks.main or ranks.saving:  # XLA's processes all hold the same state, which rank 0 writes
            self._saver.start(part / TRAINING, state, weights, finish if ranks.main else None)
        self._saved = step

    def wait(self) -> None:
        """Wait until nothing is being written; raises what the writing raised."""
        self._saver.wait()

    def diverged(self, found: str) -> Diverged:
        """The error that ends a run that has diverged; it names the last good checkpoint."""
        self.wait()  # that may still be in writing
        saved = checkpoint.checkpoints(self._folder)
        return Diverged(
            f"{found}; the last good checkpoint is {saved[-1] if saved else 'none'}. Look at the step's documents "
            f"(python -m trainer.tools.documents {self._folder.parent} --step N names them; `owt why URL_ID` shows "
            "what happened to one), try a lower learning_rate or a longer warm-up"
        )


def load_initial(source: str, corpora: Corpora, model: GPT, verify_key: str | None = None) -> None:
    """Load the weights of a checkpoint or a Hugging Face folder into `model`; raises CheckpointError, ValueError."""
    trained = load_pretrained(source, verify_key=verify_key)
    trained.check_tokenizer(corpora.tokenizer, str(corpora.datasets[0].folder))
    ours, theirs = model.config, trained.model.config
    if dataclasses.replace(ours, dropout=0.0) != dataclasses.replace(theirs, dropout=0.0):
        raise CheckpointError(f"{source} is of another shape: {theirs}; these settings make {ours}")
    model.load_state_dict(trained.model.state_dict())


Optimizers = list[torch.optim.Optimizer]


class BackgroundSaver:
    """Saves while training continues: the loop waits for a copy in host memory (pinned, on CUDA), not for the disk."""

    def __init__(self, ranks: Ranks) -> None:
        cuda = ranks.device.type == "cuda"
        options = StagingOptions(
            use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda
        )
        self._ranks = ranks
        self._state_stager, self._weights_stager = DefaultStager(options), DefaultStager(options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[Any] | None = None

    def start(
        self,
        folder: Path,
        state: dict[str, torch.Tensor],
        weights: dict[str, torch.Tensor],
        finish: Callable[[dict[str, torch.Tensor]], None] | None,
    ) -> None:
        """Write `state` to `folder`, then call `finish` with a copy of `weights`; every rank calls it.

        Waits for what is being saved already, and raises what that raised.

        Args:
          state: this rank's tensors.
          weights: copied on the ranks that pass a `finish`.
        """
        self.wait()
        written = dcp.async_save(
            state,
            storage_writer=FileSystemWriter(folder),
            process_group=self._ranks.saving,
            async_stager=self._state_stager,
            no_dist=self._ranks.saving is None,
        )
        assert isinstance(written, Future)
        copy = self._weights_stager.stage(weights) if finish else {}

        def complete() -> None:
            try:
                written.result()
            except CheckpointException as error:  # a BaseException
                first = next((wrapped[0] for wrapped in error.failures.values()), error)
                raise OSError(f"{folder} could not be written: {first}") from None
            if finish:
                finish(copy)  # type: ignore[arg-type]

        self._saving = self._thread.submit(complete)

    def wait(self) -> None:
        """Wait until nothing is being saved; raises OSError if saving failed, as on a full disk."""
        saving, self._saving = self._saving, None
        if saving:
            saving.result()


def training_state(optimizers: Optimizers, ranks: Ranks) -> dict[str, torch.Tensor]:
    """The optimizers' state and this rank's random numbers, each tensor under a name of its own."""
    state = {}
    for number, optimizer in enumerate(optimizers):
        for index, p in enumerate(_parameters(optimizer)):
            for key, value in optimizer.state[p].items():
                state[f"optimizers.{number}.{index}.{key}"] = value.cpu() if value.device.type == "xla" else value
    state[f"rng.{ranks.rank}.cpu"] = torch.get_rng_state()
    if ranks.device.type == "cuda":
        state[f"rng.{ranks.rank}.cuda"] = torch.cuda.get_rng_state(ranks.device)
    return state


def load_training_state(folder: Path, optimizers: Optimizers, ranks: Ranks, world_size: int) -> None:
    """Set optimizers and random numbers to what `training_state` gave; every rank calls it.

    The optimizers keep their settings.

    Args:
      world_size: number of ranks that wrote it; if it has changed, the random numbers are not restored.
    """
    reader = FileSystemReader(folder)
    state: dict[str, torch.Tensor] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        kind, number, *rest = name.split(".")
        if kind == "rng" and (int(number) != ranks.rank or world_size != ranks.world_size):
            continue
        state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    dcp.load(state, storage_reader=reader, process_group=ranks.saving, no_dist=ranks.saving is None)
    own: list[dict[int, dict[str, torch.Tensor]]] = [{} for _ in optimizers]
    for name, value in state.items():
        kind, number, *rest = name.split(".")
        if kind == "optimizers":
            own[int(number)].setdefault(int(rest[0]), {})[rest[1]] = value
        elif rest == ["cpu"]:
            torch.set_rng_state(value)
        elif ranks.device.type == "cuda":
            torch.cuda.set_rng_state(value, ranks.device)
    for optimizer, entries in zip(optimizers, own, strict=True):
        optimizer.load_state_dict({"state": entries, "param_groups": optimizer.state_dict()["param_groups"]})


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
