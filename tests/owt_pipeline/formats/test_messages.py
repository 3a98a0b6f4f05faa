"""Types and encodings of responses, as servers send them and browsers read them."""

from __future__ import annotations

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.messages import (
    MAX_INFORMATIONAL,
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


def test_what_was_received_of_a_second_member_comes_after_the_first() -> None:
    with pytest.raises(CutOff) as error:
        decode_body([("Content-Encoding", "gzip")], ZIPPED + ZIPPED[:5], 1 << 20)
    assert error.value.within == BODY


OK = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody"
EARLIER = [
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n",
    b"HTTP/1.0 102 Processing\n\n",
]


@pytest.mark.parametrize(
    "before", [b"".join(some) for n in (1, 2, 3) for some in itertools.permutations(EARLIER, n)]
)
def test_the_final_response_is_read(before: bytes) -> None:
    assert split_response(before + OK) == (200, [("A", "b")], b"body")


def test_a_response_of_1xx_alone_is_one() -> None:
    assert split_response(EARLIER[0]) == (100, [], b"")
    assert split_response(EARLIER[0] * (MAX_INFORMATIONAL + 2))[0] == 100
    assert split_response(EARLIER[0] + b"no status line")[0] == 100
