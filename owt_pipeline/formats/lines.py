"""Files of lines, plain or compressed, read as a stream; damaged files are read up to the
damaged piece.

Lines come in blocks of some megabytes: parsing is fast with many lines at a time, and memory limits
their number.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

BLOCK_BYTES = 2 << 20
"""The objects parsed from a block of this size fit the cache; smaller blocks need more calls."""

MAX_LINE_BYTES = 32 << 20
"""A line that is longer than this by a block or more is skipped, since it would fill the memory."""


class Block(NamedTuple):
    """Consecutive complete lines, separated by newlines; `first_line` is the number of the
    first, from 1."""

    data: bytes
    first_line: int


def is_utf16(data: bytes) -> bool:
    """Whether text begins as UTF-16: with its mark, or with a zero in every other byte."""
    begin = data[:64]
    wide = len(begin) >= 4 and (not any(begin[1::2]) or not any(begin[0::2])) and any(begin)
    return begin.startswith((b"\xff\xfe", b"\xfe\xff")) or wide


class LineReader:
    """The lines of a plain or compressed file as blocks.

    If the file is cut off, the incomplete last line is dropped, unless it ends like a JSON object.

    Attributes:
      source: the content of the file, and how it ends.
      overlong: numbers of the skipped lines longer than MAX_LINE_BYTES.
      ends_within_line: after the last block, whether the last line lacks a newline, as in a file
        that was cut.
    """

    def __init__(self, file: IO[bytes], block_bytes: int = BLOCK_BYTES):
        self.source, self._block_bytes = Decompressed(file), block_bytes
        self.overlong: list[int] = []
        self.ends_within_line = False

    def __iter__(self) -> Iterator[Block]:
        file, line = io.BufferedReader(self.source, _PIECE_BYTES), 1
        while data := file.read(self._block_bytes):
            data += b"" if data.endswith(b"\n") else file.readline(MAX_LINE_BYTES)
            without_end = not data.endswith(b"\n")
            too_long = without_end and bool(file.peek(1))
            if too_long or (
                without_end and self.source.broken is not None and not data.endswith(b"}")
            ):
                data = data[: data.rfind(b"\n") + 1]
            else:
                self.ends_within_line = without_end
            if data:
                yield Block(data.removesuffix(b"\n"), line)
            line += data.count(b"\n")
            if too_long:
                self.overlong.append(line)
                line += 1
                while (rest := file.readline(_PIECE_BYTES)) and not rest.endswith(b"\n"):
                    pass


# Compressed bytes decoded at a time: a decoder that meets damage loses what it had of its piece.
# After a piece that gives more than a megabyte (runs of zeros, in damaged dumps) the next are
# smaller, since all of it comes at once.
_READ_BYTES = 4 << 10
_PIECE_BYTES = 1 << 20

_ERRORS = (lzma.LZMAError, zlib.error, OSError, EOFError)


class _ZstdDecoder:
    """A decoder of one zstd frame, with the errors of the other formats."""

    def __init__(self) -> None:
        # Its package is imported when a file needs it.
        import zstandard

        self._error = zstandard.ZstdError
        # The monthly dumps are written with `--long=31`, so readers must allow windows of 2 GiB.
        decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._decoder = decompressor.decompressobj(write_size=_PIECE_BYTES)

    def decompress(self, data: bytes) -> bytes:
        """Return the content of the next compressed bytes; raise EOFError if they are damaged."""
        try:
            return self._decoder.decompress(data)
        except self._error as error:
            raise EOFError(str(error)) from error

    @property
    def eof(self) -> bool:
        """Whether the frame has ended."""
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        """The bytes after the frame."""
        return self._decoder.unused_data


# In xz and gzip, zeros may follow a stream as padding.
_FORMATS: list[tuple[str, bytes, bytes, Callable[[], Any]]] = [
    ("zst", b"\x28\xb5\x2f\xfd", b"", _ZstdDecoder),
    ("xz", b"\xfd7zXZ\x00", b"\x00", lzma.LZMADecompressor),
    ("bz2", b"BZh", b"", bz2.BZ2Decompressor),
    ("gz", b"\x1f\x8b", b"\x00", lambda: zlib.decompressobj(31)),
]
_SKIPPABLE = tuple(
    bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16)
)  # zstd frames without data


class Decompressed(io.RawIOBase):
    """The decompressed content of `file`; plain files are not changed.

    The format is recognized by the first bytes, not by the name. A file may hold several frames,
    streams or members. A damaged one ends before the piece of 4 KiB with the damage; if `strict`,
    reading on raises EOFError.

    Attributes:
      bytes_read: compressed bytes read so far.
      broken: at the end, where and why the file ends early; None if it is complete.
    """

    def __init__(self, file: IO[bytes], *, strict: bool = False):
        self._file, self._strict, self._step = file, strict, _READ_BYTES
        self.bytes_read = 0
        self.broken: str | None = None
        self._pieces, self._ready = self._decoded(), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            self._ready = memoryview(next(self._pieces, b""))
            if self._strict and self.broken is not None:
                raise EOFError(self.broken)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _decoded(self) -> Iterator[bytes]:
        head = self._read(6)
        for name, magic, padding, new in _FORMATS:
            if head.startswith(magic) or (name == "zst" and head.startswith(_SKIPPABLE)):
                yield from self._frames(head, name, padding, new)
                return
        while head:
            yield head
            head = self._read(_PIECE_BYTES)

    def _frames(
        self, data: bytes, name: str, padding: bytes, new: Callable[[], Any]
    ) -> Iterator[bytes]:
        """All frames, one after the other; `data` is read but not decoded yet."""
        decoder = new()
        while data:
            try:
                piece = decoder.decompress(data)
            except _ERRORS as error:
                self.broken = (
                    f"{name}: {error}, at byte {self.bytes_read - len(data):,} or soon after"
                )
                return
            if piece:
                yield piece
                self._step = min(max(self._step * _PIECE_BYTES // len(piece), 64), _READ_BYTES)
            ended, data = decoder.eof, decoder.unused_data.lstrip(padding) if decoder.eof else b""
            while not data and (data := self._read(self._step)) and ended:
                data = data.lstrip(padding)
            if ended:
                decoder = new()
            elif not data:
                self.broken = (
                    f"{name}: the file ends at byte {self.bytes_read:,}, in the middle of its data"
                )

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.bytes_read += len(data)
        return data
