"""The speed and memory of collect reading a dump, compared with a bare loop of zstandard and
orjson.

    .venv/bin/python benchmarks/collect.py [RS_2013-01.zst ...] [--repeats 5] [--no_memory]

The bare loop decompresses, splits at newlines, parses every line and keeps nothing. The stage also
validates, applies every rule, canonicalizes and hashes each URL, writes the rows by shard, merges
them by URL and writes urls/. All run in one process on one core, in turns, measured in CPU and
wall-clock seconds; the stage is also run with two workers. Prints medians over the repeats. Each
ratio is to the bare loop of the same repeat, since other processes slow both. Without a given dump,
two are read, each COPIES times in one file to hide the fixed cost of a run: submissions of 2013
with short lines (0.7 KB), and submissions from today's API (4 KB). Memory is the peak of a separate
process over the first file and over one of four times the size, with four times the shards. Exits 1
if the complete stage on one core reaches less than FLOOR of the bare loop's rate in CPU time.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import orjson
import zstandard

from owt_pipeline import progress
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.stages.collect.stage import STAGE
from owt_pipeline.storage.folder import Storage

REPOSITORY = Path(__file__).resolve().parent.parent
NUM_SHARDS = 8
COPIES = 8
FLOOR = (
    0.2  # measured 0.25 on a busy machine; what remains is the merge and the columns of each row
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dumps", type=Path, nargs="*", metavar="DUMP", help=".zst dumps")
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="runs of each (default: 5)"
    )
    parser.add_argument("--no_memory", action="store_true", help="leave out the memory")
    arguments = parser.parse_args()
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"warning: the machine is busy (load {load:.1f})")
    progress.configure(quiet=True, live=False)
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        dumps = arguments.dumps or default_dumps(Path(folder))
        for dump in dumps:
            if not dump.is_file():
                parser.error(
                    f"no dump {dump}: name one, or set OWT_TESTDATA to the folder of test data"
                )
        ratios = [measure(dump, arguments.repeats) for dump in dumps]
        if not arguments.no_memory:
            for copies in (1, 4):
                print(
                    f"peak memory over {copies} × {dumps[0].name}: "
                    f"{peak_megabytes(dumps[0], copies):,} MB"
                )
    return 0 if min(ratios) >= FLOOR else 1


def default_dumps(folder: Path) -> list[Path]:
    """The real dump, and the API's records as a dump."""
    reddit = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data")) / "reddit"
    dump, api = folder / "RS_2013-top.zst", folder / "RS_api.zst"
    if (published := reddit / dump.name).is_file():
        dump.write_bytes(published.read_bytes() * COPIES)
    if (recorded := reddit / "praw-submissions.ndjson.gz").is_file():
        api.write_bytes(zstandard.compress(gzip.decompress(recorded.read_bytes())) * COPIES)
    return [dump, api]


def measure(dump: Path, repeats: int) -> float:
    """Print the rates over one dump; returns the ratio of the complete stage to the bare loop in
    CPU time."""
    lines, size = bare(dump)
    kinds: dict[str, Callable[[Path], object]] = {
        "bare loop": bare,
        "complete stage": complete,
        "with 2 workers": partial(complete, workers=2),
    }
    cpu, wall = ({name: [] for name in kinds} for _ in range(2))
    for _ in range(repeats):
        for name, work in kinds.items():
            started = time.process_time(), time.perf_counter()
            work(dump)
            cpu[name].append(time.process_time() - started[0])
            wall[name].append(time.perf_counter() - started[1])
    del cpu["with 2 workers"]  # of which this process is not all
    print(
        f"\n| {dump.name}, {lines:,} lines, {size / 1e6:,.1f} MB | MB/s | lines/s | of the bare "
        f"loop |"
    )
    print("|---|---:|---:|---:|")
    ratios = {}
    for clock, seconds in (("CPU", cpu), ("wall", wall)):
        for name, taken in seconds.items():
            ratio = median(
                bare / own for bare, own in zip(seconds["bare loop"], taken, strict=True)
            )
            speed = f"{size / 1e6 / median(taken):,.0f} | {lines / median(taken):,.0f}"
            print(f"| {name}, {clock} | {speed} | {ratio:.2f} |", flush=True)
            ratios[clock, name] = ratio
    return ratios["CPU", "complete stage"]


def bare(dump: Path) -> tuple[int, int]:
    """(lines, bytes) of a dump."""
    lines, size, rest = 0, 0, b""
    with open(dump, "rb") as file:
        reader = zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(
            file, read_across_frames=True
        )
        while chunk := reader.read(1 << 20):
            size += len(chunk)
            *complete_lines, rest = (rest + chunk).split(b"\n")
            for line in complete_lines:
                orjson.loads(line)
            lines += len(complete_lines)
    return lines, size


def complete(dump: Path, workers: int = 1) -> None:
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        run_stage(
            STAGE,
            Options(dumps=(str(dump),), num_shards=NUM_SHARDS),
            Runtime(Storage(folder), workers=workers),
        )


def peak_megabytes(dump: Path, copies: int) -> int:
    """Peak resident memory of `collect` over `copies` frames of the dump in one file."""
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        longer = Path(folder) / "RS.zst"
        longer.write_bytes(dump.read_bytes() * copies)
        command = [
            sys.executable,
            "-m",
            "owt_pipeline",
            "run",
            f"{folder}/run",
            "--until",
            "collect",
            "--workers",
            "1",
        ]
        program = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        program += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        flags = ["--dumps", str(longer), "--num_shards", str(NUM_SHARDS * copies), "--quiet"]
        output = subprocess.run(
            [sys.executable, "-c", program, *command, *flags], check=True, capture_output=True
        )
        return int(output.stdout) // 1024


if __name__ == "__main__":
    sys.exit(main())
