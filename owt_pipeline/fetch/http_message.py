"""HTTP/1.x responses as bytes: the head parsed leniently, the body decoded under a limit.

Servers and crawlers of twenty years wrote these bytes, so lines may end in LF alone, a header may lack its
colon, and a body may not be encoded as its header says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from isal import isal_zlib

Headers = list[tuple[str, str]]

MAX_HEAD_BYTES = 256 << 10
"""More than any server sends on purpose; a record without an end of its head is no HTTP response."""

MAX_ENCODINGS = 5
"""Of one body, within each other, as in curl: a page has one, and thousands are an attack on the decoder."""

_STATUS_LINE = re.compile(rb"(?:HTTP/\d(?:\.\d)?|ICY)[ \t]+(\d{3})(?:[ \t]|$)")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)


class BadMessage(ValueError):
    """Bytes that are no HTTP response, or a body that does not decode."""


class TooLarge(ValueError):
    """A body that is larger than the limit; `within` is what lies before it, of what was decoded last."""

    def __init__(self, message: str, within: bytes = b""):
        super().__init__(message)
        self.within = within


def split_response(block: bytes) -> tuple[int, Headers, bytes]:
    """(status code, headers, body as sent) of an HTTP response; raises BadMessage where there is no status line."""
    head, body = _split_head(block)
    _, status, headers = parse_head(head)
    return status, headers, body


def parse_head(head: bytes) -> tuple[str, int, Headers]:
    """(status line, status code, headers) of a head without its empty line; raises BadMessage without a status line."""
    first, _, rest = head.partition(b"\n")
    first = first.rstrip(b"\r")
    match = _STATUS_LINE.match(first)
    if match is None:
        raise BadMessage(f"no HTTP status line but {first[:60]!r}")
    headers: Headers = []
    for line in rest.decode("latin-1").split("\n"):
        name, colon, value = line.partition(":")
        if line[:1] in (" ", "\t") and headers:  # a folded header goes on
            headers[-1] = (headers[-1][0], f"{headers[-1][1]} {line.strip()}")
        elif colon:
            headers.append((name.strip(), value.strip()))
    return first.decode("latin-1").rstrip(), int(match[1]), headers


def header(headers: Iterable[tuple[str, str]], name: str) -> str | None:
    """The last value of header `name`, in any case; None without one."""
    found = None
    for key, value in headers:
        if key.lower() == name:
            found = value
    return found


def charset_of(content_type: str | None) -> str | None:
    """The charset that a Content-Type header declares, in lower case, as it is written there."""
    match = _CHARSET.search(content_type or "")
    return match[1].lower() if match else None


def decode_body(headers: Iterable[tuple[str, str]], body: bytes, limit: int) -> bytes:
    """The body without its transfer and content encoding.

    A body that is not encoded as its headers say is taken as it is: many crawlers store the decoded body
    under the headers of the encoded one. Raises BadMessage for a body that breaks off or is damaged within its
    encoding, TooLarge where it decodes to more than `limit` bytes.
    """
    headers = list(headers)
    if (header(headers, "transfer-encoding") or "").lower().strip() == "chunked":
        body = _dechunk(body)
    encodings = (header(headers, "content-encoding") or "").lower()
    if encodings and not _looks_encoded(body, encodings):
        encodings = ""
    decoder = BodyDecoder(encodings, limit)
    decoded = decoder.feed(body)
    decoder.finish()
    return decoded


def gunzip(body: bytes, limit: int) -> bytes | None:
    """What `body` holds, if that is one whole gzip member of at most `limit` bytes and nothing else."""
    gzip = isal_zlib.decompressobj(31)
    try:
        content: bytes = gzip.decompress(body, limit + 1)
    except isal_zlib.error:  # type: ignore[misc]  # its stub hides what it derives from
        return None
    return content if gzip.eof and not gzip.unused_data and len(content) <= limit else None


class _Decompressor(Protocol):
    """What ISA-L's zlib and brotli have in common here."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes) -> Iterator[bytes]: ...


class BodyDecoder:
    """Undoes a Content-Encoding piece by piece, and never holds more than a piece beyond its limit."""

    def __init__(self, encodings: str, limit: int):
        """A decoder of the Content-Encoding header `encodings`; raises BadMessage for one it does not know."""
        self._layers: list[_Decompressor] = []
        self._limit, self._size, self._begun = limit, 0, False
        for name in reversed([part.strip() for part in encodings.lower().split(",")]):
            if name in ("", "identity", "none"):
                continue
            if name in ("gzip", "x-gzip"):
                self._layers.append(_Zlib("gzip"))
            elif name == "deflate":
                self._layers.append(_Zlib("deflate"))
            elif name == "br" and brotli_available():
                self._layers.append(_Brotli())
            else:
                raise BadMessage(f"unknown Content-Encoding {name[:40]!r}")
        if len(self._layers) > MAX_ENCODINGS:
            raise BadMessage(f"{len(self._layers):,} encodings within each other, more than {MAX_ENCODINGS}")

    def feed(self, data: bytes) -> bytes:
        """What `data` decodes to; raises BadMessage or TooLarge."""
        self._begun = self._begun or bool(data)
        pieces: list[bytes] = []
        for piece in self._through(data, self._layers):
            self._size += len(piece)
            if self._size > self._limit:
                within = b"".join([*pieces, piece[: len(piece) - self._size + self._limit]])
                raise TooLarge(f"more than {self._limit:,} bytes after decoding", within)
            pieces.append(piece)
        return b"".join(pieces)

    def finish(self) -> None:
        """Raise BadMessage where the body breaks off within its encoding."""
        if self._begun and not all(layer.eof for layer in self._layers):
            raise BadMessage("the encoded body breaks off")

    def _through(self, data: bytes, layers: list[_Decompressor]) -> Iterator[bytes]:
        if not layers:
            if data:
                yield data
            return
        for piece in layers[0].decompress(data):
            yield from self._through(piece, layers[1:])


_PIECE = 256 << 10


class _Zlib:
    """gzip (of several members, as some servers send) or deflate, in pieces."""

    def __init__(self, name: str):
        self._gzip = name != "deflate"
        self._zlib: Any = None
        self._waiting = b""  # too few bytes to tell what begins with them

    @property
    def eof(self) -> bool:
        return self._zlib is not None and bool(self._zlib.eof)

    def decompress(self, data: bytes) -> Iterator[bytes]:
        data, self._waiting = self._waiting + data, b""
        while data:
            if self._zlib is None or self._zlib.eof:
                if len(data) < 2:
                    self._waiting = data
                    return
                if self.eof and not data.startswith(b"\x1f\x8b"):
                    return  # junk or padding behind the end, which browsers ignore too
                self._zlib = isal_zlib.decompressobj(31 if self._gzip else _deflate_wbits(data))
            try:
                piece = self._zlib.decompress(data, _PIECE)
            except isal_zlib.error as error:  # type: ignore[misc]  # its stub hides what it derives from
                raise BadMessage(f"the encoded body is damaged: {error}") from error
            if piece:
                yield piece
            data = self._zlib.unconsumed_tail or self._zlib.unused_data


def _deflate_wbits(data: bytes) -> int:
    """`deflate` is a zlib stream by the standard, and often a bare deflate stream in the wild (RFC 9110, 8.4.1.2)."""
    return 15 if data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0 else -15


class _Brotli:
    """Brotli, where its package is installed."""

    def __init__(self) -> None:
        import brotli

        self._brotli: Any = brotli.Decompressor()
        self._error: Any = brotli.error

    @property
    def eof(self) -> bool:
        return bool(self._brotli.is_finished())

    def decompress(self, data: bytes) -> Iterator[bytes]:
        while not self.eof:
            try:
                piece = self._brotli.process(data, output_buffer_limit=_PIECE)
            except self._error as error:
                raise BadMessage(f"the encoded body is damaged: {error}") from error
            data = b""
            if piece:
                yield piece
            if self._brotli.can_accept_more_data():
                return


def brotli_available() -> bool:
    """Whether bodies in `br` can be decoded; if not, live requests do not offer it."""
    try:
        import brotli
    except ImportError:
        return False
    return hasattr(brotli.Decompressor, "can_accept_more_data")


def _split_head(block: bytes) -> tuple[bytes, bytes]:
    """The head and the body, split at the first empty line."""
    at = 0
    while at < MAX_HEAD_BYTES:
        end = block.find(b"\n", at)
        if end < 0:
            return block, b""
        if block[at:end] in (b"", b"\r"):
            return block[:at].rstrip(b"\r\n"), block[end + 1 :]
        at = end + 1
    raise BadMessage(f"the head of the response does not end within {MAX_HEAD_BYTES:,} bytes")


def _dechunk(body: bytes) -> bytes:
    """The body of `Transfer-Encoding: chunked`; as it is, where it is not chunked after all."""
    pieces: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\n", at)
        size_text = body[at:end].split(b";")[0].strip() if end >= 0 else b""
        try:
            size = int(size_text, 16)
        except ValueError:
            if not pieces:
                return body
            raise BadMessage("a chunk of the body has no length") from None
        if size == 0:
            return b"".join(pieces)
        piece = body[end + 1 : end + 1 + size]
        if len(piece) < size:
            raise BadMessage("the last chunk of the body breaks off")
        pieces.append(piece)
        at = end + 1 + size
        at += 2 if body[at : at + 2] == b"\r\n" else 1


def _looks_encoded(body: bytes, encodings: str) -> bool:
    outermost = encodings.split(",")[-1].strip()
    if outermost in ("gzip", "x-gzip"):
        return body.startswith(b"\x1f\x8b")
    return body.lstrip()[:1] != b"<"
