"""Train a GPT-2: `python -m trainer.train --data WORKDIR/tokens --out RUN`, or `torchrun … -m trainer.train …`."""

from __future__ import annotations

import dataclasses
import gc
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from schemas import SettingsError
from trainer import checkpoint
from trainer.checkpoint import CheckpointError, Record, Saver
from trainer.command_line import run_reporting
from trainer.config import TrainConfig, changes, parse
from trainer.data import Corpora, DocumentBlocks, Loader, open_corpora
from trainer.distributed import Ranks, StopSignals, autocast_of, averaged_when, averaging, in_bfloat16, sole_writer
from trainer.metrics import Diverged, Metrics, StepLog
from trainer.model import GPT, ModelConfig
from trainer.optimizers import make_optimizers
from trainer.pretrained import load_pretrained
from trainer.publishing import Publisher
from trainer.samplers import mix64
from trainer.signing import Signer, Verifier
from trainer.validation import validation_loss, validation_set

LOG_EVERY = 10  # steps between progress lines; every step is recorded
_LOSS_CHUNK = 2048  # tokens whose logits exist at a time on a CPU, where this is faster than torch's own loss


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
        if run.step >= run.config.max_steps:
            run.say(
                f"nothing to do: {run.config.out} is at step {run.step}, and max_steps is {run.config.max_steps}; a "
                "higher --max_steps continues it"
            )
            return math.nan
        try:
            return _loop(run, stop)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"{run.loader.micro_batch} windows in one forward pass do not fit in the GPU's memory: give a smaller "
                f"--micro_batch, or --checkpoint_activations ({str(error).partition('.')[0]})"
            ) from error
        except Diverged as error:
            run.saver.wait()  # the last good checkpoint may still be in writing
            saved = checkpoint.checkpoints(Path(config.out) / "checkpoints")
            raise Diverged(
                f"{error}; the last good checkpoint is {saved[-1] if saved else 'none'}. Look at the step's documents "
                f"(python -m trainer.tools.documents {config.out} --step N names them; `owt why WORKDIR URL_ID` shows "
                "what happened to one), try a lower learning_rate or a longer warm-up"
            ) from error


@dataclass(frozen=True)
class Run:
    """What the training loop needs.

    Attributes:
      config: the settings, with this run's defaults.
      ranks: this process among the others.
      say: prints a message, on rank 0 only.
      model: the weights.
      net: the model as it is called in training: gradients are averaged over ranks.
      optimizers: of the model's parameters.
      loader: batches of this rank.
      blocks: how the model treats the documents of a window.
      validation: the validation windows (N, T + 1), or None.
      record: of the next checkpoint, but for its step.
      saver: writes checkpoints, on rank 0.
      log: reports the steps.
      step: optimizer steps done.
    """

    config: TrainConfig
    ranks: Ranks
    say: Callable[[str], None]
    model: GPT
    net: nn.Module
    optimizers: list[torch.optim.Optimizer]
    loader: Loader
    blocks: DocumentBlocks
    validation: torch.Tensor | None
    record: Record
    saver: Saver
    log: StepLog
    step: int


def _loop(run: Run, stop: StopSignals) -> float:
    config, ranks, model, net, loader, log = run.config, run.ranks, run.model, run.net, run.loader, run.log
    step, batches, autocast = run.step, loader.batches(run.step), autocast_of(config.dtype, ranks.device)

    while step < config.max_steps:
        if config.dropout:  # the masks of a step follow from (seed, step, rank)
            torch.manual_seed(mix64(config.seed ^ mix64(step ^ mix64(ranks.rank))))
        rate, loss = config.learning_rate_of(step), torch.zeros((), device=ranks.device)
        for micro_step in range(loader.accumulation):
            inputs, targets = next(batches)
            # Ranks average their losses and gradients; this weight makes that the mean over the global batch.
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
        log.add(step, rate, loss, norm)
        if step == run.step + 1:
            gc.freeze()  # what is alive now stays; collections, which are the same on all ranks, become short
            gc.disable()

        stopping = ranks.any(bool(stop.received))
        finished = stopping or step == config.max_steps
        saving = finished or (config.save_every and step % config.save_every == 0)
        validating = run.validation is not None and (finished or step % config.val_every == 0)
        if not (saving or validating or step % LOG_EVERY == 0):
            continue
        log.collect()  # the only wait for the device; raises Diverged before anything is saved
        gc.collect()
        if validating:
            assert run.validation is not None
            how = {"micro_batch": loader.micro_batch, "autocast": autocast, "blocks": run.blocks}
            log.note(val_loss=validation_loss(model, run.validation, ranks, **how))  # type: ignore[arg-type]
        log.write()
        if saving:
            if ranks.main:
                record = dataclasses.replace(run.record, step=step)
                run.saver.save(record, model.state_dict(), checkpoint.training_state(model, run.optimizers))
            if finished:
                run.saver.wait()  # a rank that ends takes the group down
            ranks.wait()
        if stopping:
            run.say(f"stopped by {stop.received or 'a signal'} at step {step}, saved; the same command continues here")
            # When nodes join or leave, each agent of torchrun signals its own ranks. It takes a rank that ends
            # before that with exit code 0 for one that has finished its training.
            if not stop.wait(10):
                raise Interrupted(f"stopped at step {step} because another rank received a signal")
            break
        log.restart_clock()
    batches.close()
    return log.last_loss


def set_up(config: TrainConfig, ranks: Ranks, ending: ExitStack) -> Run:
    """Build the run, at the step of its newest checkpoint; `ending` closes what has to be closed.

    Raises:
      SettingsError, ShardError, CheckpointError, ValueError: why it cannot be trained, and what to do.
    """
    say: Callable[[str], None] = partial(print, flush=True) if ranks.main else lambda message: None
    device, out = ranks.device, Path(config.out)
    if "://" in config.out:
        raise SettingsError(f"out: {config.out} is not a local folder; train in one, and give --publish {config.out}")
    if out.exists() and not out.is_dir():
        raise SettingsError(f"out: {out} is a file; give a folder instead")
    verifier = Verifier(config.verify_key) if config.verify_key else None
    signer = Signer(config.sign_key) if config.sign_key else None
    if ranks.main:
        ending.enter_context(sole_writer(out, say))
    # Only rank 0 looks, so that all ranks continue from the same checkpoint.
    found = ranks.from_main(_newest(out, say, verifier) if ranks.main else None)
    path, before = found or (None, None)

    corpora = open_corpora(config.data, config.cache, before.data if before else ())
    ranks.wait()
    tokenizer = corpora.tokenizer
    shape = config.model_config(tokenizer.vocab_size)
    windows = config.windows_per_batch(shape.context)
    tokens = windows * shape.context
    config = config.resolved(-(-sum(corpora.tokens) // tokens))
    how = {"long_min_tokens": config.long_min_tokens, "long_fraction": config.long_fraction}
    sampler = corpora.sampler(config.sampler, shape.context, config.seed, **how)  # type: ignore[arg-type]
    if path and before:
        _check_same_run(path, before, config, corpora, say)
    _say_what_is_read(config, corpora, windows, say)
    validation = validation_set(corpora, shape.context, config.val_data, say) if config.val_every else None

    publisher = Publisher(config.publish, out, say) if config.publish and ranks.main else None
    if publisher:
        ending.callback(publisher.close)
    saver = Saver(out, tokenizer.path, signer, publisher.push if publisher else None)
    ending.callback(saver.wait)

    torch.set_float32_matmul_precision("high")
    torch.manual_seed(config.seed)
    with torch.device(device if device.type == "cuda" else "cpu"):
        model = GPT(shape)
    source = _load_weights(model, path, config, corpora, say)
    model.to(device).train()
    ranks.share_weights(model)
    model.checkpoint_activations = config.checkpoint_activations
    model.loss_chunk = _LOSS_CHUNK if device.type == "cpu" else 0
    if config.compile or (config.compile is None and device.type == "cuda"):
        model.compile_parts()
    assert config.learning_rate is not None
    optimizers = make_optimizers(config.optimizer, model, lr=config.learning_rate, weight_decay=config.weight_decay)
    if source:
        checkpoint.load_training(source, model, optimizers)
    step = before.step if before else 0
    if path:
        say(f"resumed from {path} at step {step}")

    micro_batch = config.micro_batch or default_micro_batch(model, device)
    place = {"rank": ranks.rank, "world_size": ranks.world_size, "device": device}
    loader = Loader(sampler, windows, micro_batch, vocab_size=tokenizer.vocab_size, **place)  # type: ignore[arg-type]
    over = f" over {ranks.world_size} ranks, each in" if ranks.distributed else " in"
    say(
        f"{model.n_parameters:,} parameters, {model.flops_per_token * tokens / 1e12:.3g} TFLOP a step; "
        f"{device.type}, {'bfloat16' if in_bfloat16(config.dtype, device) else 'float32'}, "
        f"attention by {use_fastest_attention(config, shape, device, ending)}\n"
        f"{config.max_steps:,} steps of {tokens:,} tokens = {windows} windows of {shape.context}{over} "
        f"{loader.accumulation} micro-batches of {loader.micro_batch} at most"
    )
    settings = dataclasses.asdict(config)
    metrics = Metrics(out, step, settings, config.max_steps, say) if ranks.main else None
    log = StepLog(metrics, ranks, tokens, model.flops_per_token * tokens, config.max_steps, say)
    ending.callback(log.close)
    ending.callback(gc.unfreeze)
    ending.callback(gc.enable)
    known = {key: getattr(tokenizer, key) for key in ("name", "sha256", "vocab_size", "eot")}
    parent = before.digest if before else ""
    record = Record(step, dataclasses.asdict(shape), settings, corpora.description(), known, parent, ranks.world_size)
    blocks = DocumentBlocks(tokenizer.eot, config.document_mask)
    net = averaging(model, ranks)
    return Run(config, ranks, say, model, net, optimizers, loader, blocks, validation, record, saver, log, step)


def _newest(out: Path, say: Callable[[str], None], verifier: Verifier | None) -> tuple[Path, Record] | None:
    """The run's newest intact checkpoint; raises CheckpointError if there are some and none is intact."""
    strict = "with verify_key, no earlier one is taken in its place" if verifier else ""
    try:
        found = checkpoint.latest(out / "checkpoints", say, strict=strict)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; restore it from a copy, or move {out} aside to start at step 0") from error
    if found and verifier:
        verifier.check(found[0])
    return found


def _check_same_run(
    path: Path, before: Record, config: TrainConfig, corpora: Corpora, say: Callable[[str], None]
) -> None:
    """Raises SettingsError if the checkpoint is of another run; says which settings have changed."""
    refused, noted = changes(before.settings, config)
    old, now = before.tokenizer, corpora.tokenizer
    if any(old[key] != getattr(now, key) for key in ("sha256", "vocab_size", "eot")):
        refused.append(
            f"the tokenizer was {old['name']} ({old['sha256'][:12]}…, end-of-text {old['eot']}), is "
            f"{now.name} ({now.sha256[:12]}…, end-of-text {now.eot})"
        )
    datasets = [
        [(own["digest"], own["share"], own["folder"]) for own in entries]
        for entries in (before.data, corpora.description())
    ]
    if [own[:2] for own in datasets[0]] != [own[:2] for own in datasets[1]]:
        was, is_now = (", ".join(f"{own[2]} ({own[1]:.1%}, {own[0][:12]}…)" for own in entries) for entries in datasets)
        refused.append(f"the data was {was}, is {is_now}: other data is a new run with --init_from {config.out}")
    if refused:
        raise SettingsError(f"{path} is of another run: {'; '.join(refused)}. Use another --out, or the same settings")
    for note in noted:
        say(f"changed since {path.name}: {note}")


def _say_what_is_read(config: TrainConfig, corpora: Corpora, windows: int, say: Callable[[str], None]) -> None:
    """Says which datasets have grown since the run began, and of which it will read nothing."""
    samples = windows * config.max_steps
    for dataset, share, tokens in zip(corpora.datasets, corpora.shares, corpora.tokens, strict=True):
        if any(len(own) > len(dataset.files[split]) for split, own in dataset.manifest.files.items()):
            say(
                f"{dataset.folder} has grown: this run goes on with the files that it began with; a new run with "
                f"--init_from {config.out} reads all"
            )
        if tokens and share * samples < 1:
            say(f"{dataset.folder} has a share of {share:.1g}: none of this run's {samples:,} samples is of it")


def _load_weights(
    model: GPT, path: Path | None, config: TrainConfig, corpora: Corpora, say: Callable[[str], None]
) -> Path | None:
    """Load the weights of the run's checkpoint, or else of `init_from`; returns whose optimizer's state to load.

    Raises:
      CheckpointError, ValueError: why `init_from` cannot be loaded.
    """
    if path:
        model.load_state_dict(load_file(path / checkpoint.WEIGHTS))
        return path
    if not config.init_from:
        return None
    trained = load_pretrained(config.init_from, verify_key=config.verify_key)
    trained.check_tokenizer(corpora.tokenizer, corpora.datasets[0].folder)
    ours, theirs = model.config, trained.model.config
    if dataclasses.replace(ours, dropout=0.0) != dataclasses.replace(theirs, dropout=0.0):
        raise CheckpointError(f"{config.init_from} is of another shape: {theirs}; these settings make {ours}")
    model.load_state_dict(trained.model.state_dict())
    same = trained.step is not None and checkpoint.read_record(trained.folder).settings["optimizer"] == config.optimizer
    say(f"weights{' and state of the optimizer' if same else ''} from {config.init_from}")
    return trained.folder if same else None


def default_micro_batch(model: GPT, device: torch.device) -> int:
    """Windows that are likely to fit in the GPU's memory, a power of two; 8 elsewhere.

    A token keeps about 34 bytes a channel in each block, and 10 for each entry of the vocabulary: logits in bfloat16,
    in float32, and their gradient. A parameter takes 18: weight, gradient, AdamW's state, and a copy in bfloat16.
    """
    if device.type != "cuda":
        return 8
    config = model.config
    blocks = config.n_layer * config.width * (2 if model.checkpoint_activations else 34)
    window = config.context * (blocks + 10 * config.padded_vocab_size)
    room = 0.85 * torch.cuda.get_device_properties(device).total_memory - 18 * model.n_parameters
    return 1 << max(0, int(room // window).bit_length() - 1) if room > window else 1


def use_fastest_attention(config: TrainConfig, shape: ModelConfig, device: torch.device, ending: ExitStack) -> str:
    """Prefer cuDNN's attention on a Hopper GPU; the name of what computes attention here."""
    if config.document_mask and device.type == "cuda":
        return "FlexAttention"
    if device.type == "xla":
        return "XLA"
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9:
        order = [
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ]
        ending.enter_context(sdpa_kernel(order, set_priority=True))
    dtype = torch.bfloat16 if in_bfloat16(config.dtype, device) else torch.float32
    q = torch.zeros(1, shape.n_head, shape.context, shape.width // shape.n_head, dtype=dtype, device=device)
    q.requires_grad_()
    chosen = torch._fused_sdp_choice(q, q, q, dropout_p=shape.dropout, is_causal=True)
    return SDPBackend(chosen).name.lower()


def main(arguments: Sequence[str] | None = None) -> int:
    def work() -> None:
        train(parse(arguments))

    return run_reporting("trainer.train", work, Diverged, Interrupted, OutOfMemory)


if __name__ == "__main__":
    sys.exit(main())
