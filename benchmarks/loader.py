"""The loader's rate for both samplers, next to nanoGPT's random memmap windows over the same tokens.

    .venv/bin/python benchmarks/loader.py [--peers PYTHON] [--tokens 50000000] [--mean_length 1000] [--data TOKENS]

`--peers` adds litdata's and mosaicml-streaming's loaders (benchmarks/peers/token_loaders.py says which Python).
One process, one thread, batches of 32 × 1,024 as int64 inputs and targets on the CPU. Without --data the
tokens are made up: document lengths are log-normal about the mean, as web pages are. The three take
turns, three rounds; the best of each counts. Exits 1 under 20 million tokens/s, or under nanoGPT's rate.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from token_shards import write_shards

from trainer.data import Loader, open_corpora
from trainer.shards import Documents

BATCH, CONTEXT = 32, 1024
FLOOR = 20e6  # tokens/s a process
Batch = tuple[torch.Tensor, torch.Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="token shards to read (default: made up)")
    parser.add_argument("--peers", type=Path, metavar="PYTHON", help="a Python that has litdata and mosaicml-streaming")
    parser.add_argument("--tokens", type=int, default=50_000_000, metavar="N", help="tokens to make up")
    parser.add_argument("--mean_length", type=int, default=1000, metavar="N", help="their documents' mean length")
    parser.add_argument("--seconds", type=float, default=3, metavar="X", help="of each measurement")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.data or made_up_tokens(Path(scratch), arguments.tokens, arguments.mean_length)
        corpora = open_corpora([str(folder)])
        dataset = corpora.datasets[-1]
        documents = dataset.documents("train")
        binary = Path(scratch) / "train.bin"
        write_binary(documents, dataset.tokenizer.eot, binary)
        print(f"{documents.lengths.sum():,} tokens in {len(documents):,} documents, batches of {BATCH} × {CONTEXT}")

        contenders: dict[str, Callable[[int], Batch]] = {"nanoGPT": lambda step: nanogpt_get_batch(binary)}
        for name in ("packed", "longbiased"):
            start = time.perf_counter()
            sampler = corpora.sampler(name, CONTEXT, seed=1)
            sampler.windows(0, 1)
            print(f"{name} opened in {time.perf_counter() - start:.3f} s")
            loader = Loader(sampler, BATCH, BATCH)
            contenders[name] = loader.batch
        best = dict.fromkeys(contenders, 0.0)
        for _ in range(3):
            for name, batch in contenders.items():
                best[name] = max(best[name], rate(batch, arguments.seconds))
        if arguments.peers:
            script = Path(__file__).parent / "peers" / "token_loaders.py"
            command = [arguments.peers, script, binary, Path(scratch) / "peers", arguments.seconds]
            best |= json.loads(subprocess.check_output(list(map(str, command)), text=True).splitlines()[-1])
        before = resident()
        for step in range(2000):
            loader.batch(step)
        print(f"resident memory grew by {(resident() - before) / 1e6:.1f} MB over 2,000 batches more")
    for name, tokens_per_s in best.items():
        print(f"{name:18} {tokens_per_s / 1e6:8.1f} million tokens/s")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory at most {memory:.0f} MiB resident, the mapped shards counted in")
    return int(min(best["packed"], best["longbiased"]) < max(FLOOR, best["nanoGPT"]))


def rate(batch: Callable[[int], Batch], seconds: float) -> float:
    """Tokens a second over consecutive steps."""
    step = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        inputs, targets = batch(step)
        assert inputs.shape == targets.shape == (BATCH, CONTEXT)
        assert inputs.dtype == torch.int64
        step += 1
    return step * BATCH * CONTEXT / elapsed


def resident() -> int:
    """Bytes of this process that are its own: without the mapped shards, which the page cache gives and takes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def nanogpt_get_batch(path: Path) -> Batch:
    """nanoGPT's `get_batch` (train.py, MIT licence): random windows, the file mapped anew each time."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - CONTEXT, (BATCH,))
    x = torch.stack([torch.from_numpy((data[i : i + CONTEXT]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + CONTEXT]).astype(np.int64)) for i in ix])
    return x, y


def write_binary(documents: Documents, eot: int, path: Path) -> None:
    """nanoGPT's layout: every document and an end-of-text, one after the other."""
    with path.open("wb") as file:
        for number in range(len(documents)):
            file.write(documents[number].astype(np.uint16).tobytes())
            file.write(np.uint16(eot).tobytes())


def made_up_tokens(folder: Path, tokens: int, mean_length: int, shards: int = 16) -> Path:
    """A tokens/ folder of random ids."""
    rng = np.random.default_rng(0)
    written = []
    for _ in range(shards):
        # Of a log-normal with sigma 1, the mean is exp(1/2) times the median.
        drawn = rng.lognormal(np.log(mean_length) - 0.5, 1.0, max(1, tokens // mean_length // shards))
        lengths = np.maximum(1, drawn).astype(np.uint32)
        written.append((lengths, rng.integers(0, 50256, int(lengths.sum()), dtype=np.uint16)))
    return write_shards(folder, {"train": written}, tokenizer="{}", vocab_size=50257, eot=50256)


if __name__ == "__main__":
    sys.exit(main())
