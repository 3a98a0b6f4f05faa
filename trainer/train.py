"""Train a GPT-2: `python -m trainer.train --data WORKDIR/tokens --out RUN`, or `torchrun … -m
trainer.train …`."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from schemas import SettingsError
from trainer import checkpoint, pretrained
from trainer.checkpoint import Record, Saver
from trainer.command_line import first_line, is_out_of_memory, pluralize, run_reporting
from trainer.config import TrainConfig, parse
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
from trainer.optimizers import make_optimizers
from trainer.remote import Publisher
from trainer.samplers import mix64
from trainer.signing import signer_of
from trainer.validation import bits_per_byte, count_bytes, validation_loss, validation_set

_TORCHRUN_ENDS = " (a traceback of torchrun after this is its report of the signal, not an error)"
LOG_EVERY = 10  # steps between progress lines; every step is recorded
_LOSS_CHUNK = (
    2048  # tokens whose logits exist at a time on a CPU, where this is faster than torch's own loss
)


def train(config: TrainConfig) -> float:
    """Train until the last step or a signal; returns the last step's loss. Every rank calls it.

    Raises SettingsError, ShardError, CheckpointError before the first step (each says what to do);
    Diverged: a loss or gradient is not finite, and nothing is saved after the last good checkpoint;
    MemoryError: lower the micro_batch; InterruptedError: the run is saved and not finished, because
    another rank received a signal to stop.
    """
    with StopSignals() as stop, Ranks.join(config.device) as ranks:
        return _train(
            config, ranks, stop
        )  # a frame of its own, whose end frees the model before the group ends


def _train(config: TrainConfig, ranks: Ranks, stop: StopSignals) -> float:
    with ExitStack() as ending:
        run = set_up(config, ranks, ending)
        if run.step >= (last := run.config.max_steps):
            run.say(
                f"nothing to do: {config.out} is at step {run.step} of {last}; a higher "
                f"--max_steps continues it"
            )
            return math.nan
        try:
            return _loop(run, stop)
        except Diverged as error:
            run.saver.wait()  # the last good checkpoint may still be in writing
            saved = checkpoint.checkpoints(Path(config.out))
            raise Diverged(
                f"{error}; the last good checkpoint is {saved[-1] if saved else 'none'}. Look at "
                f"the step's documents (python -m trainer.tools.documents {config.out} --step "
                f"{error.step}), try a lower learning_rate or more warm-up",
                error.step,
            ) from error
        except Exception as error:
            if is_out_of_memory(error):
                raise MemoryError(_too_large(run, error)) from error
            if is_compiler_error(error):
                raise SettingsError(
                    f"torch.compile failed ({first_line(error)}): install the compiler that it "
                    f"names, or give --no_compile"
                ) from error
            raise


def _too_large(run: Run, error: Exception) -> str:
    place = "the GPU's memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
    remedies = []
    if run.loader.micro_batch > 1:
        remedies.append("a smaller --micro_batch")
    if not run.model.checkpoint_activations:
        remedies.append("--checkpoint_activations")
    if not remedies:
        remedies.append("a smaller --preset or --context")
    windows = pluralize(run.loader.micro_batch, "window")
    verb = "does" if run.loader.micro_batch == 1 else "do"
    return (
        f"{windows} in one forward pass {verb} not fit in {place}: give {', or '.join(remedies)} "
        f"({first_line(error).partition('.')[0]})"
    )


@dataclass(frozen=True)
class Run:
    """What the training loop needs."""

    config: TrainConfig  # the settings, with this run's defaults
    ranks: Ranks  # this process among the others
    say: Callable[[str], None]  # prints a message, on rank 0 only
    model: GPT
    net: nn.Module  # the model as training calls it: gradients are averaged over ranks
    optimizers: list[torch.optim.Optimizer]
    loader: Loader
    blocks: DocumentBlocks
    validation: torch.Tensor | None  # windows (N, T + 1)
    val_bytes: int  # of their text; 0 if unknown
    record: Record  # of the next checkpoint, but for its step
    saver: Saver  # on rank 0
    log: StepLog
    step: int  # optimizer steps done


def _loop(run: Run, stop: StopSignals) -> float:
    config, ranks, model, net, loader, log = (
        run.config,
        run.ranks,
        run.model,
        run.net,
        run.loader,
        run.log,
    )
    step, batches, autocast = (
        run.step,
        loader.batches(run.step),
        autocast_of(config.dtype, ranks.device),
    )

    while step < config.max_steps:
        if config.dropout:  # the masks of a step follow from (seed, step, rank)
            torch.manual_seed(mix64(config.seed ^ mix64(step ^ mix64(ranks.rank))))
        rate, loss = config.learning_rate_of(step), torch.zeros((), device=ranks.device)
        for micro_step in range(loader.accumulation):
            inputs, targets = next(batches)
            # Ranks average their losses and gradients; this weight makes that the mean over the
            # global batch.
            share = loader.weight(micro_step) * ranks.world_size
            with averaged_when(net, micro_step == loader.accumulation - 1):
                with autocast:
                    part = net(inputs, targets, **run.blocks(inputs)) * share
                part.backward()
            loss += part.detach()
        ranks.average_gradients(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf)
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        ranks.sync()
        step += 1
        log.add(step, run.optimizers[0].param_groups[0]["lr"], loss, norm)  # as it was applied
        if step == run.step + 1:
            ranks.after_first_step()
            # what is alive now stays; collections, which are the same on all ranks, become short
            gc.freeze()
            gc.disable()

        is_stopped = ranks.any(bool(stop.received))
        is_last = is_stopped or step == config.max_steps
        is_saved = is_last or (config.save_every and step % config.save_every == 0)
        # Whoever stops a run kills it soon after: a container after 10 seconds.
        is_validated = (
            run.validation is not None
            and not is_stopped
            and (is_last or step % config.val_every == 0)
        )
        is_first = step == run.step + 1
        if not (is_first or is_saved or is_validated or step % LOG_EVERY == 0):
            continue
        log.collect()  # the only wait for the device; raises Diverged before anything is saved
        gc.collect()
        log.write(run.saver.last_saved)
        # Saved before the validation, which takes long, and may fail.
        if is_saved and ranks.main:
            record = dataclasses.replace(run.record, step=step)
            run.saver.save(
                record, model.state_dict(), checkpoint.training_state(model, run.optimizers)
            )
            if is_last:
                run.saver.wait()  # a rank that ends takes the group down
                log.amend(saved=run.saver.last_saved)
        if is_validated:
            assert run.validation is not None
            with autocast:
                val_loss = validation_loss(
                    model, run.validation, ranks, run.blocks, loader.micro_batch
                )
            log.amend(val_loss=val_loss)
            if run.val_bytes:
                log.amend(val_bits_per_byte=bits_per_byte(val_loss, run.validation, run.val_bytes))
        log.print_progress()
        if is_saved:
            ranks.gather(None)
        if is_stopped:
            run.say(
                f"stopped by {stop.received or 'a signal'} at step {step}, saved; the same command "
                f"continues here{_TORCHRUN_ENDS * ('TORCHELASTIC_RUN_ID' in os.environ)}"
            )
            # When nodes join or leave, each agent of torchrun signals its own ranks. It takes a
            # rank that ends before that with exit code 0 for one that has finished its training.
            if not stop.wait(10):
                raise InterruptedError(
                    f"stopped at step {step} because another rank received a signal"
                )
            break
        log.restart_clock()
    batches.close()
    return log.last_loss


def set_up(config: TrainConfig, ranks: Ranks, ending: ExitStack) -> Run:
    """Build the run, at the step of its newest checkpoint; `ending` closes what has to be
    closed. Raises ValueError."""
    say: Callable[[str], None] = partial(print, flush=True) if ranks.main else lambda message: None
    device, out = ranks.device, Path(config.out)
    if "://" in config.out:
        raise SettingsError(
            f"out: {config.out} is not a local folder; train in one, and give --publish "
            f"{config.out}"
        )
    if out.exists() and not out.is_dir():
        raise SettingsError(f"out: {out} is a file; give a folder instead")
    hooks: dict[str, Callable[[Path], object]] = (
        {"sign": signer_of(config.sign_key)} if config.sign_key else {}
    )
    if ranks.main:
        ending.enter_context(sole_writer(out, say))
    # Only rank 0 looks, so that all ranks continue from the same checkpoint.
    found = ranks.gather(pretrained.newest(out, say, config.verify_key) if ranks.main else None)[0]
    path, before = found or (None, None)

    corpora = open_corpora(config.data, config.cache, before.data if before else ())
    ranks.gather(None)
    tokenizer = corpora.tokenizer
    shape = config.model_config(tokenizer.vocab_size)
    windows = config.windows_per_batch(shape.context)
    tokens = windows * shape.context
    config = config.resolved(-(-sum(corpora.tokens) // tokens))
    sampler = corpora.sampler(
        config.sampler, shape.context, config.seed, config.long_min_tokens, config.long_fraction
    )
    if path and before:
        pretrained.check_same_run(path, before, config, corpora, say)
    corpora.say_what_is_not_read(windows * config.max_steps, say)
    validation = (
        validation_set(corpora, shape.context, config.val_data, say) if config.val_every else None
    )

    if config.publish and ranks.main:
        publisher = Publisher(config.publish, out, say)
        ending.callback(publisher.close)
        hooks["saved"] = publisher.push
    saver = Saver(out, tokenizer.path, **hooks)
    saver.last_saved = before.step if before else 0
    ending.callback(saver.wait)

    torch.set_float32_matmul_precision("high")
    torch.manual_seed(config.seed)
    with torch.device(device if device.type == "cuda" else "cpu"):
        model = GPT(shape)
    source = pretrained.load_weights(model, path, config, corpora, say)
    model.to(device).train()
    model.checkpoint_activations = config.checkpoint_activations
    model.loss_chunk = _LOSS_CHUNK if device.type == "cpu" else 0
    if config.compile or (config.compile is None and device.type == "cuda"):
        model.compile_parts()
    assert config.learning_rate is not None
    optimizers = make_optimizers(
        config.optimizer,
        model,
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        beta2=config.beta2,
    )
    if source:
        checkpoint.load_training(source, model, optimizers)
    step = before.step if before else 0
    if before:
        say(f"resumed from {path} at step {step}")

    micro_batch = config.micro_batch or default_micro_batch(model, device)
    loader = Loader(
        sampler, windows, micro_batch, ranks.rank, ranks.world_size, device, tokenizer.vocab_size
    )
    over = f" over {ranks.world_size} ranks, each in" if ranks.world_size > 1 else " in"
    half = in_bfloat16(config.dtype, device)
    say(
        f"{model.n_parameters:,} parameters, {model.flops_per_token * tokens / 1e12:.3g} TFLOP a "
        f"step; "
        f"{device.type}, {'bfloat16' if half else 'float32'}, "
        f"attention by {use_fastest_attention(shape, config.document_mask, half, device, ending)}\n"
        f"{config.max_steps:,} steps of {tokens:,} tokens = {pluralize(windows, 'window')} of "
        f"{shape.context}{over} "
        f"{pluralize(loader.accumulation, 'micro-batch')} of {loader.micro_batch} at most"
    )
    settings = dataclasses.asdict(config)
    log = StepLog(out, step, settings, ranks, tokens, model.flops_per_token * tokens, say)
    ending.callback(log.close)
    ending.callback(gc.unfreeze)
    ending.callback(gc.enable)
    known = {key: getattr(tokenizer, key) for key in ("name", "sha256", "vocab_size", "eot")}
    parent = before.digest if before else ""
    record = Record(
        step,
        dataclasses.asdict(shape),
        settings,
        corpora.description(),
        known,
        parent,
        ranks.world_size,
    )
    blocks = DocumentBlocks(tokenizer.eot, config.document_mask)
    net = averaging(model, ranks)
    return Run(
        config,
        ranks,
        say,
        model,
        net,
        optimizers,
        loader,
        blocks,
        validation,
        count_bytes(validation, tokenizer) if ranks.main and validation is not None else 0,
        record,
        saver,
        log,
        step,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_reporting("trainer.train", lambda: train(parse(arguments)), Diverged)


if __name__ == "__main__":
    sys.exit(main())
