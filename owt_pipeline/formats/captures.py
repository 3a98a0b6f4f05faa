"""The captures in an archive file: every HTTP response and the place of its bytes.

Archives are WARC, plain or gzip, or ARC, the Internet Archive's format until 2009. A capture is addressed by a range of
bytes at which `read_record` finds it. If a file has no such ranges (ARC; several records in one gzip member), its
responses are copied to a file next to the index.
"""

from __future__ import annotations

import calendar
import contextlib
import gzip
import io
import re
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.formats.messages import REDIRECTS, BadMessage, content_type_of, header, split_response
from owt_pipeline.formats.urls import redirected
from owt_pipeline.formats.warc import (
    MAX_BODY_BYTES,
    BadRecord,
    capture_time,
    member_of,
    read_block,
    record_of_block,
    target_uri,
)

_GZIP_MAGIC = b"\x1f\x8b"
_ARC_MAGIC = b"filedesc:"
_ARC_HEADER = re.compile(rb"(\w+:.*) \S+ (\d{14})\d* (?:.* )?(\d+)\s*", re.DOTALL)  # URL, IP address, date, ..., length
_MAX_ARC_LINE = 1 << 16


@dataclass(frozen=True)
class Capture:
    """One HTTP response in an archive.

    Attributes:
      url: its target URI as written.
      date: time of capture, seconds since 1970 in UTC; 0 if unknown.
      status: HTTP status code.
      location: absolute target of a redirect; None if it is not one.
      content_type: the Content-Type header as sent; None if there is none.
      offset: first byte of its record, in the archive or in the file next to the index.
      length: bytes of its record, or more.
      copied: whether it is in the file next to the index.
    """

    url: str
    date: int
    status: int
    location: str | None
    content_type: str | None
    offset: int = 0
    length: int = 0
    copied: bool = False


COMPLETE = (
    "expected a complete file: fetch it again and compare its checksum, or take what can be read with --allow_damaged"
)
"""Advice for a damaged file."""


@dataclass(frozen=True)
class Broken:
    """A part of an archive that cannot be read: the offset and the reason."""

    offset: int
    problem: str

    def __str__(self) -> str:
        return f"the record at byte {self.offset:,}: {self.problem}"


def captures(file: BinaryIO, size: int, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    """The responses in an archive of `size` bytes, in order, up to the first damage, which is the last result.

    A complete record whose content is not an HTTP response is a `Broken`, too, and reading goes on after it. `copy`
    appends a record to the file next to the index and returns its offset there. The archive of a shard without pages
    is empty; anything else without responses is a `Broken`.
    """
    start = file.read(1 << 16)
    file.seek(0)
    is_gzip = start.startswith(_GZIP_MAGIC)
    if is_gzip:
        with contextlib.suppress(zlib.error):
            start = zlib.decompressobj(31).decompress(start, 1 << 12)
    if start.startswith(_ARC_MAGIC):
        source = gzip.GzipFile(fileobj=file) if is_gzip else io.BufferedReader(file)  # type: ignore[type-var]
        yield from _arc_captures(source, file, copy)
    elif start.startswith(b"WARC/"):
        yield from _warc_captures(file, size, is_gzip, copy)
    elif size:
        yield Broken(0, f"no WARC or ARC file, which begins with {start[:20]!r}")


def _warc_captures(
    file: BinaryIO, size: int, is_gzip: bool, copy: Callable[[bytes], int]
) -> Iterator[Capture | Broken]:
    """A response is yielded once the next record, or the end of the file, shows where it ends. FastWARC gives all
    records of a gzip member the offset of the member, or in the first one those of its reads."""

    def capture(record: Any, block: bytes, before: int, at: int, end: int) -> Capture | Broken:
        found = _of_response(at, target_uri(record), capture_time(record), block)
        if isinstance(found, Broken):
            return found
        if first_is_shared or at in (before, end, size):
            return _copied(found, member_of(record, block), copy)
        return replace(found, offset=at, length=end - at)

    waiting: Callable[[int], Capture | Broken] | None = None
    kinds: list[str] = []
    at, problem, first_is_shared = -1, "", False
    try:
        for record in ArchiveIterator(file, parse_http=False):
            before, at = at, record.stream_pos
            if len(kinds) == 1 and is_gzip:
                first_is_shared = not _begins(file, at, _GZIP_MAGIC)
            if waiting is not None:
                yield waiting(at)
            waiting = None
            kinds.append(record.headers.get("WARC-Type") or "")
            if "Content-Length" not in record.headers:
                raise BadRecord("the file ends within its head")
            if _is_response(record):
                waiting = partial(capture, record, read_block(record), before, at)
            elif record.reader.consume(record.content_length) < record.content_length:
                raise BadRecord("the file ends within it")
    except BadRecord as error:
        problem = str(error)
    except OSError as error:
        problem = f"damage in it or after it: {' '.join(str(error).split())[:200]}"
        if not is_gzip and waiting is not None and not _is_apart(file, at, record.content_length):
            waiting = None
    end = min(file.tell(), size) if problem else size
    if is_gzip and not problem and not _is_complete(file, 0 if first_is_shared else max(at, 0)):
        problem = "the file ends within it or within the next one"
    if waiting is not None:
        yield waiting(end)
    if problem:
        yield Broken(max(at, 0), problem)
    elif len(kinds) > 1 and not {"response", "resource"}.intersection(kinds):
        what = ", ".join(sorted(set(kinds)))
        yield Broken(0, f"no response among its records ({what}): WET and WAT files have no pages, their WARC files do")


def _begins(file: BinaryIO, at: int, magic: bytes) -> bool:
    """Whether the bytes at `at` are `magic`."""
    here = file.tell()
    file.seek(at)
    found = file.read(len(magic))
    file.seek(here)
    return found == magic


def _is_apart(file: BinaryIO, at: int, length: int) -> bool:
    """Whether the record at `at`, of so many bytes of content, ends as its head says."""
    file.seek(at)
    head, end, _ = file.read(1 << 17).partition(b"\r\n\r\n")
    return _begins(file, at + len(head + end) + length, b"\r\n")


def _is_complete(file: BinaryIO, at: int) -> bool:
    """Whether all gzip members from `at` on are complete."""
    file.seek(at)
    try:
        with gzip.GzipFile(fileobj=file) as members:
            while members.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error):
        return False
    return True


def _is_response(record: Any) -> bool:
    if record.record_type != WarcRecordType.response:
        return False
    if record.content_length > MAX_BODY_BYTES:
        raise BadRecord(f"a record of {record.content_length:,} bytes")
    return target_uri(record)[:4].lower() == "http"


def _arc_captures(source: Any, file: BinaryIO, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    """What comes before the first header is the version block, whose length is wrong in some archives. After a record
    comes an empty line, or at once the next header or the end; anything else shows that its length is wrong."""
    waiting: tuple[int, str, int, bytes] | None = None
    at, problem, is_first, is_apart = 0, "", True, True
    try:
        for line in iter(partial(source.readline, _MAX_ARC_LINE), b""):
            found = None if line.startswith(_ARC_MAGIC) else _ARC_HEADER.fullmatch(line)
            if found is None and (is_first or not line.strip()):
                is_apart = True
                continue
            if found is None or not (is_apart or line.startswith(b"http")):
                waiting, problem = None, "its length is wrong"
                break
            if waiting is not None:
                yield _arc_capture(*waiting, copy)
            is_first, is_apart, waiting, at, length = False, False, None, file.tell(), int(found[3])
            if length > MAX_BODY_BYTES:
                raise BadRecord(f"a length of {length:,}")
            block = source.read(length)
            if len(block) < length:
                raise BadRecord(f"the file ends within it: {len(block):,} of {length:,} bytes")
            if found[1].lower().startswith(b"http"):
                waiting = at, found[1].decode("latin-1"), seconds_of(found[2].decode()), block
    except ValueError as error:  # of which BadRecord is one
        problem = str(error)
    except (OSError, EOFError, zlib.error) as error:
        problem = f"damage in it or after it: {' '.join(str(error).split())[:200]}"
    if waiting is not None:
        yield _arc_capture(*waiting, copy)
    if problem or is_first:
        yield Broken(at, problem or "no record")


def _arc_capture(at: int, url: str, date: int, block: bytes, copy: Callable[[bytes], int]) -> Capture | Broken:
    found = _of_response(at, url, date, block)
    return found if isinstance(found, Broken) else _copied(found, record_of_block(url, date, block), copy)


def seconds_of(timestamp: str) -> int:
    """A time as archives write it, YYYYMMDDhhmmss in UTC, in seconds since 1970; raises ValueError."""
    return calendar.timegm(time.strptime(timestamp, "%Y%m%d%H%M%S"))


def _of_response(at: int, url: str, date: int, block: bytes) -> Capture | Broken:
    """The capture of a response, without its place; Broken if the bytes are not a response."""
    try:
        status, headers, _ = split_response(block)
    except BadMessage:
        return Broken(at, "not an HTTP response")
    location = absolute(url, header(headers, "location")) if status in REDIRECTS else None
    return Capture(url, date, status, location, content_type_of(headers))


def absolute(url: str, location: str | None) -> str | None:
    """The target of the Location header of the response to `url`; None if that is not a URL."""
    try:
        return redirected(url, location) if location else None
    except ValueError:
        return None


def _copied(capture: Capture, member: bytes, copy: Callable[[bytes], int]) -> Capture:
    return replace(capture, offset=copy(member), length=len(member), copied=True)
