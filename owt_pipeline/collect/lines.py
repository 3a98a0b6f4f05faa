"""Whole lines of a file in large blocks: parsing wants many at a time, memory wants few."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from owt_pipeline.collect.decompress import Decompressor

BLOCK_BYTES = 8 << 20
PIECE_BYTES = 2 << 20
"""A block is parsed by pieces of this much, whose objects stay in the cache; smaller ones cost more in calls."""

MAX_LINE_BYTES = 32 << 20
"""A longer line is cut into pieces of this length: it is no record, and must not fill the memory."""


@dataclass(frozen=True)
class Block:
    """Consecutive whole lines.

    Attributes:
      data: the lines, separated by newlines; any object with a buffer.
      first_line: number of the first one in its file, from 1.
      num_lines: how many there are.
    """

    data: Any
    first_line: int
    num_lines: int

    def pieces(self, piece_bytes: int = PIECE_BYTES) -> Iterator[Block]:
        """The same lines in smaller blocks; the data is not copied."""
        data, start, line = memoryview(self.data), 0, self.first_line
        while start <= len(data):
            newline = _NEWLINE(data, start + piece_bytes)
            end = newline.start() if newline else len(data)
            num_lines = _count_newlines(data[start:end]) + 1
            yield Block(data[start:end], line, num_lines)
            start, line = end + 1, line + num_lines


_NEWLINE = re.compile(rb"\n").search


def _count_newlines(data: bytes | memoryview) -> int:
    """As `data.count(b"\\n")`, at four times the speed."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))


class LineReader:
    """The lines of a plain or compressed file as blocks; `broken` and `bytes_read` are the decompressor's.

    Where the file breaks off, the piece of a line before the break is left out, unless it ends like a JSON object.
    """

    def __init__(self, file: IO[bytes], block_bytes: int = BLOCK_BYTES):
        self._source, self._block_bytes = Decompressor(file), block_bytes
        self.bytes_decompressed = 0

    @property
    def broken(self) -> str | None:
        return self._source.broken

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    def __iter__(self) -> Iterator[Block]:
        line, size, num_lines = 1, 0, 0  # num_lines: newlines in `waiting`
        waiting: list[bytes] = []
        for piece in self._source:
            self.bytes_decompressed += len(piece)
            end = piece.rfind(b"\n")
            num_lines += _count_newlines(piece)
            if size + len(piece) < self._block_bytes or (end < 0 and size < MAX_LINE_BYTES):
                waiting.append(piece)
                size += len(piece)
                continue
            waiting.append(piece[:end] if end >= 0 else piece)
            num_lines += end < 0
            yield Block(b"".join(waiting), line, num_lines)  # the one copy that is made of the whole content
            line += num_lines
            waiting = [piece[end + 1 :]] if end >= 0 else []
            size, num_lines = sum(map(len, waiting)), 0
        data = b"".join(waiting)
        if self.broken is not None and not data.endswith(b"}"):
            data = data[: max(data.rfind(b"\n"), 0)]
        if data:
            data = data.removesuffix(b"\n")
            yield Block(data, line, data.count(b"\n") + 1)
