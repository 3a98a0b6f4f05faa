"""Near-duplicates next to peers, in one run: what is found of planted copies, and CPU time a document.

    make bench-peers    # once: the peers' environment
    .venv/bin/python benchmarks/dedupe.py [--peer .venv-peers/bin/python] [--bases 300] [--documents 20000]
        [--peer_documents 500] [--short 1000000]

Planted: real posts and pages, each with ten copies: verbatim, with 1 to 40% of the words edited, truncated, joined with
another, in a template that all share. Similarity is the exact Jaccard similarity of the sets of word 5-grams. Precision
is the share of removed documents with a similarity of 0.8 or more to a kept one; recall is the share of pairs of 0.8 or
more of which one document is removed.

Rates: documents of 1,140 words of real posts, of which a fifth are copies or edited copies of others; CPU seconds of
the complete process above those for 16 documents, on one core. `owt.near_duplicates` runs all steps of the stage. With
--short, also the memory of all processes for that many documents of 60 words, with two workers.

Exits 1 unless precision is 1 and recall at least 0.999, CPU time a document grows by less than 1.3 times from a
quarter of the documents to all, each peer takes more of it, and memory stays under 4 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from dedupe_documents import Planted, jsonl, long_documents, planted, short_documents
from scipy.sparse import csr_array

from owt_pipeline.stages.dedupe.shingles import fold, shingle

REPOSITORY = Path(__file__).resolve().parent.parent
PEERS = REPOSITORY / "benchmarks" / "peers"
THRESHOLD, NGRAM, FEW, GROWTH, MEMORY = 0.8, 5, 16, 1.3, 4 << 30
OURS = "owt.near_duplicates"
COMMANDS = {
    OURS: ("near_duplicates.py", "owt"),
    "rensa": ("near_duplicates.py", "rensa"),
    "datasketch": ("near_duplicates.py", "datasketch"),
    "text-dedup": ("text_dedup_minhash.py",),
    "datatrove": ("datatrove_dedupe.py",),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", help="the Python that has the peers")
    parser.add_argument("--bases", type=int, default=300, metavar="N", help="documents to copy (default: 300)")
    parser.add_argument("--documents", type=int, default=20_000, metavar="N", help="for the rate (default: 20000)")
    parser.add_argument("--peer_documents", type=int, default=500, metavar="N", help="for the peers' (default: 500)")
    parser.add_argument("--short", type=int, default=0, metavar="N", help="also N documents of 60 words")
    arguments = parser.parse_args()
    testdata = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    if not testdata.is_dir():
        parser.error(f"no folder {testdata}: set OWT_TESTDATA to the folder of test data")
    python = {name: arguments.peer for name in COMMANDS if arguments.peer} | {OURS: sys.executable}
    with tempfile.TemporaryDirectory(prefix="dedupe-") as folder:
        file = Path(folder) / "documents.jsonl"
        failures = find_planted(python, file, planted(testdata, arguments.bases))
        failures += measure_rates(python, file, testdata, arguments.documents, arguments.peer_documents)
        if arguments.short:
            failures += measure_memory(file, arguments.short)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def find_planted(python: dict[str, str], file: Path, documents: Sequence[Planted]) -> list[str]:
    texts = [document.text for document in documents]
    jsonl(file, texts)
    pairs = similar_pairs(texts)
    print(f"planted: {len(texts):,} documents of {np.mean([len(text.split()) for text in texts]):,.0f} words, "
          f"{len(pairs):,} pairs of {THRESHOLD} or more")  # fmt: skip
    print(f"{'':>22} {'removed':>8} {'precision':>10} {'recall':>8} {'CPU s':>8}")
    failures = []
    for name in python:
        removed, seconds = run(python[name], name, file)
        precision, recall = scored(removed, pairs)
        print(f"{name:>22} {len(removed):>8,} {precision:>10.4f} {recall:>8.4f} {seconds:>8.1f}", flush=True)
        if name == OURS:
            print_kinds(documents, removed, pairs)
            if precision < 1 or recall < 0.999:
                failures.append(f"precision {precision:.4f}, recall {recall:.4f}")
    return failures


def similar_pairs(texts: Sequence[str]) -> dict[tuple[int, int], float]:
    """The exact similarity of all pairs of texts that reach the threshold: (lesser, greater) -> similarity."""
    sets = shingle(fold(pa.array(texts)), NGRAM).sets()
    values = np.concatenate(sets)
    _, column = np.unique(values, return_inverse=True)
    sizes = np.array([len(one) for one in sets])
    matrix = csr_array((np.ones(len(values), np.int32), column, np.concatenate([[0], np.cumsum(sizes)])))
    common = (matrix @ matrix.T).tocoo()
    upper = common.row < common.col
    a, b, shared = common.row[upper], common.col[upper], common.data[upper]
    similarity = shared / (sizes[a] + sizes[b] - shared)
    found = zip(zip(a.tolist(), b.tolist(), strict=True), similarity.tolist(), strict=True)
    return {pair: value for pair, value in found if value >= THRESHOLD}


def scored(removed: set[int], pairs: dict[tuple[int, int], float]) -> tuple[float, float]:
    """(precision, recall)."""
    proven = {a if a in removed else b for a, b in pairs if (a in removed) != (b in removed)}
    found = sum(a in removed or b in removed for a, b in pairs)
    return len(proven) / max(len(removed), 1), found / max(len(pairs), 1)


def print_kinds(documents: Sequence[Planted], removed: set[int], pairs: dict[tuple[int, int], float]) -> None:
    """Print for each kind of copy how many reach the threshold with their original, and how many of these go."""
    original = {document.source: i for i, document in enumerate(documents) if document.kind == "original"}
    kinds: dict[str, list[bool]] = defaultdict(list)
    for i, document in enumerate(documents):
        j = original[document.source]
        if (min(i, j), max(i, j)) in pairs:
            kinds[document.kind].append(i in removed or j in removed)
    found = ", ".join(f"{kind} {sum(goes)} of {len(goes)}" for kind, goes in sorted(kinds.items()))
    print(f"{'':>22} found of {len(original)}: {found}")


def measure_rates(python: dict[str, str], file: Path, testdata: Path, count: int, peers: int) -> list[str]:
    """Print CPU time a document; returns failed limits."""
    texts = list(long_documents(testdata, count))

    def microseconds(name: str, size: int) -> float:
        seconds = []
        for some in (texts[:FEW], texts[:size]):
            jsonl(file, some)
            seconds.append(run(python[name], name, file)[1])
        return 1e6 * (seconds[1] - seconds[0]) / (size - FEW)

    quarter, all_of_them = microseconds(OURS, count // 4), microseconds(OURS, count)
    growth = all_of_them / max(quarter, 1e-9)
    print(f"\nCPU us a document: {OURS} {quarter:,.0f} of {count // 4:,}, {all_of_them:,.0f} of {count:,} "
          f"({growth:.2f} times)", flush=True)  # fmt: skip
    failures = [f"growth is {growth:.2f}, over {GROWTH}"] if growth > GROWTH else []
    for name in python:
        if name != OURS:
            theirs = microseconds(name, peers)
            print(f"{name:>22} {theirs:,.0f} of {peers:,}: {theirs / all_of_them:.1f} times ours", flush=True)
            failures += [f"{name} takes {theirs:,.0f} us"] if theirs <= all_of_them else []
    return failures


def run(python: str, name: str, file: Path) -> tuple[set[int], float]:
    """(numbers of the removed documents, CPU seconds of the complete process), on one core."""
    script, *given = COMMANDS[name]
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(REPOSITORY) if name == OURS else "",
    }
    before = children_cpu()
    done = subprocess.run(
        [python, str(PEERS / script), *given, str(file)],
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=partial(pin, 1),
    )
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr[-2000:]}")
    return {int(one) for one in json.loads(done.stdout)["removed"]}, children_cpu() - before


def measure_memory(file: Path, count: int) -> list[str]:
    """Print the memory of all processes for many short documents; returns failed limits."""
    jsonl(file, short_documents(count))
    code = (
        "import sys, pathlib, owt_pipeline as owt\n"
        "print(len(owt.near_duplicates(pathlib.Path(sys.argv[1]), workers=2)))"
    )
    started, cpu, memory = time.perf_counter(), dict[str, float](), 0
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True, preexec_fn=partial(pin, 2)
    )
    while process.poll() is None:
        memory = max(memory, look(process.pid, cpu))
        time.sleep(0.1)
    gone = process.communicate()[0].strip()
    print(f"\n{count:,} documents of 60 words, 2 workers: {time.perf_counter() - started:.0f} s, "
          f"{sum(cpu.values()):.0f} CPU s, {memory / 2**30:.2f} GB of memory at most; {gone} go, "
          f"of {count // 10:,} planted")  # fmt: skip
    failures = [f"{memory / 2**30:.2f} GB of memory"] if memory > MEMORY else []
    return failures + ([f"exit code {process.returncode}"] if process.returncode else [])


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def look(root: int, cpu: dict[str, float]) -> int:
    """Memory in bytes of a process and its descendants; notes their CPU seconds so far in `cpu`."""
    found: dict[int, tuple[int, float, int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                found[int(entry.name)] = int(fields[1]), seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    memory = 0
    for process, (_, seconds, size) in found.items():
        above = process
        while above not in (root, 0) and above in found:
            above = found[above][0]
        if above == root:
            cpu[str(process)] = seconds
            memory += size
    return memory


def pin(cores: int) -> None:
    """Restrict this process and its children to that many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


if __name__ == "__main__":
    sys.exit(main())
