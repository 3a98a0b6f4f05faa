"""What each piece of presets/speedrun.toml does to the loss, at small scale on a CPU.

    .venv/bin/python benchmarks/train_pieces.py [--layers 6] [--width 256] [--tokens 2000000] [--seeds 3]
    .venv/bin/python benchmarks/train_pieces.py --minutes 8 --results pieces.json      again and again, until it is done
    .venv/bin/python benchmarks/train_pieces.py --layers 2 --width 64 --tokens 65536 --seeds 2   (minutes)

Every run trains on the same batches of bytes of real posts (`$OWT_TESTDATA/text/reddit-posts.jsonl.gz`, or `--text`)
for a seed, and is measured on the same windows of posts held out. `gpt2` is GPT-2 with AdamW; `muon` the same with
Muon; each piece is added alone to `muon`; `preset` has every one. Printed are the mean and the standard deviation over
the seeds, and the difference from the row that it was added to, with the difference's own standard deviation: the seeds
are paired. A piece helps where that difference is negative by more than twice its standard error.

The full size is 21 runs. A run takes some 12 minutes of one core in float32; in bfloat16, which is the default where
the CPU has instructions for it and is what GPUs compute in, some 6: two hours. With `--results` nothing
is made twice: `--minutes` ends a call after so long, within a run too, and the next call continues there. The table
holds what there is, the first seed of all rows first.
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
from trainer.data import DocumentBlocks
from trainer.model import GPT, ModelConfig
from trainer.optimizers import make_optimizers

REPOSITORY = Path(__file__).resolve().parent.parent
EOT = 256  # after the 256 bytes
MUON: dict[str, Any] = {"optimizer": "muon", "learning_rate": 2e-3}
PIECES: dict[str, dict[str, Any]] = {
    "rope": {"rope": True},
    "qk_norm": {"qk_norm": True},
    "relu2": {"activation": "relu2"},
    "schedule": {"schedule": "wsd", "decay_fraction": 0.4},
}
ROWS = {"gpt2": {"learning_rate": 1e-3}, "muon": MUON, **{name: MUON | own for name, own in PIECES.items()}}
ROWS["preset"] = MUON | {key: value for own in PIECES.values() for key, value in own.items()}
SHAPE_KEYS = {field.name for field in dataclasses.fields(ModelConfig)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    data = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    parser.add_argument("--text", type=Path, default=data / "text" / "reddit-posts.jsonl.gz", metavar="FILE")
    parser.add_argument("--layers", type=int, default=6, metavar="N")
    parser.add_argument("--width", type=int, default=256, metavar="N")
    parser.add_argument("--context", type=int, default=128, metavar="N")
    parser.add_argument("--batch", type=int, default=32, metavar="N", help="windows of a step (default: 32)")
    parser.add_argument("--tokens", type=int, default=2_000_000, metavar="N", help="trained on (default: 2,000,000)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="bfloat16" if bfloat16_here() else "float32"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, metavar="X", help="end after so long (with --results)"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep what is measured, and continue from it")
    arguments = parser.parse_args()
    if math.isfinite(arguments.minutes) and not arguments.results:
        parser.error("--minutes needs --results FILE, which the next call continues from")
    torch.set_num_threads(1)  # matrices this small gain little by more
    form = f"{arguments.layers} {arguments.width} {arguments.context} {arguments.tokens} {arguments.dtype}"
    train, validation = read_bytes(arguments.text, arguments.context)
    end = time.monotonic() + 60 * arguments.minutes
    known = json.loads(arguments.results.read_text()) if arguments.results and arguments.results.exists() else {}
    for seed in range(arguments.seeds):
        for row in arguments.rows:
            key = f"{row} {seed} {form}"
            if key in known or time.monotonic() > end:
                continue
            state = arguments.results and arguments.results.with_suffix(f".{key.replace(' ', '-')}.part")
            start = time.process_time()
            loss = measure(ROWS[row], seed, arguments, train, validation, end, state)
            if loss is None:
                continue
            known[key] = loss
            print(f"{row}, seed {seed}: {loss:.4f} in {time.process_time() - start:.0f} s of CPU time", flush=True)
            if arguments.results:
                arguments.results.write_text(json.dumps(known, indent=1) + "\n")
                state.unlink(missing_ok=True)
    print(f"\n{arguments.layers} layers of {arguments.width}, {arguments.tokens:,} tokens, {arguments.dtype}\n")
    print("| row | validation loss | change (muon: from gpt2; all others: from muon) | seeds |\n|---|---|---|---|")
    losses = {row: {seed: known.get(f"{row} {seed} {form}") for seed in range(arguments.seeds)} for row in ROWS}
    for row in arguments.rows:
        own = {seed: loss for seed, loss in losses[row].items() if loss is not None}
        base = losses["gpt2" if row == "muon" else "muon"] if row != "gpt2" else {}
        changes = [loss - other for seed, loss in own.items() if (other := base.get(seed)) is not None]
        print(f"| {row} | {spread(list(own.values()), '.4f')} | {spread(changes, '+.4f')} | {len(own)} |")
    missing = sum(f"{row} {seed} {form}" not in known for row in arguments.rows for seed in range(arguments.seeds))
    if missing:
        total = len(arguments.rows) * arguments.seeds
        print(f"\n{missing} of {total} runs are still to be made; the same command continues")
    return 0


def bfloat16_here() -> bool:
    """Whether the CPU has instructions for products of bfloat16."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


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


def measure(
    row: dict[str, Any],
    seed: int,
    arguments: argparse.Namespace,
    train: torch.Tensor,
    validation: torch.Tensor,
    end: float,
    state: Path | None,
) -> float | None:
    """The validation loss after one run, in nats a byte; None where `end` came first, and `state` has how far it is."""
    steps = -(-arguments.tokens // (arguments.batch * arguments.context))
    config = TrainConfig(data=(), out="", max_steps=steps, context=arguments.context, **row).resolved(steps)
    shape = {key: value for key, value in row.items() if key in SHAPE_KEYS}
    torch.manual_seed(seed)
    model = GPT(
        ModelConfig(257, arguments.context, arguments.layers, max(1, arguments.width // 64), arguments.width, **shape)
    )
    optimizers = make_optimizers(config.optimizer, model, lr=row["learning_rate"], weight_decay=0.1)
    blocks, draws = DocumentBlocks(EOT), torch.Generator().manual_seed(seed)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=arguments.dtype == "bfloat16")
    first = 0
    if state and state.exists():
        kept = torch.load(state)
        first = kept["step"]
        model.load_state_dict(kept["model"])
        draws.set_state(kept["draws"])
        for optimizer, own in zip(optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(own)
    for step in range(first, steps):
        if state and time.monotonic() > end:
            entries = {"step": step, "model": model.state_dict(), "draws": draws.get_state()}
            torch.save(entries | {"optimizers": [optimizer.state_dict() for optimizer in optimizers]}, state)
            return None
        begin = torch.randint(len(train) - arguments.context - 1, (arguments.batch, 1), generator=draws)
        windows = train[begin + torch.arange(arguments.context + 1)]
        with autocast:
            loss = model(windows[:, :-1], windows[:, 1:], **blocks(windows[:, :-1]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate_of(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad():
        parts = [model(own[:, :-1], own[:, 1:]).item() for own in validation.split(16)]
    return statistics.fmean(parts) if all(map(math.isfinite, parts)) else math.inf


def spread(values: list[float], form: str) -> str:
    """Mean ± standard deviation."""
    if not values:
        return ""
    return f"{statistics.fmean(values):{form}}" + (f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else "")


if __name__ == "__main__":
    raise SystemExit(main())
