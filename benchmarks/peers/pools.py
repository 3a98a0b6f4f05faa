"""One pool of processes, ours or another's, at one piece of work: what `pool.py` starts and measures.

    PYTHONPATH=benchmarks/peers PYTHON -c "import pools; pools.main()" POOL rate
    ... POOL kills SEED SECONDS
    ... POOL hold spin|sleep|hang_in_c

`rate` and `kills` print what they measured as JSON. It is imported and not run, so that workers find the functions
by the module's name. Pools other than ours need pyarrow, numpy and their own package alone.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WORKERS = 2
LOADS = {"1 MB": (400, 1 << 17), "4 kB": (4000, 1 << 9)}
"""Of the rates: how many batches, and how many rows of 8 bytes each."""
KILLS = (300, 1 << 19)
"""Under kills: as many batches of 4 MB, so that most kills hit a transfer."""


class Pool(Protocol):
    def map(self, fn: Callable[[pa.RecordBatch], Any], batches: Sequence[pa.RecordBatch]) -> Iterator[Any]:
        """Results in order; where a pool survives a worker's death, how it died in place of the result."""

    def pids(self) -> Sequence[int]:
        """The workers, perhaps also some that have ended."""

    def stop(self) -> None:
        """End the workers by the quickest way that the pool has."""


class Ours:
    def __init__(self) -> None:
        from owt_pipeline.engine.workers import shared_pool, start_server

        start_server([__name__])
        self._pool = shared_pool(WORKERS)

    def map(self, fn: Callable[[pa.RecordBatch], Any], batches: Sequence[pa.RecordBatch]) -> Iterator[Any]:
        for _, result in self._pool.map(fn, batches):
            yield result

    def pids(self) -> Sequence[int]:
        return [worker.child.pid for worker in self._pool._alive.copy()]

    def stop(self) -> None:
        self._pool.close()


class Pebble:
    def __init__(self) -> None:
        from pebble import ProcessPool

        self._pool = ProcessPool(WORKERS, context=preloaded())

    def map(self, fn: Callable[[pa.RecordBatch], Any], batches: Sequence[pa.RecordBatch]) -> Iterator[Any]:
        from pebble import ProcessExpired

        results = self._pool.map(fn, batches).result()
        for _ in batches:
            try:
                yield next(results)
            except ProcessExpired as death:
                yield death

    def pids(self) -> Sequence[int]:
        return list(self._pool._pool_manager.worker_manager.workers)

    def stop(self) -> None:
        self._pool.stop()
        self._pool.join()


class Futures:
    def __init__(self) -> None:
        from concurrent.futures import ProcessPoolExecutor

        self._pool = ProcessPoolExecutor(WORKERS, mp_context=preloaded())

    def map(self, fn: Callable[[pa.RecordBatch], Any], batches: Sequence[pa.RecordBatch]) -> Iterator[Any]:
        return self._pool.map(fn, batches)

    def pids(self) -> Sequence[int]:
        return list(self._pool._processes or ())

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Loky(Futures):
    def __init__(self) -> None:
        from loky import get_reusable_executor

        self._pool = get_reusable_executor(WORKERS, timeout=None)

    def stop(self) -> None:
        self._pool.shutdown(kill_workers=True)  # type: ignore[call-arg]


POOLS: dict[str, Callable[[], Pool]] = {"ours": Ours, "pebble": Pebble, "loky": Loky, "concurrent.futures": Futures}


def preloaded() -> Any:
    """multiprocessing's fork server, which has imported what the workers need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def main() -> None:
    pool = POOLS[sys.argv[1]]()
    action, *arguments = sys.argv[2:]
    if action == "hold":
        hold(pool, {"spin": spin, "sleep": sleep, "hang_in_c": hang_in_c}[arguments[0]])
        return
    rate(pool, 8 * WORKERS, 1)  # the workers are started before anything is measured
    if action == "rate":
        print(json.dumps({load: rate(pool, *of) for load, of in LOADS.items()}))
    else:
        print(json.dumps(kills(pool, int(arguments[0]), float(arguments[1]))), flush=True)
    os._exit(0)  # a pool that hangs is not waited for


def rate(pool: Pool, count: int, rows: int) -> float:
    """Batches a second, to the workers and back."""
    batches = some(rows) * (count // 8)
    expected = add_one(batches[-1])
    started = time.perf_counter()
    result = deque(pool.map(add_one, batches), maxlen=1)[0]
    seconds = time.perf_counter() - started
    assert result.equals(expected)
    return count / seconds


def kills(pool: Pool, seed: int, seconds: float) -> dict[str, Any]:
    """Map while a random worker is killed every 50 to 200 ms; what came of it within `seconds`."""
    count, rows = KILLS
    found: dict[str, Any] = {"results": 0, "deaths": 0, "kills": 0, "ended": "hangs"}
    batches = (some(rows) * (count // 8 + 1))[:count]

    def work() -> None:
        try:
            for batch, result in zip(batches, pool.map(add_one, batches), strict=True):
                if isinstance(result, pa.RecordBatch):
                    assert result["i"][0].as_py() == batch["i"][0].as_py() + 1
                found["results" if isinstance(result, pa.RecordBatch) else "deaths"] += 1
            found["ended"] = "ends"
        except Exception as error:
            found["ended"] = f"raises {type(error).__name__}"

    started, thread, chance = time.monotonic(), threading.Thread(target=work, daemon=True), random.Random(seed)
    thread.start()
    while time.monotonic() < started + seconds:
        thread.join(chance.uniform(0.05, 0.2))
        if not thread.is_alive():
            break
        if alive := sorted(set(pool.pids()) & set(processes_of(os.getsid(0)))):
            os.kill(chance.choice(alive), signal.SIGKILL)
            found["kills"] += 1
    return {**found, "seconds": time.monotonic() - started}


def hold(pool: Pool, work: Callable[[pa.RecordBatch], None]) -> None:
    """All workers at work that does not end, until Ctrl-C."""
    try:
        for _ in pool.map(work, some(1)[:4]):
            pass
    except KeyboardInterrupt:
        pool.stop()


def some(rows: int) -> list[pa.RecordBatch]:
    """Eight batches that differ."""
    return [pa.record_batch({"i": np.full(rows, i)}) for i in range(8)]


def add_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"i": pc.add(batch["i"], 1)})


def spin(_: pa.RecordBatch) -> None:
    os.write(1, b"at work\n")  # at once, as `print` may not
    while True:
        pass


def sleep(_: pa.RecordBatch) -> None:
    os.write(1, b"at work\n")
    time.sleep(300)


def hang_in_c(_: pa.RecordBatch) -> None:
    """Holds the interpreter's lock for hours, with all signals blocked that can be."""
    os.write(1, b"at work\n")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    re.match(r"(a*)*b", "a" * 64)


def processes_of(session: int) -> list[int]:
    """The live processes of a session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, *fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == session and state != "Z":
            found.append(int(name))
    return found
