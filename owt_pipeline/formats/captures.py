"""The captures in one archive file: every HTTP response in it, and where its bytes are.

Archives are WARC, plain or compressed, or ARC: what the Internet Archive wrote before (until 2009). A capture is
addressed by a range of bytes that `read_record` reads by itself. Where a file has no such ranges (ARC; several records
in one gzip member), its responses are written once more, to a file next to the index.
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
      url: its target URI, as it is written there.
      date: time of capture, seconds since 1970 in UTC; 0 where unknown.
      status: HTTP status code.
      location: where it redirects to, absolute; None where it does not.
      offset: first byte of its record, in the archive, or in the file next to the index.
      length: bytes of its record.
      copied: whether it is in the file next to the index.
      content_type: the Content-Type header as sent; None without one.
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
"""What is to be done about a damaged file."""


@dataclass(frozen=True)
class Broken:
    """What cannot be read in an archive: where, and why."""

    offset: int
    problem: str = "a damaged record"

    def __str__(self) -> str:
        return f"the record at byte {self.offset:,}: {self.problem}"


def captures(file: BinaryIO, size: int, copy: Callable[[bytes], int]) -> Iterator[Capture | Broken]:
    """The responses in an archive of `size` bytes, in order, and what is broken and was skipped.

    `copy` appends a record to the file next to the index and returns its offset there.
    """
    if _is_arc(file):
        yield from _arc_captures(file, copy)
        return
    previous: _Found | None = None
    for found in _records(file, size):
        if previous is not None:
            if previous.offset == found.offset:  # records of one member, or so FastWARC says of some
                previous, found = replace(previous, inside=True), replace(found, inside=True)
            if previous.least_end > found.offset:  # another record begins within it
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
    """What begins at `offset`: a record, with its content if it is an HTTP response; None where it is broken.

    `inside`: the record begins within a member, behind others, and cannot be read by itself.
    `least_end`: where it ends at the earliest.
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
    # Buffered, since a pyarrow file has no readline.
    source: Any = gzip.GzipFile(fileobj=file) if _peek(file, 2) == b"\x1f\x8b" else io.BufferedReader(file)  # type: ignore[type-var]
    try:
        for record in _arc_records(source):
            capture = _of_response(*record) if record else None
            if record and capture:
                yield _copied(capture, record_of_block(*record), copy)
            else:
                yield Broken(file.tell())
    except (OSError, EOFError, zlib.error) as error:  # gzip's errors: the rest cannot be read
        yield Broken(file.tell(), str(error))


def _of_response(url: str, date: int, block: bytes) -> Capture | None:
    """The capture that a response is, without a place; None where it is no response."""
    try:
        status, headers, _ = split_response(block)
    except BadMessage:
        return None
    location = absolute(url, header(headers, "location")) if status in REDIRECTS else None
    return Capture(url, date, status, location, 0, 0, False, header(headers, "content-type"))


def absolute(url: str, location: str | None) -> str | None:
    """Where the Location header of the response to `url` leads; None where that is no URL."""
    try:
        return redirected(url, location) if location else None
    except ValueError:
        return None


def _copied(capture: Capture, member: bytes, copy: Callable[[bytes], int]) -> Capture:
    return replace(capture, offset=copy(member), length=len(member), copied=True)


def _records(file: BinaryIO, size: int) -> Iterator[_Found]:
    """All records; after a broken one continues at the next place that begins like a record."""
    magic = _MAGICS.get(_peek(file, 2), _PLAIN_MAGIC)
    at: int | None = 0
    lost = False  # between a broken record and the next good one: what is tried there is not counted again
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
    """Whether the gzip member at `start` has its end; FastWARC reports no error for a record that it skips."""
    file.seek(start)
    member = zlib.decompressobj(31)
    with contextlib.suppress(zlib.error):
        while not member.eof and (piece := file.read(1 << 16)):
            member.decompress(piece)
    return member.eof


class _RecentBytes:
    """A file read from `start` on that remembers what was last read of it."""

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
        """Whether `magic` is at `offset`; False too where that is long past."""
        return offset >= self._recent_at and self._recent.startswith(magic, offset - self._recent_at)

    def head_end(self, offset: int) -> int:
        """Where the head of the record at `offset` ends; `offset` itself where that is long past."""
        end = self._recent.find(b"\r\n\r\n", offset - self._recent_at) if offset >= self._recent_at else -1
        return self._recent_at + end + 4 if end >= 0 else offset


def _is_response(record: WarcRecord) -> bool:
    if record.record_type != WarcRecordType.response:
        return False
    if record.content_length > MAX_BODY_BYTES:
        raise BadRecord(f"a record of {record.content_length:,} bytes")
    return target_uri(record)[:4].lower() == "http"


def _find(file: BinaryIO, magic: bytes, start: int) -> int | None:
    """The first offset from `start` on where `magic` is; for plain WARC, at the start of a line."""
    pattern = re.compile(rb"(?<=\n)WARC/[01]\.\d+\r?\n" if magic == _PLAIN_MAGIC else re.escape(magic))
    at = max(start - 1, 0)  # of the window: one byte more, for the newline before the magic
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
    start = _peek(file, 512)
    if start.startswith(b"\x1f\x8b"):
        try:
            start = zlib.decompressobj(31).decompress(start, len(_ARC_MAGIC))
        except zlib.error:
            return False
    return start.startswith(_ARC_MAGIC)


_LOOKED_AT = 10  # records, of which a WET or WAT file has no response
_TEXTS = (
    (re.compile(rb"(?:[\w./-]+\.(?:gz|parquet)\s+)+", re.ASCII), "a list of paths: name the files that it lists"),
    (
        re.compile(rb"\s*<(?:!doctype|html|\?xml)", re.IGNORECASE),
        "a page of HTML, such as a server's answer to a wrong URL",
    ),
    (re.compile(rb"\s*[{\[]"), "JSON: is it a dump of submissions? Those are read by `owt collect --dumps`"),
)


def what_else(file: BinaryIO, size: int) -> str:
    """What a file is that is no archive of pages, and what to do; "" for an archive.

    An archive may be empty: that of a shard without pages is.
    """
    if not size:
        return ""
    start = _peek(file, 1 << 16)
    if start.startswith(b"\x1f\x8b"):
        with contextlib.suppress(zlib.error):
            start = zlib.decompressobj(31).decompress(start, 1 << 12)
    if start.startswith((_PLAIN_MAGIC, _MAGICS[b"\x04\x22"])):
        file.seek(0)
        kinds: list[WarcRecordType] = []
        with contextlib.suppress(OSError, BadRecord), panics_as_bad_records():
            records = ArchiveIterator(file, parse_http=False)
            kinds = [record.record_type for record in itertools.islice(records, _LOOKED_AT)]
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


def _peek(file: BinaryIO, length: int) -> bytes:
    file.seek(0)
    start = file.read(length)
    file.seek(0)
    return start


def _arc_records(file: BinaryIO) -> Iterator[tuple[str, int, bytes] | None]:
    """(URL, date, content as the server sent it) of the HTTP records of a decompressed ARC file; None where something
    was broken.

    A record is one line, `URL IP-address Archive-date Content-type Archive-length` (version 1; version 2 has more
    fields), and as many bytes as it says. URLs may hold spaces, so fields are counted from the line's end.
    What is between a broken record and the next line that is a header is skipped; a record of more than
    MAX_BODY_BYTES counts as broken.
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
    """(URL, date, length), or None for a line that is no record's header."""
    fields = line.split(b" ")
    for behind_url in (4, 9):  # fields behind the URL in versions 1 and 2
        if len(fields) <= behind_url:
            break
        date, length = fields[1 - behind_url], fields[-1].strip()
        if len(date) >= 14 and date.isdigit() and length.isdigit() and len(length) < 19:
            try:
                seconds = calendar.timegm(time.strptime(date[:14].decode(), "%Y%m%d%H%M%S"))
            except ValueError:
                return None
            return b" ".join(fields[:-behind_url]), seconds, int(length)
    return None
