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

from owt_pipeline.formats.messages import REDIRECTS, BadMessage, header, split_response
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
    """The responses in an archive of `size` bytes, in order, and the broken parts that were skipped.

    `copy` appends a record to the file next to the index and returns its offset there.
    """
    if _is_arc(file):
        yield from _arc_captures(file, copy)
        return
    previous: _Found | None = None
    for found in _records(file, size):
        if previous is not None:
            if previous.offset == found.offset:  # records of one member, at least by FastWARC's offsets
                previous, found = replace(previous, inside=True), replace(found, inside=True)
            if previous.least_end > found.offset:
                yield Broken(previous.offset, "another record begins within it")
                previous = found if found.record is not None else None
                continue
            yield from _capture(previous, found.offset, copy)
        if found.record is None:
            yield Broken(found.offset, found.problem)
        previous = found if found.record is not None else None
    if previous is not None:
        yield from _capture(previous, size, copy)


@dataclass(frozen=True)
class _Found:
    """A record at `offset`, with its content if it is an HTTP response; `record` is None if it is broken.

    `inside`: the record follows others in a gzip member, so it cannot be read on its own.
    `least_end`: a lower bound of the offset of its end.
    """

    offset: int
    record: WarcRecord | None = None
    block: bytes | None = None
    inside: bool = False
    least_end: int = 0
    problem: str = ""


def _capture(found: _Found, end: int, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    if found.record is not None and found.block is not None:
        capture = _of_response(target_uri(found.record), capture_time(found.record), found.block)
        if capture is None:
            yield Broken(found.offset, "not an HTTP response")
        elif found.inside:
            yield _copied(capture, member_of(found.record, found.block), copy)
        else:
            yield replace(capture, offset=found.offset, length=end - found.offset)


def _arc_captures(file: BinaryIO, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    # Buffered, since pyarrow files have no readline.
    source: Any = gzip.GzipFile(fileobj=file) if _peek(file, 2) == b"\x1f\x8b" else io.BufferedReader(file)  # type: ignore[type-var]
    try:
        for record in _arc_records(source):
            capture = _of_response(*record) if record else None
            if record and capture:
                yield _copied(capture, record_of_block(*record), copy)
            else:
                yield Broken(file.tell())
    except (OSError, EOFError, zlib.error) as error:  # of gzip; the rest cannot be read
        yield Broken(file.tell(), str(error))


def _of_response(url: str, date: int, block: bytes) -> Capture | None:
    """The capture of a response, without its place; None if the bytes are not a response."""
    try:
        status, headers, _ = split_response(block)
    except BadMessage:
        return None
    location = absolute(url, header(headers, "location")) if status in REDIRECTS else None
    return Capture(url, date, status, location, 0, 0, False, header(headers, "content-type"))


def absolute(url: str, location: str | None) -> str | None:
    """The target of the Location header of the response to `url`; None if that is not a URL."""
    try:
        return redirected(url, location) if location else None
    except ValueError:
        return None


def _copied(capture: Capture, member: bytes, copy: Callable[[bytes], int]) -> Capture:
    return replace(capture, offset=copy(member), length=len(member), copied=True)


def _records(file: BinaryIO, size: int) -> Iterator[_Found]:
    """All records; after a broken one, continues at the next place that looks like the start of a record."""
    magic = _MAGICS.get(_peek(file, 2), _PLAIN_MAGIC)
    at: int | None = 0
    lost = False  # between a broken record and the next good one, further errors are not counted
    while at is not None and at < size:
        source: Any = _RecentBytes(file, at)
        begun, complete, problem, least_end = at, True, "", 0
        try:
            with panics_as_bad_records():
                for record in ArchiveIterator(source, parse_http=False):
                    begun, complete = record.stream_pos, False
                    inside = not source.has(begun, magic)
                    least_end = source.head_end(begun) + record.content_length if magic == _PLAIN_MAGIC else 0
                    block = read_block(record) if _is_response(record) else None
                    yield _Found(begun, record, block, inside, least_end)
                    complete, lost = True, False
            is_member = magic == _MAGICS[b"\x1f\x8b"] and source.has(begun, magic)
            if least_end > size or (is_member and not _is_complete(file, begun)):
                yield _Found(begun, problem="the file ends within it")
            return
        except (OSError, BadRecord) as error:
            at, problem = _find(file, magic, begun + 1), " ".join(str(error).split())[:200]
        if not lost:
            yield _Found(begun if not complete else size if at is None else at, problem=problem)
        lost = True


def _is_complete(file: BinaryIO, start: int) -> bool:
    """Whether the gzip member at `start` is complete; FastWARC reports no error for records that it skips."""
    file.seek(start)
    member = zlib.decompressobj(31)
    with contextlib.suppress(zlib.error):
        while not member.eof and (piece := file.read(1 << 16)):
            member.decompress(piece)
    return member.eof


class _RecentBytes:
    """A file read from `start` on that keeps the last bytes it has read."""

    def __init__(self, file: BinaryIO, start: int):
        self._file, self._recent, self._recent_at = file, b"", start
        file.seek(start)

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


def _find(file: BinaryIO, magic: bytes, start: int) -> int | None:
    """The first offset of `magic` from `start` on; for plain WARC, only at the start of a line."""
    pattern = re.compile(rb"(?<=\n)WARC/[01]\.\d+\r?\n" if magic == _PLAIN_MAGIC else re.escape(magic))
    at = max(start - 1, 0)  # offset of the window, which includes the newline before the magic
    file.seek(at)
    window = b""
    while piece := file.read(1 << 20):
        window += piece
        match = pattern.search(window, max(start - at, 0))
        if match:
            return at + match.start()
        at += max(len(window) - 32, 0)
        window = window[-32:]
    return None


def _is_arc(file: BinaryIO) -> bool:
    return _beginning(file).startswith(_ARC_MAGIC)


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


def _arc_records(file: BinaryIO) -> Iterator[tuple[str, int, bytes] | None]:
    """(URL, date, content as sent by the server) of the HTTP records of a decompressed ARC file; None for each broken
    part.

    A record is a line, `URL IP-address Archive-date Content-type Archive-length` (version 1; version 2 has more
    fields), followed by that many bytes. URLs may contain spaces, so fields are counted from the end of the line. Lines
    after a broken record are skipped up to the next header. A record of more than MAX_BODY_BYTES counts as broken.
    """
    in_order = True
    while line := file.readline(_MAX_ARC_LINE):
        if not line.strip():
            continue
        header = _arc_header(line)
        if header is None:
            if in_order:
                yield None
            in_order = False
            continue
        in_order = True
        url, date, length = header
        if length > MAX_BODY_BYTES:
            while length and (piece := file.read(min(length, 1 << 20))):
                length -= len(piece)
            yield None
            continue
        content = file.read(length)
        if len(content) < length:
            yield None
        elif url[:4].lower() == b"http":
            yield url.decode("utf-8", "replace"), date, content


def _arc_header(line: bytes) -> tuple[bytes, int, int] | None:
    """(URL, date, length); None if the line is not the header of a record."""
    fields = line.split(b" ")
    for after_url in (4, 9):  # fields after the URL in versions 1 and 2
        if len(fields) <= after_url:
            break
        date, length = fields[1 - after_url], fields[-1].strip()
        if len(date) >= 14 and date.isdigit() and length.isdigit() and len(length) < 19:
            try:
                seconds = calendar.timegm(time.strptime(date[:14].decode(), "%Y%m%d%H%M%S"))
            except ValueError:
                return None
            return b" ".join(fields[:-after_url]), seconds, int(length)
    return None
