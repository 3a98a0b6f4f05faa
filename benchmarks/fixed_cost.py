"""The fixed cost of a run: of a tiny run, and of a run in which everything is finished.

    python benchmarks/fixed_cost.py [--workers 2] [--repeats 3]

Runs `owt run` from a list of eight URLs to the report, with the pages of `owt demo`, and then the same command again.
Prints wall-clock seconds, and CPU seconds of all processes, which may be more; the shortest repeat counts. Exits 1 if
both are over 3 s for the first run, or over 0.5 s for the second.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecordType

REPOSITORY = Path(__file__).resolve().parents[1]
URLS, NEW_SECONDS, FINISHED_SECONDS = 8, 3.0, 0.5


def owt(*arguments: object) -> tuple[float, float]:
    """(wall-clock seconds, CPU seconds) of a command with this checkout's code."""
    command = [sys.executable, "-m", "owt_pipeline", *map(str, arguments)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {"new": [], "finished": []}
    with tempfile.TemporaryDirectory(prefix="fixed-cost-") as folder:
        owt("demo", "--write_inputs", folder)
        pages, urls = Path(folder, "demo.warc.gz"), Path(folder, "urls.txt")
        with pages.open("rb") as file:
            found = [r.headers["WARC-Target-URI"] for r in ArchiveIterator(file, WarcRecordType.response)]
        urls.write_text("\n".join([url for url in found if re.search(r"\.test/\w", url)][:URLS]) + "\n")
        for repeat in range(arguments.repeats):
            run = ["run", "--workdir", f"{folder}/run-{repeat}", "--url_lists", urls, "--pages_from", pages, "--quiet"]
            for what in taken:
                taken[what].append(owt(*run, "--num_shards", 2, "--workers", arguments.workers))
    failed = False
    for what, limit in (("new", NEW_SECONDS), ("finished", FINISHED_SECONDS)):
        clock, cpu = (min(times[k] for times in taken[what]) for k in (0, 1))
        failed |= min(clock, cpu) > limit
        print(f"{what:8} {clock:5.2f} s  {cpu:5.2f} CPU s  (at most {limit} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
