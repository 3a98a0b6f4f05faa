"""Guesses what a file is from its first bytes, for messages about a file in the wrong place."""

from __future__ import annotations

import re
import zlib

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_XZ_MAGIC = b"\xfd7zXZ"
_BZIP2_MAGIC = b"BZh"
_HTML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|!--|html|head|body|\?xml)", re.IGNORECASE)
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
# An object with a key, alone or as the first of an array. A text may begin with a brace.
_JSON_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{\s*\"")
_URL = re.compile(rb"(?:\xef\xbb\xbf)?\s*https?://", re.IGNORECASE)
# The first line of a CSV or TSV with a column of URLs.
_TABLE = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:[^\n,;\t]*[,;\t])*\s*\"?(?:url|link|href)\"?\s*[,;\t\r\n]", re.IGNORECASE
)

# The first bytes of files that are not a page, and what such a file is.
_NOT_PAGES: tuple[tuple[bytes, str], ...] = (
    (b"WARC/", "a WARC file: `owt run RUN --warcs FILE` extracts the text of each of its pages"),
    (
        b"PAR1",
        "a Parquet file: `owt import RUN FILE` reads its texts, and `owt run RUN --links FILE` "
        "fetches the URLs of its column url",
    ),
    (b"ARROW1", "an Arrow file"),
    (b"%PDF-", "a PDF"),
    (b"{\\rtf", "an RTF document"),
    (b"\xd0\xcf\x11\xe0", "an Office document"),
    (b"PK\x03\x04", "a ZIP archive, or a document in one such as DOCX or EPUB"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x89PNG\r\n", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"GIF8", "an image"),
    (b"RIFF", "an image, a sound or a video"),
)
# A tar archive has this in the header of its first file.
_TAR = (257, b"ustar")

NUM_START_BYTES = 1 << 12
"""Bytes that are enough to know what a file is."""


def is_web_page(start: bytes) -> bool:
    """Return whether a file that begins with `start` is HTML or XML."""
    return _HTML.match(start) is not None


def flag_for(start: bytes) -> str:
    """Return which flag or command takes a file that begins with `start`, as in "a WARC file, which
    --warcs takes"; "" if it is not known.

    A file in gzip is judged by its content.
    """
    if start.startswith(_GZIP_MAGIC):
        start = _decompress(start)
    if start.startswith(b"WARC/"):
        return "a WARC file, which --warcs takes"
    if start.startswith(b"PAR1"):
        return "a Parquet file: --links takes tables of links, and `owt import` takes texts"
    if start.startswith((_ZSTD_MAGIC, _XZ_MAGIC, _BZIP2_MAGIC)):
        return "a compressed file, such as the dumps that --dumps takes"
    if is_web_page(start):
        return "a web page, such as the error page of a server"
    if _JSON.match(start):
        return "JSON, such as the submissions that --dumps takes"
    if _URL.match(start) or _TABLE.match(start):
        return "a list or table of URLs, which --links takes"
    return ""


def command_for(path: str) -> str:
    """Return which command takes a file with this extension, to end a message; "" if none."""
    extensions = path.rpartition("/")[2].lower().split(".")[1:]
    if "warc" in extensions:
        return f". `owt run RUN --warcs {path}` reads a WARC file"
    if "html" in extensions or "htm" in extensions:
        return f". `owt page {path}` prints the text of a web page"
    return ""


def why_not_a_page(start: bytes) -> str:
    """Return what a file that begins with `start` is, and the command that takes such a FILE.

    The result is "" for a page, also for plain text. `start` is decompressed.
    """
    for magic, kind in _NOT_PAGES:
        if start.startswith(magic):
            return kind
    offset, magic = _TAR
    if start[offset:].startswith(magic):
        return "a tar archive"
    if is_web_page(start):
        return ""
    if _JSON_TEXT.match(start):
        return (
            "JSON: `owt import RUN FILE` reads its texts, and `owt run RUN --dumps FILE` fetches "
            "the URLs of Reddit's submissions"
        )
    if _has_only_urls(start) or _TABLE.match(start):
        return "a list or table of URLs: `owt run RUN --links FILE` fetches them"
    return ""


def _has_only_urls(start: bytes) -> bool:
    """Return whether each line is a URL. An article may begin with one, too."""
    lines = start.removeprefix(b"\xef\xbb\xbf").split()
    return bool(lines) and all(map(_URL.match, lines))


def _decompress(start: bytes) -> bytes:
    """Return the beginning of gzip's content; b"" if it cannot be decompressed."""
    try:
        return zlib.decompressobj(31).decompress(start, NUM_START_BYTES)
    except zlib.error:
        return b""
