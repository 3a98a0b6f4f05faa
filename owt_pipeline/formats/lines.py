"""Files of lines, plain or compressed, read as a stream up to the first damaged piece.

Lines come in blocks of some megabytes: parsing is fast with many lines at a time, and memory limits
their number.
"""

from __future__ import annotations

import bz2
import codecs
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


def wide_encoding(data: bytes) -> str | None:
    """Return UTF-16 or UTF-32 if text begins with its mark; None if it does not."""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    return "UTF-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else None


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
        self.source = Decompressed(file)
        self.overlong: list[int] = []
        self.ends_within_line = False
        self._block_bytes = block_bytes

    def __iter__(self) -> Iterator[Block]:
        file = io.BufferedReader(self.source, _PIECE_BYTES)
        line_number = 1
        while data := file.read(self._block_bytes):
            if not data.endswith(b"\n"):
                data += file.readline(MAX_LINE_BYTES)
            lacks_end = not data.endswith(b"\n")
            is_overlong = lacks_end and bool(file.peek(1))
            is_cut = lacks_end and self.source.broken is not None and not data.endswith(b"}")
            if is_overlong or is_cut:
                # Keep the complete lines before it.
                data = data[: data.rfind(b"\n") + 1]
            else:
                self.ends_within_line = lacks_end
            if data:
                yield Block(data.removesuffix(b"\n"), line_number)
            line_number += data.count(b"\n")
            if is_overlong:
                self.overlong.append(line_number)
                line_number += 1
                _skip_line(file)


def _skip_line(file: io.BufferedReader[Any]) -> None:
    """Read up to the end of the current line."""
    while (piece := file.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
        pass


# Compressed bytes that are decoded at a time. A decoder that meets damage loses the output of the
# complete call, so calls are small.
_READ_BYTES = 4 << 10

# Decoded bytes at a time. After a call that gives more (runs of zeros, in damaged dumps), the next
# calls decode less, since all of the output comes at once.
_PIECE_BYTES = 1 << 20

# The monthly dumps are written with `--long=31`, so readers must allow windows of 2 GiB.
_ZSTD_WINDOW = 2**31

_ERRORS = (lzma.LZMAError, zlib.error, OSError, EOFError)


class _ZstdDecoder:
    """A decoder of one zstd frame, with the errors of the other formats."""

    def __init__(self) -> None:
        # Its package is imported when a file needs it.
        import zstandard

        self._error = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
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


class _Format(NamedTuple):
    """A form of compression.

    Attributes:
      name: the ending of its files.
      magic: the first bytes of each frame.
      padding: bytes that may follow a frame.
      new_decoder: makes a decoder of one frame.
    """

    name: str
    magic: bytes
    padding: bytes
    new_decoder: Callable[[], Any]


# In xz and gzip, zeros may follow a stream as padding.
_FORMATS = (
    _Format("zst", b"\x28\xb5\x2f\xfd", b"", _ZstdDecoder),
    _Format("xz", b"\xfd7zXZ\x00", b"\x00", lzma.LZMADecompressor),
    _Format("bz2", b"BZh", b"", bz2.BZ2Decompressor),
    _Format("gz", b"\x1f\x8b", b"\x00", lambda: zlib.decompressobj(31)),
)

# The first bytes of zstd's frames without data (RFC 8878, 3.1.2).
_SKIPPABLE = tuple(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))


def is_compressed(start: bytes) -> bool:
    """Return whether a file with these first bytes is in a form that `Decompressed` reads."""
    return _format_of(start) is not None


def _format_of(start: bytes) -> _Format | None:
    for kind in _FORMATS:
        is_skippable = kind.name == "zst" and start.startswith(_SKIPPABLE)
        if is_skippable or start.startswith(kind.magic):
            return kind
    return None


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
        self.bytes_read = 0
        self.broken: str | None = None
        self._file = file
        self._strict = strict
        self._read_bytes = _READ_BYTES
        self._pieces = self._decoded()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            self._ready = memoryview(next(self._pieces, b""))
            if self._strict and self.broken is not None:
                raise EOFError(self.broken)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decoded(self) -> Iterator[bytes]:
        start = self._read(6)
        kind = _format_of(start)
        if kind is not None:
            yield from self._frames(start, kind)
            return
        # The first piece is as long as the others, for those who look ahead.
        start += self._read(_PIECE_BYTES)
        while start:
            yield start
            start = self._read(_PIECE_BYTES)

    def _frames(self, data: bytes, kind: _Format) -> Iterator[bytes]:
        """Yield the content of all frames; `data` is read but not decoded yet."""
        decoder = kind.new_decoder()
        while data:
            try:
                piece = decoder.decompress(data)
            except _ERRORS as error:
                start = self.bytes_read - len(data)
                self.broken = f"{kind.name}: {error}, at byte {start:,} or soon after"
                return
            if piece:
                yield piece
                # Bytes that would have decompressed to a piece of the target size.
                scaled = self._read_bytes * _PIECE_BYTES // len(piece)
                self._read_bytes = min(max(scaled, 64), _READ_BYTES)
            has_ended = decoder.eof
            data = decoder.unused_data.lstrip(kind.padding) if has_ended else b""
            while not data and (data := self._read(self._read_bytes)) and has_ended:
                data = data.lstrip(kind.padding)
            if has_ended:
                decoder = kind.new_decoder()
            elif not data:
                self.broken = (
                    f"{kind.name}: the file ends at byte {self.bytes_read:,}, in the middle of its "
                    "data"
                )

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.bytes_read += len(data)
        return data
