"""Files of lines, plain or compressed, read as a stream; damaged files are read up to the damaged byte.

Lines come in blocks of some megabytes: parsing is fast with many lines at a time, and memory limits their number.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import zstandard

BLOCK_BYTES = 2 << 20
"""The objects parsed from a block of this size fit the cache; smaller blocks need more calls."""

MAX_LINE_BYTES = 32 << 20
"""A line that is longer than this by a piece of the file or more is skipped, since it would fill the memory."""


class Block(NamedTuple):
    """Consecutive complete lines, separated by newlines; `first_line` is the number of the first, from 1."""

    data: bytes
    first_line: int


def is_utf16(data: bytes) -> bool:
    """Whether text begins as UTF-16: with its mark, or with a zero in every other byte."""
    begin = data[:64]
    wide = len(begin) >= 4 and (not any(begin[1::2]) or not any(begin[0::2])) and any(begin)
    return begin.startswith((b"\xff\xfe", b"\xfe\xff")) or wide


class LineReader:
    """The lines of a plain or compressed file as blocks; `broken` and `bytes_read` are those of `Decompressor`.

    If the file is cut off, the incomplete last line is dropped, unless it ends like a JSON object.

    Attributes:
      bytes_decompressed: bytes decompressed so far.
      overlong: numbers of the skipped lines longer than MAX_LINE_BYTES.
      ends_within_line: after the last block, whether the last line lacks a newline, as in a file that was cut.
    """

    def __init__(self, file: IO[bytes], block_bytes: int = BLOCK_BYTES):
        self._source, self._block_bytes = Decompressor(file), block_bytes
        self.bytes_decompressed = 0
        self.overlong: list[int] = []
        self.ends_within_line = False

    @property
    def broken(self) -> str | None:
        return self._source.broken

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    def __iter__(self) -> Iterator[Block]:
        line, size = 1, 0
        waiting: list[bytes] = []
        in_overlong = False
        for piece in self._source:
            self.bytes_decompressed += len(piece)
            if in_overlong:
                _, newline, piece = piece.partition(b"\n")
                if not newline:
                    continue
                in_overlong = False
            end = piece.rfind(b"\n")
            waiting.append(piece)
            size += len(piece)
            if size < self._block_bytes or (end < 0 and size - len(piece) < MAX_LINE_BYTES):
                continue
            lines, newline, rest = b"".join(waiting).rpartition(b"\n")
            if newline:
                yield Block(lines, line)
                line += lines.count(b"\n") + 1
            if end < 0:  # the last line is too long
                self.overlong.append(line)
                in_overlong, line, rest = True, line + 1, b""
            waiting, size = [rest], len(rest)
        data = b"".join(waiting)
        if self.broken is not None and not data.endswith(b"}"):
            data = data[: max(data.rfind(b"\n"), 0)]
        if data:
            self.ends_within_line = not data.endswith(b"\n")
            yield Block(data.removesuffix(b"\n"), line)


# Compressed bytes read at a time, usually some hundred kilobytes when decoded. After a read that gives more (runs of
# zeros, in damaged dumps), the next reads are smaller, since a decoder returns all data at once.
_READ_BYTES = 32 << 10
_PIECE_BYTES = 1 << 20

_ERRORS = (zstandard.ZstdError, lzma.LZMAError, zlib.error, OSError, EOFError)


def _new_zstd() -> Any:
    # The monthly dumps are written with `--long=31`, so readers must allow windows of 2 GiB.
    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj(write_size=_PIECE_BYTES)


# In xz and gzip, zeros may follow a stream as padding.
_FORMATS: list[tuple[str, bytes, bytes, Callable[[], Any]]] = [
    ("zst", b"\x28\xb5\x2f\xfd", b"", _new_zstd),
    ("xz", b"\xfd7zXZ\x00", b"\x00", lzma.LZMADecompressor),
    ("bz2", b"BZh", b"", bz2.BZ2Decompressor),
    ("gz", b"\x1f\x8b", b"\x00", lambda: zlib.decompressobj(31)),
]
_SKIPPABLE = tuple(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))  # zstd frames without data


@dataclass
class Decompressor:
    """The decompressed content of `file`, in pieces; plain files are not changed.

    The format is recognized by the first bytes, not by the name. A file may hold several frames, streams or members.

    Attributes:
      bytes_read: compressed bytes read so far.
      broken: after the last piece, where and why the file ends early; None if it is complete.
    """

    file: IO[bytes]
    bytes_read: int = 0
    broken: str | None = None
    _step: int = field(default=_READ_BYTES, repr=False)

    def __iter__(self) -> Iterator[bytes]:
        head = self._read(6)
        for name, magic, padding, new in _FORMATS:
            if head.startswith(magic) or (name == "zst" and head.startswith(_SKIPPABLE)):
                yield from self._frames(head, name, padding, new)
                return
        while head:
            yield head
            head = self._read(1 << 20)

    def _frames(self, data: bytes, name: str, padding: bytes, new: Callable[[], Any]) -> Iterator[bytes]:
        """All frames, one after the other; `data` is read but not decoded yet."""
        decoder, start = new(), 0  # start: the frame's first byte in the file
        while True:
            at = self.bytes_read - len(data)
            try:
                piece = decoder.decompress(data)
            except _ERRORS as error:
                yield from self._up_to_the_break(new, start, at, data, f"{name}: {error}")
                return
            if piece:
                yield piece
                self._step = min(max(self._step * _PIECE_BYTES // len(piece), 64), _READ_BYTES)
            if decoder.eof:
                data = decoder.unused_data
                if padding:
                    data = data.lstrip(padding)
                    while not data and (data := self._read(self._step)):
                        data = data.lstrip(padding)
                data = data or self._read(self._step)
                if not data:
                    return
                decoder, start = new(), self.bytes_read - len(data)
            else:
                data = self._read(self._step)
                if not data:
                    self.broken = f"{name}: the file ends at byte {self.bytes_read:,}, in the middle of its data"
                    return

    def _up_to_the_break(
        self, new: Callable[[], Any], start: int, at: int, data: bytes, problem: str
    ) -> Iterator[bytes]:
        """The decoded content of the piece at byte `at` up to the damage.

        A failed call of a decoder loses what it had decoded, so the frame is decoded again up to the piece and then
        byte by byte. This doubles the time, but only for damaged files.
        """
        decoder = new()
        self.file.seek(start)
        for position in range(start, at, _READ_BYTES):
            decoder.decompress(self.file.read(min(_READ_BYTES, at - position)))
        for offset in range(len(data)):
            try:
                piece = decoder.decompress(data[offset : offset + 1])
            except _ERRORS:
                self.broken = f"{problem}, at byte {at + offset:,}"
                return
            if piece:
                yield piece
        self.broken = f"{problem}, at byte {at + len(data):,}"

    def _read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.bytes_read += len(data)
        return data
