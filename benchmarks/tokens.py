"""Tokens written and read: the stage tokenize next to tiktoken and nanoGPT, the loader next to
nanoGPT's.

    .venv/bin/python benchmarks/tokens.py [--parts stage loader] [--rounds 3] [--megabytes 400]
    [--tokens 50000000]

`stage`: from Parquet to committed shards. The texts are posts (JSON lines with `text`), joined to
documents of 4.5 kB on average like OpenWebText's. All but "2 workers" use one core. They take
turns, `--rounds` times, and the best round of each counts; the peak memory is of the largest
process of the stage.

`loader`: one process, one thread, batches of 32 × 1,024 as int64 inputs and targets on the CPU, by
both samplers. The tokens are made up: document lengths are log-normal about 1,000, as web pages'
are. nanoGPT reads random windows of the same tokens in a mapped file.

Exits 1 if the stage with one worker reaches less than 0.8 of bare tiktoken's rate, if two workers
reach less than 1.8 times one (on two or more idle cores), if one of its processes takes a gigabyte
of memory, or if a sampler reaches less than 20 million tokens/s or than nanoGPT.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from token_shards import write_shards

from owt_pipeline.formats import encoding as encodings
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import Outcome
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.owt_pipeline.making import write_dataset
from tests.owt_pipeline.runs import stage_alone

DATA = Path(os.environ.get("OWT_TESTDATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
PARTS = ("stage", "loader")
SHARDS = 4
BATCH, CONTEXT = 32, 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--parts", nargs="+", default=PARTS, choices=PARTS, help="what to measure (default: both)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="turns of each contender"
    )
    parser.add_argument("--megabytes", type=int, default=400, metavar="N", help="text to tokenize")
    parser.add_argument(
        "--posts", type=Path, default=DATA / "text" / "reddit-posts.jsonl.gz", help="with `text`"
    )
    parser.add_argument(
        "--tokens", type=int, default=50_000_000, metavar="N", help="tokens to load"
    )
    parser.add_argument(
        "--seconds", type=float, default=3, metavar="X", help="of each round of the loader"
    )
    arguments = parser.parse_args()
    good = "stage" not in arguments.parts or measure_stage(
        arguments.posts, arguments.megabytes, arguments.rounds
    )
    good &= "loader" not in arguments.parts or measure_loader(
        arguments.tokens, arguments.seconds, arguments.rounds
    )
    return int(not good)


def measure_stage(posts: Path, megabytes: int, rounds: int) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus"
        # A process inherits its parent's peak: that of the stage is taken first, while this process
        # is small.
        writing = (corpus, posts, megabytes * 1_000_000)
        writer = multiprocessing.get_context("spawn").Process(target=write_corpus, args=writing)
        writer.start()
        writer.join()
        _, written, memory = run_tokenize(corpus, 2)
        texts = make_texts(posts, megabytes * 1_000_000)
        size = sum(len(text.encode()) for text in texts)
        tokens = sum(map(len, map(encodings.tiktoken_encoding().encode_ordinary, texts)))
        assert written == tokens
        print(
            f"{size / 1e6:.1f} MB, {tokens:,} tokens in {len(texts):,} documents, {SHARDS} shards\n"
        )
        contenders: dict[str, tuple[int, Callable[[], float]]] = {
            "the stage, 1 worker": (1, lambda: run_tokenize(corpus, 1)[0]),
            "the stage, 2 workers": (2, lambda: run_tokenize(corpus, 2)[0]),
            "tiktoken `encode_to_numpy` alone": (1, partial(time_tiktoken, texts)),
            "nanoGPT's way: encode each, then one memmap": (
                1,
                partial(time_nanogpt, texts, Path(scratch) / "train.bin", tokens),
            ),
        }
        best = dict.fromkeys(contenders, float("inf"))
        for _ in range(rounds):
            for name, (_, measure) in contenders.items():
                best[name] = min(best[name], measure())
    print("| | MB/s | million tokens/s a core |\n|---|---|---|")
    for name, seconds in best.items():
        print(
            f"| {name} | {size / 1e6 / seconds:.1f} | "
            f"{tokens / seconds / contenders[name][0] / 1e6:.2f} |"
        )
    one, two, bare, _ = best.values()
    print(
        f"\n{bare / one:.2f} of tiktoken, {one / two:.2f} times as fast with 2 workers, "
        f"{memory:.0f} MiB a process\n"
    )
    return bare / one >= 0.8 and one / two >= 1.8 and memory <= 1000


def make_texts(posts: Path, size: int) -> list[str]:
    """Documents with log-normal sizes, 4.5 kB on average, `size` characters in total."""
    with gzip.open(posts) as lines:
        parts = [json.loads(line)["text"] for line in lines]
    rng = random.Random(1)
    texts: list[str] = []
    done = 0
    while done < size:
        wanted, text = rng.lognormvariate(7.9, 1.0), rng.choice(parts)
        while len(text) < wanted:
            text += "\n\n" + rng.choice(parts)
        texts.append(text)
        done += len(text)
    return texts


def write_corpus(workdir: Path, posts: Path, size: int) -> None:
    """The texts as the dataset corpus/."""
    texts = make_texts(posts, size)

    def write(shard: int, writer: ShardWriter) -> None:
        schema = DATASETS["corpus"].schema
        some = texts[shard::SHARDS]
        for start in range(0, len(some), 1024):
            rows = [
                {
                    "url_id": shard << 32 | start + i,
                    "text": text,
                    "subreddits": [],
                    "language_score": 1.0,
                }
                | dict.fromkeys(("n_words", "n_chars", "n_bytes", "copies"), 1)
                for i, text in enumerate(some[start : start + 1024])
            ]
            writer.add(len(rows), Outcome(pa.RecordBatch.from_pylist(rows, schema)))

    write_dataset(Storage(str(workdir)), "corpus", write, SHARDS)


def run_tokenize(corpus: Path, workers: int) -> tuple[float, int, float]:
    """Of `tokenize` over a copy of a run: seconds with its start, tokens, and the peak MiB of a
    process."""
    with tempfile.TemporaryDirectory(dir=corpus.parent) as scratch:
        workdir = str(shutil.copytree(corpus, Path(scratch) / "run"))
        command = stage_alone("tokenize", workdir, "--quiet")
        start = time.perf_counter()
        process = subprocess.Popen([*command, "--workers", str(workers)])
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        assert not status
        stats = require_manifest(Storage(workdir), "tokens").stats
    return seconds, stats["tokens_train"] + stats["tokens_val"], usage.ru_maxrss / 1024


def time_tiktoken(texts: list[str]) -> float:
    encoding = encodings.tiktoken_encoding()
    start = time.perf_counter()
    for text in texts:
        encoding.encode_to_numpy(text, disallowed_special=())
    return time.perf_counter() - start


def time_nanogpt(texts: list[str], path: Path, tokens: int) -> float:
    """data/openwebtext/prepare.py of nanoGPT (MIT licence): ids of each document, then all into
    one memmap."""
    encoding = encodings.tiktoken_encoding()
    start = time.perf_counter()
    documents = []
    for text in texts:
        ids = encoding.encode_ordinary(text)
        ids.append(encoding.eot_token)
        documents.append(np.array(ids, np.uint16))
    array = np.memmap(path, dtype=np.uint16, mode="w+", shape=(tokens + len(texts),))
    np.concatenate(documents, out=array)
    array.flush()
    return time.perf_counter() - start


def measure_loader(tokens: int, seconds: float, rounds: int) -> bool:
    import torch

    from trainer.config import TrainConfig
    from trainer.corpora import open_corpora
    from trainer.data import Loader

    def nanogpt_get_batch(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
        """nanoGPT's `get_batch` (train.py, MIT licence): random windows, the file mapped anew
        each time."""
        data = np.memmap(path, dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - CONTEXT, (BATCH,))
        x = torch.stack([torch.from_numpy((data[i : i + CONTEXT]).astype(np.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy((data[i + 1 : i + 1 + CONTEXT]).astype(np.int64)) for i in ix]
        )
        return x, y

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        corpora = open_corpora([str(made_up_tokens(Path(scratch), tokens))])
        config = TrainConfig(data=("",), out="", context=CONTEXT, seed=1)
        dataset = corpora.datasets[-1]
        documents = dataset.documents("train")
        binary = Path(scratch) / "train.bin"
        with binary.open(
            "wb"
        ) as file:  # nanoGPT's layout: every document and an end-of-text, one after the other
            for number in range(len(documents)):
                file.write(documents[number].astype(np.uint16).tobytes())
                file.write(np.uint16(dataset.tokenizer.eot).tobytes())
        contenders: dict[str, Callable[[int], tuple[torch.Tensor, torch.Tensor]]] = {
            f"`{name}`": Loader(corpora.sampler(replace(config, sampler=name)), BATCH).batch
            for name in ("packed", "longbiased")
        }
        contenders["nanoGPT's random memmap windows"] = lambda step: nanogpt_get_batch(binary)
        best = dict.fromkeys(contenders, 0.0)
        for _ in range(rounds):
            for name, batch in contenders.items():
                best[name] = max(best[name], rate(batch, seconds))
    print("| | million tokens/s |\n|---|---|")
    for name, tokens_per_s in best.items():
        print(f"| {name} | {tokens_per_s / 1e6:.1f} |")
    *ours, nanogpt = best.values()
    return min(ours) >= max(20e6, nanogpt)


def rate(batch: Callable, seconds: float) -> float:
    """Tokens a second over consecutive steps."""
    step = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        inputs, targets = batch(step)
        assert inputs.shape == targets.shape == (BATCH, CONTEXT)
        step += 1
    return step * BATCH * CONTEXT / elapsed


def made_up_tokens(folder: Path, tokens: int, mean_length: int = 1000, shards: int = 16) -> Path:
    """A tokens/ folder of random ids."""
    rng = np.random.default_rng(0)
    written = []
    for _ in range(shards):
        # Of a log-normal with sigma 1, the mean is exp(1/2) times the median.
        drawn = rng.lognormal(
            np.log(mean_length) - 0.5, 1.0, max(1, tokens // mean_length // shards)
        )
        lengths = np.maximum(1, drawn).astype(np.uint32)
        written.append((lengths, rng.integers(0, 50256, int(lengths.sum()), dtype=np.uint16)))
    return write_shards(folder, {"train": written}, tokenizer="{}", vocab_size=50257, eot=50256)


if __name__ == "__main__":
    sys.exit(main())
