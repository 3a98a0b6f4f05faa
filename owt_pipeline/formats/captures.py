"""The captures in a WARC file: every HTTP response and its range of bytes.

The file is plain, or has a gzip member for each record.

A capture is addressed by a range of bytes, at which `read_record` finds it.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.errors import raise_unless_damage
from owt_pipeline.formats.messages import BadMessage, content_type_of, split_response
from owt_pipeline.formats.warc import (
    MAX_BODY_BYTES,
    BadRecord,
    capture_time,
    read_block,
    target_uri,
)

_GZIP_MAGIC = b"\x1f\x8b"
_LF_HEAD = re.compile(rb"WARC/\d\.\d+\n")
_HEAD_END = re.compile(rb"\n\r?\n")
_CONTENT_LENGTH = re.compile(rb"\nContent-Length:[ \t]*(\d+)", re.IGNORECASE)
_PIECE_BYTES = 1 << 16
_CONVERT = "make a copy that can be read with `warcio recompress FILE COPY.warc.gz`"


_OTHER_NAMES = "FastWARC cannot read its head, whose fields have names in other letters"
_RENAME = "write the names of fields as in the standard (WARC-Type, Content-Length)"


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
OR_DAMAGED = ", or take what can be read with --allow_damaged"
"""Advice for a damaged file; the second part where the option is not given."""


@dataclass(frozen=True)
class Broken:
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


def captures(file: BinaryIO, size: int) -> Iterator[Capture | Broken]:
    """Yield the responses in an archive of `size` bytes, in order, up to the first damage.

    The damage is the last result, as a `Broken`. The archive of a shard without pages is empty; any
    other archive without responses is a `Broken`. So are records that share a gzip member, since
    none of them has a range of bytes, and a record whose head has lines that end with LF only.
    """
    is_gzip = _begins(file, 0, _GZIP_MAGIC)
    start = _start_of_record(file, 0)
    if is_gzip and not start.strip():
        try:
            first = _next_member(file, 0)
        except BadRecord as error:
            yield Broken(0, str(error))
            return
        if first is None:
            return
        start = _start_of_record(file, first)
        file.seek(0)
    if start.startswith(b"WARC/"):
        yield from _captures(file, size, is_gzip)
    elif size:
        yield Broken(None, f"not a WARC file, since it begins with {start[:20]!r}")


def _start_of_record(file: BinaryIO, at: int) -> bytes:
    """Return the first bytes of the record at `at`, decompressed; the file's position stays."""
    position = file.tell()
    file.seek(at)
    start = file.read(1 << 16)
    file.seek(position)
    if start.startswith(_GZIP_MAGIC):
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj(31).decompress(start, 1 << 12)
    return start


def _captures(file: BinaryIO, size: int, is_gzip: bool) -> Iterator[Capture | Broken]:
    """Yield the captures of a WARC file, each when the next record shows where it ends."""
    waiting: Callable[[int], Capture] | None = None
    kinds: list[str] = []
    at = -1
    problem = ""
    remedy = COMPLETE
    try:
        for record in _records(file, is_gzip):
            at = record.stream_pos
            if waiting is not None:
                yield waiting(at)
            waiting = None
            kinds.append(record.headers.get("WARC-Type") or "")
            if "Content-Length" not in record.headers:
                raise BadRecord("the file ends within its head")
            if record.headers["Content-Length"].strip() != str(record.content_length):
                remedy = _RENAME
                raise BadRecord(_OTHER_NAMES)
            if _is_response(record):
                waiting = partial(
                    _capture, at, target_uri(record), capture_time(record), read_block(record)
                )
            elif record.reader.consume(record.content_length) < record.content_length:
                raise BadRecord("the file ends within it")
    except _SharedMember as error:
        # None of the records in a member has a range of bytes.
        waiting = None
        problem = str(error)
    except BadRecord as error:
        problem = str(error)
    except OSError as error:
        raise_unless_damage(error)
        problem = f"damage in it or after it: {' '.join(str(error).split())[:200]}"
        if not is_gzip and waiting is not None and not _is_apart(file, at, record.content_length):
            waiting = None
    end = min(file.tell(), size) if problem else size
    if waiting is not None:
        yield waiting(end)
    if problem:
        yield Broken(max(at, 0), problem, remedy)
    elif len(kinds) > 1 and not {"response", "resource"}.intersection(kinds):
        names = ", ".join(sorted(set(kinds)))
        yield Broken(
            0,
            f"no response among its records ({names}): WET and WAT files have no pages, their WARC "
            f"files do",
        )


class _SharedMember(BadRecord):
    """Two records are in one gzip member."""


def _records(file: BinaryIO, is_gzip: bool) -> Iterator[Any]:
    """Yield all records of a WARC file.

    FastWARC ends at a gzip member without content, which stopped crawlers leave and `cat` joins,
    and at bytes that are not a record. So after its end, it starts again at the next content.

    Raises BadRecord if the file is cut off, or has records that do not have a range of bytes.
    """
    start: int | None = 0
    while start is not None:
        file.seek(start)
        at = start
        for number, record in enumerate(ArchiveIterator(file, parse_http=False)):
            # FastWARC gives all records of a member the offset of the member, except in the first
            # member that it reads, where they have the offsets of its reads.
            is_shared = record.stream_pos == at or not _begins(file, record.stream_pos, _GZIP_MAGIC)
            if is_gzip and number > 0 and (is_shared if number == 1 else record.stream_pos == at):
                raise _SharedMember(f"its gzip member has another record, too: {_CONVERT}")
            at = record.stream_pos
            if record.record_type == WarcRecordType.unknown and _has_lf_head(file, at):
                raise BadRecord(f"the lines of its head end with LF only: {_CONVERT}")
            yield record
        start = _next_member(file, at) if is_gzip else _next_text(file, at)
        if start is not None and not _start_of_record(file, start).lstrip().startswith(b"WARC/"):
            raise BadRecord(f"bytes after it, at {start:,}, are not a WARC record")


def _next_member(file: BinaryIO, at: int) -> int | None:
    """Return the offset of the first gzip member with content after the member at `at`.

    The result is None if the file ends before it. Raises BadRecord if the file is cut off.
    """
    file.seek(at)
    start = at
    data = file.read(_PIECE_BYTES)
    while data:
        decoder = zlib.decompressobj(31)
        while data and not decoder.eof:
            try:
                content = decoder.decompress(data)
            except zlib.error as error:
                raise BadRecord(f"damage in it or after it: {error}") from error
            if start != at and content.strip():
                return start
            data = decoder.unused_data or file.read(_PIECE_BYTES)
        if not decoder.eof:
            raise BadRecord("the file ends within it or within the next one")
        # Zeros can follow a member as padding.
        while data and not (data := data.lstrip(b"\0")):
            data = file.read(_PIECE_BYTES)
        start = file.tell() - len(data)
    return None


def _next_text(file: BinaryIO, at: int) -> int | None:
    """Return the offset of the first text after the record at `at` in a plain file; None at the
    end of the file."""
    file.seek(at)
    head = file.read(1 << 17)
    head_end = _HEAD_END.search(head)
    length = _CONTENT_LENGTH.search(head)
    if head_end is None or length is None:
        raise BadRecord("its head cannot be read")
    file.seek(at + head_end.end() + int(length[1]))
    while piece := file.read(_PIECE_BYTES):
        if text := piece.lstrip():
            return file.tell() - len(text)
    return None


def _has_lf_head(file: BinaryIO, at: int) -> bool:
    return _LF_HEAD.match(_start_of_record(file, at)) is not None


def _begins(file: BinaryIO, at: int, magic: bytes) -> bool:
    """Return whether the bytes at `at` are `magic`; the file's position stays."""
    position = file.tell()
    file.seek(at)
    start = file.read(len(magic))
    file.seek(position)
    return start == magic


def _is_apart(file: BinaryIO, at: int, length: int) -> bool:
    """Return whether the record at `at` ends after `length` bytes of content, as it declares."""
    file.seek(at)
    head_end = _HEAD_END.search(file.read(1 << 17))
    if head_end is None:
        return False
    end = at + head_end.end() + length
    return _begins(file, end, b"\r\n") or _begins(file, end, b"\n")


def _is_response(record: Any) -> bool:
    if record.record_type != WarcRecordType.response:
        return False
    if record.content_length > MAX_BODY_BYTES:
        raise BadRecord(f"a record of {record.content_length:,} bytes")
    return target_uri(record)[:4].lower() == "http"


def _capture(at: int, url: str, date: int, block: bytes, end: int) -> Capture:
    """Return the capture of a response at `at` whose record ends before `end`."""
    try:
        status, headers, _ = split_response(block)
    except BadMessage:
        # It is of HTTP/0.9 or another protocol. `read_record` gives the reason.
        return Capture(url, date, status=0, content_type=None, offset=at, length=end - at)
    return Capture(
        url=url,
        date=date,
        status=status,
        content_type=content_type_of(headers),
        offset=at,
        length=end - at,
    )
