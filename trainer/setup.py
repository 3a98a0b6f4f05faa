"""What a run is made of, built from its settings: data, model, optimizers, checkpoints, log."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from schemas import SettingsError
from trainer.config import TrainConfig
from trainer.data import Corpora, DocumentBlocks, Loader, open_corpora
from trainer.distributed import Ranks, autocast_of, averaging, in_bfloat16
from trainer.generation import write_texts
from trainer.head import best_chunk
from trainer.metrics import Metrics, StepLog, open_tracker
from trainer.model import GPT, use_fastest_attention
from trainer.optimizers import make_optimizers
from trainer.publishing import Publisher
from trainer.resume import RunCheckpoints
from trainer.validation import validation_loss, validation_windows, windows_of_text


@dataclass(frozen=True)
class Run:
    """What the training loop needs.

    Attributes:
      config: the settings, with this run's `max_steps` and `schedule`.
      ranks: this process among the others.
      say: prints a message, on rank 0 only.
      model: the weights.
      forward: the model as it is called in evaluation: compiled if `compile` is set.
      net: the model as it is called in training: gradients are averaged over ranks.
      optimizers: of the model's parameters.
      loader: batches of this rank.
      blocks: how the model treats the documents of a window.
      autocast: the precision of the forward pass.
      cast: what the matrices are cast to once a step, or None.
      validation: the validation windows (N, T + 1), or None.
      checkpoints: reads and writes the run's state.
      tokenizer: file of the shards' tokenizer.
      log: reports the steps.
      step: optimizer steps done.
    """

    config: TrainConfig
    ranks: Ranks
    say: Callable[[str], None]
    model: GPT
    forward: nn.Module
    net: nn.Module
    optimizers: list[torch.optim.Optimizer]
    loader: Loader
    blocks: DocumentBlocks
    autocast: torch.autocast
    cast: torch.dtype | None
    validation: torch.Tensor | None
    checkpoints: RunCheckpoints
    tokenizer: Path
    log: StepLog
    step: int

    def validate(self) -> float:
        """The loss over the validation windows; every rank calls it."""
        assert self.validation is not None
        return validation_loss(
            self.forward,
            self.validation,
            self.ranks,
            micro_batch=self.loader.micro_batch,
            autocast=self.autocast,
            blocks=self.blocks,
        )

    def samples(self) -> list[str]:
        """Two new documents that the model writes, on rank 0, from the same random numbers each time.

        There are none on XLA (each length would be compiled), or without the package tokenizers.
        """
        config = self.config
        if not self.ranks.main or not config.sample_tokens or config.device == "xla":
            return []
        return write_texts(self.model, self.tokenizer, self.blocks.eot, count=2, max_tokens=config.sample_tokens)

    def nothing_to_do(self) -> str:
        """Why there is no step left, as a message."""
        return (
            f"nothing to do: {self.checkpoints.path} is of step {self.step}, and max_steps is {self.config.last_step}; "
            "a higher --max_steps, or --extend_steps, continues it"
        )


def set_up(config: TrainConfig, ranks: Ranks, ending: ExitStack) -> Run:
    """Build the run, at the step of its newest checkpoint; `ending` closes what has to be closed.

    Raises:
      SettingsError, ShardError, CheckpointError, ValueError: why it cannot be trained, and what to do.
    """
    say: Callable[[str], None] = partial(print, flush=True) if ranks.main else lambda message: None
    device = ranks.device
    if "://" in config.out:
        raise SettingsError(f"out: {config.out} is not a local folder; train in one, and give --publish {config.out}")
    if Path(config.out).exists() and not Path(config.out).is_dir():
        raise SettingsError(f"out: {config.out} is a file; give a folder instead")
    torch.set_float32_matmul_precision("high")
    verify = config.verify_shards and ranks.main
    corpora = open_corpora(config.data, verify=verify, cache=config.cache, cache_gb=config.cache_gb)
    shape = config.model_config(corpora.tokenizer.vocab_size)
    windows = config.windows_per_batch(shape.context)
    config = config.resolved(-(-sum(corpora.tokens) // (windows * shape.context)))
    sampler_of = partial(
        Corpora.sampler,
        name=config.sampler,
        context=shape.context,
        seed=config.seed,
        long_min_tokens=config.long_min_tokens,
        long_fraction=config.long_fraction,
    )
    blocks = DocumentBlocks(corpora.tokenizer.eot, config.document_mask, config.reset_positions)
    validation = None
    if config.val_every and config.val_data:
        validation = windows_of_text(config.val_data, corpora.tokenizer, shape.context, config.val_windows)
    elif config.val_every:
        validation = validation_windows(corpora, shape.context, config.val_windows)
        if validation is None:
            say("no validation: data has no document in its val split")

    if ranks.main:
        ending.enter_context(sole_writer(Path(config.out), say))
    publisher = None
    if ranks.main and config.publish:
        publisher = Publisher(config.publish, Path(config.out), say)
        ending.callback(publisher.close)
    checkpoints = RunCheckpoints(config, corpora, shape, ranks, say, publisher.push if publisher else lambda path: None)
    ending.callback(checkpoints.wait)
    corpora = checkpoints.corpora
    sampler = sampler_of(corpora)

    torch.manual_seed(config.seed)
    model = GPT(shape)
    checkpoints.load_weights(model)
    model.train()
    model.checkpoint_activations = config.checkpoint_activations
    model.loss_chunk = best_chunk(device.type) if config.loss_chunk is None else config.loss_chunk
    autocast, bfloat16 = autocast_of(config.dtype, device), in_bfloat16(config.dtype, device)
    cast = torch.bfloat16 if bfloat16 and device.type != "xla" else None
    attention = use_fastest_attention(device, config.dropout)
    compiled = device.type == "cuda" if config.compile is None else config.compile
    model.to(device)
    ranks.share_weights(model)
    forward: nn.Module = model
    if compiled and (ranks.distributed or config.checkpoint_activations):
        model.compile_parts()
    elif compiled:
        forward = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    loader = Loader(
        sampler,
        windows,
        config.micro_batch,
        rank=ranks.rank,
        world_size=ranks.world_size,
        device=device,
        vocab_size=corpora.tokenizer.vocab_size,
    )
    optimizers = make_optimizers(
        config.optimizer,
        model,
        lr=config.peak_learning_rate,
        weight_decay=config.weight_decay,
        betas=(config.beta1, config.beta2),
    )
    torch.manual_seed(config.seed + 1 + ranks.rank)  # dropout differs between ranks
    checkpoints.load_training(optimizers)
    net = forward
    if ranks.distributed:
        net = averaging(model, ranks)

    tokens = windows * shape.context
    over = f" over {ranks.world_size} ranks, each in" if ranks.distributed else " in"
    say(
        f"{model.n_parameters:,} parameters, {model.flops_per_token * tokens / 1e12:.3g} TFLOP a step; "
        f"{tokens:,} tokens a step = {windows} windows of {shape.context}{over} "
        f"{loader.accumulation} micro-batches of {loader.micro_batch} at most; {config.last_step:,} steps; "
        f"{device.type}, {'bfloat16' if bfloat16 else 'float32'}{f', {attention}' if attention else ''}"
    )
    step = checkpoints.step
    metrics = None
    if ranks.main:
        tracker = open_tracker(config.tracker, Path(config.out), step, say)
        metrics = Metrics(Path(config.out), step, tracker, dataclasses.asdict(config), config.last_step)
    if config.warmup_steps > config.max_steps:
        say(f"warmup_steps {config.warmup_steps} exceed the run's {config.max_steps} steps: the rate peaks at its end")
    log = StepLog(metrics, checkpoints.diverged, ranks, tokens, model.flops_per_token * tokens, config.last_step, say)
    return Run(
        config, ranks, say, model, forward, net, optimizers, loader, blocks, autocast, cast, validation, checkpoints,
        corpora.tokenizer.path, log, step,
    )  # fmt: skip


_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextmanager
def sole_writer(folder: Path, say: Callable[[str], None], patience: float = 10) -> Iterator[None]:
    """Lock the run's `folder` by its file `.lock`; the lock is released when the process ends, however it ends.

    It works between machines if the file system's locks do (NFS 4, Lustre with `-o flock`). If there are no locks,
    `say` is called and the run continues without.

    Args:
      patience: seconds to wait: when nodes leave and join, the previous writer may be about to end.

    Raises:
      SettingsError: another process holds the lock; it says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        end = time.monotonic() + patience
        while not _locked(file.fileno(), folder, say):
            if time.monotonic() > end:
                file.seek(0)
                raise SettingsError(
                    f"{folder} is being written by another run ({file.read().strip() or 'process unknown'}); "
                    "stop that one first, or give another --out"
                )
            time.sleep(0.2)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _locked(descriptor: int, folder: Path, say: Callable[[str], None]) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        say(f"{folder} cannot be locked ({error.strerror}): make sure that no other run writes there")
    return True
