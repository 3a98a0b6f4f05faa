"""Train a GPT-2: set up the run, take its steps, and report each one.

`python -m trainer CONFIG.toml` calls `train`. Several processes: `torchrun --nproc-per-node=8 -m
trainer CONFIG.toml`. In a program: `from trainer import train`.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from schemas import SettingsError
from schemas.quantities import pluralize
from trainer import resuming
from trainer.command_line import run_reporting
from trainer.config import TrainConfig
from trainer.data.corpora import open_corpora
from trainer.data.loader import DocumentBlocks, Loader
from trainer.data.samplers import Sampler
from trainer.device import compute_dtype, default_device_batch, use_fastest_attention
from trainer.distributed import Ranks, StopSignals, averaging_when, wrap_ddp
from trainer.failures import end_stopped, explain_failures
from trainer.metrics import Diverged, StepLog
from trainer.model import GPT
from trainer.optim import load_training, training_state
from trainer.validation import score_windows, validation_set

LOG_EVERY = 10  # steps between progress lines; every step is recorded


@dataclass(frozen=True)
class Step:
    """What `on_step` is called with: a step that was done."""

    number: int  # steps done
    loss: float  # mean over the global batch, in nats per token
    lr: float  # the learning rate that the optimizer applied
    val_loss: float | None  # None for a step without a validation
    model: GPT  # in training mode, with the weights after the step


@dataclass(frozen=True)
class TrainResult:
    """What `train` returns."""

    model: GPT  # in evaluation mode
    # Of the last step. If no step was left, only rank 0 has its loss, and others have NaN.
    loss: float
    val_loss: float | None  # of the last validation; None without one


def train(
    config: TrainConfig,
    model: GPT | None = None,
    sampler: Sampler | None = None,
    on_step: Callable[[Step], object] | None = None,
) -> TrainResult:
    """Train until the last step or a signal.

    Every rank calls it. The same settings again continue a run that was stopped. `model` replaces
    the one that `config` describes, `sampler` the samples. `on_step` is called on every rank after
    each step, which so waits for the device.

    Raises before the first step: SettingsError, ShardError, CheckpointError or SignatureError.
    Later: Diverged if a loss or gradient is not finite; nothing is saved after the last good
    checkpoint. MemoryError if a micro-batch is too large. SettingsError if torch.compile fails.
    OSError if a file cannot be written. InterruptedError if the run is saved and not finished,
    because another rank received a signal to stop.
    """
    with StopSignals() as stop, Ranks.join(config.device) as ranks:
        # A frame of its own, whose end frees DDP before the group ends.
        return _train(config, model, sampler, on_step, ranks, stop)


def train_on_chip(number: int, config: TrainConfig) -> None:
    """Train as one of the processes of a TPU host; exit with a code if the training fails.

    It is not in `__main__`, because a spawned process cannot import a function from there.
    """
    code = run_reporting("trainer", lambda: train(config), Diverged)
    if code:
        raise SystemExit(code)


def _train(
    config: TrainConfig,
    model: GPT | None,
    sampler: Sampler | None,
    on_step: Callable[[Step], object] | None,
    ranks: Ranks,
    stop: StopSignals,
) -> TrainResult:
    with ExitStack() as closing:
        run = _Run(config, model, sampler, ranks, stop, closing)
        closing.enter_context(explain_failures(run.config, run.model, run.loader, run.saver))
        # They undo the freeze that follows the first step.
        closing.callback(gc.unfreeze)
        closing.callback(gc.enable)
        run.make_owed_validation()
        while run.step < run.config.max_steps and not run.is_stopped:
            is_complete = run.take_step()
            run.report(on_step if is_complete else None)
        if ranks.is_main:
            run.saver.prune()
        return TrainResult(run.model.eval(), run.log.last_loss, run.val_loss)


class _Run:
    """A run, at the step of its newest checkpoint or at step 0."""

    def __init__(
        self,
        config: TrainConfig,
        model: GPT | None,
        sampler: Sampler | None,
        ranks: Ranks,
        stop: StopSignals,
        closing: ExitStack,
    ) -> None:
        self.ranks = ranks
        self.stop = stop
        self.closing = closing
        self.say: Callable[[str], None] = partial(print, flush=True)
        if not ranks.is_main:
            self.say = _say_nothing
        path, parent = resuming.open_run(config, ranks, self.say, closing)
        self.start = parent.step if parent else 0
        self.step = self.start  # steps done
        self.saved_step = self.start  # of the newest checkpoint, which may still be in writing
        self.is_stopped = False  # by a signal

        self.corpora = open_corpora(config.data, parent.data if parent else ())
        ranks.gather(None)  # Another rank may still copy shards.
        self.config = resuming.resolve_config(config, model, self.corpora)
        if path and parent:
            resuming.check_same_run(path, parent, self.config, model, self.corpora, self.say)
        tokenizer = self.corpora.tokenizer
        block_size = self.config.model_config(tokenizer.vocab_size).block_size
        self.validation = validation_set(self.corpora, block_size, self.config, self.say)
        self.blocks = DocumentBlocks(tokenizer.eot, self.config.document_mask)

        self._make_model(model, path)
        # As a step calls it.
        self.net = wrap_ddp(self.model, ranks)
        self._open_loader(sampler)
        self.saver = resuming.open_saver(self.config, tokenizer.path, ranks, self.say, closing)
        self.saver.last_saved = self.start
        # Of the checkpoints, without step and files.
        self.record = resuming.new_record(self.config, self.model, self.corpora, parent, ranks)
        self._open_log()
        self.val_loss = self.log.last_val_loss  # of the last validation

    def _make_model(self, model: GPT | None, path: Path | None) -> None:
        """Put the model on its device and make its optimizers.

        Weights and state are those of the checkpoint `path`, of `init_from`, or new.
        """
        config = self.config
        device = self.ranks.device
        tokenizer = self.corpora.tokenizer
        torch.set_float32_matmul_precision("high")
        if model is None:
            # New weights follow from the seed, so that they are the same on every rank.
            torch.manual_seed(config.seed)
            with torch.device(device if device.type == "cuda" else "cpu"):
                model = GPT(config.model_config(tokenizer.vocab_size))
        # The checkpoint whose optimizer state continues; None if that starts at zero.
        training_source = resuming.load_weights(model, path, config, self.corpora, self.say)
        model.tokenizer_path = tokenizer.path
        model.eot = tokenizer.eot
        model.to(device).train()
        model.checkpoint_activations = config.checkpoint_activations
        model.compute_in(compute_dtype(config.dtype, device))
        if config.compile or (config.compile is None and device.type == "cuda"):
            model.compile_parts()
        self.model = model
        self.optimizers = model.configure_optimizers(config)
        if training_source:
            load_training(training_source, model, self.optimizers)
        if path:
            self.say(f"resumed from {path} at step {self.start}")

    def _open_loader(self, sampler: Sampler | None) -> None:
        config = self.config
        block_size = self.model.config.block_size
        # Sample i is a pure function of the seed and i.
        sampler = sampler or self.corpora.sampler(config)
        if sampler.block_size != block_size:
            raise SettingsError(
                f"the sampler has windows of {sampler.block_size} tokens, the model a context of "
                f"{block_size}: make both equal"
            )
        self.loader = Loader(
            sampler,
            batch=config.windows_per_batch(block_size),
            device_batch_size=config.device_batch_size
            or default_device_batch(block_size, self.ranks.device),
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            device=self.ranks.device,
            vocab_size=self.corpora.tokenizer.vocab_size,
        )
        self.corpora.warn_unread(self.loader.samples * config.max_steps, self.say)
        self.batches = self.loader.batches(self.start)
        self.closing.callback(self.batches.close)

    def _open_log(self) -> None:
        """Describe the run, and open the log of its steps."""
        loader = self.loader
        device = self.ranks.device
        shape = self.model.config
        dtype = compute_dtype(self.config.dtype, device)
        mask = self.config.document_mask
        attention = use_fastest_attention(shape, mask, dtype, device, self.closing)
        step_tokens = loader.samples * shape.block_size
        step_flops = self.model.flops_per_token * step_tokens
        over_ranks = "in"
        if loader.world_size > 1:
            over_ranks = f"over {loader.world_size} ranks, each in"
        self.say(
            f"{self.model.n_parameters:,} parameters, {step_flops / 1e12:.3g} TFLOP a step; "
            f"{device.type}, {str(dtype).removeprefix('torch.')}, attention by {attention}\n"
            f"{pluralize(self.config.max_steps, 'step')} of {step_tokens:,} tokens = "
            f"{pluralize(loader.samples, 'window')} of {shape.block_size} {over_ranks} "
            f"{pluralize(loader.accumulation, 'micro-batch')} of {loader.device_batch_size} at most"
        )
        self.log = StepLog(
            folder=Path(self.config.out),
            start=self.start,
            settings=dataclasses.asdict(self.config),
            ranks=self.ranks,
            step_tokens=step_tokens,
            step_flops=step_flops,
            say=self.say,
        )
        self.closing.callback(self.log.close)

    def make_owed_validation(self) -> None:
        """Validate the model if its run ended between a checkpoint and its validation's end."""
        # Rank 0 has the records of the steps.
        is_owed = self.ranks.is_main and resuming.owes_validation(self.config, self.start)
        is_owed = self.ranks.any(is_owed) and len(self.validation.windows) > 0
        if self.start >= self.config.max_steps:
            self.say(
                f"nothing to do{' but a validation' if is_owed else ''}: {self.config.out} is at "
                f"step {self.start} of {self.config.max_steps}; a higher --max_steps continues it"
            )
        if not is_owed:
            return
        self._validate()
        self.log.print_progress()
        if self.is_stopped:
            end_stopped(self.step, self.stop, self.say)
        self.log.restart_clock()

    def take_step(self) -> bool:
        """Take the next step; return False if a signal cancelled it."""
        config = self.config
        loader = self.loader
        ranks = self.ranks
        if config.dropout:
            # The masks follow from (seed, step, rank), so that no generator has to be saved.
            key = np.random.SeedSequence([config.seed, self.step, ranks.rank])
            torch.manual_seed(int(key.generate_state(1, np.uint64)[0]))
        loss = torch.zeros((), device=ranks.device)
        for micro_step in range(loader.accumulation):
            # A step may take minutes, and a container may be killed ten seconds after a signal.
            # Several ranks finish their step, because agreeing in each micro-batch would cost time.
            if self.stop.received and ranks.world_size == 1:
                return False
            inputs, targets = next(self.batches)
            # Ranks average their losses and gradients. This weight makes the average the mean over
            # the global batch.
            weight = loader.weight(micro_step) * ranks.world_size
            with averaging_when(self.net, micro_step == loader.accumulation - 1):
                micro_loss = self.net(inputs, targets, **self.blocks(inputs)) * weight
                micro_loss.backward()
            loss += micro_loss.detach()
        ranks.average_gradients(self.model)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip or math.inf)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate_at(self.step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        ranks.sync()
        self.step += 1
        self.log.add(self.step, self._applied_rate(), loss, norm)
        return True

    def report(self, on_step: Callable[[Step], object] | None) -> None:
        """Record the step, and save and validate the model where that is due."""
        is_first = self.step == self.start + 1
        if is_first:
            _settle(self.ranks)
        self.is_stopped = self._is_stopping()
        is_last = self.is_stopped or self.step == self.config.max_steps
        is_save_due = self.step > self.saved_step and self._is_due(self.config.save_every, is_last)
        # Not after a signal: the same command first makes the validation.
        can_validate = len(self.validation.windows) > 0 and not self.is_stopped
        is_validation_due = can_validate and self._is_due(self.config.eval_every, is_last)
        is_due = is_save_due or is_validation_due or self._is_due(LOG_EVERY, is_first or is_last)
        if not (is_due or on_step):
            return
        # Steps that were skipped above did not wait for the device. Raises Diverged before a save.
        self.saver.check()
        self.log.flush(self.saver.last_saved)
        if is_due:
            gc.collect()
        if is_save_due:
            # Before the validation, which takes long and may fail.
            self._save()
        if is_last:
            self._finish_saving()
        val_loss = self._validate() if is_validation_due else None
        if is_due:
            self.log.print_progress()
        if on_step:
            rate = self._applied_rate()
            on_step(Step(self.step, self.log.last_loss, rate, val_loss, self.model))
        if is_save_due or is_last or self.is_stopped:
            # Rank 0 may save for long. In the next step the others would give up after minutes, and
            # a rank that ends takes the group down.
            self.ranks.gather(None)
        if self.is_stopped:
            end_stopped(self.step, self.stop, self.say)
        self.log.restart_clock()

    def _is_due(self, every: int, is_always: bool) -> bool:
        """Return whether something happens at this step; `every` is 0 for never."""
        return is_always or (every > 0 and self.step % every == 0)

    def _is_stopping(self) -> bool:
        """Return on every rank whether one has received a signal."""
        return self.ranks.any(bool(self.stop.received))

    def _applied_rate(self) -> float:
        """Return the learning rate of the last step, which Adafactor lowers."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    def _validate(self) -> float | None:
        """Add the validation loss to the step's record, and return it.

        If a signal ends the validation, the run is saved, and the result is None. The same command
        first makes the validation.
        """
        nats = score_windows(
            self.model,
            self.validation.windows,
            self.ranks,
            self.blocks,
            self.loader.device_batch_size,
            self._is_stopping,
        )
        self.is_stopped = self._is_stopping()
        if self.is_stopped:
            self._save()
            self._finish_saving()
            return None
        figures = self.validation.figures(nats)
        self.val_loss = figures["val_loss"]
        if not math.isfinite(self.val_loss):
            raise Diverged(f"step {self.step}: validation loss {self.val_loss:.4g}", self.step)
        self.log.amend(**figures)
        return self.val_loss

    def _finish_saving(self) -> None:
        """Wait for the checkpoint, and note it in the step's record."""
        self.saver.wait()
        self.log.amend(saved=self.saver.last_saved)

    def _save(self) -> None:
        """Start to write a checkpoint of the step, unless it has one."""
        if self.step == self.saved_step:
            return
        self.saved_step = self.step
        if not self.ranks.is_main:
            # Their error may have to name it, too.
            self.saver.last_saved = self.step
            return
        state = training_state(self.model, self.optimizers)
        record = dataclasses.replace(self.record, step=self.step)
        self.saver.save(record, self.model.state_dict(), state)


def _settle(ranks: Ranks) -> None:
    """Adapt the process after its first step, in which objects are made and code is compiled."""
    ranks.after_first_step()
    # Objects that exist now stay. Collections become short, and are at the same steps on all ranks.
    gc.freeze()
    gc.disable()


def _say_nothing(message: str) -> None:
    """Ignore a message that rank 0 prints."""
