"""Train a GPT-2: `python -m trainer.train --data WORKDIR/tokens --out RUN`, or `torchrun … -m trainer.train …`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import nn

from trainer.command_line import run_reporting
from trainer.config import TrainConfig, parse
from trainer.distributed import Ranks, StopSignals, reduced_when
from trainer.metrics import Diverged
from trainer.setup import Run, set_up


class Interrupted(RuntimeError):
    """Another rank received a signal to stop and this one did not: the run is saved, but not finished."""


class OutOfMemory(RuntimeError):
    """The GPU's memory does not hold a micro-batch."""


def train(config: TrainConfig) -> float:
    """Train until the last step or a signal; returns the last step's loss. Every rank calls it.

    Raises:
      SettingsError, ShardError, CheckpointError: before the first step; each says what to do.
      Diverged: a loss or gradient is not finite; nothing is saved after the last good checkpoint.
      OutOfMemory: give a smaller micro_batch.
    """
    with StopSignals() as stop, Ranks.join(config.device) as ranks:
        return _train(config, ranks, stop)


def _train(config: TrainConfig, ranks: Ranks, stop: StopSignals) -> float:
    with ExitStack() as ending:
        run = set_up(config, ranks, ending)
        if run.step >= run.config.last_step:
            run.say(run.nothing_to_do())
            run.log.close()
            return math.nan
        try:
            return _loop(run, stop)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"a forward pass of {run.loader.micro_batch} windows does not fit in the GPU's memory: give a smaller "
                f"--micro_batch, or --checkpoint_activations ({str(error).partition('.')[0]})"
            ) from error


def _loop(run: Run, stop: StopSignals) -> float:
    config, ranks, loader, log = run.config, run.ranks, run.loader, run.log
    step, batches = run.step, loader.batches(run.step)

    while step < config.last_step:
        rate = config.learning_rate_of(step)
        loss = torch.zeros((), device=ranks.device)
        run.model.cast_weights(run.cast)
        for micro_step in range(loader.accumulation):
            inputs, targets = next(batches)
            # Ranks average their losses and gradients; this weight makes that the mean over the global batch.
            share = loader.weight(micro_step) * ranks.world_size
            with reduced_when(run.net, micro_step == loader.accumulation - 1):
                with run.autocast:
                    part = run.net(inputs, targets, **run.blocks(inputs)) * share
                part.backward()
            loss += part.detach()
        run.model.cast_weights(None)
        ranks.average_gradients(run.model)
        norm = nn.utils.clip_grad_norm_(run.model.parameters(), config.clip or math.inf)
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        ranks.sync()
        step += 1
        log.add(step, rate, loss, norm)

        stopping = ranks.any(bool(stop.received))
        finished = stopping or step == config.last_step
        saving = finished or (config.save_every and step % config.save_every == 0)
        validating = run.validation is not None and (finished or step % config.val_every == 0)
        if not (saving or validating or step % config.log_every == 0):
            continue
        log.collect()  # the only wait for the device; raises Diverged before anything is saved
        if validating:
            log.note(val_loss=run.validate())
            log.note_samples(run.samples())
        if saving:
            run.checkpoints.save(step, run.model, run.optimizers)
            log.note(saved=True)  # once a part of the checkpoint exists: see RunCheckpoints
        log.write()
        if finished:
            run.checkpoints.wait()
            ranks.any(False)  # a rank that ends takes the group down: wait until all have written
        if stopping:
            run.say(f"stopped by {stop.received or 'a signal'} at step {step}, saved; the same command continues here")
            # When nodes join or leave, each agent of torchrun signals its own ranks. It takes a rank that ends
            # before that with exit code 0 for one that has finished its training.
            if not stop.wait(10):
                raise Interrupted(f"stopped at step {step} because another rank received a signal")
            break
        log.restart_clock()
    batches.close()
    log.close()
    return log.last_loss


def main(arguments: Sequence[str] | None = None) -> int:
    def work() -> None:
        train(parse(arguments))

    return run_reporting("trainer.train", work, Diverged, Interrupted, OutOfMemory)


if __name__ == "__main__":
    sys.exit(main())
