"""Compares `owt.near_duplicates` with text-dedup, rensa, datasketch, and Daft's minhash with a join: quality and cost.

    make bench-peers .venv-parts/installed    # once: the environments of the peers
    .venv/bin/python benchmarks/near_duplicates.py [--documents 20000 200000] [--alone 2000000]

Documents have 200 random words; a tenth are copies and a fifth edited copies with 1 to 40% of the words replaced.
Similarities are exact Jaccard similarities of the sets of word 5-grams among copies of the same document. Precision is
the share of removed documents with a similarity of 0.8 or more to a kept one; recall is the share of pairs of 0.8 or
more of which one is removed. CPU seconds are those of the complete process on one core, with its start and the reading
of the file; a peer that takes more than `--peer_seconds` is stopped. With `--alone`, that many documents of 60 words
are read from a Parquet file with two workers: prints seconds, and the memory of all processes together.

Exits 1 unless the library's precision is 1, its recall at least 0.99 and its memory at most 4 GB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from dedupe import PEER_PYTHON, PEERS, REPOSITORY, children_cpu, look, pin
from dedupe_documents import families, jsonl, short_documents
from dedupe_quality import scored

PARTS_PYTHON = REPOSITORY / ".venv-parts" / "bin" / "python"
THRESHOLD, NGRAM = 0.8, 5
MEMORY = 4 << 30
OURS = "owt.near_duplicates"
NAMES = {
    OURS: (Path(sys.executable), "near_duplicates.py", "owt"),
    "text-dedup": (PEER_PYTHON, "text_dedup_minhash.py"),
    "rensa, RMinHashLSH": (PARTS_PYTHON, "near_duplicates.py", "rensa"),
    "datasketch, MinHashLSH": (PARTS_PYTHON, "datasketch_lsh.py"),
    "Daft, minhash and join": (PARTS_PYTHON, "near_duplicates.py", "daft"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--documents", type=int, nargs="*", default=[20_000], metavar="N", help="(default: 20000)")
    parser.add_argument("--words", type=int, default=200, metavar="N", help="of each (default: 200)")
    parser.add_argument("--alone", type=int, default=0, metavar="N", help="also N documents of 60 words, without peers")
    parser.add_argument("--peer_seconds", type=int, default=900, metavar="S", help="CPU time of each (default: 900)")
    parser.add_argument("--no_peers", action="store_true", help="measure ours alone")
    arguments = parser.parse_args()
    failures = []
    with tempfile.TemporaryDirectory(prefix="near-duplicates-") as folder:
        for count in arguments.documents:
            names = [OURS] if arguments.no_peers else list(NAMES)
            failures += compare(Path(folder), count, arguments.words, names, arguments.peer_seconds)
        if arguments.alone:
            failures += measure_alone(Path(folder), arguments.alone)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def compare(folder: Path, count: int, words: int, names: list[str], limit: int) -> list[str]:
    """Measure all on the same documents; returns failed limits."""
    made = list(families(count, words))
    texts = [text for text, _ in made]
    pairs = similar_pairs(texts, [family for _, family in made])
    jsonl(folder / "documents.jsonl", texts)
    print(f"\n{count:,} documents of {words} words; {len(pairs):,} pairs of a similarity of {THRESHOLD} or more")
    print(f"{'':>24} {'removed':>8} {'precision':>10} {'recall':>8} {'CPU s':>8} {'of ours':>8}", flush=True)
    failures = []
    ours = 0.0
    for name in names:
        python, script, *given = NAMES[name]
        removed, seconds = run([str(python), str(PEERS / script), *given, str(folder / "documents.jsonl")], limit)
        if isinstance(removed, str):
            print(f"{name:>24} {removed}", flush=True)
            if name == OURS:
                return [removed]
            continue
        gone, precision, recall = scored(removed, count, pairs)
        ours = ours or seconds
        print(f"{name:>24} {gone:>8,} {precision:>10.4f} {recall:>8.4f} {seconds:>8.1f} {seconds / ours:>8.1f}",
              flush=True)  # fmt: skip
        if name == OURS and (precision < 1 or recall < 0.99):
            failures.append(f"precision {precision:.4f}, recall {recall:.4f}")
    return failures


def similar_pairs(texts: list[str], families: list[int]) -> dict[tuple[int, int], float]:
    """Pairs of one family whose Jaccard similarity reaches the threshold; other pairs are similar only by chance."""
    members: dict[int, list[int]] = defaultdict(list)
    for i, family in enumerate(families):
        members[family].append(i)
    found = {}
    for family in members.values():
        if len(family) > 1:
            sets = {i: shingles(texts[i]) for i in family}
            for a, b in itertools.combinations(family, 2):
                similarity = len(sets[a] & sets[b]) / len(sets[a] | sets[b])
                if similarity >= THRESHOLD:
                    found[a, b] = similarity
    return found


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split(" ")
    return set(zip(*(words[i:] for i in range(NGRAM)), strict=False))


def run(command: list[str], limit: int) -> tuple[set[int] | str, float]:
    """(numbers of the removed documents, CPU seconds), or why there are none."""
    if not Path(command[0]).exists():
        return f"left out: no {command[0]}: run `make bench-peers .venv-parts/installed`", 0.0

    def bounded() -> None:
        pin(1)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    before = children_cpu()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, preexec_fn=bounded, cwd=REPOSITORY
    )
    seconds = children_cpu() - before
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return (f"stopped after {seconds:.0f} CPU s" if seconds >= limit else f"left out: {last}"), seconds
    return {int(one) for one in json.loads(done.stdout)["removed"]}, seconds


def measure_alone(folder: Path, count: int) -> list[str]:
    """Measure many short documents with two workers; returns failed limits."""
    file, texts = folder / "documents.parquet", short_documents(count)
    schema = pa.schema({"text": pa.string()})
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while some := list(itertools.islice(texts, 10_000)):
            writer.write_batch(pa.record_batch([some], schema=schema))
    code = (
        "import sys, pathlib, owt_pipeline as owt\n"
        "print(len(owt.near_duplicates(pathlib.Path(sys.argv[1]), workers=2)))"
    )
    started, cpu, memory = time.perf_counter(), {}, 0
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True, preexec_fn=partial(pin, 2)
    )
    while process.poll() is None:
        memory = max(memory, look(process.pid, cpu))
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    assert process.stdout is not None
    gone = int(process.stdout.read() or -1)
    print(f"\n{count:,} documents of 60 words, 2 workers: {seconds:.0f} s, {sum(cpu.values()):.0f} CPU s, "
          f"{memory / 2**30:.2f} GB of memory at most; {gone:,} go, of {count // 10:,} planted")  # fmt: skip
    failures = [] if memory <= MEMORY else [f"{memory / 2**30:.2f} GB of memory, over {MEMORY / 2**30:.0f}"]
    return [*failures, *([f"exit code {process.returncode}"] if process.returncode else [])]


if __name__ == "__main__":
    sys.exit(main())
