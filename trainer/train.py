"""Train a GPT-2: `python -m trainer.train --data WORKDIR/tokens --out RUN`, or `torchrun … -m
trainer.train …`."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
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
from trainer import checkpoint, pretrained
from trainer.checkpoint import Record, Saver
from trainer.command_line import first_line, is_out_of_memory, run_reporting
from trainer.config import TrainConfig, parse, recorded_settings
from trainer.corpora import open_corpora
from trainer.data import DocumentBlocks, Loader
from trainer.device import (
    autocast_of,
    default_micro_batch,
    in_bfloat16,
    is_compiler_error,
    use_fastest_attention,
)
from trainer.distributed import Ranks, StopSignals, averaged_when, averaging, sole_writer
from trainer.metrics import Diverged, StepLog
from trainer.model import GPT
from trainer.remote import Publisher
from trainer.samplers import mix64
from trainer.signing import signer_of
from trainer.validation import bits_per_byte, count_bytes, validation_loss, validation_set

_TORCHRUN_ENDS = " (a traceback of torchrun after this is its report of the signal, not an error)"
LOG_EVERY = 10  # steps between progress lines; every step is recorded


def train(config: TrainConfig) -> float:
    """Train until the last step or a signal; returns the last step's loss. Every rank calls it.

    Raises SettingsError, ShardError, CheckpointError before the first step (each says what to do);
    Diverged: a loss or gradient is not finite, and nothing is saved after the last good checkpoint;
    MemoryError: lower the micro_batch; InterruptedError: the run is saved and not finished, because
    another rank received a signal to stop.
    """
    with StopSignals() as stop, Ranks.join(config.device) as ranks:
        # A frame of its own, whose end frees the model before the group ends.
        return _train(config, ranks, stop)


def _train(config: TrainConfig, ranks: Ranks, stop: StopSignals) -> float:
    with ExitStack() as ending:  # closes what has to be closed
        say: Callable[[str], None] = partial(print, flush=True) if ranks.main else _say_nothing
        device, out = ranks.device, Path(config.out)
        path, before = _open_run(config, ranks, say, ending)

        # Data: sample i is a pure function of the seed and i.
        corpora = open_corpora(config.data, before.data if before else ())
        ranks.gather(None)  # a rank may still copy shards
        tokenizer = corpora.tokenizer
        shape = config.model_config(tokenizer.vocab_size)
        windows = config.windows_per_batch(shape.context)
        tokens = windows * shape.context
        config = config.resolved(-(-sum(corpora.tokens) // tokens))
        sampler = corpora.sampler(config)
        if path and before:
            pretrained.check_same_run(path, before, config, corpora, say)
        corpora.say_what_is_not_read(windows * config.max_steps, say)
        validation = validation_set(corpora, shape.context, config, say)
        val_bytes = count_bytes(validation, tokenizer) if ranks.main else 0

        saver = _start_saver(config, tokenizer.path, ranks, say, ending)
        saver.last_saved = start = before.step if before else 0

        # Model and optimizers, with the state of the checkpoint or of init_from.
        torch.set_float32_matmul_precision("high")
        torch.manual_seed(config.seed)
        with torch.device(device if device.type == "cuda" else "cpu"):
            model = GPT(shape)
        source = pretrained.load_weights(model, path, config, corpora, say)
        model.to(device).train()
        model.checkpoint_activations = config.checkpoint_activations
        if config.compile or (config.compile is None and device.type == "cuda"):
            model.compile_parts()
        optimizers = model.configure_optimizers(config)
        if source:
            checkpoint.load_training(source, model, optimizers)
        if before:
            say(f"resumed from {path} at step {start}")
        if start >= config.max_steps:
            say(
                f"nothing to do: {out} is at step {start} of {config.max_steps}; a higher "
                f"--max_steps continues it"
            )
            return math.nan
        net = averaging(model, ranks)

        # Batches and reports.
        micro_batch = config.micro_batch or default_micro_batch(model, device)
        size = tokenizer.vocab_size
        loader = Loader(sampler, windows, micro_batch, ranks.rank, ranks.world_size, device, size)
        blocks = DocumentBlocks(tokenizer.eot, config.document_mask)
        half = in_bfloat16(config.dtype, device)
        flops = model.flops_per_token * tokens
        attention = use_fastest_attention(shape, config.document_mask, half, device, ending)
        over = f" over {ranks.world_size} ranks, each in" if ranks.world_size > 1 else " in"
        say(
            f"{model.n_parameters:,} parameters, {flops / 1e12:.3g} TFLOP a step; "
            f"{device.type}, {'bfloat16' if half else 'float32'}, attention by {attention}\n"
            f"{config.max_steps:,} steps of {tokens:,} tokens = {pluralize(windows, 'window')} of "
            f"{shape.context}{over} "
            f"{pluralize(loader.accumulation, 'micro-batch')} of {loader.micro_batch} at most"
        )
        log = StepLog(out, start, dataclasses.asdict(config), ranks, tokens, flops, say)
        ending.callback(log.close)
        ending.callback(gc.unfreeze)
        ending.callback(gc.enable)
        record = Record(
            step=start,
            model=dataclasses.asdict(shape),
            settings=recorded_settings(config),
            data=corpora.description(),
            tokenizer={k: getattr(tokenizer, k) for k in ("name", "sha256", "vocab_size", "eot")},
            parent=before.digest if before else "",
            world_size=ranks.world_size,
        )
        ending.enter_context(_explaining(config, model, loader, saver))

        step, batches = start, loader.batches(start)
        autocast = autocast_of(config.dtype, device)
        while step < config.max_steps:
            if config.dropout:  # the masks of a step follow from (seed, step, rank)
                torch.manual_seed(mix64(config.seed ^ mix64(step ^ mix64(ranks.rank))))
            loss = torch.zeros((), device=device)
            for micro_step in range(loader.accumulation):
                inputs, targets = next(batches)
                # Ranks average their losses and gradients; this weight makes that the mean over
                # the global batch.
                share = loader.weight(micro_step) * ranks.world_size
                with averaged_when(net, micro_step == loader.accumulation - 1):
                    with autocast:
                        part = net(inputs, targets, **blocks(inputs)) * share
                    part.backward()
                loss += part.detach()
            ranks.average_gradients(model)
            norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = config.learning_rate_of(step)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            ranks.sync()
            step += 1
            log.add(step, optimizers[0].param_groups[0]["lr"], loss, norm)  # as it was applied
            if step == start + 1:
                ranks.after_first_step()
                # what is alive now stays; collections, the same on all ranks, become short
                gc.freeze()
                gc.disable()

            is_stopped = ranks.any(bool(stop.received))
            is_last = is_stopped or step == config.max_steps
            is_saved = is_last or (config.save_every and step % config.save_every == 0)
            # Whoever stops a run kills it soon after: a container after 10 seconds.
            is_validated = len(validation) and not is_stopped
            is_validated = is_validated and (is_last or step % config.val_every == 0)
            if not (step == start + 1 or is_saved or is_validated or step % LOG_EVERY == 0):
                continue
            log.collect()  # the only wait for the device; raises Diverged before a save
            gc.collect()
            log.write(saver.last_saved)
            # Saved before the validation, which takes long, and may fail.
            if is_saved and ranks.main:
                state = checkpoint.training_state(model, optimizers)
                saver.save(dataclasses.replace(record, step=step), model.state_dict(), state)
                if is_last:
                    saver.wait()  # a rank that ends takes the group down
                    log.amend(saved=saver.last_saved)
            if is_validated:
                with autocast:
                    val_loss = validation_loss(model, validation, ranks, blocks, loader.micro_batch)
                log.amend(val_loss=val_loss)
                if val_bytes:
                    log.amend(val_bits_per_byte=bits_per_byte(val_loss, validation, val_bytes))
            log.print_progress()
            if is_saved:
                ranks.gather(None)
            if is_stopped:
                _end_stopped(step, stop, say)
                break
            log.restart_clock()
        batches.close()
        return log.last_loss


def _open_run(
    config: TrainConfig, ranks: Ranks, say: Callable[[str], None], ending: ExitStack
) -> tuple[Path | None, Record | None]:
    """Lock the run's folder; return the checkpoint to continue from, which rank 0 chooses."""
    out = Path(config.out)
    if "://" in config.out:
        raise SettingsError(
            f"out: {config.out} is not a local folder; train in one, and give --publish "
            f"{config.out}"
        )
    if out.exists() and not out.is_dir():
        raise SettingsError(f"out: {out} is a file; give a folder instead")
    if config.sign_key:
        signer_of(config.sign_key)  # a wrong key is reported before anything is written
    if ranks.main:
        ending.enter_context(sole_writer(out, say))
    found = pretrained.newest(out, say, config.verify_key) if ranks.main else None
    return ranks.gather(found)[0] or (None, None)


def _start_saver(
    config: TrainConfig,
    tokenizer: Path,
    ranks: Ranks,
    say: Callable[[str], None],
    ending: ExitStack,
) -> Saver:
    out, hooks = Path(config.out), dict[str, Callable[[Path], object]]()
    if config.sign_key:
        hooks["sign"] = signer_of(config.sign_key)
    if config.publish and ranks.main:
        publisher = Publisher(config.publish, out, say)
        ending.callback(publisher.close)
        hooks["saved"] = publisher.push
    saver = Saver(out, tokenizer, **hooks)
    ending.callback(saver.wait)
    return saver


def _end_stopped(step: int, stop: StopSignals, say: Callable[[str], None]) -> None:
    """Say that a run is saved; raise InterruptedError if only another rank received the signal.

    When nodes join or leave, each agent of torchrun signals its own ranks. It takes a rank that
    ends before that with exit code 0 for one that has finished its training.
    """
    say(
        f"stopped by {stop.received or 'a signal'} at step {step}, saved; the same command "
        f"continues here{_TORCHRUN_ENDS * ('TORCHELASTIC_RUN_ID' in os.environ)}"
    )
    if not stop.wait(10):
        raise InterruptedError(f"stopped at step {step} because another rank received a signal")


@contextmanager
def _explaining(config: TrainConfig, model: GPT, loader: Loader, saver: Saver) -> Iterator[None]:
    """Turn errors of the loop into those of `train`, which say what to do."""
    try:
        yield
    except Diverged as error:
        saver.wait()  # the last good checkpoint may still be in writing
        saved = checkpoint.checkpoints(Path(config.out))
        raise Diverged(
            f"{error}; the last good checkpoint is {saved[-1] if saved else 'none'}. Look at "
            f"the step's documents (python -m trainer.tools.documents {config.out} --step "
            f"{error.step}), try a lower learning_rate or more warm-up",
            error.step,
        ) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(_too_large(model, loader.micro_batch, error)) from error
        if is_compiler_error(error):
            raise SettingsError(
                f"torch.compile failed ({first_line(error)}): install the compiler that it "
                f"names, or give --no_compile"
            ) from error
        raise


def _too_large(model: GPT, micro_batch: int, error: Exception) -> str:
    place = "the GPU's memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
    remedies = []
    if micro_batch > 1:
        remedies.append("a smaller --micro_batch")
    if not model.checkpoint_activations:
        remedies.append("--checkpoint_activations")
    if not remedies:
        remedies.append("a smaller --preset or --context")
    verb = "does" if micro_batch == 1 else "do"
    return (
        f"{pluralize(micro_batch, 'window')} in one forward pass {verb} not fit in {place}: give "
        f"{', or '.join(remedies)} ({first_line(error).partition('.')[0]})"
    )


def _say_nothing(message: str) -> None:
    """Do not print what rank 0 prints."""


def main(arguments: Sequence[str] | None = None) -> int:
    return run_reporting("trainer.train", lambda: train(parse(arguments)), Diverged)


class _CallableModule(ModuleType):
    """Makes `from trainer import train` a function, although `trainer.train` is the command."""

    def __call__(self, config: TrainConfig) -> float:
        return train(config)


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
