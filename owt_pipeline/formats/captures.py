"""The captures in an archive file: every HTTP response and the place of its bytes.

Archives are WARC, plain or compressed, or ARC, the Internet Archive's format until 2009. A capture is addressed by a
range of bytes that `read_record` can read on its own. If a file has no such ranges (ARC; several records in one gzip
member), its responses are copied to a file next to the index.
"""

from __future__ import annotations

import calendar
import contextlib
import gzip
import io
import itertools
import re
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType
from warcio.archiveiterator import ArchiveIterator as WarcioIterator
from warcio.exceptions import ArchiveLoadFailed
from warcio.recordloader import ARCHeadersParser

from owt_pipeline.formats.messages import REDIRECTS, BadMessage, content_type_of, header, split_response
from owt_pipeline.formats.urls import redirected
from owt_pipeline.formats.warc import (
    MAX_BODY_BYTES,
    BadRecord,
    capture_time,
    member_of,
    panics_as_bad_records,
    read_block,
    record_of_block,
    target_uri,
)

_MAGICS = {b"\x1f\x8b": b"\x1f\x8b\x08", b"\x04\x22": b"\x04\x22\x4d\x18"}  # gzip, LZ4
_PLAIN_MAGIC = b"WARC/"
_ARC_MAGIC = b"filedesc:"
_MAX_ARC_LINE = 1 << 16
_ARC_HEADER = re.compile(rb"\w+:.* \d{14,} .*\d\s*$", re.DOTALL)


@dataclass(frozen=True)
class Capture:
    """One HTTP response in an archive.

    Attributes:
      url: its target URI as written.
      date: time of capture, seconds since 1970 in UTC; 0 if unknown.
      status: HTTP status code.
      location: absolute target of a redirect; None if it is not one.
      offset: first byte of its record, in the archive or in the file next to the index.
      length: bytes of its record.
      copied: whether it is in the file next to the index.
      content_type: the Content-Type header as sent; None if there is none.
    """

    url: str
    date: int
    status: int
    location: str | None
    offset: int
    length: int
    copied: bool
    content_type: str | None = None


COMPLETE = (
    "expected a complete file: fetch it again and compare its checksum, or take what can be read with --allow_damaged"
)
"""Advice for a damaged file."""


@dataclass(frozen=True)
class Broken:
    """A part of an archive that cannot be read: the offset and the reason."""

    offset: int
    problem: str = "a damaged record"

    def __str__(self) -> str:
        return f"the record at byte {self.offset:,}: {self.problem}"


def captures(file: BinaryIO, size: int, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    """The responses in an archive of `size` bytes, in order, up to the first damage, which is the last result.

    A complete record whose content is not an HTTP response is a `Broken`, too, and reading goes on after it. `copy`
    appends a record to the file next to the index and returns its offset there.
    """
    is_arc = _beginning(file).startswith(_ARC_MAGIC)
    yield from _arc_captures(file, copy) if is_arc else _warc_captures(file, size, copy)


@dataclass(frozen=True)
class _Found:
    """A complete record at `offset`, with its content if it is an HTTP response.

    `inside`: the record shares a gzip member with others, so it cannot be read on its own.
    `least_end`: a lower bound of the offset of its end.
    """

    offset: int
    record: WarcRecord
    block: bytes | None
    inside: bool
    least_end: int


def _warc_captures(file: BinaryIO, size: int, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    # A record is yielded once the next one, or the end of the file, shows where it ends.
    magic = _MAGICS.get(_peek(file, 2), _PLAIN_MAGIC)
    source: Any = _RecentBytes(file)
    last: _Found | None = None
    begun = member = 0  # offsets of the record, and of the gzip member, that is being read
    problem = ""
    try:
        with panics_as_bad_records():
            for record in ArchiveIterator(source, parse_http=False):
                at, inside = record.stream_pos, not source.has(record.stream_pos, magic)
                if last is not None:
                    if last.offset == at:  # records of one member, at least by FastWARC's offsets
                        last, inside = replace(last, inside=True), True
                    elif last.least_end > at:
                        last = None
                        raise BadRecord("another record begins within it")
                    yield from _capture(last, at, copy)
                last, begun, member = None, at, member if inside else at
                least_end = source.head_end(at) + record.content_length if magic == _PLAIN_MAGIC else 0
                block = read_block(record) if _is_response(record) else None
                last = _Found(at, record, block, inside, least_end)
    except (OSError, BadRecord) as error:
        problem = " ".join(str(error).split())[:200]
    end: int | None
    if magic == _MAGICS[b"\x1f\x8b"]:  # FastWARC reports no error for a cut record that it skips
        end = _end_of_member(file, member)
    elif magic == _PLAIN_MAGIC and last is not None:
        file.seek(last.least_end)
        is_followed = file.read(2) in (b"\r\n", b"\n", b"\n\n") or not problem
        end = min(last.least_end + 4, size) if last.least_end <= size and is_followed else None
    else:  # of LZ4, the checksum may be what is wrong
        end = None if problem else size
    if last is not None and (end is not None or last.inside):
        yield from _capture(last, end or size, copy)
        begun = end or size
    if end is None:
        problem = problem or "the file ends within it"
    if problem:
        yield Broken(begun, problem)


def _capture(found: _Found, end: int, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    if found.block is not None:
        capture = _of_response(target_uri(found.record), capture_time(found.record), found.block)
        if capture is None:
            yield Broken(found.offset, "not an HTTP response")
        elif found.inside:
            yield _copied(capture, member_of(found.record, found.block), copy)
        else:
            yield replace(capture, offset=found.offset, length=end - found.offset)


class _Unzipped(gzip.GzipFile):
    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except EOFError as error:  # which warcio takes for the end of the file
            raise BadRecord("the file ends within it") from error


class _ArcIterator(WarcioIterator):
    INC_RECORD = ""  # which it writes to stderr where a record has another length than its header says, and goes on


def _arc_captures(file: BinaryIO, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    # Buffered, since pyarrow files have no readline; decompressed here, since warcio refuses several records in a
    # gzip member.
    source: Any = _Unzipped(fileobj=file) if _peek(file, 2) == b"\x1f\x8b" else io.BufferedReader(file)  # type: ignore[type-var]
    last: tuple[str, int, bytes] | None = None
    at, problem, records = 0, "", None
    try:
        names = _skip_version_block(source)
        records = _ArcIterator(source, no_record_parse=True)
        records.loader.arc_parser.headernames = names
        for record in records:
            if records.err_count:
                break
            yield from _arc_capture(at, last, copy)
            last, at = None, file.tell()
            length = record.rec_headers.get_header("length")
            if record.rec_headers.get_header("uri").lower().startswith("http"):
                if not length.isdigit() or int(length) > MAX_BODY_BYTES:
                    raise BadRecord(f"a length of {length[:20]}")
                block = record.raw_stream.read()
                if len(block) < int(length):
                    raise BadRecord(f"the file ends within it: {len(block):,} of {int(length):,} bytes")
                last = (record.rec_headers.get_header("uri"), _arc_date(record), block)
    except (OSError, EOFError, zlib.error, ArchiveLoadFailed, BadRecord) as error:
        problem = " ".join(str(error).split())[:200]
    if records is not None and records.err_count:
        last, problem = None, "its length is wrong"
    yield from _arc_capture(at, last, copy)
    if problem:
        yield Broken(at, problem)


def _arc_capture(
    at: int, found: tuple[str, int, bytes] | None, copy: Callable[[bytes], int]
) -> Iterator[Capture | Broken]:
    if found is not None:
        capture = _of_response(*found)
        yield _copied(capture, record_of_block(*found), copy) if capture else Broken(at, "not an HTTP response")


def _skip_version_block(source: Any) -> list[str]:
    """Read up to the first record; returns the fields of its header by warcio's names.

    The block names them, in one of two versions. Its length is not used: in some archives it is wrong.
    """
    names = list(ARCHeadersParser.ARC_HEADERS)
    while line := source.readline(_MAX_ARC_LINE):
        if line.startswith(b"URL IP-address "):
            fields = line.decode("latin-1").lower().split()
            names = [{"url": "uri", "archive-length": "length"}.get(name, name) for name in fields]
        elif _ARC_HEADER.match(line) and not line.startswith(_ARC_MAGIC):
            source.seek(source.tell() - len(line))
            break
    return names


def _arc_date(record: Any) -> int:
    try:
        return calendar.timegm(time.strptime(record.rec_headers.get_header("archive-date")[:14], "%Y%m%d%H%M%S"))
    except ValueError:
        raise BadRecord("a date that is none") from None


def _of_response(url: str, date: int, block: bytes) -> Capture | None:
    """The capture of a response, without its place; None if the bytes are not a response."""
    try:
        status, headers, _ = split_response(block)
    except BadMessage:
        return None
    location = absolute(url, header(headers, "location")) if status in REDIRECTS else None
    return Capture(url, date, status, location, 0, 0, False, content_type_of(headers))


def absolute(url: str, location: str | None) -> str | None:
    """The target of the Location header of the response to `url`; None if that is not a URL."""
    try:
        return redirected(url, location) if location else None
    except ValueError:
        return None


def _copied(capture: Capture, member: bytes, copy: Callable[[bytes], int]) -> Capture:
    return replace(capture, offset=copy(member), length=len(member), copied=True)


def _end_of_member(file: BinaryIO, start: int) -> int | None:
    """The end of the gzip member at `start`; None if it is damaged or cut off."""
    file.seek(start)
    member = zlib.decompressobj(31)
    with contextlib.suppress(zlib.error):
        while not member.eof and (piece := file.read(1 << 16)):
            member.decompress(piece)
    return file.tell() - len(member.unused_data) if member.eof else None


class _RecentBytes:
    """A file that keeps the last bytes that were read of it."""

    def __init__(self, file: BinaryIO):
        self._file, self._recent, self._recent_at = file, b"", 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        dropped = max(len(self._recent) - (1 << 17), 0)
        self._recent = self._recent[dropped:] + data
        self._recent_at += dropped
        return data

    def tell(self) -> int:
        return self._file.tell()

    def has(self, offset: int, magic: bytes) -> bool:
        """Whether `magic` is at `offset`; False if those bytes are no longer kept."""
        return offset >= self._recent_at and self._recent.startswith(magic, offset - self._recent_at)

    def head_end(self, offset: int) -> int:
        """The end of the head of the record at `offset`; `offset` itself if those bytes are no longer kept."""
        end = self._recent.find(b"\r\n\r\n", offset - self._recent_at) if offset >= self._recent_at else -1
        return self._recent_at + end + 4 if end >= 0 else offset


def _is_response(record: WarcRecord) -> bool:
    if record.record_type != WarcRecordType.response:
        return False
    if record.content_length > MAX_BODY_BYTES:
        raise BadRecord(f"a record of {record.content_length:,} bytes")
    return target_uri(record)[:4].lower() == "http"


_FIRST_RECORDS = 10  # a WARC file of pages has a response among them
_TEXTS = (
    (re.compile(rb"(?:[\w./-]+\.(?:gz|parquet)\s+)+", re.ASCII), "a list of paths: name the files that it lists"),
    (
        re.compile(rb"\s*<(?:!doctype|html|\?xml)", re.IGNORECASE),
        "a page of HTML, such as a server's answer to a wrong URL",
    ),
    (re.compile(rb"\s*[{\[]"), "JSON: is it a dump of submissions? Those are read by `owt collect --dumps`"),
)


def what_else(file: BinaryIO, size: int) -> str:
    """What a file is instead of an archive of pages, and what to do; "" for an archive.

    The archive of a shard without pages is empty.
    """
    if not size:
        return ""
    start = _beginning(file)
    if start.startswith((_PLAIN_MAGIC, _MAGICS[b"\x04\x22"])):
        file.seek(0)
        kinds: list[WarcRecordType] = []
        with contextlib.suppress(OSError, BadRecord), panics_as_bad_records():
            records = ArchiveIterator(file, parse_http=False)
            kinds = [record.record_type for record in itertools.islice(records, _FIRST_RECORDS)]
        file.seek(0)
        if WarcRecordType.response not in kinds and WarcRecordType.conversion in kinds:
            return "a WET file, which has the text of pages alone: take the WARC file of the same name"
        if len(kinds) > 1 and all(kind in (WarcRecordType.warcinfo, WarcRecordType.metadata) for kind in kinds):
            return "a WAT file, which has metadata of pages alone: take the WARC file of the same name"
        return ""
    if start.startswith(_ARC_MAGIC):
        return ""
    return next(
        (what for pattern, what in _TEXTS if pattern.match(start)), f"something else: it begins with {start[:20]!r}"
    )


def _beginning(file: BinaryIO) -> bytes:
    """The first bytes of a file, decompressed if it is gzip."""
    start = _peek(file, 1 << 16)
    if start.startswith(b"\x1f\x8b"):
        with contextlib.suppress(zlib.error):
            start = zlib.decompressobj(31).decompress(start, 1 << 12)
    return start


def _peek(file: BinaryIO, length: int) -> bytes:
    file.seek(0)
    start = file.read(length)
    file.seek(0)
    return start
