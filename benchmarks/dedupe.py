"""The rate of the complete stage dedupe, from Parquet to decisions, compared with peers that do a part of it.

    make bench-peers    # once: the peers' environment
    .venv/bin/python benchmarks/dedupe.py [--documents 40000] [--repeats 1] [--no_peers] [--short 1000000]

Documents have 1,140 words of real posts; a fifth are copies or edited copies of others. Measured are:

- the command `owt dedupe --workers 1` on one core, with the interpreter's start, in wall-clock and CPU seconds (which
  depend less on other work on the machine);
- growth: the same with a quarter of the documents, as CPU seconds per document above those of a run of 16 documents;
- two workers on two cores, compared with two independent processes on half of the documents each, the ideal;
- with --short, the memory for that many short documents;
- peers on one core: datatrove's MinhashDedupSignature alone, datasketch's MinHashLSH, text-dedup's MinHash.

Exits 1 if there are fewer than 4,000 documents/s per core (CPU), less than 40 times the rate of datatrove's signatures,
more than 1.15 times linear growth, more than 4 GB, or less than 1.7 times the rate with two workers by the clock (or
0.95 of the independent processes, if the machine is too busy for 1.7).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dedupe_documents import WORDS, jsonl, long_documents, short_documents, write_clean

REPOSITORY = Path(__file__).resolve().parent.parent
PEERS = REPOSITORY / "benchmarks" / "peers"
PEER_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"

FEW = 16  # documents: what every run takes
FLOOR, TIMES_DATATROVE, SPEEDUP, SHARE_OF_APART, GROWTH, MEMORY = 4000, 40, 1.7, 0.95, 1.15, 4 << 30


@dataclass(frozen=True)
class Measured:
    """Of one run of dedupe: seconds, and the peak memory of its largest process in bytes."""

    wall: float
    cpu: float
    memory: int


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--documents", type=int, default=40_000, metavar="N", help="(default: 40000)")
    parser.add_argument("--peer_documents", type=int, default=400, metavar="N", help="for the peers (default: 400)")
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="runs of each, in turns; the fastest counts"
    )
    parser.add_argument("--no_peers", action="store_true", help="measure ours alone")
    parser.add_argument("--short", type=int, nargs="+", default=[], metavar="N", help="also N documents of 60 words")
    arguments = parser.parse_args()
    testdata = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    if not testdata.is_dir():
        parser.error(f"no folder {testdata}: set OWT_TESTDATA to the folder of test data")
    with tempfile.TemporaryDirectory(prefix="dedupe-") as folder:
        rate, failures = measure_ours(Path(folder), testdata, arguments.documents, arguments.repeats)
        if not arguments.no_peers:
            failures += measure_peers(Path(folder), testdata, arguments.peer_documents, rate)
        for count in arguments.short:
            failures += measure_short(Path(folder), count)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def measure_ours(folder: Path, testdata: Path, count: int, repeats: int) -> tuple[float, list[str]]:
    """Measure the stage on one core, on two, and its growth; returns documents per CPU second, and failed limits."""
    sizes = [FEW, count // 4, count]
    for size in {*sizes}:
        write_clean(folder / str(size), long_documents(testdata, size), size)
    halves = [folder / f"half {k}" for k in (0, 1)]
    for half in halves:
        write_clean(half, long_documents(testdata, count // 2), count // 2)
    # In turns, so that whatever else the machine does in a minute slows all of them.
    rounds = [
        (
            {size: run_dedupe(folder / str(size), 1) for size in sizes},
            {size: run_dedupe(folder / str(size), 2) for size in sizes[::2]},
            seconds_together(halves),
        )
        for _ in range(repeats)
    ]
    one = {size: best([ones[size] for ones, _, _ in rounds]) for size in sizes}
    two = {size: best([twos[size] for _, twos, _ in rounds]) for size in sizes[::2]}
    apart = min(seconds for _, _, seconds in rounds)
    print(f"\ndedupe, {WORDS} words a document, from Parquet to decisions")
    titles = ("documents", "workers", "seconds", "CPU s", "docs/s", "docs/CPU s", "MB")
    print(("{:>11}" * 7).format(*titles))
    for size, workers, run in [*((size, 1, one[size]) for size in sizes), *((size, 2, two[size]) for size in two)]:
        figures = (size, workers, run.wall, run.cpu, size / run.wall, size / run.cpu, run.memory / 2**20)
        print("{:>11,}{:>11}{:>11.2f}{:>11.2f}{:>11,.0f}{:>11,.0f}{:>11,.0f}".format(*figures))
    # Without what every run takes, however small: the start of the interpreter and of the workers.
    each = [(one[size].cpu - one[FEW].cpu) / size for size in sizes[1:]]
    growth = each[1] / max(each[0], 1e-9)
    more = one[count].wall - one[sizes[0]].wall
    speedup = more / (two[count].wall - two[sizes[0]].wall)
    most = more / (apart - one[sizes[0]].wall)
    rate = count / one[count].cpu
    print(f"growth: {each[0] * 1e6:.0f} CPU us a document of {sizes[1]:,}, {each[1] * 1e6:.0f} of {count:,} "
          f"({growth:.2f} times)")  # fmt: skip
    print(f"two workers: {speedup:.2f} times one, from {sizes[0]:,} to {count:,} documents, and with the start "
          f"{one[count].wall / two[count].wall:.2f} times; two processes that share nothing, half of the documents "
          f"each: {most:.2f} and {one[count].wall / apart:.2f} times")  # fmt: skip
    wanted = min(SPEEDUP, SHARE_OF_APART * most)
    checks = {
        f"under {FLOOR:,} documents/s a core": rate >= FLOOR,
        f"growth is {growth:.2f}, over {GROWTH}": growth <= GROWTH,
        f"two workers are {speedup:.2f} times one, under {wanted:.2f}": speedup >= wanted,
    }
    return rate, [problem for problem, holds in checks.items() if not holds]


def measure_short(folder: Path, count: int) -> list[str]:
    """Measure many short documents with two workers; returns failed limits."""
    write_clean(folder / "short", short_documents(count), count, num_shards=8)
    run = run_dedupe(folder / "short", 2)
    shutil.rmtree(folder / "short")
    print(f"\n{count:,} documents of 60 words, 2 workers: {run.wall:.0f} s, {run.cpu:.0f} CPU s, "
          f"{run.memory / 2**30:.2f} GB of memory at most")  # fmt: skip
    return [] if run.memory <= MEMORY else [f"{run.memory / 2**30:.2f} GB of memory, over {MEMORY / 2**30:.0f}"]


def best(runs: list[Measured]) -> Measured:
    """The shortest time of several runs, and the largest memory."""
    return Measured(min(run.wall for run in runs), min(run.cpu for run in runs), max(run.memory for run in runs))


def seconds_together(workdirs: list[Path]) -> float:
    """Run the command on all folders at the same time, with one worker each."""
    started = time.perf_counter()
    processes = [start_dedupe(workdir, 1, len(workdirs)) for workdir in workdirs]
    statuses = [process.wait() for process in processes]
    if any(statuses):
        raise SystemExit(f"dedupe failed with statuses {statuses}")
    return time.perf_counter() - started


def start_dedupe(workdir: Path, workers: int, cores: int) -> subprocess.Popen[bytes]:
    for folder in ("duplicates", "ledger/duplicates"):
        shutil.rmtree(workdir / folder, ignore_errors=True)
    command = [sys.executable, "-m", "owt_pipeline", "dedupe", "--workdir", str(workdir), "--quiet"]
    return subprocess.Popen(
        [*command, "--workers", str(workers)], start_new_session=True, preexec_fn=partial(pin, cores)
    )


def run_dedupe(workdir: Path, workers: int) -> Measured:
    """Run the command from scratch, on as many cores as it has workers."""
    started, spent = time.perf_counter(), children_cpu()
    process = start_dedupe(workdir, workers, workers)
    cpu: dict[str, float] = {}
    memory = 0
    while process.poll() is None:
        memory = max(memory, look(process.pid, cpu))
        time.sleep(0.05)
    wall = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"dedupe failed with status {process.returncode}")
    if workers == 1:  # the system's own count, to the last moment
        cpu = {"all": children_cpu() - spent}
    return Measured(wall, sum(cpu.values()), memory)


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def look(root: int, cpu: dict[str, float]) -> int:
    """Memory in bytes of a process and its descendants; adds their CPU seconds so far to `cpu`."""
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


def measure_peers(folder: Path, testdata: Path, count: int, ours: float) -> list[str]:
    """Measure the peers on fewer documents, since they are slower; returns failed limits."""
    rates: dict[str, float] = {}
    texts = list(long_documents(testdata, count))
    jsonl(folder / "documents.jsonl", texts)
    print(f"\npeers, one core, {count:,} of the same documents")
    print(f"{'':>44} {'docs/CPU s':>10} {'ours is':>12}")
    for name, python, script, key in (
        ("datatrove MinhashDedupSignature alone", PEER_PYTHON, "datatrove_dedupe.py", "seconds_signatures"),
        ("datatrove, all steps", PEER_PYTHON, "datatrove_dedupe.py", "seconds"),
        ("datasketch MinHashLSH, not verified", Path(sys.executable), "datasketch_lsh.py", "seconds"),
        ("text-dedup MinHash, not verified", PEER_PYTHON, "text_dedup_minhash.py", "seconds"),
    ):
        found = ask_peer(python, PEERS / script, folder / "documents.jsonl")
        if isinstance(found, str):
            print(f"{name:>44} left out: {found}")
            continue
        rates[name] = count / found[key]
        print(f"{name:>44} {rates[name]:>10,.0f} {ours / rates[name]:>6.0f} times")
    datatrove = rates.get("datatrove MinhashDedupSignature alone")
    if datatrove and ours < TIMES_DATATROVE * datatrove:
        return [f"{ours / datatrove:.0f} times datatrove's signatures, under {TIMES_DATATROVE}"]
    return []


def ask_peer(python: Path, script: Path, documents: Path) -> dict | str:
    """The output of the peer's script, or why it could not run."""
    if not python.exists():
        return f"no {python}: run `make bench-peers`"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [str(python), str(script), str(documents)],
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=partial(pin, 1),
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
