"""Training on this machine: the rate of a step next to transformers, and nanoGPT's character
setting next to nanoGPT.

    .venv/bin/python benchmarks/train.py rate [--presets tiny 124M] [--dtypes float32 bfloat16]
    .venv/bin/python benchmarks/train.py characters [--nanogpt CLONE] [--seed N] [FLAGS]

`rate` times a complete step (forward, backward, clipping, optimizer) of our model and of
transformers' GPT2LMHeadModel with SDPA, same shape, batch, autocast and fused AdamW, in turn, in
one process; the fastest step of each counts, and the first is left out. Exits 1 under 1.1 times
transformers.

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
from pathlib import Path

import numpy as np
import torch
from token_shards import write_shards
from torch import nn

from trainer.model import GPT, preset
from trainer.optimizers import make_optimizers

REPOSITORY = Path(__file__).resolve().parent.parent
WINDOWS = {"tiny": 16}  # of a step; one of 1,024 tokens for the others


def main() -> int:
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
    data = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    characters.add_argument("--text", type=Path, default=data / "text" / "tinyshakespeare.txt")
    characters.add_argument("--nanogpt", type=Path, metavar="CLONE", help="trained next to ours")
    characters.add_argument("--seed", type=int, default=1337)
    arguments, arguments.flags = parser.parse_known_args()
    if arguments.flags and arguments.command == "rate":
        parser.error(f"unknown arguments: {' '.join(arguments.flags)}")
    return compare_rates(arguments) if arguments.command == "rate" else train_characters(arguments)


def compare_rates(arguments: argparse.Namespace) -> int:
    worst = float("inf")
    for name in arguments.presets:
        for dtype in arguments.dtypes:
            windows = arguments.windows or WINDOWS.get(name, 1)
            config = preset(name)
            ids = torch.randint(config.vocab_size, (windows, config.context + 1))
            steps = {
                "ours": our_step(name, ids, dtype, arguments.compile),
                "transformers": transformers_step(name, ids, dtype, arguments.compile),
            }
            seconds = dict.fromkeys(steps, float("inf"))
            for number in range(arguments.steps + 1):
                for contender, step in steps.items():
                    elapsed = timed(step)
                    if number:
                        seconds[contender] = min(seconds[contender], elapsed)
            tokens = windows * config.context
            rates = {contender: tokens / value for contender, value in seconds.items()}
            worst = min(worst, rates["ours"] / rates["transformers"])
            shown = ", ".join(
                f"{contender} {value:,.0f} tokens/s" for contender, value in rates.items()
            )
            print(
                f"{name} {dtype}, {windows} × {config.context}: {shown}, "
                f"{rates['ours'] / rates['transformers']:.2f} times",
                flush=True,
            )
    return int(worst < 1.1)


def timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def our_step(name: str, ids: torch.Tensor, dtype: str, compiled: bool) -> Callable[[], None]:
    model = GPT(preset(name)).train()
    (optimizer,) = make_optimizers("adamw", model, lr=6e-4, weight_decay=0.1)
    net = torch.compile(model) if compiled else model
    return step_of(model, lambda: net(ids[:, :-1], ids[:, 1:]), optimizer, dtype)


def transformers_step(
    name: str, ids: torch.Tensor, dtype: str, compiled: bool
) -> Callable[[], None]:
    model = transformers_model(name)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    net = torch.compile(model) if compiled else model
    return step_of(model, lambda: net(ids[:, :-1], labels=ids[:, :-1]).loss, optimizer, dtype)


def step_of(
    model: nn.Module,
    loss_of: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    dtype: str,
) -> Callable[[], None]:
    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_model(name: str) -> nn.Module:
    """GPT2LMHeadModel of a preset's shape, with SDPA and no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = preset(name)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.context,
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.width,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="sdpa",
        )
    ).train()


def train_characters(arguments: argparse.Namespace) -> int:
    text = arguments.text.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    ids = np.array([alphabet.index(character) for character in text], np.uint16)
    split = int(0.9 * len(ids))  # nanoGPT's data/shakespeare_char/prepare.py
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        loss, seconds = our_characters(place, ids[:split], ids[split:], alphabet, arguments)
        print(
            f"characters of {arguments.text.name}: ours {loss:.4f} in {seconds:.0f} s", flush=True
        )
        if arguments.nanogpt:
            loss, seconds = nanogpts_characters(place, ids[:split], ids[split:], arguments)
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
        {name: [(np.array([len(own)]), own)] for name, own in (("train", train), ("val", val))},
        tokenizer=character_tokenizer(alphabet),
        vocab_size=len(alphabet) + 1,
        eot=len(alphabet),
    )
    options = {
        "preset": "tiny",
        "n_layer": 4,
        "n_head": 4,
        "width": 128,
        "context": 64,
        "batch_tokens": 12 * 64,
        "micro_batch": 12,
        "max_steps": 2000,
        "learning_rate": 1e-3,
        "beta2": 0.99,
        "warmup_steps": 100,
        "val_every": 0,
        "seed": arguments.seed,
        "device": "cpu",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    start = time.perf_counter()
    run = [sys.executable, "-m", "trainer.train", "--data", folder, "--out", scratch / "run"]
    subprocess.run([*run, *flags, *arguments.flags], check=True, cwd=REPOSITORY)
    seconds = time.perf_counter() - start
    tool = [sys.executable, "-m", "trainer.tools.evaluate", scratch / "run", "--data", folder]
    figures = subprocess.check_output([*tool, "--windows", str(len(val))], cwd=REPOSITORY)
    return json.loads(figures)["val_loss"], seconds


def nanogpts_characters(
    scratch: Path, train: np.ndarray, val: np.ndarray, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Return the same of nanoGPT's own train.py, by the command of its README for a CPU."""
    clone = scratch / "nanoGPT"
    shutil.copytree(arguments.nanogpt, clone, ignore=shutil.ignore_patterns(".git"))
    for name, own in (("train", train), ("val", val)):
        own.tofile(clone / "data" / "shakespeare_char" / f"{name}.bin")
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
    windows = torch.from_numpy(val.astype(np.int64))[: (len(val) - 1) // 64 * 64 + 1].unfold(
        0, 65, 64
    )
    with torch.no_grad():
        losses = [model(part[:, :-1], part[:, 1:])[1] * len(part) for part in windows.split(64)]
    return float(sum(losses) / len(windows)), seconds


def character_tokenizer(alphabet: list[str]) -> str:
    """A tokenizer.json in which each character is a token."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(
        models.BPE({character: number for number, character in enumerate(alphabet)}, [])
    )
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer.to_str()


if __name__ == "__main__":
    sys.exit(main())
