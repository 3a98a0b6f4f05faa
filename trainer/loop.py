"""Train a GPT-2: set up the run, take its steps, and report each one.

`python -m trainer CONFIG.toml` calls `train`. Several processes: `torchrun --nproc-per-node=8 -m
trainer CONFIG.toml`. In a program: `from trainer import train`.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from schemas import SettingsError
from schemas.quantities import pluralize
from trainer import resuming
from trainer.checkpoint import Record, Saver
from trainer.config import TrainConfig
from trainer.data.corpora import Corpora, open_corpora
from trainer.data.loader import DocumentBlocks, Loader
from trainer.data.samplers import Sampler, mix64
from trainer.device import compute_dtype, default_micro_batch, use_fastest_attention
from trainer.distributed import Ranks, StopSignals, averaging_when, wrap_ddp
from trainer.failures import end_stopped, explain_failures
from trainer.metrics import Diverged, StepLog
from trainer.model import GPT
from trainer.optim import load_training, training_state
from trainer.validation import count_bytes, val_figures, validation_loss, validation_set

Say = Callable[[str], None]

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


@dataclass
class _Run:
    """The parts of a run, and how far it is."""

    config: TrainConfig  # resolved
    ranks: Ranks
    stop: StopSignals
    say: Say
    model: GPT
    net: nn.Module  # the model as a step calls it: by DDP if there are several ranks
    optimizers: list[torch.optim.Optimizer]
    loader: Loader
    batches: Generator[tuple[torch.Tensor, torch.Tensor], None, None]
    blocks: DocumentBlocks
    validation: torch.Tensor  # windows; none if val_every is 0
    val_bytes: int
    saver: Saver
    record: Record  # of the checkpoints, without step and files
    log: StepLog
    start: int  # the step that the run continues from
    step: int  # steps done
    saved_step: int  # of the newest checkpoint, which may still be in writing
    val_loss: float | None  # of the last validation
    is_stopped: bool = False  # by a signal

    @property
    def applied_rate(self) -> float:
        """The learning rate of the last step, which Adafactor lowers."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    def is_stopping(self) -> bool:
        """Return on every rank whether one has received a signal."""
        return self.ranks.any(bool(self.stop.received))


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


def _train(
    config: TrainConfig,
    model: GPT | None,
    sampler: Sampler | None,
    on_step: Callable[[Step], object] | None,
    ranks: Ranks,
    stop: StopSignals,
) -> TrainResult:
    with ExitStack() as closing:
        run = _set_up(config, model, sampler, ranks, stop, closing)
        closing.enter_context(explain_failures(run.config, run.model, run.loader, run.saver))
        # They undo the freeze that follows the first step.
        closing.callback(gc.unfreeze)
        closing.callback(gc.enable)
        _make_owed_validation(run)
        while run.step < run.config.max_steps and not run.is_stopped:
            is_complete = _take_step(run)
            _report(run, on_step if is_complete else None)
        if ranks.is_main:
            run.saver.prune()
        return TrainResult(run.model.eval(), run.log.last_loss, run.val_loss)


def _set_up(
    config: TrainConfig,
    model: GPT | None,
    sampler: Sampler | None,
    ranks: Ranks,
    stop: StopSignals,
    closing: ExitStack,
) -> _Run:
    """Return a run at the step of its newest checkpoint, or at step 0."""
    say: Say = partial(print, flush=True) if ranks.is_main else _say_nothing
    path, parent = resuming.open_run(config, ranks, say, closing)
    start = parent.step if parent else 0
    corpora = open_corpora(config.data, parent.data if parent else ())
    ranks.gather(None)  # Another rank may still copy shards.
    config = resuming.resolve_config(config, model, corpora)
    if path and parent:
        resuming.check_same_run(path, parent, config, model, corpora, say)
    context = config.model_config(corpora.tokenizer.vocab_size).context
    validation = validation_set(corpora, context, config, say)
    model, optimizers = _prepare_model(config, model, path, corpora, ranks, say)
    saver = resuming.open_saver(config, corpora.tokenizer.path, start, ranks, say, closing)
    loader = _open_loader(config, model, sampler, corpora, ranks)
    corpora.warn_unread(loader.samples * config.max_steps, say)
    log = _open_log(config, model, loader, start, ranks, say, closing)
    batches = loader.batches(start)
    closing.callback(batches.close)
    return _Run(
        config=config,
        ranks=ranks,
        stop=stop,
        say=say,
        model=model,
        net=wrap_ddp(model, ranks),
        optimizers=optimizers,
        loader=loader,
        batches=batches,
        blocks=DocumentBlocks(corpora.tokenizer.eot, config.document_mask),
        validation=validation,
        val_bytes=count_bytes(validation, corpora.tokenizer) if ranks.is_main else 0,
        saver=saver,
        record=resuming.new_record(config, model, corpora, parent, ranks),
        log=log,
        start=start,
        step=start,
        saved_step=start,
        val_loss=log.last_val_loss,
    )


def _prepare_model(
    config: TrainConfig,
    model: GPT | None,
    path: Path | None,
    corpora: Corpora,
    ranks: Ranks,
    say: Say,
) -> tuple[GPT, list[torch.optim.Optimizer]]:
    """Return the model on its device and its optimizers.

    They are those of the checkpoint `path`, of `init_from`, or new.
    """
    torch.set_float32_matmul_precision("high")
    device = ranks.device
    if model is None:
        # New weights follow from the seed, so that they are the same on every rank.
        torch.manual_seed(config.seed)
        with torch.device(device if device.type == "cuda" else "cpu"):
            model = GPT(config.model_config(corpora.tokenizer.vocab_size))
    # The checkpoint whose optimizer state continues; None if that starts at zero.
    training_source = resuming.load_weights(model, path, config, corpora, say)
    model.tokenizer_path = corpora.tokenizer.path
    model.eot = corpora.tokenizer.eot
    model.to(device).train()
    model.checkpoint_activations = config.checkpoint_activations
    model.compute_in(compute_dtype(config.dtype, device))
    if config.compile or (config.compile is None and device.type == "cuda"):
        model.compile_parts()
    optimizers = model.configure_optimizers(config)
    if training_source:
        load_training(training_source, model, optimizers)
    return model, optimizers


def _open_loader(
    config: TrainConfig,
    model: GPT,
    sampler: Sampler | None,
    corpora: Corpora,
    ranks: Ranks,
) -> Loader:
    context = model.config.context
    # Sample i is a pure function of the seed and i.
    sampler = sampler or corpora.sampler(config)
    if sampler.context != context:
        raise SettingsError(
            f"the sampler has windows of {sampler.context} tokens, the model a context of "
            f"{context}: make both equal"
        )
    return Loader(
        sampler,
        batch=config.windows_per_batch(context),
        micro_batch=config.micro_batch or default_micro_batch(model, ranks.device),
        rank=ranks.rank,
        world_size=ranks.world_size,
        device=ranks.device,
        vocab_size=corpora.tokenizer.vocab_size,
    )


def _open_log(
    config: TrainConfig,
    model: GPT,
    loader: Loader,
    start: int,
    ranks: Ranks,
    say: Say,
    closing: ExitStack,
) -> StepLog:
    """Describe the run, and return the log of its steps."""
    context = model.config.context
    step_tokens = loader.samples * context
    step_flops = model.flops_per_token * step_tokens
    dtype = compute_dtype(config.dtype, ranks.device)
    attention = use_fastest_attention(
        model.config, config.document_mask, dtype, ranks.device, closing
    )
    over_ranks = "in"
    if ranks.world_size > 1:
        over_ranks = f"over {ranks.world_size} ranks, each in"
    say(
        f"{model.n_parameters:,} parameters, {step_flops / 1e12:.3g} TFLOP a step; "
        f"{ranks.device.type}, {str(dtype).removeprefix('torch.')}, attention by {attention}\n"
        f"{pluralize(config.max_steps, 'step')} of {step_tokens:,} tokens = "
        f"{pluralize(loader.samples, 'window')} of {context} {over_ranks} "
        f"{pluralize(loader.accumulation, 'micro-batch')} of {loader.micro_batch} at most"
    )
    log = StepLog(
        folder=Path(config.out),
        start=start,
        settings=dataclasses.asdict(config),
        ranks=ranks,
        step_tokens=step_tokens,
        step_flops=step_flops,
        say=say,
    )
    closing.callback(log.close)
    return log


def _make_owed_validation(run: _Run) -> None:
    """Validate the model if its run ended between a checkpoint and the end of its validation."""
    # Rank 0 has the records of the steps.
    is_owed = run.ranks.is_main and resuming.owes_validation(run.config, run.start)
    is_owed = run.ranks.any(is_owed) and len(run.validation) > 0
    if run.start >= run.config.max_steps:
        run.say(
            f"nothing to do{' but a validation' if is_owed else ''}: {run.config.out} is at step "
            f"{run.start} of {run.config.max_steps}; a higher --max_steps continues it"
        )
    if not is_owed:
        return
    _validate(run)
    run.log.print_progress()
    if run.is_stopped:
        end_stopped(run.step, run.stop, run.say)
    run.log.restart_clock()


def _take_step(run: _Run) -> bool:
    """Take the next step; return False if a signal cancelled it."""
    config = run.config
    loader = run.loader
    world_size = run.ranks.world_size
    if config.dropout:
        # The masks follow from (seed, step, rank), so that no generator has to be saved.
        torch.manual_seed(mix64(config.seed ^ mix64(run.step ^ mix64(run.ranks.rank))))
    loss = torch.zeros((), device=run.ranks.device)
    for micro_step in range(loader.accumulation):
        # A step may take minutes, and a container may be killed ten seconds after a signal. Several
        # ranks finish their step, because agreeing in each micro-batch would cost time.
        if run.stop.received and world_size == 1:
            return False
        inputs, targets = next(run.batches)
        # Ranks average their losses and gradients. This weight makes the average the mean over the
        # global batch.
        weight = loader.weight(micro_step) * world_size
        with averaging_when(run.net, micro_step == loader.accumulation - 1):
            micro_loss = run.net(inputs, targets, **run.blocks(inputs)) * weight
            micro_loss.backward()
        loss += micro_loss.detach()
    run.ranks.average_gradients(run.model)
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), config.clip or math.inf)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_of(run.step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    run.ranks.sync()
    run.step += 1
    run.log.add(run.step, run.applied_rate, loss, norm)
    return True


def _report(run: _Run, on_step: Callable[[Step], object] | None) -> None:
    """Record the step, and save and validate the model where that is due."""
    config = run.config
    is_first = run.step == run.start + 1
    if is_first:
        _settle(run.ranks)
    run.is_stopped = run.is_stopping()
    is_last = run.is_stopped or run.step == config.max_steps
    is_save_due = run.step > run.saved_step and (is_last or _is_due(run.step, config.save_every))
    # Not after a signal: the same command first makes the validation.
    can_validate = len(run.validation) > 0 and not run.is_stopped
    is_validation_due = can_validate and (is_last or _is_due(run.step, config.val_every))
    is_due = is_save_due or is_validation_due or is_first or is_last or run.step % LOG_EVERY == 0
    if not (is_due or on_step):
        return
    # Steps that were skipped above did not wait for the device. Raises Diverged before a save.
    run.log.collect()
    run.saver.check()
    run.log.write(run.saver.last_saved)
    if is_due:
        gc.collect()
    if is_save_due:
        # Before the validation, which takes long and may fail.
        _save(run)
    val_loss = _validate(run) if is_validation_due else None
    if is_due:
        run.log.print_progress()
    if on_step:
        on_step(Step(run.step, run.log.last_loss, run.applied_rate, val_loss, run.model))
    if is_save_due or is_last or run.is_stopped:
        _wait_for_ranks(run, is_last or run.is_stopped)
    if run.is_stopped:
        end_stopped(run.step, run.stop, run.say)
    run.log.restart_clock()


def _settle(ranks: Ranks) -> None:
    """Adapt the process after its first step, in which objects are made and code is compiled."""
    ranks.after_first_step()
    # Objects that exist now stay. Collections become short, and are at the same steps on all
    # ranks.
    gc.freeze()
    gc.disable()


def _is_due(step: int, every: int) -> bool:
    """Return whether something happens at a step; `every` is 0 for never."""
    return every > 0 and step % every == 0


def _validate(run: _Run) -> float | None:
    """Add the validation loss to the step's record, and return it.

    If a signal ends the validation, the run is saved, and the result is None. The same command
    first makes the validation.
    """
    val_loss = validation_loss(
        run.model, run.validation, run.ranks, run.blocks, run.loader.micro_batch, run.is_stopping
    )
    run.is_stopped = run.is_stopping()
    if run.is_stopped:
        _save(run)
        return None
    if not math.isfinite(val_loss):
        raise Diverged(f"step {run.step}: validation loss {val_loss:.4g}", run.step)
    run.val_loss = val_loss
    run.log.amend(**val_figures(val_loss, run.validation, run.val_bytes))
    return val_loss


def _save(run: _Run) -> None:
    """Start to write a checkpoint of the step, unless it has one."""
    if run.step == run.saved_step:
        return
    run.saved_step = run.step
    if not run.ranks.is_main:
        # Their error may have to name it, too.
        run.saver.last_saved = run.step
        return
    state = training_state(run.model, run.optimizers)
    record = dataclasses.replace(run.record, step=run.step)
    run.saver.save(record, run.model.state_dict(), state)


def _wait_for_ranks(run: _Run, is_last: bool) -> None:
    """Wait until rank 0 has copied a checkpoint, or, at the last step, written it.

    In the next step the other ranks would give up after minutes. A rank that ends takes the group
    down.
    """
    if is_last:
        run.saver.wait()
        run.log.amend(saved=run.saver.last_saved)
    run.ranks.gather(None)


def _say_nothing(message: str) -> None:
    """Ignore a message that rank 0 prints."""
