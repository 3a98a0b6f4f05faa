"""HTTP/1.x responses as bytes: the head is parsed leniently, the body is decoded up to a limit.

Servers and crawlers of twenty years wrote these bytes: lines may end in LF alone, a header may lack
its colon, and a body may not be encoded as its header says.
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

# Of Latin-1's blanks only those of ASCII: A0 and 85 may end a character in UTF-8.
_BLANKS = " \t\r\v\f"

_STATUS_LINE = re.compile(rb"(?:HTTP(?:/\d(?:\.\d)?)?|ICY)[ \t]+(\d{3})(?:[ \t]|$)")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]+")
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
    """(status code, headers, body as sent) of an HTTP response; raises BadMessage without a
    status line.

    Responses of status 1xx that come before the final one are skipped.
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
    """(status line, status code, headers) of a head without its empty line; raises BadMessage
    without a status line."""
    first, _, rest = head.partition(b"\n")
    first = first.rstrip(b"\r")
    match = _STATUS_LINE.match(first)
    if match is None:
        raise BadMessage(f"no HTTP status line but {first[:60]!r}")
    headers: Headers = []
    for line in rest.decode("latin-1").split("\n"):
        name, colon, value = line.partition(":")
        if line[:1] in (" ", "\t") and headers:  # a folded header continues
            headers[-1] = (headers[-1][0], f"{headers[-1][1]} {line.strip(_BLANKS)}")
        elif colon:
            headers.append((name.strip(_BLANKS), value.strip(_BLANKS)))
    return first.decode("latin-1").rstrip(), int(match[1]), headers


def header(headers: Iterable[tuple[str, str]], name: str) -> str | None:
    """The last value of the header `name` (lower case); None if there is none."""
    found = None
    for key, value in headers:
        if key.lower() == name:
            found = value
    return found


def charset_of(content_type: str | None) -> str | None:
    """The charset that a Content-Type header declares, in lower case, otherwise as written.

    In a list of types, it is that of the last type, or of the same type before it (Fetch standard,
    3.4).
    """
    charset, media_type = None, None
    for part in _TYPES.findall(content_type or ""):
        found = _media_type(part)
        match = _CHARSET.search(part)
        if found != media_type and (found or not media_type):
            charset, media_type = None, found
        if match and found == media_type:
            charset = match[1].lower()
    return charset


def content_type_of(headers: Iterable[tuple[str, str]]) -> str | None:
    """The Content-Type header, several of them as a list; None if there is none."""
    found = [value for name, value in headers if name.lower() == "content-type"]
    return ", ".join(found) if found else None


@lru_cache(1 << 10)
def media_type_of(content_type: str | None) -> str | None:
    """The last of the media types in a Content-Type header, in lower case; None if it names none.

    As in browsers, what is no type ("html", "text/html charset=utf-8") and types that say nothing
    ("*/*") do not count.
    """
    return next(filter(None, map(_media_type, reversed(_TYPES.findall(content_type or "")))), None)


def _media_type(part: str) -> str | None:
    found = part.partition(";")[0].strip().lower()
    return found if _MEDIA_TYPE.fullmatch(found) and found not in _UNKNOWN_TYPES else None


def decode_body(
    headers: Iterable[tuple[str, str]], body: bytes, limit: int, *, strictly: bool = False
) -> bytes:
    """Return the body without its transfer and content encoding.

    A body that is not encoded as its headers say is returned unchanged, unless `strictly`: many
    crawlers store the decoded body with the headers of the encoded one. Raises CutOff if the
    encoded body is incomplete, BadMessage if it is damaged, TooLarge if it decodes to more than
    `limit` bytes.
    """
    headers = list(headers)
    if (header(headers, "transfer-encoding") or "").rpartition(",")[2].strip().lower() == "chunked":
        body = _dechunk(body, header(headers, "content-length"))
    codings = content_codings(headers)
    try:
        return _within(_decoded(body, codings, limit), limit)
    except BadMessage:
        if strictly or _looks_encoded(body, codings[0]):
            raise
        return _within(body, limit)


def content_codings(headers: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names of a body's content codings, in lower case and the outermost first.

    Names of no coding, such as `utf-8`, `none` or `text/html`, do not count: servers send them
    with a body as it is, and browsers read it so.
    """
    fields = [value for name, value in headers if name.lower() == "content-encoding"]
    names = [part.strip(" \t\"'").lower() for part in ",".join(fields).split(",")]
    return [name for name in reversed(names) if name in _DECODERS]


def _decoded(body: bytes, codings: list[str], limit: int) -> bytes:
    if len(codings) > MAX_ENCODINGS:
        raise BadMessage(f"{len(codings):,} encodings within each other, more than {MAX_ENCODINGS}")
    decoders = [_DECODERS[name] for name in codings]
    for place, decoder in enumerate(decoders):
        try:
            body = decoder(body, limit) if body else body
        except BadMessage:
            # Some servers name twice what they have applied once.
            if decoder not in decoders[:place]:
                raise
    return body


# The decoders import their libraries when they are called: the functions of the library read pages
# that are decoded already, and are installed without them.


def _damaged(error: Exception) -> BadMessage:
    return BadMessage(f"the encoded body is damaged: {error}")


def _within(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise TooLarge(f"more than {limit:,} bytes after decoding", body[:limit])
    return body


def _gunzip(data: bytes, limit: int) -> bytes:
    """One or more members of gzip; junk or padding after them is ignored, as in browsers."""
    body, at = bytearray(), 0
    while not at or data.startswith(_GZIP_MAGIC, at):
        at = _inflate(data, at, body, limit, 31)
    return bytes(body)


def _undeflate(data: bytes, limit: int) -> bytes:
    """`deflate` is a zlib stream by the standard, but often a bare deflate stream in practice
    (RFC 9110, 8.4.1.2).

    Some servers send gzip under this name. A deflate stream cannot begin like gzip.
    """
    if data.startswith(_GZIP_MAGIC):
        return _gunzip(data, limit)
    is_zlib = len(data) > 1 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
    body = bytearray()
    _inflate(data, 0, body, limit, 15 if is_zlib else -15)
    return bytes(body)


def _inflate(data: bytes, at: int, body: bytearray, limit: int, form: int) -> int:
    """Append the stream that begins at `at` to `body`, by zlib's `wbits` for its form; returns
    its end."""
    from isal import isal_zlib

    stream = isal_zlib.decompressobj(form)
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

    stream, body = brotli.Decompressor(), b""
    while len(body) <= limit:
        try:
            piece = stream.process(data, output_buffer_limit=limit + 1 - len(body))
        except brotli.error as error:
            raise _damaged(error) from error
        body, data = body + piece, b""
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
    with decompressor.stream_reader(
        data, read_across_frames=True
    ) as reader:  # does not notice a missing end
        body = _within(reader.read(limit + 1), limit)
    stream, at = decompressor.decompressobj(), 0
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
# each member of gzip or zstd copies what follows it in its piece, and there may be a million
_PIECE_BYTES = 4096
_ZSTD_WINDOW = 8 << 20  # the largest that servers may use (RFC 9659)
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


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


def _dechunk(body: bytes, content_length: str | None) -> bytes:
    """Return the body of `Transfer-Encoding: chunked`; unchanged if it is not chunked after all.

    Many crawlers store the body without its chunks, but with this header. Then its first line may
    still look like a chunk's length: what follows shows that it is none.
    """
    # A crawler that stores the body without chunks may have put its length there.
    is_length_of_body = (content_length or "").strip() == str(len(body))
    pieces: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\n", at)
        size_text = body[at:end].split(b";")[0].strip() if end >= 0 else b""
        if not _CHUNK_SIZE.fullmatch(size_text):
            if not pieces or is_length_of_body:
                return body
            raise BadMessage("a chunk of the body has no length")
        size = int(size_text, 16)
        if size == 0:
            return b"".join(pieces) if pieces or _ends_chunks(body[end + 1 :]) else body
        piece = body[end + 1 : end + 1 + size]
        if len(piece) < size:
            if is_length_of_body or (not pieces and body[end - 1 : end] != b"\r"):
                return body
            raise CutOff("the last chunk of the body breaks off", b"".join([*pieces, piece]))
        at = end + 1 + size
        line_end = body[at : at + 2]
        if not pieces and line_end and line_end != b"\r\n" and line_end[:1] != b"\n":
            return body
        pieces.append(piece)
        at += 2 if line_end == b"\r\n" else 1


def _ends_chunks(rest: bytes) -> bool:
    """Return whether this may follow the length of the last chunk: trailers and empty lines.

    Some servers send the last chunk of an empty body twice.
    """
    return all(b":" in line or line.strip() in (b"", b"0") for line in rest.split(b"\n"))


def _looks_encoded(body: bytes, coding: str) -> bool:
    if coding in ("gzip", "x-gzip"):
        return body.startswith(_GZIP_MAGIC)
    if coding == "zstd":
        return body.startswith(_ZSTD_MAGIC)
    return body.lstrip()[:1] != b"<"


def is_html(content_type: str) -> bool:
    """Whether a Content-Type header names HTML, or no type: then the body decides."""
    return (media_type_of(content_type) or _HTML_TYPES[0]) in _HTML_TYPES
