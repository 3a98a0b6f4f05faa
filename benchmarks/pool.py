"""Our process pool compared with Pebble, loky and concurrent.futures: rates, killed workers, killed parents, Ctrl-C.

    .venv/bin/python benchmarks/pool.py [--peer PYTHON] [--repeats 3] [--seconds 60] [--only rates kills ends]

The pools have two workers each and take turns. Pebble and concurrent.futures fork workers from multiprocessing's fork
server, which has preloaded their modules; loky starts its own. Pebble and loky need `--peer .venv-peers/bin/python`.
Runs only on Linux. Exits 1 if our pool does not finish when workers are killed, or leaves a process or a file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from peers.pools import KILLS, LOADS, WORKERS, processes_of

PEERS = Path(__file__).parent / "peers"
HOLDS = {"spin": "Python loop", "sleep": "sleep", "hang_in_c": "C code, signals blocked"}
PATIENCE = 10  # seconds that Ctrl-C may take
GRACE = 5  # seconds after the parent's end in which its workers may end


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", help="the Python that has pebble and loky")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="turns; medians count (default: 3)")
    parser.add_argument("--seconds", type=float, default=60, metavar="X", help="limit of a map under kills")
    parts = ("rates", "kills", "ends")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="what to measure (default: all)")
    arguments = parser.parse_args()
    pools = {"ours": sys.executable}
    for peer in ("pebble", "loky"):
        if version := version_of(peer, arguments.peer):
            pools[peer] = arguments.peer
            print(f"{peer} {version}")
        else:
            print(f"{peer}: skipped. `make bench-peers` installs it; then add --peer .venv-peers/bin/python")
    pools["concurrent.futures"] = sys.executable
    print(f"Python {sys.version.split()[0]}, {WORKERS} workers, {os.cpu_count()} cores")
    if "rates" in arguments.only:
        print_rates(pools, arguments.repeats)
    survived = "kills" not in arguments.only or print_kills(pools, arguments.repeats, arguments.seconds)
    clean = "ends" not in arguments.only or print_ends(pools)
    return int(not (survived and clean))


def version_of(package: str, python: str | None) -> str:
    """Its version where `python` has it, else nothing."""
    code = f"import {package}, pyarrow, importlib.metadata as m; print(m.version('{package}'))"
    done = python and subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() if done else ""


def print_rates(pools: dict[str, str], repeats: int) -> None:
    turns: dict[str, list[dict[str, float]]] = {pool: [] for pool in pools}
    for _ in range(repeats):
        for pool, python in pools.items():
            # A line, not to the end: workers that are left hold the pipe open.
            with started(pool, python, "rate") as process:
                turns[pool].append(json.loads(process.stdout.readline()))
    print("\n| map |" + "".join(f" {count:,} batches of {load} | ours |" for load, (count, _) in LOADS.items()))
    print("|---|" + "---:|---:|" * len(LOADS))
    medians = {pool: {load: statistics.median(turn[load] for turn in turns[pool]) for load in LOADS} for pool in pools}
    for pool, rates in medians.items():
        cells = (f" {rates[load]:,.0f}/s | {medians['ours'][load] / rates[load]:.2f} times |" for load in LOADS)
        print(f"| {pool} |" + "".join(cells), flush=True)


def print_kills(pools: dict[str, str], repeats: int, seconds: float) -> bool:
    """Until a pool hangs, `repeats` maps by each; whether ours always came to its end."""
    print(f"\n| map of {KILLS[0]} batches, a worker killed every 50 to 200 ms | | results | deaths | kills | seconds |")
    print("|---|---|---:|---:|---:|---:|")
    ends = []
    for pool, python in pools.items():
        for seed in range(repeats):
            with started(pool, python, "kills", str(seed), str(seconds)) as process:
                found: dict[str, Any] = json.loads(process.stdout.readline())
            cells = [found["ended"], found["results"], found["deaths"], found["kills"], f"{found['seconds']:.1f}"]
            print(f"| {pool} | {' | '.join(map(str, cells))} |", flush=True)
            if pool == "ours":
                ends.append(found["ended"])
            if found["ended"] == "hangs":
                break
    return set(ends) == {"ends"}


def print_ends(pools: dict[str, str]) -> bool:
    """What is left when the parent is killed or interrupted; whether ours leaves nothing."""
    clean = True
    for number, title in (
        (signal.SIGKILL, f"parent killed: processes and files left after {GRACE} s, while workers are in"),
        (signal.SIGINT, "Ctrl-C: seconds until the parent has ended, processes and files left, while workers are in"),
    ):
        print(f"\n| {title} | {' | '.join(HOLDS.values())} |")
        print("|---|" + "---:|" * len(HOLDS))
        for pool, python in pools.items():
            with ThreadPoolExecutor() as together:
                ends = list(together.map(lambda work, of=(pool, python, number): ended(*of, work), HOLDS))
            left = [f"{len(processes)}, {files}" for _, processes, files in ends]
            took = [f"{seconds:.2f} s: " if seconds < PATIENCE else f"> {PATIENCE} s: " for seconds, _, _ in ends]
            cells = left if number == signal.SIGKILL else map(str.__add__, took, left)
            print(f"| {pool} | {' | '.join(cells)} |", flush=True)
            if pool == "ours":
                clean = clean and all(end[0] < PATIENCE and end[1:] == ([], 0) for end in ends)
    return clean


def ended(pool: str, python: str, number: int, work: str) -> tuple[float, list[int], int]:
    """Signal a parent whose workers are at `work`: seconds to its end, processes and files left after some more."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,  # a short name: sockets may be in it
        started(pool, python, "hold", work, folder=folder) as process,
    ):
        assert process.stdout is not None
        for _ in range(WORKERS):
            assert process.stdout.readline() == "at work\n"
        since = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        while process.poll() is None and time.monotonic() < since + PATIENCE:
            time.sleep(0.01)
        seconds = time.monotonic() - since
        while process.poll() is not None and processes_of(process.pid) and time.monotonic() < since + seconds + GRACE:
            time.sleep(0.05)
        return seconds, processes_of(process.pid), len(os.listdir(folder))


class started:
    """A pool in a process and a session of its own, all of which are killed on leaving."""

    def __init__(self, pool: str, python: str, *action: str, folder: str | None = None):
        paths = [str(PEERS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [python, "-c", "import pools; pools.main()", pool, *action],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **({"TMPDIR": folder} if folder else {})},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if folder else None, text=True, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> subprocess.Popen[str]:
        return self.process

    def __exit__(self, *_: object) -> None:
        for pid in processes_of(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()


if __name__ == "__main__":
    sys.exit(main())
