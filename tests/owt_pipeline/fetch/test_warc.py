"""Records: what is written is read back, by us and by other readers; what is broken says so."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import urllib.parse
import urllib.request
import zlib
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from owt_pipeline.fetch.http_message import (
    BadMessage,
    BodyDecoder,
    TooLarge,
    charset_of,
    decode_body,
    split_response,
)
from owt_pipeline.fetch.warc import BadRecord, payload_digest, read_record, response_record
from tests.servers.pywb import pywb

URL = "https://example.org/ä?x=1"
HEADERS = [("Content-Type", 'text/html; charset="UTF-8"'), ("Content-Encoding", "gzip"), ("X-Odd", "é")]


@given(st.binary(max_size=2000))
def test_a_record_is_read_back_as_it_was_written(body: bytes) -> None:
    response = read_record(response_record(URL, 86_400, "HTTP/1.1 200 OK", HEADERS, body))
    assert (response.url, response.date, response.status, response.body) == (URL, 86_400, 200, body)
    assert response.charset == "utf-8"


@pytest.mark.parametrize("size", [0, 1, 100, 0xFFFF - 4, 0xFFFF - 3, 200_000])
def test_a_body_in_gzip_is_kept_in_it(size: int) -> None:
    body = gzip.compress(random.Random(size).randbytes(size), mtime=0)
    record = response_record(URL, 0, "HTTP/1.1 200 OK", HEADERS, body, encoded=True)
    assert read_record(record).body == gzip.decompress(body)
    assert len(record) < len(body) + 500
    assert body in gzip.decompress(record)


@pytest.mark.parametrize("encoded", [False, True])
def test_warcio_and_fastwarc_read_what_we_write(encoded: bool) -> None:
    def record(i: int, body: bytes) -> bytes:
        sent = gzip.compress(body, mtime=0) if encoded else body
        return response_record(f"{URL}{i}", i, "HTTP/1.1 200 OK", HEADERS, sent, encoded=encoded)

    data = b"".join(record(i, b"<p>%d" % i * 100) for i in range(3))
    ours = [
        (r.rec_headers["WARC-Target-URI"], r.content_stream().read())
        for r in WarcioIterator(io.BytesIO(data), check_digests="raise")
    ]
    theirs = [
        (r.headers["WARC-Target-URI"], r.reader.read())
        for r in ArchiveIterator(io.BytesIO(data), verify_digests=True, parse_http=True, auto_decode="all")
    ]
    assert ours == theirs == [(f"{URL}{i}", b"<p>%d" % i * 100) for i in range(3)]


@pytest.mark.parametrize("encoded", [False, True])
def test_pywb_indexes_and_replays_what_we_write(tmp_path: Path, encoded: bool) -> None:
    bodies = {f"http://example.org/{i}?a=%C3%A4": f"<p>page {i} ä".encode() * 500 for i in range(3)}
    payloads = [gzip.compress(body, mtime=0) if encoded else body for body in bodies.values()]
    records = [
        response_record(url, 86_400 * i, "HTTP/1.1 200 OK", HEADERS, payload, encoded=encoded)
        for i, (url, payload) in enumerate(zip(bodies, payloads, strict=True), 10_000)
    ]
    moved = response_record("http://example.org/old", 0, "HTTP/1.1 301 Moved", [("Location", "/0?a=%C3%A4")], b"")
    file = tmp_path / "part-00000.warc.gz"
    file.write_bytes(moved + b"".join(records))
    with pywb(tmp_path / "pywb", {"pages": file}) as server:
        offset = len(moved)
        for i, (url, body) in enumerate(bodies.items(), 10_000):
            with urllib.request.urlopen(f"{server}/pages/cdx?output=json&url={urllib.parse.quote(url)}") as answer:
                row = json.loads(answer.read())
            assert (row["url"], row["status"], row["mime"]) == (url, "200", "text/html")
            assert (int(row["offset"]), int(row["length"])) == (offset, len(records[i - 10_000]))
            assert row["digest"] == payload_digest(payloads[i - 10_000])
            offset += int(row["length"])
            with urllib.request.urlopen(f"{server}/pages/{row['timestamp']}id_/{url}") as answer:
                assert answer.read() == body


def test_every_real_page_is_read(testdata: Path) -> None:
    data = (testdata / "web" / "wcxb-dev.warc.gz").read_bytes()
    starts = [record.stream_pos for record in ArchiveIterator(io.BytesIO(data))][:200]
    for start, end in itertools.pairwise(starts):
        response = read_record(data[start:end])
        assert response.status == 200
        assert response.body


@pytest.mark.parametrize("cut", [0, 1, 30, 200, 400])
def test_a_cut_record_is_an_error_and_not_a_short_page(cut: int) -> None:
    whole = response_record(URL, 0, "HTTP/1.1 200 OK", [], b"".join(b"%d " % i for i in range(999)))
    with pytest.raises(BadRecord):
        read_record(whole[:cut])


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody", (200, [("A", "b")], b"body")),
        (b"HTTP/1.0 404\nA: b\n c\nnonsense\n\nbody", (404, [("A", "b c")], b"body")),
        (b"ICY 200 OK\r\n\r\n", (200, [], b"")),
        (b"HTTP/1.1 204 No Content\r\nA:b", (204, [("A", "b")], b"")),
    ],
)
def test_heads_are_read_as_servers_write_them(head: bytes, expected: tuple) -> None:
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
    chunked = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    assert decode_body([("Transfer-Encoding", "chunked")], chunked, 10_000) == b"".join(pieces)


@given(st.binary(max_size=3000), st.integers(1, 64), st.sampled_from(["gzip", "deflate", "raw", "br"]))
def test_bodies_are_decoded_in_pieces_of_any_size(body: bytes, size: int, encoding: str) -> None:
    if encoding == "br":
        encoded = pytest.importorskip("brotli").compress(body)
    elif encoding == "gzip":
        encoded = gzip.compress(body[:100], mtime=0) + gzip.compress(body[100:], mtime=0)  # two members
    else:
        deflate = zlib.compressobj(6, zlib.DEFLATED, 15 if encoding == "deflate" else -15)
        encoded = deflate.compress(body) + deflate.flush()
    decoder = BodyDecoder("deflate" if encoding == "raw" else encoding, 10_000)
    pieces = [decoder.feed(encoded[at : at + size]) for at in range(0, len(encoded), size)]
    decoder.finish()
    assert b"".join(pieces) == body


def test_a_bomb_stops_at_the_limit() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(TooLarge):
        BodyDecoder("gzip", 1_000_000).feed(bomb)
    twice = gzip.compress(bomb)
    with pytest.raises(TooLarge):
        BodyDecoder("gzip, gzip", 1_000_000).feed(twice)


def test_a_decoded_body_under_an_encoded_bodys_headers_is_taken_as_it_is() -> None:
    headers = [("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked")]
    assert decode_body(headers, b"<html>plain", 1000) == b"<html>plain"


def test_a_damaged_body_is_a_bad_message() -> None:
    body = gzip.compress(b"".join(b"%d" % i for i in range(1000)))
    with pytest.raises(BadMessage, match="breaks off"):
        decode_body([("Content-Encoding", "gzip")], body[:-20], 10_000)
    with pytest.raises(BadMessage, match="damaged"):
        decode_body([("Content-Encoding", "gzip")], body[:40] + b"xxxxxxxx" + body[48:], 10_000)


def test_charsets_are_found_as_they_are_written() -> None:
    assert charset_of("text/html; charset=ISO-8859-1") == "iso-8859-1"
    assert charset_of("text/html;Charset = 'koi8-r'; x=y") == "koi8-r"
    assert charset_of("text/html") is charset_of(None) is None
