"""How long do pages take from a WARC file to tokens, and to a corpus with datatrove?

    make bench-peers    # once: the peer's environment
    .venv/bin/python benchmarks/end_to_end.py [PAGES.warc.gz] [--workers 2] \
        [--repeats 1] [--no_peer]

Ours is `owt run` in a new folder, from the URLs of the WARC file to shards of tokens. The clock
measures the complete command with the start of its interpreter, and then the same command when all
is finished. The peer is datatrove from the same WARC file to a deduplicated corpus, with the
defaults of its examples (`peers/datatrove_end_to_end.py`), except that a page has 20 seconds. With
the default of one second of wall clock, a busy machine loses pages. It does less: it does not
tokenize, and neither its imports nor the splitting of the WARC file are in its seconds. The CPU
time is of all processes, with imports.

Both have as many workers. They run in turns, never at the same time, and the fastest repeat of each
counts. Without a name, the WARC file is WCXB's development pages in the folder of test data
(OWT_TESTDATA). Exits 1 if ours is slower.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.storage.folder import Storage

REPOSITORY = Path(__file__).resolve().parent.parent
PEER = REPOSITORY / "benchmarks" / "peers" / "datatrove_end_to_end.py"
PEER_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"
# Of Linux: processes whose parent has ended become children of this one.
PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Measure both in turns and print the fastest run of each; return the exit status."""
    arguments = parse_arguments()
    # The CPU time of workers counts, too, although the process that started them has ended.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    warc = arguments.warc.resolve()
    our_runs = []
    peer_runs = []
    for _ in range(arguments.repeats):
        our_runs.append(measure_ours(warc, arguments.workers))
        if not arguments.no_peer:
            peer_runs.append(measure_peer(warc, arguments.workers))

    ours = fastest(our_runs)
    print(
        f"owt_pipeline, WARC to tokens:  {summarize(ours)}, "
        f"{ours['tokens'] / ours['seconds']:,.0f} tokens/s"
    )
    print_steps(ours["seconds_by_stage"])
    print(f"  the same command when all is finished {ours['seconds_when_finished']:.2f} s")
    if not peer_runs:
        return 0
    peer = fastest(peer_runs)
    print(f"datatrove, WARC to documents:  {summarize(peer)}")
    print_steps(peer["seconds_by_step"])
    ratio = peer["seconds"] / ours["seconds"]
    cpu_ratio = peer["cpu_seconds"] / ours["cpu_seconds"]
    print(f"ours is {ratio:.2f} times as fast, with 1/{cpu_ratio:.2f} of the CPU time,", end="")
    print(" tokenizing included")
    return 0 if ratio > 1 else 1


def parse_arguments() -> argparse.Namespace:
    """Return the arguments; exit if a file that they need is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    testdata = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    default_warc = testdata / "web" / "wcxb-dev.warc.gz"
    parser.add_argument("warc", type=Path, nargs="?", default=default_warc, help="the pages")
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="processes (default: 2)"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, metavar="N", help="runs of each (default: 1)"
    )
    parser.add_argument("--no_peer", action="store_true", help="do not measure the peer")
    arguments = parser.parse_args()
    if not arguments.warc.is_file():
        parser.error(
            f"no WARC file {arguments.warc}: name one, or set OWT_TESTDATA to the folder of test "
            f"data"
        )
    if not arguments.no_peer and not PEER_PYTHON.exists():
        parser.error(f"no {PEER_PYTHON}: run `make bench-peers`, or give --no_peer")
    return arguments


def measure_ours(warc: Path, num_workers: int) -> dict[str, Any]:
    """Run our stages over a WARC file; return the counts and seconds of the run."""
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        workdir = Path(folder) / "run"
        command = [sys.executable, "-m", "owt_pipeline", "run", str(workdir), "--until", "tokenize"]
        command += ["--warcs", str(warc), "--pages_from", str(warc), "--workers", str(num_workers)]
        started = time.perf_counter()
        _, cpu_seconds = run(command)
        finished = time.perf_counter()
        run(command)
        seconds_when_finished = time.perf_counter() - finished

        seconds_by_stage = {}
        for line in (workdir / "run-log.jsonl").read_text().splitlines():
            entry = json.loads(line)
            if "stage" in entry:
                seconds_by_stage[entry["stage"]] = entry["seconds"]
        urls = require_manifest(Storage(str(workdir)), "urls")
        tokens = require_manifest(Storage(str(workdir)), "tokens")
    return {
        "seconds": finished - started,
        "cpu_seconds": cpu_seconds,
        "seconds_when_finished": seconds_when_finished,
        "seconds_by_stage": seconds_by_stage,
        "pages": urls.counts.entered,
        "documents_kept": tokens.counts.left,
        "tokens": tokens.stats["tokens_train"] + tokens.stats["tokens_val"],
    }


def measure_peer(warc: Path, num_workers: int) -> dict[str, Any]:
    """Run the peer over a WARC file; return its own report."""
    output, cpu_seconds = run([str(PEER_PYTHON), str(PEER), str(warc), str(num_workers)])
    return {**json.loads(output), "cpu_seconds": cpu_seconds}


def run(command: list[str]) -> tuple[str, float]:
    """Return the standard output of a command, and the CPU seconds of all its processes.

    Exits with its errors if it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    if process.returncode:
        sys.exit(
            f"{' '.join(command)}\nfailed with exit code {process.returncode}:\n"
            f"{process.stderr[-4000:]}"
        )
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fastest(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the run that took the least time."""
    return min(runs, key=lambda result: result["seconds"])


def summarize(result: dict[str, Any]) -> str:
    """Return the pages, the seconds, the CPU time and the documents of a run as text."""
    num_pages = result["pages"]
    seconds = result["seconds"]
    return (
        f"{num_pages:,} pages in {seconds:.1f} s, {num_pages / seconds:.1f} pages/s, "
        f"{result['cpu_seconds']:.1f} s of CPU time, "
        f"{result['documents_kept']:,} documents"
    )


def print_steps(seconds_by_step: dict[str, float]) -> None:
    """Print the seconds of each step on one line."""
    steps = [f"{step} {seconds:.1f} s" for step, seconds in seconds_by_step.items()]
    print("  " + ", ".join(steps))


if __name__ == "__main__":
    sys.exit(main())
