"""Pages through worker processes, of which a page may kill the one it is in, and no other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa

from owt_pipeline.extract.pages import Rejected, Result, Work, extract_batch
from owt_pipeline.extract.sandbox import TIMEOUT_SIGNAL
from owt_pipeline.runtime.workers import WorkerDied, WorkerPool, shared_pool
from schemas import Reason


def extract_all(rows: Iterable[pa.RecordBatch], work: Work, workers: int) -> Iterator[tuple[pa.RecordBatch, Result]]:
    """Pairs of (row, result), in order; `rows` are batches of one page each.

    Also a single worker is a process of its own. One that dies of anything but its CPU limit may have been killed
    from outside (by the kernel, for memory that others used), so its page gets a second chance, alone.
    """
    fn = partial(extract_batch, work=work)
    with contextlib.ExitStack() as stack:
        second: WorkerPool | None = None
        for row, results in shared_pool(max(1, workers)).map(fn, rows):
            if isinstance(results, WorkerDied) and results.exit_code != -TIMEOUT_SIGNAL:
                if second is None:
                    second = stack.enter_context(contextlib.closing(WorkerPool(1)))
                ((_, results),) = second.map(fn, [row])
            yield row, _died(results, work) if isinstance(results, WorkerDied) else results[0]


def _died(death: WorkerDied, work: Work) -> Rejected:
    if death.exit_code == -TIMEOUT_SIGNAL:
        return Rejected(Reason.EXTRACT_TIMEOUT, f"more than {work.cpu_seconds:g} s of CPU time")
    return Rejected(Reason.EXTRACT_CRASH, str(death))
