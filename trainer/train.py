"""Train a GPT-2: `python -m trainer.train --data WORKDIR/tokens --out RUN`, or by `torchrun … -m trainer.train`."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from schemas import SettingsError
from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.config import TrainConfig, changes, parse
from trainer.corpora import Corpora, open_corpora
from trainer.data import Loader
from trainer.distributed import Ranks, StopSignals, shard, spread_like_parameters, whole
from trainer.divergence import Diverged, LossWatch, url_ids_by_sample
from trainer.documents import DocumentBlocks
from trainer.evaluate import fixed_windows, validation_loss
from trainer.huggingface import is_huggingface, load_huggingface
from trainer.loss import best_chunk
from trainer.metrics import Metrics, memory_gb, mfu, progress_line
from trainer.model import GPT
from trainer.optimizers import learning_rate, make_optimizers
from trainer.preflight import micro_batch_that_fits, optimizer_bytes, report
from trainer.run_lock import sole_writer
from trainer.shards import ShardError


class Interrupted(RuntimeError):
    """Another rank was told to stop, this one was not: the run is saved, and not at its end."""


def train(config: TrainConfig) -> float:
    """Train until `max_steps` or a signal; returns the last step's loss. Every rank calls it.

    Raises:
      SettingsError, ShardError, CheckpointError: before the first step, and each says what to do.
      Diverged: the loss is not finite, or a spike; nothing is saved after the last good checkpoint.
    """
    with StopSignals() as stop, ExitStack() as ending:
        ranks = Ranks.join(config.device)
        ending.callback(ranks.leave)
        return _train(config, ranks, stop, ending, print_now if ranks.main else lambda message: None)


def _train(config: TrainConfig, ranks: Ranks, stop: StopSignals, ending: ExitStack, say: Any) -> float:
    device, run = ranks.device, Path(config.out)
    torch.set_float32_matmul_precision("high")
    verify = config.verify_shards and ranks.main
    corpora = open_corpora(config.data, config.mix, verify=verify, cache=config.cache, cache_gb=config.cache_gb)
    shape = config.model_config(corpora.tokenizer.vocab_size)
    windows = config.windows_per_batch(shape.context)
    config = config.resolved(-(-corpora.epoch_tokens // (windows * shape.context)))
    sampler_of = partial(
        Corpora.sampler,
        name=config.sampler,
        context=shape.context,
        seed=config.seed,
        long_min_tokens=config.long_min_tokens,
        long_fraction=config.long_fraction,
    )
    sampler = sampler_of(corpora)
    blocks = DocumentBlocks(corpora.tokenizer.eot, config.document_mask, config.reset_positions)
    validation = _validation_windows(config, corpora, shape.context, say)

    if ranks.main and not config.preflight:
        ending.enter_context(sole_writer(run, say))
    writer = checkpoint.Writer()
    ending.callback(writer.wait)

    # Where the run stands: a checkpoint of its own, or weights to start from, or nothing.
    torch.manual_seed(config.seed)
    model = GPT(shape)
    saved = _resume(config, corpora, model, ranks, say)
    model.train()
    sharded = config.fsdp and ranks.distributed
    if sharded:
        shard(model, model.h, ranks)
    else:
        model.to(device)
    model.checkpoint_activations = config.checkpoint_activations
    model.loss_chunk = best_chunk(device.type) if config.loss_chunk is None else config.loss_chunk
    bfloat16 = config.dtype == "bfloat16" or (config.dtype == "auto" and device.type == "cuda")
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)
    net: nn.Module = torch.compile(model) if config.compile else model  # type: ignore[assignment]
    reserved, largest_slice = optimizer_bytes(model, config.optimizer), -(-windows // ranks.world_size)
    micro_batch = config.micro_batch or micro_batch_that_fits(model, largest_slice, reserved, autocast)
    micro_batch = min(ranks.gather(micro_batch))
    loader = Loader(sampler, windows, micro_batch, rank=ranks.rank, world_size=ranks.world_size, device=device)
    if config.preflight:
        say(report(model, net, micro_batch, config, windows, ranks.world_size, autocast))
        return math.nan
    optimizers = make_optimizers(
        config.optimizer,
        model,
        lr=config.peak_learning_rate,
        weight_decay=config.weight_decay,
        betas=(config.beta1, config.beta2),
    )
    torch.manual_seed(config.seed + 1 + ranks.rank)  # dropout differs between ranks
    step, parent = 0, ""
    if saved:
        step, parent = saved[1].step, saved[1].digest
        _restore_training(saved[0], optimizers, ranks)
    if ranks.distributed and not sharded:
        place = [device.index] if device.type == "cuda" else None
        net = DistributedDataParallel(net, device_ids=place, gradient_as_bucket_view=True)

    tokens = windows * shape.context
    over = f" over {ranks.world_size} ranks, each in" if ranks.distributed else " in"
    say(
        f"{model.n_parameters:,} parameters, {model.flops_per_token * tokens / 1e12:.3g} TFLOP a step; "
        f"{tokens:,} tokens a step = {windows} windows of {shape.context}{over} "
        f"{loader.accumulation} micro-batches of {micro_batch} at most; {config.max_steps:,} steps; {device.type}, "
        f"{'bfloat16' if bfloat16 else 'float32'}"
    )
    watch = LossWatch(
        config.max_spike,
        run,
        lambda step: url_ids_by_sample(corpora, sampler_of, (step - 1) * windows, windows),
        writer,
        ranks.main,
    )
    metrics = Metrics(run, step, config.tensorboard) if ranks.main else None
    if saved:
        say(f"resumed from {saved[0]} at step {step}")
    pending: list[tuple[dict[str, Any], torch.Tensor, torch.Tensor]] = []  # steps whose loss is still on the device
    last_loss, last_saved = float("nan"), step
    clock = time.perf_counter()
    batches = loader.batches(step)

    while step < config.max_steps:
        rate = learning_rate(
            step,
            peak=config.peak_learning_rate,
            schedule=config.schedule or "cosine",
            warmup_steps=config.warmup,
            max_steps=config.max_steps,
            min_fraction=config.min_fraction,
            decay_fraction=config.decay_fraction,
        )
        loss = torch.zeros((), device=device)
        for micro_step in range(loader.accumulation):
            inputs, targets = next(batches)
            # Gradients travel once a step; forward too must know, or DDP prepares for it each time.
            last = micro_step == loader.accumulation - 1
            quiet = nullcontext() if last or not isinstance(net, DistributedDataParallel) else net.no_sync()
            with quiet:
                with autocast:
                    # Gradients and losses are averaged over ranks; what counts is the mean over the global batch.
                    part = net(inputs, targets, **blocks(inputs)) * (loader.weight(micro_step) * ranks.world_size)
                part.backward()
            loss += part.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or float("inf"))
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        pending.append(({"step": step, "lr": rate, "tokens": tokens}, loss, norm))

        stopping = ranks.any(bool(stop.received))
        finished = stopping or step == config.max_steps
        saving = finished or (config.save_every and step % config.save_every == 0)
        validating = validation is not None and config.val_every and (finished or step % config.val_every == 0)
        if not (saving or validating or step % config.log_every == 0):
            continue
        # One wait for the device for all the steps since the last.
        losses = ranks.sum(torch.stack([entry[1] for entry in pending])) / ranks.world_size
        values = zip(losses.tolist(), torch.stack([entry[2] for entry in pending]).tolist(), strict=True)
        seconds = (time.perf_counter() - clock) / len(pending)
        records = []
        for (record, _, _), (value, norm_value) in zip(pending, values, strict=True):
            record |= {"loss": value, "grad_norm": norm_value, "tokens_per_s": round(tokens / seconds, 1)}
            rate_of_rank = model.flops_per_token * tokens / seconds / ranks.world_size
            record |= {"mfu": mfu(rate_of_rank, device), "memory_gb": memory_gb(device), "world_size": ranks.world_size}
            records.append(record)
            watch.check(record["step"], value, norm_value)
        pending.clear()
        last_loss = records[-1]["loss"]
        if validating and validation is not None:
            records[-1]["val_loss"] = validation_loss(
                model, validation, ranks, micro_batch=micro_batch, autocast=autocast, blocks=blocks
            )
        if metrics:
            for record in records:
                metrics.write(record)
            metrics.flush()
            say(progress_line(records[-1], config.max_steps))
        if saving and step > last_saved:
            record_ = checkpoint.make_record(step, shape, dataclasses.asdict(config), corpora, parent, ranks.world_size)
            _save(config, run / "checkpoints", record_, model, optimizers, ranks, corpora.tokenizer.path, writer)
            last_saved = step
        if finished:
            writer.wait()
            ranks.any(False)  # no rank ends, and takes the group down, before all is written
        if stopping:
            say(f"stopped by {stop.received or 'a signal'} at step {step}, saved; the same command goes on from here")
            # Where nodes join or leave, each agent of torchrun tells its own ranks to stop, and takes a rank that
            # ends well before that for one whose training is done.
            if not stop.wait(10):
                raise Interrupted(f"stopped at step {step} because another rank was told to")
            break
        clock = time.perf_counter()
    batches.close()  # type: ignore[attr-defined]
    if metrics:
        metrics.close()
    return last_loss


def _validation_windows(config: TrainConfig, corpora: Corpora, context: int, say: Any) -> torch.Tensor | None:
    if not config.val_every:
        return None
    try:
        parts = [
            fixed_windows(dataset, context, math.ceil(config.val_windows * share))
            for dataset, share in zip(corpora.datasets, corpora.shares, strict=True)
        ]
        return torch.cat(parts)
    except ValueError as error:
        say(f"no validation: {error}")
        return None


def _resume(
    config: TrainConfig, corpora: Corpora, model: GPT, ranks: Ranks, say: Any
) -> tuple[Path, checkpoint.Record] | None:
    """Load the run's newest whole checkpoint, or `init_from`, into `model`."""
    # Rank 0 looks, and all take what it found: a checkpoint must not differ between ranks.
    found = checkpoint.latest(Path(config.out) / "checkpoints", say) if ranks.main else None
    found = ranks.from_main(found)
    if found:
        path, record = found
        refused, noted = changes(record.settings, config)
        if record.data != corpora.digest:
            refused.append(f"the token shards were {record.data[:12]}…, are {corpora.digest[:12]}…")
        if refused:
            raise SettingsError(
                f"{path} is of another run: {'; '.join(refused)}. Use another --out, or the same settings"
            )
        for note in noted:
            say(f"changed since {path.name}: {note}")
        checkpoint.load_weights(model, path)
    elif config.init_from:
        _load_initial(config.init_from, corpora, model)
        say(f"weights from {config.init_from}")
    return found


def _load_initial(source: str, corpora: Corpora, model: GPT) -> None:
    if is_huggingface(Path(source)):
        loaded = load_huggingface(Path(source))
    else:
        loaded, record = checkpoint.load_model(checkpoint.resolve(source))
        if record.tokenizer["sha256"] != corpora.tokenizer.sha256:
            raise CheckpointError(
                f"{source} was trained with the tokenizer {record.tokenizer['name']}, "
                f"the shards are of {corpora.tokenizer.name} (another SHA-256)"
            )
    ours, theirs = model.config, loaded.config
    if dataclasses.replace(ours, dropout=0.0) != dataclasses.replace(theirs, dropout=0.0):
        raise CheckpointError(f"{source} is of another shape: {theirs}; these settings make {ours}")
    model.load_state_dict(loaded.state_dict())


def _restore_training(path: Path, optimizers: list[torch.optim.Optimizer], ranks: Ranks) -> None:
    state = checkpoint.load_training(path)
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
        spread_like_parameters(optimizer)
    if len(state["rng"]) == ranks.world_size:  # with other ranks there is no "same" dropout to go on with
        own = state["rng"][ranks.rank]
        torch.set_rng_state(own["cpu"])
        if ranks.device.type == "cuda" and "cuda" in own:
            torch.cuda.set_rng_state(own["cuda"], ranks.device)


def _save(
    config: TrainConfig,
    folder: Path,
    record: checkpoint.Record,
    model: GPT,
    optimizers: list[torch.optim.Optimizer],
    ranks: Ranks,
    tokenizer: Path,
    writer: checkpoint.Writer,
) -> None:
    rng = {"cpu": torch.get_rng_state()}
    if ranks.device.type == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state(ranks.device)
    every_rng = ranks.gather(rng)

    def write(state: dict[str, Any]) -> None:
        checkpoint.save(folder, record, state["weights"], state["training"], tokenizer)
        checkpoint.prune(folder, config.keep_last, config.keep_every, config.keep_hours)

    training = {"optimizers": [optimizer.state_dict() for optimizer in optimizers], "rng": every_rng}
    state = whole({"weights": model.state_dict(), "training": training}, keep=ranks.main)
    if ranks.main:
        writer.start(write, state)


def print_now(message: str) -> None:
    print(message, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        train(parse(arguments))
    except (SettingsError, ShardError, CheckpointError, Diverged, Interrupted, ValueError, OSError) as error:
        print(f"trainer.train: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
