"""Train a GPT-2: `python -m trainer.train --data WORKDIR/tokens --out RUN`.

From top to bottom: the checkpoint to resume, data, model, optimizers, batches, steps. Several
processes: `torchrun --nproc-per-node=8 -m trainer.train CONFIG.toml`. In a program:
`from trainer import train`.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from schemas import SettingsError
from schemas.quantities import pluralize
from trainer import checkpoint, resuming
from trainer.checkpoint import Record, Saver
from trainer.command_line import first_line, is_out_of_memory, run_reporting
from trainer.config import TrainConfig, parse, recorded_settings
from trainer.data.corpora import Corpora, open_corpora
from trainer.data.loader import DocumentBlocks, Loader
from trainer.data.samplers import mix64
from trainer.device import (
    compute_dtype,
    default_micro_batch,
    is_compiler_error,
    use_fastest_attention,
)
from trainer.distributed import (
    Ranks,
    StopSignals,
    averaging_when,
    launch_on_chips,
    run_lock,
    wrap_ddp,
)
from trainer.metrics import Diverged, StepLog
from trainer.model import GPT
from trainer.publish import PUBLISHABLE, Publisher
from trainer.signing import signer_of
from trainer.validation import count_bytes, val_figures, validation_loss, validation_set

Say = Callable[[str], None]

LOG_EVERY = 10  # steps between progress lines; every step is recorded
# What torchrun prints when a rank ends by a signal looks like a failure.
_TORCHRUN_NOTE = " (a traceback of torchrun after this is its report of the signal, not an error)"


def train(config: TrainConfig) -> float:
    """Train until the last step or a signal, and return the last step's loss.

    Every rank calls it. The same settings again continue a run that was stopped. Returns NaN if no
    step was left. Raises before the first step: SettingsError, ShardError, CheckpointError or
    SignatureError. Later: Diverged if a loss or gradient is not finite; nothing is saved after the
    last good checkpoint. MemoryError if a micro-batch is too large. SettingsError if torch.compile
    fails. OSError if a file cannot be written. InterruptedError if the run is saved and not
    finished, because another rank received a signal to stop.
    """
    with StopSignals() as stop, Ranks.join(config.device) as ranks:
        # A frame of its own, whose end frees the model before the group ends.
        return _train(config, ranks, stop)


def _train(config: TrainConfig, ranks: Ranks, stop: StopSignals) -> float:
    with ExitStack() as closing:
        say: Say = partial(print, flush=True) if ranks.is_main else _say_nothing
        device = ranks.device
        path, parent = _open_run(config, ranks, say, closing)
        start = parent.step if parent else 0

        # Data: sample i is a pure function of the seed and i.
        corpora = open_corpora(config.data, parent.data if parent else ())
        ranks.gather(None)  # Another rank may still copy shards.
        tokenizer = corpora.tokenizer
        shape = config.model_config(tokenizer.vocab_size)
        num_windows = config.windows_per_batch(shape.context)
        step_tokens = num_windows * shape.context
        config = config.resolved(steps_an_epoch=-(-sum(corpora.tokens) // step_tokens))
        sampler = corpora.sampler(config)
        if path and parent:
            resuming.check_same_run(path, parent, config, corpora, say)
        corpora.warn_unread(num_windows * config.max_steps, say)
        validation = validation_set(corpora, shape.context, config, say)
        val_bytes = count_bytes(validation, tokenizer) if ranks.is_main else 0

        # Where checkpoints go.
        saver = _start_saver(config, tokenizer.path, ranks, say, closing)
        saver.last_saved = start

        # Model: new weights by the seed, the same on every rank, or a checkpoint's or init_from's.
        torch.set_float32_matmul_precision("high")
        torch.manual_seed(config.seed)
        with torch.device(device if device.type == "cuda" else "cpu"):
            model = GPT(shape)
        # The checkpoint whose optimizer state continues; None if that starts at zero.
        training_source = resuming.load_weights(model, path, config, corpora, say)
        model.to(device).train()
        model.checkpoint_activations = config.checkpoint_activations
        dtype = compute_dtype(config.dtype, device)
        model.compute_in(dtype)
        if config.compile or (config.compile is None and device.type == "cuda"):
            model.compile_parts()

        # Optimizers, with their state.
        optimizers = model.configure_optimizers(config)
        if training_source:
            checkpoint.load_training(training_source, model, optimizers)
        if parent:
            say(f"resumed from {path} at step {start}")
        if start >= config.max_steps:
            say(
                f"nothing to do: {config.out} is at step {start} of {config.max_steps}; a higher "
                f"--max_steps continues it"
            )
            return math.nan
        net = wrap_ddp(model, ranks)

        # Batches.
        loader = Loader(
            sampler,
            batch=num_windows,
            micro_batch=config.micro_batch or default_micro_batch(model, device),
            rank=ranks.rank,
            world_size=ranks.world_size,
            device=device,
            vocab_size=tokenizer.vocab_size,
        )
        blocks = DocumentBlocks(tokenizer.eot, config.document_mask)
        attention = use_fastest_attention(shape, config.document_mask, dtype, device, closing)

        # Reports.
        step_flops = model.flops_per_token * step_tokens
        say(
            f"{model.n_parameters:,} parameters, {step_flops / 1e12:.3g} TFLOP a step; "
            f"{device.type}, {str(dtype).removeprefix('torch.')}, attention by {attention}\n"
            f"{pluralize(config.max_steps, 'step')} of {step_tokens:,} tokens = "
            f"{_describe_batch(loader, shape.context)}"
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
        record = _record_of(config, model, corpora, parent, ranks)
        closing.enter_context(_explaining(config, model, loader, saver))

        # Steps.
        # They undo the freeze below, which follows the first step.
        closing.callback(gc.unfreeze)
        closing.callback(gc.enable)
        step = start
        saved_step = start
        batches = loader.batches(start)

        def is_stopping() -> bool:
            return ranks.any(bool(stop.received))

        while step < config.max_steps:
            if config.dropout:
                # The masks follow from (seed, step, rank), so that no generator has to be saved.
                torch.manual_seed(mix64(config.seed ^ mix64(step ^ mix64(ranks.rank))))
            loss = torch.zeros((), device=device)
            is_cancelled = False
            for micro_step in range(loader.accumulation):
                # A step may take minutes, and a container may be killed ten seconds after a signal.
                # Several ranks finish theirs: to agree in each micro-batch would cost time.
                if stop.received and ranks.world_size == 1:
                    is_cancelled = True
                    break
                inputs, targets = next(batches)
                # Ranks average their losses and gradients. This weight makes the average the mean
                # over the global batch.
                weight = loader.weight(micro_step) * ranks.world_size
                with averaging_when(net, micro_step == loader.accumulation - 1):
                    micro_loss = net(inputs, targets, **blocks(inputs)) * weight
                    micro_loss.backward()
                loss += micro_loss.detach()
            if not is_cancelled:
                ranks.average_gradients(model)
                norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf)
                for optimizer in optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = config.learning_rate_of(step)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                ranks.sync()
                step += 1
                # The rate that the optimizer applied: Adafactor lowers it.
                log.add(step, optimizers[0].param_groups[0]["lr"], loss, norm)
            is_first = step == start + 1
            if is_first:
                ranks.after_first_step()
                # Objects that exist now stay. Collections become short, and are at the same steps
                # on all ranks.
                gc.freeze()
                gc.disable()

            is_stopped = is_stopping()
            is_last = is_stopped or step == config.max_steps
            is_save_due = step > saved_step and (is_last or _is_due(step, config.save_every))
            # Not after a signal. `validation` is empty if val_every is 0.
            can_validate = len(validation) > 0 and not is_stopped
            is_validation_due = can_validate and (is_last or _is_due(step, config.val_every))
            is_report_due = is_first or is_last or step % LOG_EVERY == 0
            if not (is_save_due or is_validation_due or is_report_due):
                continue
            # Steps that were skipped above did not wait for the device. Raises Diverged before a
            # save.
            log.collect()
            gc.collect()
            saver.check()
            log.write(saver.last_saved)
            # Before the validation, which takes long and may fail.
            if is_save_due and ranks.is_main:
                state = checkpoint.training_state(model, optimizers)
                saver.save(dataclasses.replace(record, step=step), model.state_dict(), state)
            if is_save_due:
                saved_step = step
                if not ranks.is_main:
                    # Their error may have to name it, too.
                    saver.last_saved = step
            if is_last:
                # Before the gather below: a rank that ends takes the group down.
                saver.wait()
                log.amend(saved=saver.last_saved)
            if is_validation_due:
                val_loss = validation_loss(
                    model, validation, ranks, blocks, loader.micro_batch, is_stopping
                )
                # A signal during the validation ends it. The run is saved before the next step.
                if not is_stopping():
                    if not math.isfinite(val_loss):
                        raise Diverged(f"step {step}: validation loss {val_loss:.4g}", step)
                    log.amend(**val_figures(val_loss, validation, val_bytes))
            log.print_progress()
            if is_save_due or is_last:
                # Rank 0 may save for long. The other ranks wait for it here, since in the next step
                # they would give up after minutes.
                ranks.gather(None)
            if is_stopped:
                _end_stopped(step, stop, say)
                break
            log.restart_clock()
        batches.close()
        return log.last_loss


def _is_due(step: int, every: int) -> bool:
    """Return whether something happens at a step; `every` is 0 for never."""
    return every > 0 and step % every == 0


def _open_run(
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
        newest = resuming.newest_checkpoint(out, say, config.verify_key)
    return ranks.gather(newest)[0] or (None, None)


def _start_saver(
    config: TrainConfig, tokenizer: Path, ranks: Ranks, say: Say, closing: ExitStack
) -> Saver:
    """Return what writes the run's checkpoints, signs them and publishes them."""
    sign = signer_of(config.sign_key) if config.sign_key else None
    publish = None
    if config.publish and ranks.is_main:
        publisher = Publisher(config.publish, Path(config.out), say)
        closing.callback(publisher.close)
        publish = publisher.push
    saver = Saver(Path(config.out), tokenizer, sign=sign, on_saved=publish)
    closing.callback(saver.wait)
    return saver


def _record_of(
    config: TrainConfig, model: GPT, corpora: Corpora, parent: Record | None, ranks: Ranks
) -> Record:
    """Return the record of the run's checkpoints, without their step and files."""
    tokenizer = corpora.tokenizer
    return Record(
        step=0,
        model=dataclasses.asdict(model.config),
        settings=recorded_settings(config),
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


def _describe_batch(loader: Loader, context: int) -> str:
    ranks = "in"
    if loader.world_size > 1:
        ranks = f"over {loader.world_size} ranks, each in"
    return (
        f"{pluralize(loader.samples, 'window')} of {context} {ranks} "
        f"{pluralize(loader.accumulation, 'micro-batch')} of {loader.micro_batch} at most"
    )


def _end_stopped(step: int, stop: StopSignals, say: Say) -> None:
    """Report that a run has stopped; raise InterruptedError if another rank received the signal.

    When nodes join or leave, each agent of torchrun signals its own ranks. An agent takes a rank
    that exits with 0 before the agent's own signal for one that has finished its training.
    """
    message = f"stopped by {stop.received or 'a signal'} "
    if step:
        message += f"at step {step}, saved; the same command continues here"
    else:
        message += "in the first step, with nothing to save; the same command starts again"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        message += _TORCHRUN_NOTE
    say(message)
    if not stop.wait(10):
        raise InterruptedError(f"stopped at step {step} because another rank received a signal")


@contextmanager
def _explaining(config: TrainConfig, model: GPT, loader: Loader, saver: Saver) -> Iterator[None]:
    """Turn errors of the loop into the errors of `train`, which have advice."""
    try:
        yield
    except Diverged as error:
        # The last good checkpoint may still be in writing.
        saver.wait()
        newest = saver.path_of(saver.last_saved)
        if not saver.last_saved:
            origin = "there is no checkpoint before it"
        elif saver.last_saved >= error.step - 1:
            origin = (
                f"the weights in {newest} may be the cause: delete that folder to continue from "
                f"the checkpoint before"
            )
        else:
            origin = f"the last good checkpoint is {newest}"
        tool = ["python", "-m", "trainer.data.documents", config.out]
        tool += ["--max_steps", str(config.max_steps), "--step", str(error.step)]
        raise Diverged(
            f"{error}; {origin}. Look at the step's documents ({shlex.join(tool)}), try a lower "
            f"learning_rate or more warm-up",
            error.step,
        ) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(_explain_memory(model, loader.micro_batch, error)) from error
        if is_compiler_error(error):
            raise SettingsError(
                f"torch.compile failed ({first_line(error)}): install the compiler that it "
                f"names, or give --no_compile"
            ) from error
        raise


def _explain_memory(model: GPT, micro_batch: int, error: Exception) -> str:
    """Return what to change when a forward or backward pass does not fit."""
    place = "memory"
    if isinstance(error, torch.OutOfMemoryError):
        place = "the GPU's memory"
    remedies = []
    if micro_batch > 1:
        remedies.append("a smaller --micro_batch")
    if not model.checkpoint_activations:
        remedies.append("--checkpoint_activations")
    if not remedies:
        remedies.append("a smaller --preset or --context")
    return (
        f"a forward pass of {pluralize(micro_batch, 'window')} does not fit in {place}: give "
        f"{', or '.join(remedies)} ({first_line(error).partition('.')[0]})"
    )


def _say_nothing(message: str) -> None:
    """Ignore a message that rank 0 prints."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line or `arguments` specify; return the exit code."""

    def parse_and_train() -> None:
        config = parse(arguments)
        if config.device == "xla_host":
            launch_on_chips(_train_on_chip, config)
        else:
            train(config)

    return run_reporting("trainer.train", parse_and_train, Diverged)


def _train_on_chip(number: int, config: TrainConfig) -> None:
    code = run_reporting("trainer.train", lambda: train(config), Diverged)
    if code:
        raise SystemExit(code)


class _CallableModule(ModuleType):
    """Make this module callable as its function `train`.

    After any import of this module, the package's attribute `train` is the module, so
    `from trainer import train` gives it in place of the function: it has to be callable.
    """

    def __call__(self, config: TrainConfig) -> float:
        return train(config)


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
