"""Reads responses whose framing browsers accept and aiohttp's parser refuses (RFC 9112, 6.3).

    Transfer-Encoding: chunked, and a Content-Length    the chunks count
    Transfer-Encoding: identity, and a Content-Length   the length counts
    Content-Length: 5, 5, or twice the same             the length counts
    Content-Length without a value                      the body ends with the connection

A parser in C has no option for these, so the head of each response is mended before it gets there.
Lengths that differ stay, and are refused. An error in a body ends the body only. Data after a
complete body are ignored, and an incomplete body breaks off, wherever the packets end.

aiohttp has no public way to do so: `ResponseHandler.set_response_params` makes the parser of each
response, and `TCPConnector._factory` makes the handlers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler

MAX_MENDED_BYTES = 64 << 10
"""A longer head goes to the parser as it is."""

_Parsed: TypeAlias = tuple[Sequence[Any], bool, bytes]
"""The result of aiohttp's parsers: responses with their bodies, whether the protocol changes, and
the rest of the data."""

_NOTHING: _Parsed = ((), False, b"")
_HEAD_END = re.compile(rb"\n\r?\n")
# A value may go on in lines that begin with a blank.
_FRAMING = re.compile(
    rb"\n(content-length|transfer-encoding)[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.IGNORECASE
)
_INFORMATIONAL = re.compile(rb"HTTP/1\.[01] 1(?!01)").match


class Connector(aiohttp.TCPConnector):
    """A connector whose connections read responses of unusual framing."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._factory = partial(_Handler, loop=self._loop)  # type: ignore[assignment]


class _Handler(ResponseHandler):
    """A connection's protocol."""

    def set_response_params(self, **params: Any) -> None:
        super().set_response_params(**params)
        self._parser = _MendingParser(self, self._parser)  # type: ignore[assignment]

    def connection_lost(self, exc: BaseException | None) -> None:
        """End a body that goes on until the connection is closed, unless it was broken."""
        payload = self._payload
        if exc is not None and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError("the connection was broken"), exc)
        super().connection_lost(exc)


class _MendingParser:
    """aiohttp's parser of one response, which gets the response's head mended."""

    def __init__(self, handler: ResponseHandler, parser: Any):
        self._handler, self._parser = handler, parser
        self._head = b""
        self._is_head_read = False
        self._payload: StreamReader | None = None
        self._is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> _Parsed:
        """Parse what came of a response."""
        if self._is_head_read:
            return self._feed_body(data)
        data = self._head + data
        self._head = b""
        mended = b""
        # Informational responses may come before the one that counts.
        while _is_http(data) and len(data) < MAX_MENDED_BYTES:
            end = _HEAD_END.search(data)
            if end is None:
                self._head = data
                if not mended:
                    return _NOTHING
                return self._parser.feed_data(mended)  # type: ignore[no-any-return]
            head = data[: end.end()]
            data = data[end.end() :]
            mended += self._mend(head)
            if not _INFORMATIONAL(head):
                self._is_head_read = True
                break
        # The data are of another protocol, or of a head that is too long.
        if not self._is_head_read:
            return self._parser.feed_data(mended + data)  # type: ignore[no-any-return]
        messages, is_upgraded, tail = self._parser.feed_data(mended)
        self._payload = messages[-1][1] if messages else None
        if not messages or is_upgraded or not data:
            return messages, is_upgraded, tail + data
        more_messages, is_upgraded, tail = self._feed_body(data)
        return (*messages, *more_messages), is_upgraded, tail

    def feed_eof(self) -> Any:
        """End the response; a head that did not end is parsed as far as it came."""
        if self._is_broken:
            return None
        if self._head:
            self._parser.feed_data(self._head)
        return self._parser.feed_eof()

    def _feed_body(self, data: bytes) -> _Parsed:
        """Parse a part of the body; an error ends the body, and not what came before it."""
        if self._is_broken:
            return _NOTHING
        try:
            return self._parser.feed_data(data)  # type: ignore[no-any-return]
        # aiohttp's errors, whose classes are not public.
        except Exception as error:
            self._is_broken = True
            self._handler.force_close()
            if self._payload is not None and not self._payload.is_eof():
                message = getattr(error, "message", str(error))
                self._payload.set_exception(aiohttp.ClientPayloadError(message), error)
            return _NOTHING

    def _mend(self, head: bytes) -> bytes:
        """Return the head with one field at most that frames the body."""
        fields = _FRAMING.findall(head)
        if not fields:
            return head
        _, first_value = fields[0]
        if len(fields) == 1 and b"," not in first_value and first_value.strip():
            return head
        return self._reframe(head, fields)

    def _reframe(self, head: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
        """Return the head with the one of several fields that counts; as it is if they differ."""
        lengths = _values_of(fields, b"content-length")
        codings = _values_of(fields, b"transfer-encoding")
        is_chunked = b"chunked" in codings
        if codings and lengths:
            # The server and a proxy before it may differ on where the next response begins.
            self._handler.force_close()
        if not is_chunked and len(set(lengths)) > 1:
            return head
        # By name, the value of the first field; the others, and an empty one, are renamed.
        value_by_name = {b"content-length": b"" if is_chunked else b"".join(lengths[:1])}
        if set(codings) == {b"chunked"}:
            value_by_name[b"transfer-encoding"] = b"chunked"
        elif lengths and not is_chunked:
            value_by_name[b"transfer-encoding"] = b""

        def reframe_field(field: re.Match[bytes]) -> bytes:
            name = field[1].lower()
            if name not in value_by_name:
                return field[0]
            value = value_by_name[name]
            value_by_name[name] = b""
            line_end = b"\r" if field[2].endswith(b"\r") else b""
            if value:
                return b"\n%s: %s%s" % (field[1], value, line_end)
            # As it came, for whoever reads the record.
            return b"\nX-Crawler-%s:%s" % (field[1], field[2])

        return _FRAMING.sub(reframe_field, head)


def _is_http(data: bytes) -> bool:
    """Return whether data begin like a response of HTTP/1, as far as they came."""
    return data[:5] == b"HTTP/"[: len(data)]


def _values_of(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Return the values of a header, which may be lists, in lower case."""
    values = b",".join(value for key, value in fields if key.lower() == name).lower().split(b",")
    return [stripped for value in values if (stripped := value.strip())]
