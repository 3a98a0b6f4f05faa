"""Responses parsed from the bytes of a connection."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.fetch.http_message import BadMessage, TooLarge
from owt_pipeline.fetch.response_parser import MAX_HEAD_BYTES, ResponseParser

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"


def parser(*, wire: int = 10_000, cut: bool = False, skip: bool = False) -> ResponseParser:
    return ResponseParser(lambda *_: skip, wire, cut=cut)


def parsed(*pieces: bytes, closed: bool = False, **limits: int) -> ResponseParser:
    """What is parsed of these pieces, the last of which, or the end of the connection, makes it whole."""
    result = parser(**limits)  # type: ignore[arg-type]
    *others, last = pieces
    assert not any(result.feed(piece) for piece in others)
    assert result.feed(last) is not closed
    if closed:
        result.end()
    return result


@pytest.mark.parametrize(
    ("sent", "body", "reusable"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
        (OK + b"Content-Length: 5, 5\r\n\r\nhello", b"hello", True),
        (OK + b"Content-Length: 5\r\nConnection: Close\r\n\r\nhello", b"hello", False),
        (OK + b"Content-Length: 5\r\n\r\nhello, and junk", b"hello", False),
        (OK + b"Content-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
        (b"HTTP/1.0 200 OK\nContent-Length: 2\nConnection: keep-alive\n\nhi", b"hi", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde", True),
        (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n", b"a", True),
        (OK + b"Transfer-Encoding: chunked\n\n1 \na\n0\n\ntrailing garbage", b"a", False),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK + b"Content-Length: 2\r\n\r\nhi", b"hi", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n", b"", True),
    ],
)
def test_a_body_ends_where_its_head_says(sent: bytes, body: bytes, reusable: bool) -> None:
    whole = parsed(sent)
    assert (b"".join(whole.body), whole.reusable) == (body, reusable)
    by_byte = parsed(*[sent[at : at + 1] for at in range(len(sent))]) if reusable else whole
    assert (b"".join(by_byte.body), by_byte.headers, by_byte.reusable) == (body, whole.headers, reusable)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    whole = parsed(OK + b"\r\nhe", b"llo", closed=True)
    assert (b"".join(whole.body), whole.reusable) == (b"hello", False)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"<html>", "not HTTP"),
        (b"HTTP/x\r\n\r\n", "no HTTP status line"),
        (OK + b"Content-Length: -5\r\n\r\n", "a Content-Length that is none: '-5'"),
        (OK + b"Content-Length: +5\r\n\r\n", "a Content-Length that is none"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "more than one Content-Length: 5, 6"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nhello\r\n", "a chunk of the body has no length but b'hello"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "a chunk of the body has no length"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "longer than it says"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 20_000, "no end of line"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 21, "more than 20 responses of status 1xx"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "status 101"),
        (OK + b"X: " + b"x" * MAX_HEAD_BYTES, "a head of more than 65,536 bytes"),
    ],
)
def test_what_is_no_response_says_why(sent: bytes, message: str) -> None:
    with pytest.raises(BadMessage, match=message):
        parser().feed(sent)


@pytest.mark.parametrize(
    "sent",
    [
        OK + b"Content-Length: 11\r\n\r\n",
        OK + b"\r\n" + b"x" * 11,
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"X: y\r\n" * 10,
    ],
)
def test_a_body_beyond_its_limit_is_too_large(sent: bytes) -> None:
    with pytest.raises(TooLarge):
        parser(wire=10).feed(sent)


def test_a_body_to_be_cut_is_what_lies_within_the_limit() -> None:
    cut = parser(wire=10, cut=True)
    assert cut.feed(OK + b"\r\n0123456789abc")
    assert (b"".join(cut.body), cut.cut, cut.reusable) == (b"0123456789", True, False)


def test_a_body_that_is_not_read_leaves_the_connection_usable_only_if_it_is_there() -> None:
    there, not_there = parser(skip=True), parser(skip=True)
    assert there.feed(OK + b"Content-Length: 5\r\n\r\nhello")
    assert not_there.feed(OK + b"Content-Length: 6\r\n\r\nhello")
    assert (there.body, there.reusable, not_there.body, not_there.reusable) == ([], True, [], False)


@given(st.lists(st.binary(max_size=20), max_size=8), st.booleans())
@example([b"HTTP/1.1 200\n", b"\n"], True)
def test_any_bytes_are_a_response_or_none(pieces: list[bytes], skip: bool) -> None:
    result = parser(skip=skip)
    try:
        if not any(result.feed(piece) for piece in [b"HTTP/1.1 200 OK\r\n", *pieces]):
            result.end()
    except (BadMessage, TooLarge):
        return
    assert result.status >= 100
