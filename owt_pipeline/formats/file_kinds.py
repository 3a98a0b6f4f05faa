"""What a file is, by its first bytes: the kinds of content, and which option or command takes each.

The name of a file does not count, since files have names of all sorts: `.parq`, `.jl`, none.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from typing import IO, Any, NamedTuple

from owt_pipeline.formats.lines import Decompressed, is_compressed

NUM_START_BYTES = 1 << 12
"""Bytes that are enough to know what a file is."""

TEXT = "text"
"""The kind of a file that is none of the others: text of any sort, or bytes that are not known."""

_BOM = rb"(?:\xef\xbb\xbf)?\s*"
_HTML = re.compile(_BOM + rb"<(?:!doctype|!--|html|head|body|\?xml)", re.IGNORECASE)
# An object with a key, alone or as the first of an array. A text may begin with a brace.
_JSON = re.compile(_BOM + rb"(?:\[\s*)?\{\s*\"[^\"\n]*\"\s*:")
# A comment of a list of URLs begins with `#`.
_URLS = re.compile(_BOM + rb"(?:#[^\n]*\n\s*)*https?://", re.IGNORECASE)
# The first line of a CSV or TSV with a column of URLs among others.
_TABLE = re.compile(
    rb"(?:\xef\xbb\xbf)?(?=[^\n]*[,;\t])(?:[^\n,;\t]*[,;\t])*\s*\"?(?:url|link|href)\"?"
    rb"\s*[,;\t\r\n]",
    re.IGNORECASE,
)


class _Kind(NamedTuple):
    """A kind of content.

    Attributes:
      name: its name in code.
      magic: the first bytes.
      offset: the offset of these bytes.
      description: what such a file is, and what to do with a FILE of this kind.
    """

    name: str
    magic: bytes
    description: str
    offset: int = 0


_DECOMPRESS = "compressed with {0}, which is not read here: decompress it ({0} -d FILE)"
_UNPACK_ZIP = "unpack it (python -m zipfile -e FILE FILE.files)"
_CONVERT_ARROW = (
    'convert it to Parquet (python -c "import sys, pyarrow as a, pyarrow.parquet as p; '
    "p.write_table(a.ipc.open_{}(a.memory_map(sys.argv[1])).read_all(), sys.argv[1] + '.parquet')"
    '" FILE)'
)

_KINDS = (
    _Kind(
        "warc",
        b"WARC/",
        "a WARC file: `owt run RUN --warcs FILE` extracts the text of each of its pages",
    ),
    _Kind(
        "arc",
        b"filedesc:",
        "an ARC file: make a WARC file of it (warcio recompress FILE FILE.warc.gz)",
    ),
    _Kind(
        "parquet",
        b"PAR1",
        "a Parquet file: `owt import RUN FILE` reads its texts, and `owt run RUN --links FILE` "
        "fetches the URLs of its column url",
    ),
    _Kind(
        "arrow",
        b"ARROW1",
        f"an Arrow file: {_CONVERT_ARROW.format('file')}",
    ),
    # Hugging Face's datasets write streams, which begin with the length of the schema.
    _Kind(
        "arrow",
        b"\xff\xff\xff\xff",
        f"an Arrow file: {_CONVERT_ARROW.format('stream')}",
    ),
    _Kind("avro", b"Obj\x01", "an Avro file: convert it to Parquet"),
    _Kind("orc", b"ORC", "an ORC file: convert it to Parquet"),
    _Kind("lfs", b"version https://git-lfs", "a pointer of Git LFS: download it (git lfs pull)"),
    _Kind("gz", b"\x1f\x8b", _DECOMPRESS.format("gzip")),
    _Kind("zst", b"\x28\xb5\x2f\xfd", _DECOMPRESS.format("zstd")),
    _Kind("xz", b"\xfd7zXZ", _DECOMPRESS.format("xz")),
    _Kind("bz2", b"BZh", _DECOMPRESS.format("bzip2")),
    _Kind("lz4", b"\x04\x22\x4d\x18", "compressed with lz4: decompress it (lz4 -d -m FILE)"),
    _Kind(
        "zip", b"PK\x03\x04", f"a ZIP archive, or a document such as DOCX or EPUB: {_UNPACK_ZIP}"
    ),
    _Kind("zip", b"PK\x05\x06", "an empty ZIP archive"),
    _Kind("7z", b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it (7z x FILE)"),
    _Kind("rar", b"Rar!\x1a\x07", "a RAR archive: unpack it (unrar x FILE)"),
    _Kind(
        "tar",
        b"ustar",
        "a tar archive: unpack it (python -m tarfile -e FILE FILE.files)",
        offset=257,
    ),
    _Kind(
        "sqlite",
        b"SQLite format 3\x00",
        "an SQLite database: export a table as CSV (sqlite3 -header -csv FILE 'SELECT * FROM "
        "TABLE' > TABLE.csv)",
    ),
    _Kind("pdf", b"%PDF-", "a PDF"),
    _Kind("rtf", b"{\\rtf", "an RTF document"),
    _Kind("office", b"\xd0\xcf\x11\xe0", "an Office document"),
    _Kind("image", b"\x89PNG\r\n", "an image"),
    _Kind("image", b"\xff\xd8\xff", "an image"),
    _Kind("image", b"GIF8", "an image"),
    _Kind("media", b"RIFF", "an image, a sound or a video"),
)

_DESCRIPTIONS_OF_TEXTS = {
    "html": "a web page, such as the error page of a server: download the file again, or print the "
    "text of the page with `owt page FILE`",
    "json": "JSON: `owt import RUN FILE` reads its texts, `owt run RUN --links FILE` fetches the "
    "URLs of its field url, and `owt run RUN --dumps FILE` the URLs of Reddit's submissions",
    "urls": "a list of URLs: `owt run RUN --links FILE` fetches them",
    "table": "a table of URLs: `owt run RUN --links FILE` fetches them",
}

TEXTUAL = frozenset({TEXT, *_DESCRIPTIONS_OF_TEXTS})
"""The kinds of files that a person can read: the content of a text can look like any of them."""


def read_start(file: IO[bytes]) -> bytes:
    """Return the first bytes of an open file, decompressed; its position is the start again.

    Parquet has its own compression, and WARC files only that of gzip. Bytes of such files in
    another one are returned as they are. The result is shorter than NUM_START_BYTES for a short
    file, and for a compressed one that is
    damaged there.
    """
    start = file.read(NUM_START_BYTES)
    file.seek(0)
    if not is_compressed(start):
        return start
    content = start
    with contextlib.suppress(MemoryError):
        content = io.BufferedReader(Decompressed(file), NUM_START_BYTES).read(NUM_START_BYTES)
    file.seek(0)
    is_gzip = start.startswith(b"\x1f\x8b")
    is_unread = content.startswith(b"PAR1") or (content.startswith(b"WARC/") and not is_gzip)
    return start if is_unread else content


def kind_of(start: bytes) -> str:
    """Return the kind of a file with these first bytes, decompressed; TEXT for all other files."""
    if kind := _kind_by_magic(start):
        return kind.name
    if _HTML.match(start):
        return "html"
    if _JSON.match(start):
        return "json"
    if _URLS.match(start):
        return "urls"
    if _TABLE.match(start):
        return "table"
    return TEXT


def describe_kind(start: bytes, path: str) -> str:
    """Return what a file with these first bytes is, and the command that takes it; "" if unknown.

    `path` is the file in the command.
    """
    kind = _kind_by_magic(start)
    description = kind.description if kind else _DESCRIPTIONS_OF_TEXTS.get(kind_of(start), "")
    return description.replace("FILE", shlex.quote(path))


def _kind_by_magic(start: bytes) -> Any:
    for kind in _KINDS:
        if start.startswith(kind.magic, kind.offset):
            return kind
    return None
