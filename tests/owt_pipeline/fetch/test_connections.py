"""Responses read from the bytes of a connection."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.formats.messages import BadMessage, TooLarge, decode_body
from owt_pipeline.stages.fetch.connections import MAX_HEAD_BYTES, ResponseReader

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"


def reader(*, wire: int = 10_000, cut: bool = False, skip: bool = False) -> ResponseReader:
    return ResponseReader(lambda *_: skip, wire, cut=cut)


def read(*pieces: bytes, closed: bool = False) -> ResponseReader:
    """The response in these pieces; the last one, or the end of the connection, makes it complete."""
    result = reader()
    *others, last = pieces
    assert not any(result.feed(piece) for piece in others)
    assert result.feed(last) is not closed
    if closed:
        result.end()
    return result


def body_of(response: ResponseReader) -> bytes:
    return decode_body(response.headers, b"".join(response.body), 10_000)


@pytest.mark.parametrize(
    ("sent", "body", "reusable"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
        (OK + b"Content-Length: 5\r\nConnection: Close\r\n\r\nhello", b"hello", False),
        (OK + b"Content-Length: 5\r\n\r\nhello, and junk", b"hello", False),
        (OK + b"Content-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
        (b"HTTP/1.0 200 OK\nContent-Length: 2\nConnection: keep-alive\n\nhi", b"hi", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde", True),
        (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n", b"a", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\ntrailing garbage", b"a", False),
        (OK + b"Content-Length: 2\r\nno colon\r\nA Name: x\r\nFolded: x\r\n y\r\n\r\nhi", b"hi", True),
        (OK + b"Content-Length: 2\r\nno colon\r\nX: y\r\n \t\r\n\r\nhi", b"hi", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK + b"Content-Length: 2\r\n\r\nhi", b"hi", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n", b"", True),
    ],
)
def test_a_body_ends_where_its_head_says(sent: bytes, body: bytes, reusable: bool) -> None:
    complete = read(sent)
    assert (body_of(complete), complete.reusable, complete.truncated) == (body, reusable, False)
    assert sent.endswith(complete.head + b"".join(complete.body)) or not reusable
    by_byte = read(*[sent[at : at + 1] for at in range(len(sent))]) if reusable else complete
    assert (body_of(by_byte), by_byte.headers, by_byte.reusable) == (body, complete.headers, reusable)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    complete = read(OK + b"\r\nhe", b"llo", closed=True)
    assert (b"".join(complete.body), complete.reusable) == (b"hello", False)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"<html>", "not HTTP"),
        (b"HTTP/x\r\n\r\n", "invalid major version in b'HTTP/x"),
        (b"HTTP/1.1 200OK\r\nX: y\r\n \r\nContent-Length: 2\r\n\r\nhi", "in b'HTTP/1.1 200OK"),
        (OK + b"Content-Length: -5\r\n\r\n", "invalid character in Content-Length"),
        (OK + b"Content-Length: +5\r\n\r\n", "invalid character in Content-Length"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "duplicate Content-Length"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nhello\r\n", "invalid character in chunk size in the body"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", "invalid character in chunk size"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "expected LF after chunk data"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 21, "more than 20 times 1xx"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "status 101"),
        (OK + b"X: " + b"x" * MAX_HEAD_BYTES, "a head of more than 65,536 bytes"),
    ],
)
def test_an_invalid_response_has_a_reason(sent: bytes, message: str) -> None:
    with pytest.raises(BadMessage, match=message):
        reader().feed(sent)


@pytest.mark.parametrize(
    "sent",
    [
        OK + b"Content-Length: 11\r\n\r\n",
        OK + b"\r\n" + b"x" * 11,
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"X: y\r\n" * 10,
        OK + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 10,
    ],
)
def test_a_body_beyond_its_limit_is_too_large(sent: bytes) -> None:
    with pytest.raises(TooLarge):
        reader(wire=10).feed(sent)


def test_a_body_is_cut_at_the_limit() -> None:
    cut = reader(wire=10, cut=True)
    assert cut.feed(OK + b"\r\n0123456789abc")
    assert (b"".join(cut.body), cut.truncated, cut.reusable) == (b"0123456789", True, False)


def test_a_body_that_need_not_be_read_is_kept_if_it_is_there() -> None:
    there, not_there = reader(skip=True), reader(skip=True)
    assert there.feed(OK + b"Content-Length: 5\r\n\r\nhello")
    assert not_there.feed(OK + b"Content-Length: 6\r\n\r\nhello")
    assert (there.truncated, there.reusable, not_there.truncated, not_there.reusable) == (False, True, True, False)


def test_a_body_that_need_not_be_read_may_be_invalid_however_it_arrives() -> None:
    together, apart = reader(skip=True), reader(skip=True)
    head = b"HTTP/1.1 302 Found\r\nLocation: /\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert together.feed(head + b"<html>moved")
    assert apart.feed(head)
    assert (together.truncated, together.reusable) == (apart.truncated, apart.reusable) == (True, False)


@given(st.lists(st.binary(max_size=20), max_size=8), st.booleans())
@example([b"HTTP/1.1 200\n", b"\n"], True)
def test_any_bytes_are_a_response_or_none(pieces: list[bytes], skip: bool) -> None:
    result = reader(skip=skip)
    try:
        if not any(result.feed(piece) for piece in [b"HTTP/1.1 200 OK\r\n", *pieces]):
            result.end()
    except (BadMessage, TooLarge):
        return
    assert result.status >= 100
