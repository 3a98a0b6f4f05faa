"""The captures in a WARC file: every HTTP response and its range of bytes.

The file is plain, or has a gzip member for each record. A record's head declares its length, and
each record is compared with it, so that no record ends silently short:

    plain    head, content of the declared length, blank lines  | head, content, blank lines
    gzip     a member: head, content of the declared length, blank lines  | a member

A capture is addressed by its range of bytes, at which `read_record` finds it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from isal import isal_zlib

from owt_pipeline.formats.messages import BadMessage, content_type_of, split_response
from owt_pipeline.formats.warc import BadRecord, RecordHead, parse_head

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31
_LINE_END = b"\r\n"

# Bytes of a record that are kept in memory. Its head and its response's head are shorter.
_START_BYTES = 32 << 10

# Two line ends follow the content of a record.
_MAX_BYTES_AFTER_CONTENT = 4


@dataclass(frozen=True)
class Capture:
    """One HTTP response in an archive.

    Attributes:
      url: its target URI as written.
      date: time of capture, seconds since 1970 in UTC; 0 if unknown.
      status: HTTP status code; 0 for bytes that are not an HTTP response.
      content_type: the Content-Type header as sent; None if there is none.
      offset: first byte of its record.
      length: bytes of its record, or more.
    """

    url: str
    date: int
    status: int
    content_type: str | None
    offset: int
    length: int


COMPLETE = "expected a complete file: fetch it again and compare its checksum"
RECOMPRESS = "make a copy that can be read with `warcio recompress FILE COPY.warc.gz`"
OR_DAMAGED = ", or take what can be read with --allow_damaged"
"""Advice for a damaged file; the second part where the option is not given."""


@dataclass(eq=False)
class Broken(Exception):
    """A part of an archive that cannot be read.

    Attributes:
      offset: the first byte of its record; None if the complete file is something else.
      problem: the reason.
      remedy: what to do.
    """

    offset: int | None
    problem: str
    remedy: str = COMPLETE

    def __str__(self) -> str:
        if self.offset is None:
            return self.problem
        return f"the record at byte {self.offset:,}: {self.problem}"


class _Record(NamedTuple):
    """A record: its head, the first bytes of its content, and its range of bytes in the file."""

    head: RecordHead
    content: bytes
    offset: int
    length: int


def captures(file: BinaryIO, size: int) -> Iterator[Capture | Broken]:
    """Yield the responses in an archive of `size` bytes, in order, up to the first damage.

    The damage is the last result, as a `Broken`. The archive of a shard without pages is empty; any
    other archive without responses is a `Broken`.
    """
    types: list[str] = []
    try:
        for record in _records(file, size):
            types.append(record.head.fields.get("warc-type", ""))
            if types[-1] == "response" and record.head.target_uri[:4].lower() == "http":
                yield _capture(record)
    except Broken as broken:
        yield broken
        return
    if len(types) > 1 and not {"response", "resource"}.intersection(types):
        names = ", ".join(sorted(set(types)))
        yield Broken(
            0,
            f"no response among its records ({names}): WET and WAT files have no pages, their WARC "
            f"files do",
        )


def _records(file: BinaryIO, size: int) -> Iterator[_Record]:
    """Yield all records; raise Broken at the first that cannot be read."""
    file.seek(0)
    is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    return _gzip_records(file) if is_gzip else _plain_records(file, size)


def _gzip_records(file: BinaryIO) -> Iterator[_Record]:
    """Yield the record in each gzip member; members without content are skipped."""
    offset = 0
    data = file.read(_START_BYTES)
    while data:
        member = isal_zlib.decompressobj(_GZIP_WBITS)
        start = b""
        num_bytes = 0
        while data and not member.eof:
            try:
                piece = member.decompress(data)
            except isal_zlib.error as error:  # type: ignore[misc]  # its stub hides the base class
                raise Broken(offset, f"damage in it: {error}") from error
            num_bytes += len(piece)
            start += piece[: _START_BYTES - len(start)]
            data = member.unused_data or file.read(_START_BYTES)
        if not member.eof:
            raise Broken(offset, "the file ends within it")
        end = file.tell() - len(data)
        if start.strip():
            head = _head_of(start, offset)
            num_after = num_bytes - head.num_bytes - head.content_length
            if num_after < 0:
                raise Broken(offset, f"its content lacks {-num_after:,} bytes")
            if num_after > _MAX_BYTES_AFTER_CONTENT:
                raise Broken(offset, "its gzip member has more than one record", RECOMPRESS)
            yield _Record(head, start[head.num_bytes :], offset, end - offset)
        offset = end


def _plain_records(file: BinaryIO, size: int) -> Iterator[_Record]:
    """Yield the records of a file that is not compressed; blank lines between them are skipped."""
    offset = 0
    while offset < size:
        file.seek(offset)
        padded_start = file.read(_START_BYTES)
        start = padded_start.lstrip(_LINE_END)
        offset += len(padded_start) - len(start)
        if not start:
            continue
        head = _head_of(start, offset)
        length = head.num_bytes + head.content_length
        if offset + length > size:
            raise Broken(offset, "the file ends within it")
        file.seek(offset + length)
        if file.read(1) not in (b"", b"\r", b"\n"):
            raise Broken(offset, "its content is longer than its head declares")
        yield _Record(head, start[head.num_bytes :], offset, length)
        offset += length


def _head_of(start: bytes, offset: int) -> RecordHead:
    """Return the head of the record at `offset`, which begins with `start`."""
    try:
        return parse_head(start)
    except BadRecord as error:
        if start.startswith(b"WARC/"):
            has_lf_lines = b"\n\n" in start
            raise Broken(offset, str(error), RECOMPRESS if has_lf_lines else COMPLETE) from error
        # At its first byte, the complete file is of another kind.
        problem = (
            f"not a WARC {'record' if offset else 'file'}, since it begins with {start[:20]!r}"
        )
        raise Broken(offset or None, problem) from error


def _capture(record: _Record) -> Capture:
    """Return the capture of a response."""
    status = 0
    content_type = None
    # Bytes of HTTP/0.9 or another protocol have no status. `read_record` gives the reason.
    with contextlib.suppress(BadMessage):
        status, headers, _ = split_response(record.content)
        content_type = content_type_of(headers)
    head = record.head
    return Capture(head.target_uri, head.date, status, content_type, record.offset, record.length)
