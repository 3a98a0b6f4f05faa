"""What becomes of memory that arrays give back."""

from __future__ import annotations

import contextlib
import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 128 << 20
_ARRAY_BYTES = 32 << 20  # the most that glibc takes


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to 128 MB of what it frees, for the arrays of the next texts.

    They are of a megabyte or so and come and go by the dozen; glibc returns each to the system and takes it again,
    page by page. In worker processes that was a sixth of their time. Another C library goes its own way.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _ARRAY_BYTES)
