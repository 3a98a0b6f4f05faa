"""Limits on what one page may cost: CPU time and memory of the worker process it is at work in."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator

from owt_pipeline.engine.workers import TIMEOUT_SIGNAL


@contextlib.contextmanager
def limits(cpu_seconds: float, memory_bytes: int) -> Iterator[None]:
    """Let the block use `cpu_seconds` of CPU time and `memory_bytes` more than the process has now.

    CPU time, not wall clock: a busy machine must not change what comes out. When it is used up, the kernel kills
    the process by TIMEOUT_SIGNAL, whatever it is at: a handler of ours would wait for C code to return, which may
    be never. Where memory runs out, allocating fails: a MemoryError, or whatever C code makes of it. Both limits
    are lifted at the end. Where the system does not tell a process' size (macOS), memory is not limited.
    """
    signal.signal(TIMEOUT_SIGNAL, signal.SIG_DFL)  # a page before this one may have changed both
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {TIMEOUT_SIGNAL})
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = _address_space()
    if size is not None:
        allowed = size + memory_bytes
        if hard != resource.RLIM_INFINITY:
            allowed = min(allowed, hard)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if size is not None:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """Bytes of address space this process has now."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
