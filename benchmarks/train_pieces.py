"""What each piece of presets/speedrun.toml does to the loss, at small scale on a CPU.

    .venv/bin/python benchmarks/train_pieces.py [--layers 6] [--width 256] [--tokens 2097152] [--seeds 3]
    .venv/bin/python benchmarks/train_pieces.py --layers 2 --width 64 --tokens 65536 --seeds 2   (minutes)

Every run trains on the same batches of bytes of real posts (`$OWT_TESTDATA/text/reddit-posts.jsonl.gz`, or `--text`)
for a seed, and is measured on the same windows of posts held out. `gpt2` is GPT-2 with AdamW; `muon` the same with
Muon; each piece is added alone to `muon`; `all` has every one. Printed are the mean and the standard deviation over
the seeds, and the difference from the row that it was added to, with the difference's own standard deviation: the
seeds are paired. A piece helps where that difference is negative by more than twice its standard error.

The full size is some ten hours on two cores; `--rows` and `--seeds` split it, and finished runs in `--results` are
not made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from trainer.config import TrainConfig
from trainer.documents import DocumentBlocks
from trainer.model import GPT, ModelConfig
from trainer.optimizers import make_optimizers

REPOSITORY = Path(__file__).resolve().parent.parent
EOT = 256  # after the 256 bytes
MUON: dict[str, Any] = {"optimizer": "muon", "learning_rate": 2e-3}
PIECES: dict[str, dict[str, Any]] = {
    "rope": {"rope": True},
    "qk_norm": {"qk_norm": True},
    "relu2": {"activation": "relu2"},
    "separate_head": {"separate_head": True},
    "value_embeddings": {"value_embeddings": 1},
    "window": {"window_start": 32},
    "momentum": {"momentum_warmup": 0.1},
    "wsd": {"schedule": "wsd", "decay_fraction": 0.4, "min_fraction": 0.0},
}
ROWS = {"gpt2": {"learning_rate": 1e-3}, "muon": MUON, **{name: MUON | own for name, own in PIECES.items()}}
ROWS["all"] = MUON | {key: value for own in PIECES.values() for key, value in own.items()}
SHAPE_KEYS = {field.name for field in dataclasses.fields(ModelConfig)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    data = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--text", type=Path, default=data / "text" / "reddit-posts.jsonl.gz", metavar="FILE")
    parser.add_argument("--layers", type=int, default=6, metavar="N")
    parser.add_argument("--width", type=int, default=256, metavar="N")
    parser.add_argument("--context", type=int, default=256, metavar="N")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="windows of a step (default: 16)")
    parser.add_argument("--tokens", type=int, default=1 << 21, metavar="N", help="trained on (default: 2,097,152)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep what is measured, and continue from it")
    arguments = parser.parse_args()
    train, validation = read_bytes(arguments.text, arguments.context)
    known = json.loads(arguments.results.read_text()) if arguments.results and arguments.results.exists() else {}
    for row in arguments.rows:
        for seed in range(arguments.seeds):
            key = f"{row} {seed} {arguments.layers} {arguments.width} {arguments.context} {arguments.tokens}"
            if key in known:
                continue
            start = time.perf_counter()
            known[key] = measure(ROWS[row], seed, arguments, train, validation)
            print(f"{row}, seed {seed}: {known[key]:.4f} in {time.perf_counter() - start:.0f} s", flush=True)
            if arguments.results:
                arguments.results.write_text(json.dumps(known, indent=1) + "\n")
    losses = {
        row: [
            known[f"{row} {seed} {arguments.layers} {arguments.width} {arguments.context} {arguments.tokens}"]
            for seed in range(arguments.seeds)
        ]
        for row in arguments.rows
    }
    print(f"\n{arguments.layers} layers of {arguments.width}, {arguments.tokens:,} tokens, {arguments.seeds} seeds\n")
    print("| row | validation loss | change (muon: from gpt2; all others: from muon) |\n|---|---|---|")
    for row, values in losses.items():
        base = losses.get("gpt2" if row == "muon" else "muon") if row != "gpt2" else None
        change = spread([a - b for a, b in zip(values, base, strict=True)], "+.4f") if base else ""
        print(f"| {row} | {spread(values, '.4f')} | {change} |")
    return 0


def read_bytes(path: Path, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(training stream (N,), validation windows (64, context + 1)): posts as bytes, each after an end-of-text."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = content.decode().splitlines()
    texts = [json.loads(line)["text"] for line in lines] if ".jsonl" in path.name else lines
    streams = []
    for own in (texts[len(texts) // 20 :], texts[: len(texts) // 20]):  # the first twentieth is held out
        pieces = [torch.tensor([EOT, *text.encode()], dtype=torch.int64) for text in own]
        streams.append(torch.cat(pieces))
    train, held_out = streams
    begin = torch.linspace(0, len(held_out) - context - 1, 64).long()
    return train, held_out[begin[:, None] + torch.arange(context + 1)]


def measure(row: dict[str, Any], seed: int, arguments: argparse.Namespace, train: Any, validation: Any) -> float:
    """The validation loss after one run, in nats a byte."""
    steps = arguments.tokens // (arguments.batch * arguments.context)
    row = dict(row)
    row["momentum_warmup"] = round(row.pop("momentum_warmup", 0) * steps)
    config = TrainConfig(data=(), out="", max_steps=steps, context=arguments.context, **row).resolved(steps)
    shape = {key: value for key, value in row.items() if key in SHAPE_KEYS}
    torch.manual_seed(seed)
    model = GPT(
        ModelConfig(257, arguments.context, arguments.layers, max(1, arguments.width // 64), arguments.width, **shape)
    )
    optimizers = make_optimizers(
        config.optimizer, model, lr=config.peak_learning_rate, weight_decay=0.1, betas=(0.9, 0.95)
    )
    blocks, draws = DocumentBlocks(EOT), torch.Generator().manual_seed(seed)
    for step in range(steps):
        begin = torch.randint(len(train) - arguments.context - 1, (arguments.batch, 1), generator=draws)
        windows = train[begin + torch.arange(arguments.context + 1)]
        loss = model(windows[:, :-1], windows[:, 1:], **blocks(windows[:, :-1], config.window_of(step)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate_of(step)
                if "momentum" in group:
                    group["momentum"] = config.momentum_of(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad():
        parts = [model(own[:, :-1], own[:, 1:]).item() for own in validation.split(16)]
    return statistics.fmean(parts) if all(map(math.isfinite, parts)) else math.inf


def spread(values: list[float], form: str) -> str:
    """Mean ± standard deviation."""
    return f"{statistics.fmean(values):{form}}" + (f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else "")


if __name__ == "__main__":
    raise SystemExit(main())
