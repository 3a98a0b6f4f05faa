"""The rate of the stage tokenize compared with tiktoken, tokenizers and nanoGPT's script on the same texts.

    .venv/bin/python benchmarks/tokenization.py [--megabytes 400] [--rounds 3] [--posts POSTS.jsonl.gz]

The stage is measured from Parquet to committed shards. The texts are posts (JSON lines with `text`), joined to
documents of 4.5 kB on average like OpenWebText's. All but "2 workers" use one core. They take turns, `--rounds` times,
and the best round of each counts. Exits 1 if the stage with one worker reaches less than 0.8 of bare tiktoken's rate,
if two workers reach less than 1.8 times one (on two or more idle cores), or if one of its processes takes a gigabyte of
memory.
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
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from owt_pipeline.formats import encoding as encodings
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import Outcome
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.owt_pipeline.making import write_dataset

DATA = Path(os.environ.get("OWT_TESTDATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
POSTS = DATA / "text" / "reddit-posts.jsonl.gz"
SHARDS = 4

# Runs `owt`, and prints the peak of its largest process, in KiB, before the workers end.
MEASURED = """
import os, runpy, sys
from pathlib import Path
def main():
    try:
        runpy.run_module("owt_pipeline", run_name="__main__")
    except SystemExit as end:
        assert not end.code
    peaks = [peak_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    print(max(peaks))
def peak_of(pid):
    try:
        ours = os.getpgid(pid) == os.getpid()
        lines = Path(f"/proc/{pid}/status").read_text().splitlines() if ours else []
    except OSError:  # any process of this machine may end meanwhile
        return 0
    return max((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), default=0)
main()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=400, metavar="N", help="text to tokenize")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each contender")
    parser.add_argument("--posts", type=Path, default=POSTS, help="JSON Lines, gzipped, with `text`")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus"
        memory = peak_of_stage(corpus, arguments.posts, arguments.megabytes * 1_000_000)
        texts = make_texts(arguments.posts, arguments.megabytes * 1_000_000)
        size = sum(len(text.encode()) for text in texts)
        tokens = sum(map(len, map(encodings.tiktoken_encoding().encode_ordinary, texts)))
        print(f"{size / 1e6:.1f} MB, {tokens:,} tokens in {len(texts):,} documents, {SHARDS} shards")
        contenders: dict[str, tuple[int, Callable[[], float]]] = {
            "stage, 1 worker": (1, partial(run_tokenize, corpus, 1, tokens)),
            "stage, 2 workers": (2, partial(run_tokenize, corpus, 2, tokens)),
            "tiktoken encode_to_numpy": (1, partial(time_tiktoken, texts)),
            "tokenizers encode_batch_fast": (1, partial(time_tokenizers, texts)),
            "nanoGPT: encode, one memmap": (1, partial(time_nanogpt, texts, Path(scratch) / "train.bin", tokens)),
        }
        best = dict.fromkeys(contenders, float("inf"))
        for _ in range(arguments.rounds):
            for name, (_, measure) in contenders.items():
                best[name] = min(best[name], measure())
    for name, seconds in best.items():
        per_core = tokens / seconds / contenders[name][0]
        print(
            f"{name:30} {seconds:6.2f} s  {size / 1e6 / seconds:6.2f} MB/s  {per_core / 1e6:5.2f} million tokens/s/core"
        )
    share = best["tiktoken encode_to_numpy"] / best["stage, 1 worker"]
    speedup = best["stage, 1 worker"] / best["stage, 2 workers"]
    print(f"{share:.2f} of tiktoken, {speedup:.2f} times as fast with 2 workers, at most {memory:.0f} MiB a process")
    return int(share < 0.8 or speedup < 1.8 or memory > 1000)


def peak_of_stage(corpus: Path, posts: Path, size: int) -> float:
    """Write the run `corpus`, and tokenize a copy of it; returns the peak MiB of the stage's largest process.

    A process inherits its parent's peak, so this is measured first, while this process is small.
    """
    writer = multiprocessing.get_context("spawn").Process(target=write_corpus, args=(corpus, posts, size))
    writer.start()
    writer.join()
    workdir = shutil.copytree(corpus, corpus.with_name("measured"))
    command = [sys.executable, "-c", MEASURED, "tokenize", "--workdir", str(workdir), "--workers", "2", "--quiet"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, start_new_session=True).stdout
    shutil.rmtree(workdir)
    return int(shown) / 1024


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
                {"url_id": shard << 32 | start + i, "text": text, "subreddits": [], "language_score": 1.0}
                | dict.fromkeys(("n_words", "n_chars", "n_bytes"), 1)
                for i, text in enumerate(some[start : start + 1024])
            ]
            writer.add(len(rows), Outcome(pa.RecordBatch.from_pylist(rows, schema)))

    write_dataset(Storage(str(workdir)), "corpus", write, SHARDS)


def run_tokenize(corpus: Path, workers: int, tokens: int) -> float:
    """Seconds of a process of `owt tokenize` over a copy of a run, with the start of Python and Beam."""
    with tempfile.TemporaryDirectory(dir=corpus.parent) as scratch:
        workdir = shutil.copytree(corpus, Path(scratch) / "run")
        command = [sys.executable, "-m", "owt_pipeline", "tokenize", "--workdir", str(workdir), "--quiet"]
        start = time.perf_counter()
        subprocess.run([*command, "--workers", str(workers)], check=True)
        seconds = time.perf_counter() - start
        stats = require_manifest(Storage(str(workdir)), "tokens").stats
    assert stats["tokens_train"] + stats["tokens_val"] == tokens
    return seconds


def time_tiktoken(texts: list[str]) -> float:
    encoding = encodings.tiktoken_encoding()
    start = time.perf_counter()
    for text in texts:
        encoding.encode_to_numpy(text, disallowed_special=())
    return time.perf_counter() - start


def time_tokenizers(texts: list[str]) -> float:
    """Ten times the seconds for every tenth text, since it is by far the slowest."""
    tokenizer = Tokenizer.from_buffer(encodings.gpt2_tokenizer_json())
    some = texts[::10]
    start = time.perf_counter()
    for at in range(0, len(some), 256):
        tokenizer.encode_batch_fast(some[at : at + 256], add_special_tokens=False)
    return (time.perf_counter() - start) * sum(map(len, texts)) / sum(map(len, some))


def time_nanogpt(texts: list[str], path: Path, tokens: int) -> float:
    """data/openwebtext/prepare.py of nanoGPT (MIT licence): ids of each document, then all into one memmap."""
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


if __name__ == "__main__":
    sys.exit(main())
