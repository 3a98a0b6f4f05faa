"""HTTP/1.x responses as bytes: the head is parsed leniently, the body is decoded up to a limit.

Servers and crawlers of twenty years wrote these bytes. Lines may end in LF without CR, a header may
lack its colon, and a body may have another encoding than its header declares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

Headers = list[tuple[str, str]]

REDIRECTS = frozenset({301, 302, 303, 307, 308})
"""Status codes of redirects."""

_HTML_TYPES = ("text/html", "application/xhtml+xml", "application/vnd.wap.xhtml+xml")

MAX_HEAD_BYTES = 256 << 10
"""Longer than any real head; a record whose head does not end is not an HTTP response."""

MAX_INFORMATIONAL = 20
"""Most responses of status 1xx before the final one in a record."""

MAX_ENCODINGS = 5
"""Most nested encodings of a body, as in curl: pages have one, and thousands are an attack on
the decoder."""

# Header values are decoded as Latin-1. Its other blanks, A0 and 85, may end a character in UTF-8.
_BLANKS = " \t\r\v\f"

_STATUS_LINE = re.compile(rb"(?:HTTP(?:/\d(?:\.\d)?)?|ICY)[ \t]+(\d{3})(?:[ \t]|$)")
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;[^\r\n]*)?\r\n")
_TYPES = re.compile(r"""(?:[^,"]|"(?:[^"\\]|\\.)*"?)+""", re.DOTALL)
_MEDIA_TYPE = re.compile(r"[\w!#$%&'*+.^`|~-]+/[\w!#$%&'*+.^`|~-]+", re.ASCII)
_UNKNOWN_TYPES = ("*/*", "unknown/unknown", "application/unknown")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)


class BadMessage(ValueError):
    """The bytes are not an HTTP response, or the body cannot be decoded."""


class _InPart(ValueError):
    def __init__(self, message: str, within: bytes = b""):
        super().__init__(message)
        self.within = within


class CutOff(_InPart, BadMessage):
    """The body is incomplete; `within` is the decoded part."""


class TooLarge(_InPart):
    """The body is larger than the limit; `within` is the decoded part up to the limit."""


def split_response(block: bytes) -> tuple[int, Headers, bytes]:
    """Return (status code, headers, body as sent) of an HTTP response.

    Responses of status 1xx that come before the final one are skipped. Raises BadMessage without a
    status line.
    """
    head, body = _split_head(block)
    _, status, headers = parse_head(head)
    for _ in range(MAX_INFORMATIONAL):
        if not (100 <= status < 200 and _STATUS_LINE.match(body[:80])):
            break
        head, body = _split_head(body)
        _, status, headers = parse_head(head)
    return status, headers, body


def parse_head(head: bytes) -> tuple[str, int, Headers]:
    """Return (status line, status code, headers) of a head without its empty line.

    Raises BadMessage without a status line.
    """
    status_line, _, header_lines = head.partition(b"\n")
    status_line = status_line.rstrip(b"\r")
    match = _STATUS_LINE.match(status_line)
    if match is None:
        raise BadMessage(f"no HTTP status line but {status_line[:60]!r}")
    headers: Headers = []
    for line in header_lines.decode("latin-1").split("\n"):
        name, colon, value = line.partition(":")
        if line[:1] in (" ", "\t") and headers:
            # A folded header continues.
            last_name, last_value = headers[-1]
            headers[-1] = (last_name, f"{last_value} {line.strip(_BLANKS)}")
        elif colon:
            headers.append((name.strip(_BLANKS), value.strip(_BLANKS)))
    return status_line.decode("latin-1").rstrip(), int(match[1]), headers


def header(headers: Iterable[tuple[str, str]], name: str) -> str | None:
    """Return the last value of the header `name` (lower case); None if there is none."""
    last_value = None
    for key, value in headers:
        if key.lower() == name:
            last_value = value
    return last_value


def charset_of(content_type: str | None) -> str | None:
    """Return the charset that a Content-Type header declares, in lower case, otherwise as written.

    In a list of types, the last type counts. It inherits the charset of the same type before it
    (Fetch standard, 3.4).
    """
    charset = None
    media_type = None
    for part in _TYPES.findall(content_type or ""):
        part_type = _media_type(part)
        match = _CHARSET.search(part)
        if part_type != media_type and (part_type or not media_type):
            charset = None
            media_type = part_type
        if match and part_type == media_type:
            charset = match[1].lower()
    return charset


def content_type_of(headers: Iterable[tuple[str, str]]) -> str | None:
    """Return the Content-Type header, several of them as a list; None if there is none."""
    values = [value for name, value in headers if name.lower() == "content-type"]
    return ", ".join(values) if values else None


@lru_cache(1 << 10)
def media_type_of(content_type: str | None) -> str | None:
    """Return the last media type in a Content-Type header, in lower case; None if it has none.

    As in browsers, values that are not a type ("html", "text/html charset=utf-8") and types without
    a meaning ("*/*") do not count.
    """
    for part in reversed(_TYPES.findall(content_type or "")):
        media_type = _media_type(part)
        if media_type is not None:
            return media_type
    return None


def _media_type(part: str) -> str | None:
    name = part.partition(";")[0].strip().lower()
    if name in _UNKNOWN_TYPES or not _MEDIA_TYPE.fullmatch(name):
        return None
    return name


def is_html(content_type: str) -> bool:
    """Return whether a Content-Type header names HTML, or no type: then the body decides."""
    return (media_type_of(content_type) or _HTML_TYPES[0]) in _HTML_TYPES


def decode_body(
    headers: Iterable[tuple[str, str]], body: bytes, limit: int, *, strictly: bool = False
) -> bytes:
    """Return the body without its transfer and content encoding.

    A body with another encoding than its headers declare is returned unchanged, unless `strictly`:
    many crawlers store the decoded body with the headers of the encoded one. Raises CutOff if the
    encoded body is incomplete, BadMessage if it is damaged, TooLarge if it decodes to more than
    `limit` bytes.
    """
    headers = list(headers)
    transfer_codings = header(headers, "transfer-encoding") or ""
    if transfer_codings.rpartition(",")[2].strip().lower() == "chunked":
        body = _dechunk(body)
    codings = content_codings(headers)
    try:
        return _within(_decoded(body, codings, limit), limit)
    except BadMessage:
        if strictly or _looks_encoded(body, codings[0]):
            raise
        return _within(body, limit)


def content_codings(headers: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names of a body's content codings, in lower case and the outermost first.

    Unknown names, such as `utf-8`, `none` or `text/html`, do not count: servers send them with a
    body as it is, and browsers read it so.
    """
    fields = [value for name, value in headers if name.lower() == "content-encoding"]
    names = [name.strip(" \t\"'").lower() for name in ",".join(fields).split(",")]
    return [name for name in reversed(names) if name in _DECODERS]


def _decoded(body: bytes, codings: list[str], limit: int) -> bytes:
    if len(codings) > MAX_ENCODINGS:
        raise BadMessage(f"{len(codings):,} encodings within each other, more than {MAX_ENCODINGS}")
    for name in codings:
        if not body:
            break
        body = _DECODERS[name](body, limit)
    return body


def _within(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise TooLarge(f"more than {limit:,} bytes after decoding", body[:limit])
    return body


# The decoders import their libraries when they are called: the functions of the library get pages
# that are decoded already, and are installed without brotli and ISA-L.


def _damaged(error: Exception) -> BadMessage:
    return BadMessage(f"the encoded body is damaged: {error}")


def _gunzip(data: bytes, limit: int) -> bytes:
    """Return the content of one or more gzip members.

    Junk or padding after them is ignored, as in browsers.
    """
    body = bytearray()
    at = 0
    while not at or data.startswith(_GZIP_MAGIC, at):
        at = _inflate(data, at, body, limit, _GZIP_WBITS)
    return bytes(body)


def _undeflate(data: bytes, limit: int) -> bytes:
    """Return the content of a body with the coding `deflate`.

    By the standard it is a zlib stream, in practice often a bare deflate stream (RFC 9110,
    8.4.1.2), and some servers send gzip. A deflate stream cannot begin like gzip.
    """
    if data.startswith(_GZIP_MAGIC):
        return _gunzip(data, limit)
    body = bytearray()
    _inflate(data, 0, body, limit, _ZLIB_WBITS if _is_zlib(data) else _DEFLATE_WBITS)
    return bytes(body)


def _is_zlib(data: bytes) -> bool:
    """Return whether data begins with the two bytes of a zlib stream (RFC 1950, 2.2)."""
    if len(data) < 2:
        return False
    is_deflate = data[0] & 0x0F == 8
    return is_deflate and (data[0] << 8 | data[1]) % 31 == 0


def _inflate(data: bytes, at: int, body: bytearray, limit: int, wbits: int) -> int:
    """Append the content of the stream that begins at `at` to `body`; return its end.

    `wbits` is zlib's number for the form of the stream.
    """
    from isal import isal_zlib

    stream = isal_zlib.decompressobj(wbits)
    while at < len(data):
        piece = data[at : at + _PIECE_BYTES]
        try:
            body += stream.decompress(piece, limit + 1 - len(body))
        except isal_zlib.error as error:  # type: ignore[misc]  # its stub hides the base class
            raise _damaged(error) from error
        at += len(piece) - len(stream.unused_data)
        if len(body) > limit:
            break
        if stream.eof:
            return at
    raise CutOff("the encoded body breaks off", _within(bytes(body), limit))


def _unbrotli(data: bytes, limit: int) -> bytes:
    import brotli

    stream = brotli.Decompressor()
    body = b""
    while len(body) <= limit:
        try:
            piece = stream.process(data, output_buffer_limit=limit + 1 - len(body))
        except brotli.error as error:
            raise _damaged(error) from error
        body += piece
        data = b""
        if stream.is_finished():
            break
        if not piece and stream.can_accept_more_data():
            raise CutOff("the encoded body breaks off", body)
    return _within(body, limit)


def _unzstd(data: bytes, limit: int) -> bytes:
    import zstandard

    try:
        return _unzstd_frames(data, limit)
    except zstandard.ZstdError as error:
        raise _damaged(error) from error


def _unzstd_frames(data: bytes, limit: int) -> bytes:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        body = _within(reader.read(limit + 1), limit)
    # The reader does not notice a missing end, so the frames are decoded once more.
    stream = decompressor.decompressobj()
    at = 0
    while at < len(data):
        if stream.eof:
            stream = decompressor.decompressobj()
        piece = data[at : at + _PIECE_BYTES]
        stream.decompress(piece)
        at += len(piece) - len(stream.unused_data)
    if not stream.eof:
        raise CutOff("the encoded body breaks off", body)
    return body


_DECODERS = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _undeflate,
    "br": _unbrotli,
    "zstd": _unzstd,
}
ACCEPT_ENCODING = "gzip, deflate, br, zstd"
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# The forms of a stream, as zlib numbers them.
_GZIP_WBITS = 31
_ZLIB_WBITS = 15
_DEFLATE_WBITS = -15

# Each member of gzip or zstd copies the rest of its piece, and a body may have a million members.
_PIECE_BYTES = 4096

# The largest window that servers may use (RFC 9659).
_ZSTD_WINDOW = 8 << 20


def _split_head(block: bytes) -> tuple[bytes, bytes]:
    """Return the head and the body, split at the first empty line."""
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
    """Return the body of `Transfer-Encoding: chunked`.

    A body that does not begin with a chunk is returned unchanged, since many crawlers store the
    body without its chunks, but with this header.
    """
    head = _CHUNK_HEAD.match(body)
    if head is None:
        return body
    pieces: list[bytes] = []
    while head is not None:
        size = int(head[1], 16)
        if size == 0:
            return b"".join(pieces)
        end = head.end() + size
        pieces.append(body[head.end() : end])
        if len(body) <= end + 2:
            raise CutOff("the last chunk of the body breaks off", b"".join(pieces))
        if body[end : end + 2] != b"\r\n":
            raise BadMessage("a chunk of the body is longer than its length")
        head = _CHUNK_HEAD.match(body, end + 2)
    raise BadMessage("a chunk of the body has no length")


def _looks_encoded(body: bytes, coding: str) -> bool:
    if coding in ("gzip", "x-gzip"):
        return body.startswith(_GZIP_MAGIC)
    if coding == "zstd":
        return body.startswith(_ZSTD_MAGIC)
    return body.lstrip()[:1] != b"<"
