"""Training on this machine: the rate of a step next to transformers, and nanoGPT's character setting.

    .venv/bin/python benchmarks/train.py rate [--presets tiny 124M] [--dtypes float32 bfloat16] [--steps 3]
    .venv/bin/python benchmarks/train.py loss [--tokens 1024] [--widths 64 768] [--chunks 256 1024]
    .venv/bin/python benchmarks/train.py characters [--text FILE] [--learning_rate 2e-3] [--optimizer adamw]
    .venv/bin/python benchmarks/train.py gpu [--windows 32] [--data TOKENS] [--curve_steps 500]
    .venv/bin/python benchmarks/train.py seeds [--steps 500] [--seeds 2]

`rate` times a complete step (forward, backward, clipping, optimizer) of our model and of transformers'
GPT2LMHeadModel with SDPA, same shape, batch, autocast and fused AdamW, in turn, in one process; the
fastest step of each counts, and the first is left out. Exits 1 under 1.1 times transformers.

`loss` times the loss over GPT-2's vocabulary alone, forward and backward: torch's own, and ours by chunks.

`characters` trains by the command a user types: 4 layers, 4 heads, width 128, context 64, batch 12,
2,000 steps on tinyshakespeare, as nanoGPT's README does on a CPU, at twice its learning rate. Exits 1 over
its validation loss of 1.88 (there over 20 random batches, here over the complete validation split).

`gpu` gives, on one GPU, tokens/s, MFU and peak memory of 124M from the plain loop to the trainer's, next to
transformers; of 355M; of 1.5B with Adafactor and recomputed activations; and, with `--data`, the validation
loss of 124M over the same tokens by AdamW and by Muon. `seeds` gives what known mistakes cost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import train_gpu
import train_seeds
from token_shards import write_shards

from trainer.metrics import memory_gb, mfu
from trainer.model import GPT, ModelConfig, fused_cross_entropy, preset
from trainer.optimizers import OPTIMIZERS, make_optimizers

REPOSITORY = Path(__file__).resolve().parent.parent
WINDOWS = {"tiny": 16}  # of a step; one of 1,024 tokens for the others


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    rate = commands.add_parser("rate", help="tokens/s of a step next to transformers")
    rate.add_argument("--presets", nargs="+", default=["tiny", "124M"], metavar="NAME")
    rate.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    rate.add_argument("--steps", type=int, default=3, metavar="N", help="steps timed of each (default: 3)")
    rate.add_argument("--windows", type=int, metavar="N", help="windows of a step (default: 16 for tiny, or 1)")
    rate.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    rate.add_argument("--compile", action="store_true", help="torch.compile both")
    loss = commands.add_parser("loss", help="the loss alone, by chunks")
    loss.add_argument("--tokens", type=int, default=1024, metavar="N")
    loss.add_argument("--widths", nargs="+", type=int, default=[64, 768], metavar="N")
    loss.add_argument("--chunks", nargs="+", type=int, default=[128, 256, 512, 1024], metavar="N")
    loss.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    characters = commands.add_parser("characters", help="nanoGPT's character setting")
    data = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    characters.add_argument("--text", type=Path, default=data / "text" / "tinyshakespeare.txt")
    characters.add_argument("--learning_rate", type=float, default=2e-3, metavar="X", help="nanoGPT's is 1e-3")
    characters.add_argument("--optimizer", default="adamw", choices=OPTIMIZERS)
    gpu = commands.add_parser("gpu", help="every step's gain on a GPU, larger models, AdamW against Muon")
    gpu.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    gpu.add_argument("--presets", nargs=3, default=["124M", "355M", "1.5B"], metavar="NAME")
    gpu.add_argument("--windows", type=int, default=32, metavar="N", help="windows of a micro-batch (default: 32)")
    gpu.add_argument("--accumulation", type=int, default=4, metavar="N", help="micro-batches of a step (default: 4)")
    gpu.add_argument("--steps", type=int, default=5, metavar="N", help="steps timed of each (default: 5)")
    gpu.add_argument("--chunk", type=int, default=8192, metavar="N", help="tokens of a chunk of the loss")
    gpu.add_argument("--data", type=Path, metavar="DIR", help="token shards for the curves; without, there are none")
    gpu.add_argument("--curve_steps", type=int, default=500, metavar="N")
    gpu.add_argument("--curve_flags", default="--batch_tokens 524288 --compile", metavar="FLAGS")
    seeds = commands.add_parser("seeds", help="what known mistakes cost")
    seeds.add_argument("--text", type=Path, default=data / "text" / "tinyshakespeare.txt")
    seeds.add_argument("--steps", type=int, default=500, metavar="N")
    seeds.add_argument("--layers", type=int, default=4, metavar="N")
    seeds.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each, averaged (default: 1)")
    arguments = parser.parse_args()
    if arguments.command == "gpu":
        return train_gpu.measure(arguments) or (compare_optimizers(arguments) if arguments.data else 0)
    if arguments.command == "seeds":
        return train_seeds.measure(arguments)
    if arguments.command == "loss":
        return compare_losses(arguments)
    return compare_rates(arguments) if arguments.command == "rate" else train_characters(arguments)


def compare_optimizers(arguments: argparse.Namespace) -> int:
    """Train the smallest preset by AdamW and by Muon over the same tokens, and print both curves."""
    curves = {}
    with tempfile.TemporaryDirectory() as scratch:
        for optimizer in ("adamw", "muon"):
            run = Path(scratch) / optimizer
            command = [sys.executable, "-m", "trainer.train", "--data", str(arguments.data), "--out", str(run)]
            command += ["--preset", arguments.presets[0], "--optimizer", optimizer]
            command += ["--max_steps", str(arguments.curve_steps), "--micro_batch", str(arguments.windows)]
            command += ["--val_every", str(max(1, arguments.curve_steps // 10)), "--device", arguments.device]
            subprocess.run([*command, *arguments.curve_flags.split()], check=True, cwd=REPOSITORY)
            records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            curves[optimizer] = {r["step"] * r["tokens"]: r["val_loss"] for r in records if "val_loss" in r}
    print("\n| tokens | AdamW | Muon |\n|---|---|---|")
    for tokens, loss in curves["adamw"].items():
        print(f"| {tokens:,} | {loss:.4f} | {curves['muon'][tokens]:.4f} |")
    return 0


def compare_rates(arguments: argparse.Namespace) -> int:
    worst = float("inf")
    device = torch.device(arguments.device)
    for name in arguments.presets:
        for dtype in arguments.dtypes:
            windows = arguments.windows or WINDOWS.get(name, 1)
            config = preset(name)
            ids = torch.randint(config.vocab_size, (windows, config.context + 1), device=device)
            steps = {
                "ours": our_step(name, ids, dtype, arguments.compile),
                "transformers": transformers_step(name, ids, dtype, arguments.compile),
            }
            seconds = dict.fromkeys(steps, float("inf"))
            for number in range(arguments.steps + 1):
                for contender, step in steps.items():
                    elapsed = timed(step, device)
                    if number:
                        seconds[contender] = min(seconds[contender], elapsed)
            tokens = windows * config.context
            rates = {contender: tokens / value for contender, value in seconds.items()}
            worst = min(worst, rates["ours"] / rates["transformers"])
            shown = ", ".join(f"{contender} {value:,.0f} tokens/s" for contender, value in rates.items())
            used = mfu(GPT(config).flops_per_token * rates["ours"], device) if device.type == "cuda" else None
            print(
                f"{name} {dtype}, {windows} × {config.context}: {shown}, "
                f"{rates['ours'] / rates['transformers']:.2f} times"
                + (f", MFU {used:.1%}" if used else "")
                + f"; {memory_gb(device):.1f} GB at most so far",
                flush=True,
            )
    return int(worst < 1.1)


def compare_losses(arguments: argparse.Namespace) -> int:
    config = ModelConfig()
    targets = torch.randint(config.vocab_size, (arguments.tokens,))
    for width in arguments.widths:
        weight = torch.empty(config.padded_vocab_size, width).normal_(std=0.02).requires_grad_()
        x = torch.randn(arguments.tokens, width, requires_grad=True)
        for dtype in arguments.dtypes:

            def step(chunk: int, x: torch.Tensor = x, weight: torch.Tensor = weight, dtype: str = dtype) -> None:
                x.grad = weight.grad = None
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                    if chunk:
                        loss = fused_cross_entropy(x, weight, targets, config.vocab_size, chunk)
                    else:
                        loss = F.cross_entropy(F.linear(x, weight).float(), targets)
                loss.backward()

            chunks = [0, *arguments.chunks]
            seconds = [min(timed(partial(step, chunk), x.device) for _ in range(4)) for chunk in chunks]
            times = ", ".join(
                f"{seconds[0] / own:.2f} ({chunk})" for chunk, own in zip(chunks[1:], seconds[1:], strict=True)
            )
            print(f"{arguments.tokens} × {width} {dtype}: torch {seconds[0]:.2f} s; times (chunk): {times}", flush=True)
    return 0


def timed(step: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def our_step(name: str, ids: torch.Tensor, dtype: str, compiled: bool) -> Callable[[], None]:
    model = GPT(preset(name)).to(ids.device).train()
    (optimizer,) = make_optimizers("adamw", model, lr=6e-4, weight_decay=0.1)
    model.loss_chunk = 2048 if ids.device.type == "cpu" else 0
    net = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = net(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_step(name: str, ids: torch.Tensor, dtype: str, compiled: bool) -> Callable[[], None]:
    model = train_gpu.transformers_model(name).to(ids.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    net = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = net(ids[:, :-1], labels=ids[:, :-1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def train_characters(arguments: argparse.Namespace) -> int:
    text = arguments.text.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    ids = np.array([alphabet.index(character) for character in text], np.uint16)
    split = int(0.9 * len(ids))  # nanoGPT's data/shakespeare_char/prepare.py
    with tempfile.TemporaryDirectory() as scratch:
        parts = {"train": ids[:split], "val": ids[split:]}
        folder = write_shards(
            Path(scratch) / "tokens",
            {name: [(np.array([len(part)]), part)] for name, part in parts.items()},
            tokenizer=character_tokenizer(alphabet),
            vocab_size=len(alphabet) + 1,
            eot=len(alphabet),
        )
        run = Path(scratch) / "run"
        options = {
            "preset": "tiny",
            "n_layer": 4,
            "n_head": 4,
            "width": 128,
            "context": 64,
            "batch_tokens": 12 * 64,
            "micro_batch": 12,
            "max_steps": 2000,
            "optimizer": arguments.optimizer,
            "learning_rate": arguments.learning_rate,
            "warmup_steps": 100,
            "val_every": 500,
            "device": "cpu",
        }
        flags = [str(item) for name, value in options.items() for item in (f"--{name}", value)]
        start = time.perf_counter()
        command = [sys.executable, "-m", "trainer.train", "--data", str(folder), "--out", str(run)]
        subprocess.run([*command, *flags], check=True, cwd=REPOSITORY)
        seconds = time.perf_counter() - start
        loss = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["val_loss"]
        subprocess.run([sys.executable, "-m", "trainer.tools.sample", str(run), "--max_tokens", "200"], check=True)
    print(f"characters of {arguments.text.name}: validation loss {loss:.4f} in {seconds:.0f} s; nanoGPT's is 1.88")
    return int(loss > 1.88)


def character_tokenizer(alphabet: list[str]) -> str:
    """A tokenizer.json in which each character is a token."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE({character: number for number, character in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer.to_str()


if __name__ == "__main__":
    sys.exit(main())
