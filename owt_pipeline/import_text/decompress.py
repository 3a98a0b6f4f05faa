"""Plain and compressed files as files to be read, whole or not at all."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from owt_pipeline.collect.decompress import Decompressor
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.storage import open_source


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[BinaryIO]:
    """The content of a plain, gzip, bzip2, xz or zstd file (path or URI), read in pieces.

    Raises UserError naming the file where it is damaged or cut short: of text of one's own, unlike of a dump
    from elsewhere, one would rather mend it than go on without its end.
    """
    with open_source(path) as source:
        try:
            yield io.BufferedReader(_Decompressed(Decompressor(source)), 1 << 20)
        except (EOFError, OSError) as error:
            raise UserError(f"{path} cannot be read to its end: {error}; fetch or make it again") from error


class _Decompressed(io.RawIOBase):
    def __init__(self, source: Decompressor):
        self._source, self._pieces, self._ready = source, iter(source), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            self._ready = memoryview(next(self._pieces, b""))
            if not self._ready and self._source.broken is not None:
                raise EOFError(self._source.broken)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
