"""Types and encodings of responses are read as browsers read them."""

from __future__ import annotations

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.messages import (
    MAX_INFORMATIONAL,
    BadMessage,
    CutOff,
    TooLarge,
    charset_of,
    content_type_of,
    decode_body,
    is_html,
    media_type_of,
    split_response,
)

BODY = b"".join(b"<p>%d</p>" % number for number in range(3000))


@pytest.mark.parametrize(
    ("content_type", "media_type", "charset"),
    [
        ("text/html", "text/html", None),
        ("Text/HTML ;Charset=UTF-8", "text/html", "utf-8"),
        ("text/plain, text/html", "text/html", None),
        ("text/html, text/plain", "text/plain", None),
        ("text/html, html", "text/html", None),
        ("text/html; charset=koi8-r, text/html", "text/html", "koi8-r"),
        ("text/html; charset=koi8-r, text/html; charset=utf-8", "text/html", "utf-8"),
        ("text/plain; charset=koi8-r, text/html", "text/html", None),
        ("text/html; charset=koi8-r, */*", "text/html", "koi8-r"),
        ('text/html; title="a, b/c"; charset=utf-8', "text/html", "utf-8"),
        ("html", None, None),
        ('"text/html"', None, None),
        ("text/html charset=utf-8", None, "utf-8"),
        ("; charset=utf-8", None, "utf-8"),
        ("*/*", None, None),
        ("unknown/unknown", None, None),
        ("application/unknown", None, None),
        ("text/", None, None),
        (",", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_the_last_type_counts(
    content_type: str | None, media_type: str | None, charset: str | None
) -> None:
    assert (media_type_of(content_type), charset_of(content_type)) == (media_type, charset)
    assert is_html(content_type or "") == (media_type in ("text/html", None))


@given(st.text(max_size=200))
def test_any_header_has_a_type_and_a_charset_or_none(content_type: str) -> None:
    assert media_type_of(content_type) != ""
    assert charset_of(content_type) != ""


def test_several_headers_are_a_list() -> None:
    headers = [("Content-Type", "text/plain"), ("A", "b"), ("content-type", "text/html")]
    assert content_type_of(headers) == "text/plain, text/html"
    assert content_type_of([("A", "b")]) is None


ZIPPED = gzip.compress(BODY, mtime=0)
NAMED = ZIPPED[:3] + bytes([4 | 8 | 16 | 2]) + ZIPPED[4:10] + b"\x03\x00abcname\0comment\0"
NAMED += zlib.crc32(NAMED).to_bytes(4, "little")[:2] + ZIPPED[10:]


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", NAMED),
        ("x-gzip", ZIPPED + b"junk after it"),
        ("deflate", ZIPPED),
        ("deflate", NAMED),
    ],
)
def test_what_browsers_decode_is_decoded(encoding: str, data: bytes) -> None:
    assert decode_body([("Content-Encoding", encoding)], data, len(BODY), strictly=True) == BODY
    with pytest.raises(TooLarge):
        decode_body([("Content-Encoding", encoding)], data, len(BODY) - 1, strictly=True)


@pytest.mark.parametrize(
    "field",
    [
        "utf-8",
        "8bit",
        "text/html",
        "binary",
        "chunked",
        "none",
        "NONE",
        " , ",
        "identity",
        "x-a, b",
    ],
)
def test_an_unknown_coding_does_not_change_the_body(field: str) -> None:
    assert decode_body([("Content-Encoding", field)], BODY, len(BODY), strictly=True) == BODY


@pytest.mark.parametrize(
    "fields",
    [
        ["GZIP"],
        [" gzip ,"],
        ["gzip, utf-8"],
        ["utf-8, gzip"],
        ["none", "gzip", "8bit"],
        ['"gzip"'],
    ],
)
def test_known_codings_among_unknown_ones_are_decoded(fields: list[str]) -> None:
    headers = [("content-encoding", field) for field in fields]
    assert decode_body(headers, ZIPPED, len(BODY), strictly=True) == BODY


def test_a_body_that_is_encoded_twice_is_decoded_twice() -> None:
    for fields in (["gzip, deflate"], ["gzip", "Deflate"], ["gzip, utf-8, deflate"]):
        headers = [("Content-Encoding", field) for field in fields]
        assert decode_body(headers, zlib.compress(ZIPPED), 1 << 20, strictly=True) == BODY
    twice = gzip.compress(ZIPPED)
    assert decode_body([("Content-Encoding", "gzip, gzip")], twice, 1 << 20) == BODY


CHUNKED = [("Transfer-Encoding", "chunked")]


@pytest.mark.parametrize(
    "body", [BODY, b"1984\n" + BODY, b"0\n" + BODY, b"beef\nis a word", b"404 Not Found\r\n", b""]
)
def test_a_body_stored_without_its_chunks_is_read(body: bytes) -> None:
    assert decode_body(CHUNKED, body, 1 << 20) == body


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b"0\r\nX-Trailer: a\r\n\r\n", b"000\r\n"])
def test_chunks_are_joined(end: bytes) -> None:
    chunks = b"5;a=b\r\nhello\r\n1 \r\n!\r\n" + end
    assert decode_body(CHUNKED, chunks, 1 << 20) == b"hello!"


@pytest.mark.parametrize(
    "chunks", [b"5\r\nhello!\r\n0\r\n\r\n", b"5\r\nhello\r\nzz\r\n", b"5\r\n" + BODY]
)
def test_damaged_chunks_are_an_error(chunks: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_body(CHUNKED, chunks, 1 << 20)


@pytest.mark.parametrize("length", range(3, len(b"5\r\nhello\r\n3\r\nyou\r\n0")))
def test_chunks_without_their_end_are_cut_off(length: int) -> None:
    with pytest.raises(BadMessage):
        decode_body(CHUNKED, b"5\r\nhello\r\n3\r\nyou\r\n0"[:length], 1 << 20)


def test_part_of_a_second_member_comes_after_the_first() -> None:
    with pytest.raises(CutOff) as error:
        decode_body([("Content-Encoding", "gzip")], ZIPPED + ZIPPED[:5], 1 << 20)
    assert error.value.within == BODY


OK = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody"
EARLIER = [
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n",
    b"HTTP/1.0 102 Processing\n\n",
]


@pytest.mark.parametrize("num_earlier", [1, 2, 3])
def test_the_final_response_is_read(num_earlier: int) -> None:
    for responses in itertools.permutations(EARLIER, num_earlier):
        assert split_response(b"".join(responses) + OK) == (200, [("A", "b")], b"body")


def test_a_response_that_ends_after_1xx_is_read() -> None:
    assert split_response(EARLIER[0]) == (100, [], b"")
    assert split_response(EARLIER[0] * (MAX_INFORMATIONAL + 2))[0] == 100
    assert split_response(EARLIER[0] + b"no status line")[0] == 100
