"""How fast does collect read a dump, next to a bare loop of zstandard and orjson?

    .venv/bin/python benchmarks/collect.py [RS_2013-01.zst ...] [--repeats 5] [--no_memory]

The bare loop decompresses, splits at newlines, parses every line, and keeps nothing. The stage also
validates, applies every rule, canonicalizes and hashes each URL, writes the rows by shard, merges
them by URL, and writes urls/.

Both run in one process on one core, in turns. The stage is also run with two workers, for which
only the wall clock is measured. The figures are medians over the repeats. Each ratio is to the bare
loop of the same repeat, since other processes slow both.

Without a given dump, two are read: submissions of 2013 with short lines (0.7 KB), and submissions
from today's API (4 KB). Each is COPIES times in one file, so that the fixed cost of a run counts
little. The memory is the peak of a separate process over the first file, and over a file of four
times the size with four times the shards.

Exits 1 if the stage on one core reaches less than MIN_RATIO of the bare loop's rate in CPU time.
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
from dataclasses import dataclass, field
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
# It was 0.25 on a busy machine. The rest of the time goes to the merge and the columns of each row.
MIN_RATIO = 0.2
MAX_LOAD = 0.5
# A process starts with the peak memory of its parent, so a small process starts the measured one.
PEAK_OF_CHILD = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


@dataclass
class Times:
    """The seconds of each repeat of a contender."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def main() -> int:
    """Measure each dump, and the memory of the first; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dumps", type=Path, nargs="*", metavar="DUMP", help=".zst dumps")
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="runs of each (default: 5)"
    )
    parser.add_argument("--no_memory", action="store_true", help="leave out the memory")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    if load > MAX_LOAD:
        print(f"warning: the machine is busy (load {load:.1f})")
    progress.configure(quiet=True, live=False)
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        dumps = arguments.dumps or make_default_dumps(Path(folder))
        for dump in dumps:
            if not dump.is_file():
                parser.error(
                    f"no dump {dump}: name one, or set OWT_TESTDATA to the folder of test data"
                )
        ratios = [measure_rates(dump, arguments.repeats) for dump in dumps]
        if not arguments.no_memory:
            for copies in (1, 4):
                peak = measure_peak_megabytes(dumps[0], copies)
                print(f"peak memory over {copies} × {dumps[0].name}: {peak:,} MB")
    return 0 if min(ratios) >= MIN_RATIO else 1


def make_default_dumps(folder: Path) -> list[Path]:
    """Return a real dump and the API's records as a dump, each several times in one file.

    A dump whose data are not in the folder of test data is not written.
    """
    testdata = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    published = testdata / "reddit" / "RS_2013-top.zst"
    recorded = testdata / "reddit" / "praw-submissions.ndjson.gz"
    dump = folder / "RS_2013-top.zst"
    api_dump = folder / "RS_api.zst"
    if published.is_file():
        dump.write_bytes(published.read_bytes() * COPIES)
    if recorded.is_file():
        lines = gzip.decompress(recorded.read_bytes())
        api_dump.write_bytes(zstandard.compress(lines) * COPIES)
    return [dump, api_dump]


def measure_rates(dump: Path, repeats: int) -> float:
    """Print the rates over a dump; return the stage's share of the bare loop's rate in CPU time."""
    num_lines, num_bytes = read_bare(dump)
    contenders: dict[str, Callable[[Path], object]] = {
        "bare loop": read_bare,
        "complete stage": run_collect,
        "with 2 workers": partial(run_collect, num_workers=2),
    }
    times = {name: Times() for name in contenders}
    for _ in range(repeats):
        for name, work in contenders.items():
            cpu_started = time.process_time()
            wall_started = time.perf_counter()
            work(dump)
            times[name].cpu.append(time.process_time() - cpu_started)
            times[name].wall.append(time.perf_counter() - wall_started)

    print(
        f"\n| {dump.name}, {num_lines:,} lines, {num_bytes / 1e6:,.1f} MB | MB/s | lines/s | of "
        f"the bare loop |"
    )
    print("|---|---:|---:|---:|")
    cpu_seconds = {name: times[name].cpu for name in contenders}
    # The workers are other processes, so this process has only a part of their CPU time.
    del cpu_seconds["with 2 workers"]
    wall_seconds = {name: times[name].wall for name in contenders}
    ratios = {}
    for clock, seconds_by_name in (("CPU", cpu_seconds), ("wall", wall_seconds)):
        for name, seconds in seconds_by_name.items():
            bare_seconds = seconds_by_name["bare loop"]
            ratio = median(bare / own for bare, own in zip(bare_seconds, seconds, strict=True))
            megabytes_per_s = num_bytes / 1e6 / median(seconds)
            lines_per_s = num_lines / median(seconds)
            print(
                f"| {name}, {clock} | {megabytes_per_s:,.0f} | {lines_per_s:,.0f} | {ratio:.2f} |",
                flush=True,
            )
            ratios[clock, name] = ratio
    return ratios["CPU", "complete stage"]


def read_bare(dump: Path) -> tuple[int, int]:
    """Read and parse all lines of a dump; return the numbers of lines and of bytes."""
    num_lines = 0
    num_bytes = 0
    rest_of_line = b""
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
    with open(dump, "rb") as file:
        reader = decompressor.stream_reader(file, read_across_frames=True)
        while chunk := reader.read(1 << 20):
            num_bytes += len(chunk)
            *lines, rest_of_line = (rest_of_line + chunk).split(b"\n")
            for line in lines:
                orjson.loads(line)
            num_lines += len(lines)
    return num_lines, num_bytes


def run_collect(dump: Path, num_workers: int = 1) -> None:
    """Run the complete stage over a dump, in a new folder."""
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        options = Options(dumps=(str(dump),), num_shards=NUM_SHARDS)
        run_stage(STAGE, options, Runtime(Storage(folder), workers=num_workers))


def measure_peak_megabytes(dump: Path, copies: int) -> int:
    """Return the peak resident memory of `collect` over copies of a dump in one file."""
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        longer = Path(folder) / "RS.zst"
        longer.write_bytes(dump.read_bytes() * copies)
        command = [sys.executable, "-m", "owt_pipeline", "run", f"{folder}/run", "--quiet"]
        command += ["--until", "collect", "--workers", "1", "--dumps", str(longer)]
        command += ["--num_shards", str(NUM_SHARDS * copies)]
        process = subprocess.run(
            [sys.executable, "-c", PEAK_OF_CHILD, *command], check=True, capture_output=True
        )
    return int(process.stdout) // 1024


if __name__ == "__main__":
    sys.exit(main())
