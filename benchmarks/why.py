"""The time of `owt why`, with the start of its process, on runs of 10,000, 100,000 and 1,000,000 URLs.

    .venv/bin/python benchmarks/why.py [--rows 10000 100000 1000000] [--repeats 3]

The runs are created by benchmarks/synthetic_run.py. The questions are a kept URL, one removed as a duplicate, a
rejected one, an unknown one and an id. Exits 1 if an answer takes two seconds or more, or is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from synthetic_run import write_run

from owt_pipeline.formats.urls import url_id
from owt_pipeline.storage.folder import Storage

LIMIT_SECONDS = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="the median of each counts (default: 3)")
    arguments = parser.parse_args()
    slowest = 0.0
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory(prefix="owt-why-") as folder:
            started = time.perf_counter()
            kept, duplicate, rejected = write_run(Storage(folder), rows)
            asked = {
                "kept": (kept, "kept"),
                "duplicate": (duplicate, "rejected"),
                "rejected": (rejected, "rejected"),
                "by id": (str(url_id(kept)), "kept"),
                "unknown": ("https://host-1.example/articles/none", "unknown"),
            }
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            print(f"{rows:,} URLs ({size / 1e9:.1f} GB, written in {time.perf_counter() - started:.0f} s):", flush=True)
            for what, (text, verdict) in asked.items():
                taken = [ask(folder, text, verdict) for _ in range(arguments.repeats)]
                seconds, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
                slowest = max(slowest, seconds)
                print(f"  {what:<12}{seconds:6.2f} s{cpu:6.2f} s of CPU", flush=True)
    print(f"the slowest answer took {slowest:.2f} s, the limit is {LIMIT_SECONDS}")
    return 0 if slowest < LIMIT_SECONDS else 1


def ask(folder: str, text: str, verdict: str) -> tuple[float, float]:
    """(wall-clock seconds, CPU seconds) of a process of `owt why`; exits if the answer is not `verdict`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [sys.executable, "-m", "owt_pipeline", "why", text, "--workdir", folder, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout) if done.stdout else {}
    if found.get("verdict", "unknown") != verdict:
        sys.exit(f"{' '.join(command)}: {found.get('verdict')}, should be {verdict}\n{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
