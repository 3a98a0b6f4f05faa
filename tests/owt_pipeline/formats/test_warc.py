"""WARC records: our own and other readers read what we write, and broken records are errors."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.messages import BadMessage, TooLarge, decode_body, split_response
from owt_pipeline.formats.warc import BadRecord, http_record, read_record, response_record

URL = "https://example.org/ä?x=1"
HEADERS = [("Content-Type", 'text/html; charset="UTF-8"'), ("X-Odd", "é")]


@given(st.binary(max_size=2000))
def test_record_reads_back_unchanged(body: bytes) -> None:
    response = read_record(response_record(URL, 86_400, "HTTP/1.1 200 OK", HEADERS, body))
    assert (response.url, response.date, response.status, response.body) == (URL, 86_400, 200, body)
    assert response.charset == "utf-8"


def sent(body: bytes, encoding: str) -> tuple[bytes, bytes]:
    """Return head and body of a response as sent by a server."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nX-Odd: "
        b"\xe9\r\nset-COOKIE: a=b\r\n"
    )
    chunk = b"%x\r\n%s\r\n0\r\n\r\n"
    zipped = gzip.compress(body, mtime=0)
    return {
        "plain": (head + b"Content-Length: %d\r\n\r\n" % len(body), body),
        "gzip": (head + b"Content-Encoding: gzip\r\nContent-Length: "
        b"%d\r\n\r\n" % len(zipped), zipped),
        "chunked": (head + b"Transfer-Encoding: chunked\r\n\r\n", chunk % (len(body), body)),
        "chunked gzip": (
            head + b"Content-Encoding: gzip\r\nTransfer-Encoding: "
            b"chunked\r\n\r\n", chunk % (len(zipped), zipped)
        ),
    }[encoding]  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 200_000])
@pytest.mark.parametrize("encoding", ["plain", "gzip", "chunked", "chunked gzip"])
def test_response_is_stored_as_sent(size: int, encoding: str) -> None:
    body = random.Random(size).randbytes(size)
    head, payload = sent(body, encoding)
    record = http_record(URL, 0, head, payload, address="192.0.2.1")
    assert read_record(record).body == body
    assert head + payload + b"\r\n\r\n" in gzip.decompress(record)
    assert b"\r\nWARC-IP-Address: 192.0.2.1\r\n" in gzip.decompress(record)
    assert len(record) < len(payload) + 700


@pytest.mark.parametrize("cut", [0, 1, 30, 200, 400])
def test_truncated_record_is_an_error(cut: int) -> None:
    complete = response_record(
        URL, 0, "HTTP/1.1 200 OK", [], b"".join(b"%d " % i for i in range(999))
    )
    with pytest.raises(BadRecord):
        read_record(complete[:cut])


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody", (200, [("A", "b")], b"body")),
        (b"HTTP/1.0 404\nA: b\n c\nnonsense\n\nbody", (404, [("A", "b c")], b"body")),
        (b"ICY 200 OK\r\n\r\n", (200, [], b"")),
        (b"HTTP/1.1 204 No Content\r\nA:b", (204, [("A", "b")], b"")),
    ],
)
def test_malformed_heads_are_read(head: bytes, expected: tuple) -> None:
    assert split_response(head) == expected


@given(st.binary(max_size=300))
def test_any_bytes_are_a_response_or_a_bad_message(block: bytes) -> None:
    try:
        status, _, _ = split_response(block)
    except BadMessage:
        return
    assert 0 <= status <= 999


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=5))
def test_chunks_are_joined(pieces: list[bytes]) -> None:
    chunked = (
        b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    )
    assert decode_body([("Transfer-Encoding", "chunked")], chunked, 10_000) == b"".join(pieces)


@pytest.mark.parametrize("size", [b"+3", b"0x3", b"1_0", b"-5"])
def test_a_number_with_a_sign_is_not_a_size_of_a_chunk(size: bytes) -> None:
    body = size + b"\r\nabc\r\n0\r\n\r\n"
    assert decode_body([("Transfer-Encoding", "chunked")], body, 10_000) == body
    with pytest.raises(BadMessage, match="no length"):
        decode_body([("Transfer-Encoding", "chunked")], b"1\r\na\r\n" + body, 10_000)


def encoded(body: bytes, encoding: str) -> bytes:
    """Return a body as encoded by servers; `gzip` has two members."""
    if encoding == "gzip":
        return gzip.compress(body[:100], mtime=0) + gzip.compress(body[100:], mtime=0)
    if encoding == "zstd":
        return zstandard.compress(body[:100]) + zstandard.compress(body[100:])
    if encoding == "br":
        return brotli.compress(body)
    deflate = zlib.compressobj(6, zlib.DEFLATED, 15 if encoding == "deflate" else -15)
    return deflate.compress(body) + deflate.flush()


@given(
    st.binary(max_size=3000),
    st.lists(st.sampled_from(["gzip", "deflate", "raw", "br", "zstd"]), max_size=3),
)
def test_bodies_are_decoded_within_their_limit(body: bytes, encodings: list[str]) -> None:
    data = body
    for encoding in encodings:
        data = encoded(data, encoding)
    headers = [("Content-Encoding", ", ".join(encodings).replace("raw", "deflate"))]
    assert decode_body(headers, data, 10_000, strictly=True) == body
    if body:
        with pytest.raises(TooLarge) as error:
            decode_body(headers, data, len(body) - 1, strictly=True)
        assert len(error.value.within) == len(body) - 1


@given(
    st.binary(min_size=1, max_size=300),
    st.sampled_from(["gzip", "deflate", "br", "zstd"]),
    st.data(),
)
def test_truncated_or_damaged_body_is_an_error(
    body: bytes, encoding: str, data: st.DataObject
) -> None:
    complete = gzip.compress(body, mtime=0) if encoding == "gzip" else encoded(body, encoding)
    if encoding == "zstd":
        complete = zstandard.compress(body)
    cut = complete[: data.draw(st.integers(1, len(complete) - 1))]
    with pytest.raises(BadMessage):
        decode_body([("Content-Encoding", encoding)], cut, 10_000, strictly=True)


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "br", "zstd", "deflate", "gzip, zstd"])
def test_decompression_bomb_stops_at_the_limit(encoding: str) -> None:
    bomb = bytes(50_000_000)
    for name in encoding.split(", "):
        bomb = encoded(bomb, name)
    tracemalloc.start()
    with pytest.raises(TooLarge):
        decode_body([("Content-Encoding", encoding)], bomb, 1_000_000, strictly=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


# A time that grows with the square of their number would be minutes.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)]
)
def test_a_body_of_very_many_empty_members_is_decoded(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    empty = compress(b"")
    body = empty * (6_000_000 // len(empty))
    assert decode_body([("Content-Encoding", encoding)], body, 1000) == b""


def test_a_decoded_body_with_coding_headers_is_unchanged() -> None:
    headers = [("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked")]
    assert decode_body(headers, b"<html>plain", 1000) == b"<html>plain"


def test_an_encoded_body_that_begins_like_a_page_is_decoded() -> None:
    page = b"<html>" + b"some words " * 60
    # It was flushed after 121 bytes.
    in_brotli = bytes.fromhex(
        "0b3c0000041c72a427ba59d88292905912cbe04a5d12e2d7902e6000012200400220080b601b"
    )
    assert in_brotli.lstrip().startswith(b"<")
    assert decode_body([("Content-Encoding", "br")], in_brotli, 1000) == page
    for encoding in ("br", "deflate", "x-klingon"):
        assert decode_body([("Content-Encoding", encoding)], page, 1000) == page
