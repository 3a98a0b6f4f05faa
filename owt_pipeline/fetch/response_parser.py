"""An HTTP/1.x response from the bytes of a connection, as they come: a parser without input or output of its own.

RFC 9112 where it says how a message ends, lenient where servers are: lines that end in LF alone, odd headers, junk
behind the last chunk. What could end differently for another reader (two lengths, a length that is no number) is
no response.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from owt_pipeline.fetch.http_message import (
    BadMessage,
    Headers,
    TooLarge,
    parse_head,
)

MAX_HEAD_BYTES = 64 << 10
"""Of status line and headers; more than any server sends on purpose."""

MAX_INFORMATIONAL = 20
"""Responses of status 1xx before the final one."""

_MAX_LINE = 16 << 10  # of a chunk's size or a trailer

_END_OF_HEAD = re.compile(rb"\n\r?\n")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;|\r?\n)")

_WHOLE = object()

Stop = Callable[[int, Headers], bool]
"""Given status and headers, whether to leave the body unread."""

_Steps = Generator[None, None, None]


class ResponseParser:
    """Parses one response to a GET request.

        while not parser.feed(connection.recv()): ...

    Attributes:
      status: its status code; 0 until the head is whole.
      status_line: its first line, as sent.
      headers: as sent, in order.
      body: in pieces, as sent but for its transfer encoding; empty where `stop` said so.
      cut: whether the body was cut.
      begun: whether a byte of it came.
      reusable: once it is whole, whether the connection can take another request.
    """

    def __init__(self, stop: Stop, wire_bytes: int, *, cut: bool = False):
        """A parser of a response whose body is at most `wire_bytes` as sent: more is TooLarge, or with `cut` cut."""
        self.status, self.status_line = 0, ""
        self.headers: Headers = []
        self.body: list[bytes] = []
        self.begun = self.reusable = self.cut = False
        self._stop, self._may_cut = stop, cut
        self._wire_left, self._wire_bytes = wire_bytes, wire_bytes
        self._buffer = bytearray()
        self._ended = False
        self._steps = self._parse()
        next(self._steps)

    def feed(self, data: bytes) -> bool:
        """Take bytes; returns whether the response is whole. Raises BadMessage or TooLarge."""
        self.begun = True
        self._buffer += data
        return next(self._steps, _WHOLE) is _WHOLE

    def end(self) -> None:
        """The connection was closed; raises BadMessage where the response is not whole by that."""
        self._ended = True
        if next(self._steps, _WHOLE) is not _WHOLE:
            raise BadMessage("the body breaks off")

    def _parse(self) -> _Steps:
        yield  # until there are bytes
        for _ in range(MAX_INFORMATIONAL + 1):
            yield from self._head()
            if not 100 <= self.status < 200:
                break
            if self.status == 101:
                raise BadMessage("status 101: another protocol, which nobody asked for")
        else:
            raise BadMessage(f"more than {MAX_INFORMATIONAL} responses of status 1xx")
        fields = _fields(self.headers)
        length = 0 if self.status in (204, 304) else _body_length(fields)
        if length and self._stop(self.status, self.headers):
            if length < 0 or length > len(self._buffer):
                return
            del self._buffer[:length]  # it is here already, so the connection can serve again
        elif length is None and self._stop(self.status, self.headers):
            return
        elif length != 0:
            try:
                yield from self._body(length)
            except TooLarge:
                if not self._may_cut:
                    raise
                self.cut = True
                return
        self.reusable = length is not None and not self._buffer and _keeps_alive(self.status_line, fields)

    def _head(self) -> _Steps:
        searched = 0
        while (end := _END_OF_HEAD.search(self._buffer, searched)) is None:
            start = bytes(self._buffer[:5])
            if not b"HTTP/".startswith(start):
                raise BadMessage(f"not HTTP, which begins with a status line, but {bytes(self._buffer[:40])!r}")
            if len(self._buffer) > MAX_HEAD_BYTES:
                break
            searched = max(len(self._buffer) - 2, 0)
            yield
        if end is None or end.end() > MAX_HEAD_BYTES:
            raise BadMessage(f"a head of more than {MAX_HEAD_BYTES:,} bytes")
        self.status_line, self.status, self.headers = parse_head(bytes(self._buffer[: end.start()]))
        del self._buffer[: end.end()]

    def _body(self, length: int | None) -> _Steps:
        if length is not None and length > self._wire_bytes and not self._may_cut:
            raise TooLarge(f"Content-Length: {length:,}, more than {self._wire_bytes:,} bytes")
        if length is None:
            yield from self._until_closed()
        elif length == _CHUNKED:
            yield from self._chunks()
        else:
            yield from self._exactly(length)

    def _until_closed(self) -> _Steps:
        while True:
            self._take(len(self._buffer))
            if self._ended:
                return
            yield

    def _exactly(self, length: int) -> _Steps:
        while True:
            length -= self._take(min(length, len(self._buffer)))
            if not length:
                return
            yield

    def _chunks(self) -> _Steps:
        while True:
            line = yield from self._line()
            size = _CHUNK_SIZE.match(line)
            if size is None:
                raise BadMessage(f"a chunk of the body has no length but {line[:40]!r}")
            if not int(size[1], 16):
                break
            yield from self._exactly(int(size[1], 16))
            if (yield from self._line()).strip():
                raise BadMessage("a chunk of the body is longer than it says")
        while (yield from self._line()).strip():  # trailers
            pass

    def _line(self) -> Generator[None, None, bytes]:
        while (end := self._buffer.find(b"\n") + 1) == 0:
            if len(self._buffer) > _MAX_LINE:
                raise BadMessage(f"no end of line within {_MAX_LINE:,} bytes of a chunked body")
            yield
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._count(len(line))
        return line

    def _take(self, size: int) -> int:
        """Take `size` bytes of the buffer for the body, and count them."""
        if size:
            self.body.append(bytes(memoryview(self._buffer)[: min(size, self._wire_left)]))
            del self._buffer[:size]
            self._count(size)
        return size

    def _count(self, size: int) -> None:
        self._wire_left -= size
        if self._wire_left < 0:
            raise TooLarge(f"more than {self._wire_bytes:,} bytes sent")


_CHUNKED = -1


def _fields(headers: Headers) -> dict[str, str]:
    """Headers by their names in lower case, those of one name joined (RFC 9110, 5.3)."""
    fields: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        fields[key] = f"{fields[key]}, {value}" if key in fields else value
    return fields


def _body_length(fields: dict[str, str]) -> int | None:
    """Bytes of the body by its headers; _CHUNKED; None where it ends with the connection (RFC 9112, 6.3)."""
    if "transfer-encoding" in fields:
        return _CHUNKED if fields["transfer-encoding"].rpartition(",")[2].strip().lower() == "chunked" else None
    if "content-length" not in fields:
        return None
    lengths = {part.strip() for part in fields["content-length"].split(",")}
    if len(lengths) > 1:
        raise BadMessage(f"more than one Content-Length: {', '.join(sorted(lengths))[:100]}")
    (length,) = lengths
    if not (length.isascii() and length.isdigit() and len(length) < 19):
        raise BadMessage(f"a Content-Length that is none: {length[:40]!r}")
    return int(length)


def _keeps_alive(status_line: str, fields: dict[str, str]) -> bool:
    said = fields.get("connection", "").lower()
    return "close" not in said and (not status_line.startswith("HTTP/1.0") or "keep-alive" in said)
