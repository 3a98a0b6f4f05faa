"""ARC, the Internet Archive's format until 2009: a version block, and records of a head line and
a response.

    filedesc://x.arc 0.0.0.0 20010203040506 text/plain 76
    1 0 Crawler
    URL IP-address Archive-date Content-type Archive-length

    http://example.com/ 10.0.0.1 20010203040506 text/html 1234
    HTTP/1.0 200 OK ...

The file is plain, or has a gzip member for each record.
"""

from __future__ import annotations

import calendar
import io
import re
import time
import zlib
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from owt_pipeline.formats.messages import BadMessage, split_response
from owt_pipeline.formats.warc import MAX_BODY_BYTES, BadRecord, http_record

MAGIC = b"filedesc:"
_HEAD = re.compile(
    rb"(\w+:.*) \S+ (\d{14})\d* (?:.* )?(\d+)\s*", re.DOTALL
)  # URL, IP address, date, ..., length
_MAX_HEAD_BYTES = 1 << 16


def arc_records(file: BinaryIO, is_gzip: bool) -> Iterator[tuple[int, int, bytes]]:
    """(first byte, end, record) of each record but the version block; raises BadRecord for the
    first that is damaged, or shares its gzip member with another."""
    yield from _members(file) if is_gzip else _plain(file)


def split_arc(record: bytes) -> tuple[str, int, bytes]:
    """(URL, time of capture, response) of a record; raises BadRecord if its length is wrong."""
    line, _, rest = record.partition(b"\n")
    if (found := _HEAD.fullmatch(line)) is None:
        raise BadRecord("no head of a record")
    block = rest[: int(found[3])]
    if len(block) < int(found[3]):
        raise BadRecord(f"the file ends within it: {len(block):,} of {int(found[3]):,} bytes")
    if rest[len(block) :].strip(b"\r\n"):
        raise BadRecord("its length is wrong")
    try:
        date = calendar.timegm(time.strptime(found[2].decode(), "%Y%m%d%H%M%S"))
    except ValueError as error:
        raise BadRecord(str(error)) from error
    return found[1].decode("latin-1"), date, block


def arc_as_warc(record: bytes) -> bytes | None:
    """The record as a WARC record in one gzip member; None for bytes that are no record of this
    format."""
    try:
        url, date, block = split_arc(record)
        body = split_response(block)[2]
    except (BadRecord, BadMessage):
        return None
    return http_record(url, date, block[: len(block) - len(body)], body)


def _plain(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Of a plain file. What comes before the first head is the version block, whose length is
    wrong in some archives. After a record comes an empty line, or at once the next head or the
    end; anything else shows that its length is wrong."""
    source = io.BufferedReader(file)  # type: ignore[type-var]
    waiting: tuple[int, int, bytes] | None = None
    is_apart, at = True, 0
    for line in iter(partial(source.readline, _MAX_HEAD_BYTES), b""):
        begin, at = at, at + len(line)
        found = None if line.startswith(MAGIC) else _HEAD.fullmatch(line)
        if found is None and (waiting is None or not line.strip()):
            is_apart = True
            continue
        if found is None or not (is_apart or line.startswith(b"http")):
            raise BadRecord("its length is wrong")
        if waiting is not None:
            yield waiting
        if (length := int(found[3])) > MAX_BODY_BYTES:
            raise BadRecord(f"a length of {length:,}")
        block = source.read(length)
        if len(block) < length:
            raise BadRecord(f"the file ends within it: {len(block):,} of {length:,} bytes")
        at += length
        waiting, is_apart = (begin, at, line + block), False
    if waiting is not None:
        yield waiting


def _members(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    begin, waiting = 0, file.read(1 << 16)
    while waiting:
        member, record = zlib.decompressobj(31), b""
        try:
            while not member.eof and waiting:
                record += member.decompress(waiting)
                waiting = member.unused_data or file.read(1 << 16)
                if len(record) > MAX_BODY_BYTES + _MAX_HEAD_BYTES:
                    raise BadRecord(f"a record of more than {MAX_BODY_BYTES:,} bytes")
        except zlib.error as error:
            raise BadRecord(f"damage in it: {error}") from error
        if not member.eof:
            raise BadRecord("the file ends within it")
        end = file.tell() - len(waiting)
        if not record.startswith(MAGIC):
            split_arc(record)
            yield begin, end, record
        elif any(map(_HEAD.fullmatch, record.split(b"\n")[1:])):
            raise BadRecord("its gzip member has another record, too")
        begin = end
