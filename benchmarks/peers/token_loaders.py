"""litdata's and mosaicml-streaming's loaders over the tokens of a nanoGPT `train.bin`: million tokens/s of each.

    python benchmarks/peers/token_loaders.py TRAIN.bin SCRATCH SECONDS

`benchmarks/loader.py --peers PYTHON` starts it, with the Python of an environment of its own (the CPU build of
torch does not go with torchvision, which both packages ask for and neither needs here):

    python -m venv .venv-loaders
    .venv-loaders/bin/pip install numpy torch==2.13.0 boto3 filelock requests tqdm obstore lightning-utilities \
        tifffile xxhash python-snappy zstd brotli paramiko catalogue
    .venv-loaders/bin/pip install --no-deps litdata==0.2.76 mosaicml-streaming==0.13.0

Batches of 32 × 1,024, shuffled, in the loading process itself, as int64 inputs and targets, through the loader
that each package's documentation gives for tokens.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import torch

BATCH, CONTEXT = 32, 1024


def main() -> int:
    binary, scratch, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    tokens = np.memmap(binary, dtype=np.uint16, mode="r")
    rates = {}
    for name, open_loader in {"litdata": litdata_batches, "mosaicml-streaming": streaming_batches}.items():
        try:
            batches = open_loader(tokens, scratch / name)
            rates[name] = max(rate(batches, seconds) for _ in range(3))
        except Exception as error:  # a peer that does not run here is named, and the others are measured
            print(f"{name} does not run here: {type(error).__name__}: {error}", file=sys.stderr)
    print(json.dumps(rates))
    return 0


def rate(batches: Iterator[torch.Tensor], seconds: float) -> float:
    """Tokens a second, after a first batch that opens everything."""
    next(batches)
    step, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        windows = next(batches).to(torch.int64)
        inputs, targets = windows[:, :-1], windows[:, 1:]
        assert inputs.shape == targets.shape == (BATCH, CONTEXT)
        step += 1
    return step * BATCH * CONTEXT / elapsed


def pieces(tokens: np.ndarray, index: int) -> Iterator[torch.Tensor]:
    """What `optimize` writes: the tokens, in pieces of a million."""
    for start in range(index * 10_000_000, min((index + 1) * 10_000_000, len(tokens)), 1_000_000):
        yield torch.from_numpy(tokens[start : start + 1_000_000].astype(np.int32))


def litdata_batches(tokens: np.ndarray, folder: Path) -> Iterator[torch.Tensor]:
    from functools import partial

    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

    optimize(
        partial(pieces, tokens), list(range(-(-len(tokens) // 10_000_000))), str(folder), chunk_bytes="64MB",
        item_loader=TokensLoader(block_size=CONTEXT + 1), num_workers=1,
    )  # fmt: skip
    dataset = StreamingDataset(
        str(folder), item_loader=TokensLoader(block_size=CONTEXT + 1), shuffle=True, drop_last=True
    )
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0, drop_last=True)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def streaming_batches(tokens: np.ndarray, folder: Path) -> Iterator[torch.Tensor]:
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        module = types.ModuleType(name)  # imported for its image datasets alone
        module.__spec__ = ModuleSpec(name, None)
        module.VisionDataset = module.to_tensor = object  # type: ignore[attr-defined]
        sys.modules.setdefault(name, module)
    from streaming import MDSWriter, StreamingDataset

    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{CONTEXT + 1}"}) as writer:
        for start in range(0, len(tokens) - CONTEXT, CONTEXT):
            writer.write({"tokens": np.asarray(tokens[start : start + CONTEXT + 1])})
    dataset = StreamingDataset(local=str(folder), batch_size=BATCH, shuffle=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=0, drop_last=True, collate_fn=stack)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def stack(samples: list[dict[str, np.ndarray]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([sample["tokens"] for sample in samples]).astype(np.int64))


if __name__ == "__main__":
    sys.exit(main())
