"""The captures in a WARC or ARC file, plain or with a gzip member for each record: every HTTP
response and its place.

A capture is addressed by a range of bytes, at which `read_record` finds it.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.formats.arc import MAGIC, arc_records, split_arc
from owt_pipeline.formats.messages import (
    REDIRECTS,
    BadMessage,
    content_type_of,
    header,
    split_response,
)
from owt_pipeline.formats.urls import redirected
from owt_pipeline.formats.warc import (
    MAX_BODY_BYTES,
    BadRecord,
    capture_time,
    read_block,
    target_uri,
)

_GZIP_MAGIC = b"\x1f\x8b"
_CONVERT = "make a copy that can be read with `warcio recompress FILE COPY.warc.gz`"


@dataclass(frozen=True)
class Capture:
    """One HTTP response in an archive.

    Attributes:
      url: its target URI as written.
      date: time of capture, seconds since 1970 in UTC; 0 if unknown.
      status: HTTP status code.
      location: absolute target of a redirect; None if it is not one.
      content_type: the Content-Type header as sent; None if there is none.
      offset: first byte of its record.
      length: bytes of its record, or more.
    """

    url: str
    date: int
    status: int
    location: str | None
    content_type: str | None
    offset: int
    length: int


COMPLETE = "expected a complete file: fetch it again and compare its checksum"
OR_DAMAGED = ", or take what can be read with --allow_damaged"
"""Advice for a damaged file; the second part where the option is not given."""


@dataclass(frozen=True)
class Broken:
    """A part of an archive that cannot be read: the offset and the reason."""

    offset: int
    problem: str

    def __str__(self) -> str:
        return f"the record at byte {self.offset:,}: {self.problem}"


def captures(file: BinaryIO, size: int) -> Iterator[Capture | Broken]:
    """The responses in an archive of `size` bytes, in order, up to the first damage, which is
    the last result.

    A complete record whose content is not an HTTP response is a `Broken`, too, and reading goes on
    after it. The archive of a shard without pages is empty; anything else without responses is a
    `Broken`, and so are records that share a gzip member, since none has bytes of its own.
    """
    start = file.read(1 << 16)
    file.seek(0)
    if is_gzip := start.startswith(_GZIP_MAGIC):
        with contextlib.suppress(zlib.error):
            start = zlib.decompressobj(31).decompress(start, 1 << 12)
    if start.startswith(MAGIC):
        yield from _arc_captures(file, is_gzip)
    elif start.startswith(b"WARC/"):
        yield from _captures(file, size, is_gzip)
    elif size:
        yield Broken(0, f"no WARC or ARC file, which begins with {start[:20]!r}")


def _captures(file: BinaryIO, size: int, is_gzip: bool) -> Iterator[Capture | Broken]:
    """A response is yielded once the next record, or the end of the file, shows where it ends.
    FastWARC gives all records of a gzip member the offset of the member, or in the first one
    those of its reads."""
    waiting: Callable[[int], Capture | Broken] | None = None
    kinds: list[str] = []
    at, problem = -1, ""
    try:
        for record in ArchiveIterator(file, parse_http=False):
            before, at = at, record.stream_pos
            if is_gzip and (
                at == before or (len(kinds) == 1 and not _begins(file, at, _GZIP_MAGIC))
            ):
                waiting = None
                raise BadRecord(f"its gzip member has another record, too: {_CONVERT}")
            if waiting is not None:
                yield waiting(at)
            waiting = None
            kinds.append(record.headers.get("WARC-Type") or "")
            if "Content-Length" not in record.headers:
                raise BadRecord("the file ends within its head")
            if _is_response(record):
                waiting = partial(
                    _capture, at, target_uri(record), capture_time(record), read_block(record)
                )
            elif record.reader.consume(record.content_length) < record.content_length:
                raise BadRecord("the file ends within it")
    except BadRecord as error:
        problem = str(error)
    except OSError as error:
        problem = f"damage in it or after it: {' '.join(str(error).split())[:200]}"
        if not is_gzip and waiting is not None and not _is_apart(file, at, record.content_length):
            waiting = None
    end = min(file.tell(), size) if problem else size
    if is_gzip and not problem and not _is_complete(file, max(at, 0)):
        problem = "the file ends within it or within the next one"
    if waiting is not None:
        yield waiting(end)
    if problem:
        yield Broken(max(at, 0), problem)
    elif len(kinds) > 1 and not {"response", "resource"}.intersection(kinds):
        what = ", ".join(sorted(set(kinds)))
        yield Broken(
            0,
            f"no response among its records ({what}): WET and WAT files have no pages, their WARC "
            f"files do",
        )


def _arc_captures(file: BinaryIO, is_gzip: bool) -> Iterator[Capture | Broken]:
    end, problem = 0, "no record"
    try:
        for at, end, record in arc_records(file, is_gzip):
            url, date, block = split_arc(record)
            problem = ""
            if url[:4].lower() == "http":
                yield _capture(at, url, date, block, end)
    except (BadRecord, OSError) as error:
        problem = " ".join(str(error).split())[:200]
    if problem:
        yield Broken(end, problem)


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


def _capture(at: int, url: str, date: int, block: bytes, end: int) -> Capture | Broken:
    """The capture of a response at `at` whose record ends before `end`; Broken if the bytes are
    not a response."""
    try:
        status, headers, _ = split_response(block)
    except BadMessage:
        return Broken(at, "not an HTTP response")
    location = absolute(url, header(headers, "location")) if status in REDIRECTS else None
    return Capture(url, date, status, location, content_type_of(headers), at, end - at)


def absolute(url: str, location: str | None) -> str | None:
    """The target of the Location header of the response to `url`; None if that is not a URL."""
    try:
        return redirected(url, location) if location else None
    except ValueError:
        return None
