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
_URL = re.compile(rb"(?:\xef\xbb\xbf)?\s*https?://", re.IGNORECASE)
# The first line of a CSV or TSV with a column of URLs.
_TABLE = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:[^\n,;\t]*[,;\t])*\s*\"?(?:url|link|href)\"?\s*[,;\t\r\n]", re.IGNORECASE
)

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


def _decompress(start: bytes) -> bytes:
    """Return the beginning of gzip's content; b"" if it cannot be decompressed."""
    try:
        return zlib.decompressobj(31).decompress(start, NUM_START_BYTES)
    except zlib.error:
        return b""
