"""Compressed files of every kind that dumps come in, read as a stream up to the byte where they break."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import zstandard

# Compressed bytes at a time: some hundred kilobytes, decoded. Where there is more (runs of zeros, in damaged dumps),
# the next reads are smaller, since a decoder returns all at once.
_READ_BYTES = 32 << 10
_PIECE_BYTES = 1 << 20

_ERRORS = (zstandard.ZstdError, lzma.LZMAError, zlib.error, OSError, EOFError)


def _new_zstd() -> Any:
    # The monthly dumps are written with `--long=31`: a reader has to allow for windows of 2 GiB.
    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj(write_size=_PIECE_BYTES)


# In xz and gzip, zeros may pad the end of a stream.
_FORMATS: list[tuple[str, bytes, bytes, Callable[[], Any]]] = [
    ("zst", b"\x28\xb5\x2f\xfd", b"", _new_zstd),
    ("xz", b"\xfd7zXZ\x00", b"\x00", lzma.LZMADecompressor),
    ("bz2", b"BZh", b"", bz2.BZ2Decompressor),
    ("gz", b"\x1f\x8b", b"\x00", lambda: zlib.decompressobj(31)),
]
_SKIPPABLE = tuple(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))  # zstd frames without data


@dataclass
class Decompressor:
    """The decompressed content of `file`, in pieces; plain files come as they are.

    The format is told by the first bytes, not by the name. A file may hold several frames, streams or members.

    Attributes:
      bytes_read: compressed bytes read so far.
      broken: after the last piece: where and why the file broke off, or None where it is whole.
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
        """Frame after frame; `data` is read and not decoded yet."""
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
        """What the piece at byte `at` yields before it breaks: a failed call to a decoder drops all it had decoded.

        So decode the frame again up to there, and go on byte by byte. This costs as much time as has passed
        already, but only for a file that is damaged.
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
