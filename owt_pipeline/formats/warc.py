"""Reading and writing the WARC files of `pages/`, one gzip member per record.

for batch in pages(reader, shard):                    # index rows with the bytes of their records
    for record in batch["record"]:
        # url, status, content type, charset, decoded body
        response = read_record(record.as_py())
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

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
from schemas import DATASETS

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

MAX_BODY_BYTES = 1 << 30
"""Largest decoded body of a record that is read: no page is as large, so a larger one is an
attack or damage."""

PAGES_WITH_RECORDS: pa.Schema = DATASETS["pages"].schema.append(
    pa.field(
        "record",
        pa.large_binary(),
        nullable=False,
        metadata={"description": "gzip member of the WARC record"},
    )
)
"""Rows of `pages`: the index of pages/ with each page's record."""

_BATCH_BYTES = 16 << 20  # most compressed records sent to a worker process at once: some 500 pages

_RECORD_HEAD = re.compile(
    rb"WARC/1\.[01]\r\n(?:[^\r\n]+\r\n)*?Content-Length: *(\d+)\r\n(?:[^\r\n]+\r\n)*\r\n", re.I
)

_ENCODED = re.compile(rb"\ncontent-encoding:[ \t]*(?:x-)?(?:gzip|deflate|br|zstd)", re.I)

_RECORD_NAMESPACE = uuid.UUID("6b1a2a3e9d0c5f3e8d6b0a4f6f77e0c1")


class BadRecord(ValueError):
    """The bytes are not a WARC response record, or its HTTP response cannot be read."""


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
        """The Content-Type header as sent; None if there is none."""
        return content_type_of(self.headers)

    @property
    def charset(self) -> str | None:
        """The charset that it declares, in lower case, otherwise as written; it may be wrong or
        not exist."""
        return charset_of(self.content_type)


def read_record(data: bytes, max_body_bytes: int = MAX_BODY_BYTES) -> Response:
    """The response in a WARC record, plain or compressed as one gzip member.

    Raises:
      BadRecord: it is not a response record, is incomplete, or its body cannot be decoded.
      TooLarge: the body decodes to more than `max_body_bytes`.
    """
    # The library's functions import this module, and are installed without FastWARC and ISA-L.
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    try:
        record = next(
            iter(ArchiveIterator(io.BytesIO(data), parse_http=False, quirks_mode=True)), None
        )
        if record is None or record.record_type != WarcRecordType.response:
            raise BadRecord("no WARC response record")
        status, headers, raw = split_response(read_block(record))
        body = decode_body(headers, raw, max_body_bytes)
    except OSError as error:
        raise BadRecord(f"a damaged WARC record: {error}") from error
    except BadMessage as error:
        raise BadRecord(str(error)) from error
    return Response(target_uri(record), capture_time(record), status, headers, body)


def pages(reader: DatasetReader, shard: int, rows: int = 256) -> Iterator[pa.RecordBatch]:
    """The pages of a shard, in order, as batches of schema `PAGES_WITH_RECORDS` of at most
    `rows` rows and 16 MiB.

    The column `record` holds compressed records for `read_record`, so the worker that gets a batch
    decompresses them. Raises UserError if a WARC file is missing or ends before a page's record.
    """
    places, at = reader.table(shard, kind="places"), 0
    for batch in reader.batches(shard, rows=rows):
        mine = places.slice(at, batch.num_rows)
        at += batch.num_rows
        pieces = np.cumsum(mine["length"].to_numpy()) // _BATCH_BYTES
        for piece in np.unique(pieces):
            start, end = np.searchsorted(pieces, piece), np.searchsorted(pieces, piece, "right")
            some = mine.slice(start, end - start).to_pylist()
            read = partial(_read_place, reader.workdir)
            records = list(map(read, some)) if reader.workdir.is_local else at_once(read, some)
            yield _with_records(batch.slice(start, end - start), records)


def _read_place(workdir: Storage, place: Mapping[str, Any]) -> bytes:
    with reading(workdir, place["segment"]):
        record = workdir.read_range(place["segment"], place["offset"], place["length"])
        if len(record) != place["length"]:
            raise OSError(
                f"it ends before byte {place['offset'] + place['length']}, where there is a page"
            )
        return record


def _with_records(batch: pa.RecordBatch, records: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(records, pa.large_binary())], schema=PAGES_WITH_RECORDS
    )


def response_record(url: str, date: int, status_line: str, headers: Headers, body: bytes) -> bytes:
    """`http_record` of a response given by its parts, for responses that were not fetched by us.

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
    """A response as a WARC record in one gzip member; the same arguments give the same bytes.

    It is compressed by ISA-L: five times as fast as zlib's default level with 10% more bytes, and
    without the interpreter's lock; the bytes may depend on the kind of processor. A body that was
    sent compressed is only stored.

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

    more = {"WARC-IP-Address": address, "WARC-Truncated": truncated}
    start = (
        _record_head(
            "response", url, date, [head, body], digest or payload_digest(body), more, origin
        )
        + head
    )
    gzip = (
        zlib.compressobj(0, wbits=31)
        if _ENCODED.search(head)
        else isal_zlib.compressobj(2, isal_zlib.DEFLATED, 31)
    )
    return gzip.compress(b"".join([start, body, b"\r\n\r\n"])) + gzip.flush()


def warcinfo_record(date: int, fields: Mapping[str, str]) -> bytes:
    """The description of a file as a WARC record, for its beginning."""
    block = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
    head = _record_head("warcinfo", "", date, [block], "", {}, content="application/warc-fields")
    return gzip_member(head + block + b"\r\n\r\n")


def resource_record(uri: str, date: int, block: bytes, content_type: str) -> bytes:
    """Bytes of any kind as a WARC record in one gzip member."""
    digest = payload_digest(block)
    return gzip_member(
        _record_head("resource", uri, date, [block], digest, {}, content=content_type)
        + block
        + b"\r\n\r\n"
    )


def _record_head(
    kind: str,
    url: str,
    date: int,
    block: Sequence[bytes],
    body_digest: str,
    more: Mapping[str, str],
    origin: str = "",
    content: str = "application/http; msgtype=response",
) -> bytes:
    """The head of a record with content `block`, given in pieces so that hashing needs no copy."""
    digest = payload_digest(*block)
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": _record_id(
            url if kind == "response" else f"{kind} {url}", date, digest, origin
        ),
        "WARC-Target-URI": url,
        "WARC-Date": _warc_date(date),
        **more,
        "WARC-Payload-Digest": f"sha1:{body_digest}" if body_digest else "",
        "WARC-Block-Digest": f"sha1:{digest}",
        "Content-Type": content,
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
    """(first gzip member of `data` if it holds exactly one well-formed record, else None; its
    content).

    The content is the decompressed first member; `data` itself if it is not gzip. Raises BadRecord
    for a damaged member, TooLarge for one of more than `max_bytes`.
    """
    if not data.startswith(b"\x1f\x8b"):
        return None, data
    from isal import isal_zlib

    gzip = isal_zlib.decompressobj(31)
    try:
        content = gzip.decompress(data, max_bytes)
    except isal_zlib.error as error:  # type: ignore[misc]  # its stub hides what it derives from
        raise BadRecord(f"a damaged WARC record: {error}") from error
    if gzip.unconsumed_tail:
        raise TooLarge(f"a record of more than {max_bytes:,} bytes")
    match = _RECORD_HEAD.match(content)
    complete = gzip.eof and match is not None and len(content) == match.end() + int(match[1]) + 4
    return (data[: len(data) - len(gzip.unused_data)] if complete else None), content


def rewritten(data: bytes) -> bytes:
    """The record at the start of `data`, in any format that FastWARC reads, as a gzip member."""
    from fastwarc.warc import ArchiveIterator

    record = next(iter(ArchiveIterator(io.BytesIO(data), parse_http=False, quirks_mode=True)))
    buffer = io.BytesIO()
    record.set_bytes_content(read_block(record))
    record.write(buffer)
    return gzip_member(buffer.getvalue())


def gzip_member(content: bytes) -> bytes:
    """`content` as a gzip member without name or time, so that equal content gives equal bytes."""
    gzip = zlib.compressobj(6, zlib.DEFLATED, 31)
    return gzip.compress(content) + gzip.flush()


def payload_digest(*pieces: bytes) -> str:
    """SHA-1 of the joined `pieces` in Base32, as in WARC-Payload-Digest."""
    sha1 = hashlib.sha1()
    for piece in pieces:
        sha1.update(piece)
    return base64.b32encode(sha1.digest()).decode()


def read_block(record: WarcRecord) -> bytes:
    """The content of a record; raises BadRecord if it is incomplete."""
    length = record.content_length
    block = bytes(record.reader.read())
    if len(block) != length:
        raise BadRecord(f"the record is cut off: {len(block):,} of {length:,} bytes")
    return block


def target_uri(record: WarcRecord) -> str:
    """The record's target URI, without the angle brackets of wget 1.19 and earlier."""
    return str(record.headers.get("WARC-Target-URI") or "").strip().strip("<>")


def capture_time(record: WarcRecord) -> int:
    """The record's date, seconds since 1970 in UTC; 0 if it has none."""
    return int(record.record_date.timestamp()) if record.record_date is not None else 0
