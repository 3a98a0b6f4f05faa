"""Measure training on this machine, next to transformers and nanoGPT.

    .venv/bin/python benchmarks/train.py rate [--presets tiny 124M] [--dtypes float32 bfloat16]
    .venv/bin/python benchmarks/train.py characters [--nanogpt CLONE] [--seed N] [FLAGS]

`rate` times a complete step (forward, backward, clipping, optimizer) of our model and of
transformers' GPT2LMHeadModel with SDPA, in turn, in one process. Both have the same shape, batch
and fused AdamW. In bfloat16, theirs is under autocast, and our layers cast their weights. The
fastest step of each counts, and the first is left out. Exits 1 under 1.1 times transformers.

`characters` trains by the command a user types what nanoGPT's README trains on a CPU: 4 layers, 4
heads, width 128, context 64, batch 12, 2,000 steps on tinyshakespeare, at its rate of 1e-3 and
beta2 of 0.99. FLAGS, such as `--learning_rate 2e-3`, are the trainer's. `--nanogpt` trains by that
clone's own train.py, too. Both losses are over the complete validation split.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from token_shards import write_shards
from torch import nn
from trainer_flags import flags_of

from trainer.model import GPT, preset
from trainer.optim import make_optimizers

REPOSITORY = Path(__file__).resolve().parent.parent
MIN_TIMES_TRANSFORMERS = 1.1
DATA = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
# nanoGPT's data/shakespeare_char/prepare.py has this share for training.
TRAIN_SHARE = 0.9
CONTEXT = 64  # of the character setting


Step = Callable[[], None]


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    rate = commands.add_parser("rate", help="tokens/s of a step next to transformers")
    rate.add_argument("--presets", nargs="+", default=["tiny", "124M"], metavar="NAME")
    rate.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"]
    )
    rate.add_argument(
        "--steps", type=int, default=3, metavar="N", help="steps timed of each (default: 3)"
    )
    rate.add_argument(
        "--windows", type=int, metavar="N", help="windows of a step (default: 16 for tiny, or 1)"
    )
    rate.add_argument("--compile", action="store_true", help="torch.compile both")
    characters = commands.add_parser("characters", help="nanoGPT's character setting")
    characters.add_argument("--text", type=Path, default=DATA / "text" / "tinyshakespeare.txt")
    characters.add_argument("--nanogpt", type=Path, metavar="CLONE", help="trained next to ours")
    characters.add_argument("--seed", type=int, default=1337)
    arguments, arguments.flags = parser.parse_known_args()
    if arguments.flags and arguments.command == "rate":
        parser.error(f"unknown arguments: {' '.join(arguments.flags)}")
    if arguments.command == "rate":
        return compare_rates(arguments)
    return train_characters(arguments)


def compare_rates(arguments: argparse.Namespace) -> int:
    """Print the rates of each preset in each precision; return 1 if one is too low."""
    is_too_slow = False
    for name in arguments.presets:
        for dtype in arguments.dtypes:
            # A window of most presets has 1,024 tokens, of tiny 128.
            default_windows = 16 if name == "tiny" else 1
            windows = arguments.windows or default_windows
            config = preset(name)
            ids = torch.randint(config.vocab_size, (windows, config.block_size + 1))
            steps = [
                our_step(name, ids, dtype, arguments.compile),
                transformers_step(name, ids, dtype, arguments.compile),
            ]
            our_seconds, peer_seconds = fastest_steps(steps, arguments.steps)
            tokens = windows * config.block_size
            times = peer_seconds / our_seconds
            is_too_slow = is_too_slow or times < MIN_TIMES_TRANSFORMERS
            print(
                f"{name} {dtype}, {windows} × {config.block_size}: ours "
                f"{tokens / our_seconds:,.0f} tokens/s, "
                f"transformers {tokens / peer_seconds:,.0f} tokens/s, {times:.2f} times",
                flush=True,
            )
    return int(is_too_slow)


def fastest_steps(steps: list[Step], repeats: int) -> list[float]:
    """Return the seconds of the fastest of some repeats of each step, called in turn."""
    seconds: list[list[float]] = [[] for _ in steps]
    # The first time is not counted: it allocates, and may compile.
    for number in range(repeats + 1):
        for step, times in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            if number:
                times.append(time.perf_counter() - start)
    return [min(times) for times in seconds]


def our_step(name: str, ids: torch.Tensor, dtype: str, compiled: bool) -> Step:
    """Return a step of our model."""
    model = GPT(preset(name)).train()
    model.compute_in(getattr(torch, dtype))
    (optimizer,) = make_optimizers("adamw", model, lr=6e-4, weight_decay=0.1)
    net = torch.compile(model) if compiled else model
    return partial(take_step, model, optimizer, lambda: net(ids[:, :-1], ids[:, 1:]))


def transformers_step(name: str, ids: torch.Tensor, dtype: str, compiled: bool) -> Step:
    """Return a step of transformers' model."""
    model = transformers_model(name)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    net = torch.compile(model) if compiled else model

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            return net(ids[:, :-1], labels=ids[:, :-1]).loss

    return partial(take_step, model, optimizer, loss)


def take_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]
) -> None:
    """Compute the loss and its gradients, and change the weights."""
    loss().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def transformers_model(name: str) -> nn.Module:
    """Return GPT2LMHeadModel of a preset's shape, with SDPA and no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = preset(name)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.block_size,
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.n_embd,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="sdpa",
        )
    ).train()


def train_characters(arguments: argparse.Namespace) -> int:
    """Print the losses on a text's characters, ours and with a clone nanoGPT's."""
    text = arguments.text.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    ids = np.array([alphabet.index(character) for character in text], np.uint16)
    split = int(TRAIN_SHARE * len(ids))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        loss, seconds = our_characters(scratch, ids[:split], ids[split:], alphabet, arguments)
        print(
            f"characters of {arguments.text.name}: ours {loss:.4f} in {seconds:.0f} s", flush=True
        )
        if arguments.nanogpt:
            loss, seconds = nanogpts_characters(scratch, ids[:split], ids[split:], arguments)
            print(f"nanoGPT's own code: {loss:.4f} in {seconds:.0f} s")
    return 0


def our_characters(
    scratch: Path,
    train: np.ndarray,
    val: np.ndarray,
    alphabet: list[str],
    arguments: argparse.Namespace,
) -> tuple[float, float]:
    """Return our validation loss and the seconds of the training."""
    folder = write_shards(
        scratch / "tokens",
        {"train": [(np.array([len(train)]), train)], "val": [(np.array([len(val)]), val)]},
        tokenizer=character_tokenizer(alphabet),
        vocab_size=len(alphabet) + 1,
        eot=len(alphabet),
    )
    # The settings of nanoGPT's README for a CPU, with its beta2 for small batches.
    flags = flags_of(
        data=folder,
        out=scratch / "run",
        preset="tiny",
        n_layer=4,
        n_head=4,
        n_embd=128,
        block_size=CONTEXT,
        batch_tokens=12 * CONTEXT,
        device_batch_size=12,
        max_steps=2000,
        learning_rate=1e-3,
        beta2=0.99,
        warmup_steps=100,
        eval_every=0,
        seed=arguments.seed,
        device="cpu",
    )
    start = time.perf_counter()
    command = [sys.executable, "-m", "trainer", *flags, *arguments.flags]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    seconds = time.perf_counter() - start
    # There are fewer windows than this: all of them are taken.
    tool = [sys.executable, "-m", "trainer.evaluate", scratch / "run"]
    options = flags_of(data=folder, windows=len(val))
    figures = subprocess.check_output([*tool, *options], cwd=REPOSITORY)
    return json.loads(figures)["val_loss"], seconds


def nanogpts_characters(
    scratch: Path, train: np.ndarray, val: np.ndarray, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Return the loss and seconds of nanoGPT's own train.py, by its README's command for a CPU."""
    clone = scratch / "nanoGPT"
    shutil.copytree(arguments.nanogpt, clone, ignore=shutil.ignore_patterns(".git"))
    train.tofile(clone / "data" / "shakespeare_char" / "train.bin")
    val.tofile(clone / "data" / "shakespeare_char" / "val.bin")
    # Without its meta.pkl, it takes GPT-2's vocabulary.
    meta = {"vocab_size": int(train.max()) + 1}
    (clone / "data" / "shakespeare_char" / "meta.pkl").write_bytes(pickle.dumps(meta))
    source = (clone / "train.py").read_text().replace("1337", str(arguments.seed))
    (clone / "train.py").write_text(source)
    flags = (
        "--device=cpu --compile=False --eval_iters=20 --log_interval=500 --block_size=64 "
        "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 "
        "--lr_decay_iters=2000 --dropout=0.0 --always_save_checkpoint=True"
    )
    start = time.perf_counter()
    command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *flags.split()]
    subprocess.run(command, check=True, cwd=clone)
    seconds = time.perf_counter() - start
    sys.path.insert(0, str(clone))
    module = importlib.import_module("model")
    saved = torch.load(clone / "out-shakespeare-char" / "ckpt.pt", weights_only=False)
    model = module.GPT(module.GPTConfig(**saved["model_args"])).eval()
    model.load_state_dict(saved["model"])
    # Contiguous windows, which share one token with the next.
    ids = torch.from_numpy(val.astype(np.int64))
    windows = ids.unfold(0, CONTEXT + 1, CONTEXT)
    total = 0.0
    with torch.no_grad():
        for batch in windows.split(64):
            _, loss = model(batch[:, :-1], batch[:, 1:])
            total += loss.item() * len(batch)
    return total / len(windows), seconds


def character_tokenizer(alphabet: list[str]) -> str:
    """Return a tokenizer.json in which each character is a token."""
    from tokenizers import Tokenizer, decoders, models

    id_by_character = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(id_by_character, []))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer.to_str()


if __name__ == "__main__":
    sys.exit(main())
