"""Records of WARC files: those of `pages/` are read and written, one gzip member each.

for batch in placed_pages(reader, shard):            # rows of pages/ with the places of the records
    for record in read_records(reader.workdir, batch):
        # url, status, content type, charset, decoded body
        response = read_record(record)
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from owt_pipeline.formats.dates import seconds_of
from owt_pipeline.formats.messages import (
    BadMessage,
    Headers,
    TooLarge,
    charset_of,
    content_type_of,
    decode_body,
    header,
    split_response,
)
from owt_pipeline.ledger.dataset import DatasetReader, reading
from owt_pipeline.storage.folder import Storage, at_once
from schemas import DATASETS, PLACES

MAX_BODY_BYTES = 1 << 30
"""Largest decoded body of a record that is read: no page is as large, so a larger one is an
attack or damage."""

_PLACE = ("segment", "offset", "length")

PLACED_PAGES = pa.schema([*DATASETS["pages"].schema, *(PLACES.field(name) for name in _PLACE)])
"""Rows of `placed_pages`: the rows of pages/ with the place of each page's record."""

# Compressed records that a worker process reads at once, some 500 pages.
_BATCH_BYTES = 16 << 20

_RECORD_HEAD = re.compile(rb"WARC/\d\.\d+\r\n((?:[^\r\n]+\r\n)+)\r\n")

_GZIP_WBITS = 31

_ENCODED = re.compile(rb"\ncontent-encoding:[ \t]*(?:x-)?(?:gzip|deflate|br|zstd)", re.I)

_RECORD_NAMESPACE = uuid.UUID("6b1a2a3e9d0c5f3e8d6b0a4f6f77e0c1")


class BadRecord(ValueError):
    """The bytes are not a WARC response record, or its HTTP response cannot be read."""


@dataclass(frozen=True)
class RecordHead:
    """The head of a WARC record.

    Attributes:
      fields: its fields, by name in lower case.
      num_bytes: its length with the empty line.
      content_length: the bytes of content that it declares.
    """

    fields: Mapping[str, str]
    num_bytes: int
    content_length: int

    @property
    def target_uri(self) -> str:
        """Return the target URI, without the angle brackets of wget 1.19 and earlier."""
        return self.fields.get("warc-target-uri", "").strip("<>")

    @property
    def date(self) -> int:
        """Return the record's date, seconds since 1970 in UTC; 0 if it has none."""
        return seconds_of(self.fields.get("warc-date")) or 0


@dataclass(frozen=True)
class Response:
    """A fetched HTTP response.

    Attributes:
      url: the record's target URI, the URL that answered.
      date: time of capture, seconds since 1970 in UTC; 0 if the record has none.
      status: HTTP status code.
      headers: HTTP headers as sent, in order.
      body: the body without transfer and content encoding.
    """

    url: str
    date: int
    status: int
    headers: Headers
    body: bytes

    @property
    def content_type(self) -> str | None:
        """Return the Content-Type header as sent; None if there is none."""
        return content_type_of(self.headers)

    @property
    def charset(self) -> str | None:
        """Return the charset that the header declares, in lower case, otherwise as written.

        It may be wrong or not exist.
        """
        return charset_of(self.content_type)


def parse_head(data: bytes) -> RecordHead:
    """Return the head at the start of a record; raise BadRecord if it cannot be read."""
    match = _RECORD_HEAD.match(data)
    if match is None:
        raise BadRecord("no head of a WARC record, whose lines end with CR and LF")
    fields: dict[str, str] = {}
    for line in match[1].decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    length = fields.get("content-length", "")
    if not length.isdecimal():
        raise BadRecord(f"the Content-Length of its head is {length[:20]!r}")
    return RecordHead(fields, match.end(), int(length))


def read_record(data: bytes, max_body_bytes: int = MAX_BODY_BYTES) -> Response:
    """Return the response in a WARC record, plain or compressed as one gzip member.

    Raises:
      BadRecord: it is not a response record, is incomplete, or its body cannot be decoded.
      TooLarge: the body decodes to more than `max_body_bytes`.
    """
    _, record = single_member(data, MAX_BODY_BYTES)
    head = parse_head(record)
    block = record[head.num_bytes :][: head.content_length]
    if head.fields.get("warc-type") != "response":
        raise BadRecord("no WARC response record")
    if len(block) < head.content_length:
        raise BadRecord(f"the record is cut off: {len(block):,} of {head.content_length:,} bytes")
    try:
        status, headers, raw = split_response(block)
        body = decode_body(headers, raw, max_body_bytes)
    except BadMessage as error:
        raise BadRecord(str(error)) from error
    return Response(head.target_uri, head.date, status, headers, body)


def placed_pages(reader: DatasetReader, shard: int, rows: int = 256) -> Iterator[pa.RecordBatch]:
    """Yield the pages of a shard, in order, as batches of schema `PLACED_PAGES`.

    A batch has at most `rows` rows, whose records have at most 16 MiB.
    """
    places = reader.table(shard, kind="places", columns=list(_PLACE))
    first = 0
    for batch in reader.batches(shard, rows=rows):
        (batch_places,) = places.slice(first, batch.num_rows).combine_chunks().to_batches()
        first += batch.num_rows
        columns = [*batch.columns, *batch_places.columns]
        placed = pa.RecordBatch.from_arrays(columns, schema=PLACED_PAGES)
        piece_numbers = np.cumsum(batch_places["length"].to_numpy()) // _BATCH_BYTES
        for number in np.unique(piece_numbers):
            start = np.searchsorted(piece_numbers, number)
            end = np.searchsorted(piece_numbers, number, "right")
            yield placed.slice(start, end - start)


def read_records(workdir: Storage, pages: pa.RecordBatch) -> list[bytes]:
    """Read the compressed record of each page of a batch of `PLACED_PAGES`.

    Raises UserError if a WARC file is missing or ends before a page's record.
    """
    places = pages.select(_PLACE).to_pylist()
    read = partial(_read_place, workdir)
    # A disk is read in order; requests to a bucket wait, so they are made at once.
    return list(map(read, places)) if workdir.is_local else at_once(read, places)


def _read_place(workdir: Storage, place: Mapping[str, Any]) -> bytes:
    with reading(workdir, place["segment"]):
        record = workdir.read_range(place["segment"], place["offset"], place["length"])
        if len(record) != place["length"]:
            raise OSError(
                f"it ends before byte {place['offset'] + place['length']}, where there is a page"
            )
        return record


def response_record(url: str, date: int, status_line: str, headers: Headers, body: bytes) -> bytes:
    """Return `http_record` of a response given by its parts, for responses we did not fetch.

    A Content-Length is added if the headers have none.
    """
    lines = [f"{name}: {value}" for name, value in headers]
    if header(headers, "content-length") is None and header(headers, "transfer-encoding") is None:
        lines.append(f"Content-Length: {len(body)}")
    return http_record(
        url, date, "\r\n".join([status_line, *lines, "", ""]).encode("latin-1", "replace"), body
    )


def http_record(
    url: str,
    date: int,
    head: bytes,
    body: bytes,
    digest: str | None = None,
    *,
    address: str = "",
    truncated: str = "",
    origin: str = "",
) -> bytes:
    """Return a response as a WARC record in one gzip member.

    The same arguments give the same bytes on the same kind of processor.

    Args:
      url: its URL.
      date: time of the fetch, in seconds since 1970.
      head: status line and headers as sent, with the empty line.
      body: the body as sent, chunked or not; as in warcio, FastWARC and wget, the payload's digest
        is of these bytes.
      digest: `payload_digest` of the body, if known.
      address: the server's IP address, if known.
      truncated: why the body is incomplete (`length`); "" if it is complete.
      origin: the URL whose redirects led here; part of the record's id, since several URLs may lead
        to the same one.
    """
    from isal import isal_zlib

    record_head = _record_head(
        "response",
        url,
        date,
        block=[head, body],
        body_digest=digest or payload_digest(body),
        more_fields={"WARC-IP-Address": address, "WARC-Truncated": truncated},
        origin=origin,
    )
    if _ENCODED.search(head):
        # A body that was sent compressed is only stored.
        gzip: Any = zlib.compressobj(0, wbits=_GZIP_WBITS)
    else:
        # ISA-L is five times as fast as zlib's default level with 10% more bytes, and releases the
        # interpreter's lock.
        gzip = isal_zlib.compressobj(2, isal_zlib.DEFLATED, _GZIP_WBITS)
    return gzip.compress(b"".join([record_head, head, body, b"\r\n\r\n"])) + gzip.flush()


def warcinfo_record(date: int, fields: Mapping[str, str]) -> bytes:
    """Return the description of a file as a WARC record, for the beginning of the file."""
    block = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
    head = _record_head("warcinfo", "", date, block=[block], content_type="application/warc-fields")
    return gzip_member(head + block + b"\r\n\r\n")


def resource_record(uri: str, date: int, block: bytes, content_type: str) -> bytes:
    """Return bytes of any kind as a WARC record in one gzip member."""
    head = _record_head(
        "resource",
        uri,
        date,
        block=[block],
        body_digest=payload_digest(block),
        content_type=content_type,
    )
    return gzip_member(head + block + b"\r\n\r\n")


def _record_head(
    kind: str,
    url: str,
    date: int,
    *,
    block: Sequence[bytes],
    body_digest: str = "",
    more_fields: Mapping[str, str] | None = None,
    origin: str = "",
    content_type: str = "application/http; msgtype=response",
) -> bytes:
    """Return the head of a record; its content `block` is in pieces, so that hashing needs no copy.

    Fields without a value are left out.
    """
    digest = payload_digest(*block)
    name = url if kind == "response" else f"{kind} {url}"
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": _record_id(name, date, digest, origin),
        "WARC-Target-URI": url,
        "WARC-Date": _warc_date(date),
        **(more_fields or {}),
        "WARC-Payload-Digest": f"sha1:{body_digest}" if body_digest else "",
        "WARC-Block-Digest": f"sha1:{digest}",
        "Content-Type": content_type,
        "Content-Length": str(sum(map(len, block))),
    }
    lines = [f"{name}: {value}\r\n" for name, value in fields.items() if value]
    return "".join(["WARC/1.1\r\n", *lines, "\r\n"]).encode()


@lru_cache(1 << 10)
def _warc_date(date: int) -> str:
    return f"{datetime.fromtimestamp(date, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _record_id(url: str, date: int, digest: str, origin: str) -> str:
    return f"<{uuid.uuid5(_RECORD_NAMESPACE, f'{url} {date} {digest} {origin}'.rstrip()).urn}>"


def single_member(data: bytes, max_bytes: int) -> tuple[bytes | None, bytes]:
    """Return the first gzip member of `data`, and its content.

    The member is None if it does not hold exactly one well-formed record. The content is `data`
    itself if that is not gzip. Raises BadRecord for a damaged member, TooLarge for one of more than
    `max_bytes`.
    """
    if not data.startswith(b"\x1f\x8b"):
        return None, data
    from isal import isal_zlib

    gzip = isal_zlib.decompressobj(_GZIP_WBITS)
    try:
        content = gzip.decompress(data, max_bytes)
    except isal_zlib.error as error:  # type: ignore[misc]  # its stub hides what it derives from
        raise BadRecord(f"a damaged WARC record: {error}") from error
    if gzip.unconsumed_tail:
        raise TooLarge(f"a record of more than {max_bytes:,} bytes")
    head = parse_head(content)
    # Two empty lines end a record.
    record_length = head.num_bytes + head.content_length + 4
    if not gzip.eof or len(content) != record_length:
        return None, content
    return data[: len(data) - len(gzip.unused_data)], content


def rewritten(record: bytes) -> bytes:
    """Return a plain record as a gzip member."""
    head = parse_head(record)
    return gzip_member(record[: head.num_bytes + head.content_length] + b"\r\n\r\n")


def gzip_member(content: bytes) -> bytes:
    """Return a gzip member without name or time, so that equal content gives equal bytes."""
    gzip = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WBITS)
    return gzip.compress(content) + gzip.flush()


def payload_digest(*pieces: bytes) -> str:
    """Return the SHA-1 of the joined `pieces` in Base32, as in WARC-Payload-Digest."""
    sha1 = hashlib.sha1()
    for piece in pieces:
        sha1.update(piece)
    return base64.b32encode(sha1.digest()).decode()
