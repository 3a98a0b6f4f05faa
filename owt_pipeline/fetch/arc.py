"""ARC files, what the Internet Archive wrote before WARC (until 2009): read record by record.

A record is one line, `URL IP-address Archive-date Content-type Archive-length` (version 1; version 2 has more
fields), and as many bytes as it says. URLs may hold spaces, so fields are counted from the line's end.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

ARC_MAGIC = b"filedesc:"

_MAX_LINE = 1 << 16


class ArcRecord(NamedTuple):
    """One record: `date` in seconds since 1970, UTC; `content` as the server sent it."""

    url: str
    date: int
    content: bytes


def arc_records(file: BinaryIO, max_bytes: int) -> Iterator[ArcRecord | None]:
    """The HTTP records of a decompressed ARC file; None where something was broken.

    What is between a broken record and the next line that is a header is skipped; a record of more than
    `max_bytes` counts as broken.
    """
    in_order = True
    while line := file.readline(_MAX_LINE):
        if not line.strip():
            continue
        header = _parse_header(line)
        if header is None:
            if in_order:
                yield None
            in_order = False
            continue
        in_order = True
        url, date, length = header
        if length > max_bytes:
            while length and (piece := file.read(min(length, 1 << 20))):
                length -= len(piece)
            yield None
            continue
        content = file.read(length)
        if len(content) < length:
            yield None
        elif url[:4].lower() == b"http":
            yield ArcRecord(url.decode("utf-8", "replace"), date, content)


def _parse_header(line: bytes) -> tuple[bytes, int, int] | None:
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
