"""Which process writes which shard, where all of them are on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from owt_pipeline.runtime.workers import Task, shared_pool

BATCHES_COST = 1.1
"""What a shard costs whose batches travel between processes, to one that a single process reads and writes."""


def write_in_processes(
    write: Callable[[int], None], rows: Mapping[int, int], workers: int, *, divisible: bool = False
) -> None:
    """Call `write(shard)` for each shard of `rows` (shard to its rows) in `workers` processes, the largest first.

    A worker writes a shard by itself, so that nothing but its progress travels between processes. Where `write` is
    `divisible`, which is to say maps batches (`workers.map_batches`), this process shares out the batches of a shard
    that is more than a worker's share of what is left: one much larger than the others, or the last ones.

    Raises what `write` raised, and WorkerError where a process died; what the others were at is broken off.
    """
    pool = shared_pool(workers)
    waiting = sorted(rows, key=lambda shard: rows[shard])
    given: dict[int, Task] = {}
    try:
        while waiting or given:
            left = sum(rows[shard] for shard in [*waiting, *given]) - sum(task.rows_done for task in given.values())
            if waiting and pool.has_room:
                shard = waiting.pop()
                if divisible and rows[shard] * workers > BATCHES_COST * left:
                    write(shard)
                else:
                    given[shard] = pool.start(write, shard)
            else:
                pool.receive()
            given = {shard: task for shard, task in given.items() if not task.done}
    except BaseException:
        pool.give_up()
        raise


def work_together(keys: Sequence[int], work: Callable[[int], None], together: int) -> None:
    """Call `work(key)` for each key, `together` of them at once, in threads: for work that waits."""
    if together == 1:
        for key in keys:
            work(key)
        return
    threads = ThreadPoolExecutor(together)
    try:
        for future in as_completed([threads.submit(work, key) for key in keys]):
            future.result()
    finally:  # an error, or Ctrl-C, does not wait for the others
        threads.shutdown(wait=False, cancel_futures=True)
