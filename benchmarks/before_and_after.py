"""Compares this version with an earlier one, from WARC files to tokens, in turns on the same machine.

    python benchmarks/before_and_after.py --before REVISION --dumps RS.zst --pages_from PAGES.warc.gz

Checks out the revision into a temporary folder (and another one with `--after`, to compare two revisions). Runs
`owt run --until tokenize` with each version in turns, `--repeats` times, and once more when all stages are finished.
Prints wall-clock and CPU seconds, and the ratio of the median rates. With an input of a few pages, it shows the fixed
cost of a run. Exits 1 if this version has less than `--floor` of the earlier one's rate by both clocks.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def measure(code: Path, workdir: Path, arguments: argparse.Namespace) -> tuple[float, float]:
    """(wall-clock seconds, CPU seconds) of one run with the packages below `code`."""
    inputs = ["--dumps", arguments.dumps, "--pages_from", arguments.pages_from, "--num_shards", arguments.num_shards]
    command = [sys.executable, "-m", "owt_pipeline", "run", "--until", "tokenize", "--workdir", workdir, *inputs]
    command += ["--workers", arguments.workers, "--quiet"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        list(map(str, command)), check=True, env={**os.environ, "PYTHONPATH": str(code)}, stdout=subprocess.DEVNULL
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="REVISION")
    parser.add_argument("--after", metavar="REVISION", help="in place of this checkout")
    parser.add_argument("--dumps", required=True)
    parser.add_argument("--pages_from", required=True)
    parser.add_argument("--num_shards", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--floor", type=float, default=0.95)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="before-and-after-") as folder:
        code = {"before": Path(folder) / "before", "after": Path(folder) / "after" if arguments.after else REPOSITORY}
        revisions = {"before": arguments.before, "after": arguments.after}
        checked_out = [name for name in code if revisions[name]]
        git = ["git", "-C", str(REPOSITORY), "worktree"]
        for name in checked_out:
            subprocess.run([*git, "add", "--quiet", "--detach", str(code[name]), revisions[name]], check=True)
        try:
            taken: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
            again: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
            for repeat in range(arguments.repeats):
                for name in ("before", "after") if repeat % 2 == 0 else ("after", "before"):
                    for times, what in ((taken, ""), (again, "  finished, run again")):
                        times[name].append(measure(code[name], Path(folder) / f"{name}-{repeat}", arguments))
                        seconds, cpu_seconds = times[name][-1]
                        print(f"{name:6} {seconds:6.2f} s  {cpu_seconds:6.2f} CPU s{what}", flush=True)
        finally:
            for name in checked_out:
                subprocess.run([*git, "remove", "--force", str(code[name])], check=True)
    clock, cpu = (
        statistics.median(t[k] for t in taken["before"]) / statistics.median(t[k] for t in taken["after"])
        for k in (0, 1)
    )
    for name, times in again.items():
        print(f"{name}: {statistics.median(t[0] for t in times):.2f} s where everything is finished")
    print(f"rate after / before: {clock:.2f} by the clock, {cpu:.2f} by the CPU")
    return 0 if max(clock, cpu) >= arguments.floor else 1


if __name__ == "__main__":
    sys.exit(main())
