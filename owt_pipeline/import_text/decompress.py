"""Compressed files as streams of bytes, by what the file is and not by what it is called."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import zstandard

from owt_pipeline.runtime.errors import UserError
from owt_pipeline.runtime.storage import open_source

_MAX_WINDOW = 1 << 31  # zstd --long=31, as large archives use it; the default refuses more than 128 MB


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[BinaryIO]:
    """The content of a plain, gzip, bzip2, xz or zstd file (path or URI), read in pieces.

    Raises UserError naming the file where it cannot be read, or is damaged or cut short.
    """
    with open_source(path) as source:
        magic = source.read(6)
        source.seek(0)
        stream: Any = source
        if magic.startswith(b"\x1f\x8b"):
            stream = gzip.GzipFile(fileobj=stream)
        elif magic.startswith(b"BZh"):
            stream = bz2.BZ2File(stream)
        elif magic.startswith(b"\xfd7zXZ\x00"):
            stream = lzma.LZMAFile(stream)  # noqa: SIM115  # `source` is what is open
        elif magic.startswith(b"\x28\xb5\x2f\xfd"):
            stream = _ZstdFile(stream)
        try:
            yield io.BufferedReader(stream, 1 << 20)
        except (EOFError, OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
            raise UserError(f"{path} cannot be read to its end: {error}; fetch or make it again") from error


class _ZstdFile(io.RawIOBase):
    """Frames of zstd, one after the other; zstandard's own reader takes a file cut short for a whole one."""

    def __init__(self, source: Any):
        self._source = source
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if self._frame is not None and self._frame.eof:
                chunk, self._frame = self._frame.unused_data, None
            else:
                chunk = b""
            chunk = chunk or self._source.read(1 << 17)
            if not chunk:
                if self._frame is not None:
                    raise EOFError("the file ended within a zstd frame")
                return 0
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._ready = self._frame.decompress(chunk)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
