"""Common Crawl's columnar index: its files, the range of keys of each row group, and reading columns of row groups.

The index has about 300 Parquet files per crawl, each roughly sorted by SURT key; the least and greatest keys of a row
group say whether a key can be in it. https://commoncrawl.org/columnar-index describes the index.
"""

from __future__ import annotations

import contextlib
import gzip
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.errors import UserError
from owt_pipeline.ledger.dataset import batch_of
from owt_pipeline.storage.folder import Storage

KEY = "url_surtkey"
NEEDED = ("url", "fetch_time", "fetch_status", "content_mime_detected",
           "warc_filename", "warc_record_offset", "warc_record_length")  # fmt: skip
"""The columns of a capture; `content_truncated` is missing in the first years' crawls."""

GROUPS = pa.schema(
    [
        ("file", pa.int32()),
        ("group", pa.int32()),
        ("rows", pa.int64()),
        ("least", pa.binary()),
        ("greatest", pa.binary()),
    ]
)
"""Row groups with their least and greatest keys; null where these are unknown."""

UNREADABLE = -1
"""The number in place of the row groups of a file whose footer cannot be read."""

_URLS_PER_RANGE = 1 << 17  # each range of keys is a part of the join
_LEAST_RANGES, _MOST_RANGES = 16, 4096
_FOOTER_BYTES = 64 << 10  # most footers are smaller
_TAIL_BYTES = 8  # after a footer: its length, and Parquet's magic
_MAGIC = b"PAR1"
_MOST_PATHS_BYTES = 64 << 20
_GAP_BYTES = 64 << 10  # the largest gap between columns that is read along with them
_MOST_BYTES = 8 << 20  # of one request

Read = Callable[[str, Sequence[tuple[int, int]]], list[bytes]]
"""Reads (start, length)s of a file; raises UserError."""


def list_files(index: str, crawls: Sequence[str], read_all: Callable[[str, int], bytes]) -> list[tuple[str, str]]:
    """(crawl, URI) of the files of an index that list captures of pages, sorted; raises UserError if a crawl has none.

    HTTP has no listing of folders, so there the list that Common Crawl publishes with each crawl is read.
    """
    found: list[tuple[str, str]] = []
    for crawl in crawls:
        subset = f"crawl={crawl}/subset=warc/"
        if is_http(index):
            root, below = root_of(index), f"{index.rstrip('/')}/{subset}"
            paths = f"{root}/crawl-data/{crawl}/cc-index-table.paths.gz"
            try:
                names = gzip.decompress(read_all(paths, _MOST_PATHS_BYTES)).decode().split()
            except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
                raise UserError(f"--cc_crawls {crawl}: {paths} is not a list of files: {error}") from error
            files = [uri for name in names if (uri := f"{root}/{name}").startswith(below) and uri.endswith(".parquet")]
            missing = f"{paths} names no file below {below[len(root) + 1 :]}"
        else:
            folder = Storage(index)
            files = [folder.path(entry.name) for entry in folder.list(subset) if entry.name.endswith(".parquet")]
            missing = f"no file {folder.path(subset)}*.parquet"
        if not files:
            raise UserError(f"--cc_crawls {crawl}: {missing}; give the index as --cc_index and crawls that it has")
        found += [(crawl, file) for file in sorted(files)]
    return found


def root_of(index: str) -> str:
    """The root that an index and its WARC files share; raises UserError if it cannot be derived."""
    root, middle, _ = index.rstrip("/").partition("/cc-index/")
    if not middle:
        raise UserError(
            f"--cc_index {index}: not a folder below .../cc-index/; give the root of the WARC files as --cc_data"
        )
    return root


def is_http(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def read_footer(uri: str, read_end: Callable[[str, int], tuple[bytes, int]]) -> tuple[bytes, int]:
    """The footer of a Parquet file, and the file's size; raises UserError for another kind of file."""
    end, size = read_end(uri, _FOOTER_BYTES)
    length = int.from_bytes(end[-_TAIL_BYTES:-4], "little") + _TAIL_BYTES
    if end[-4:] != _MAGIC or length > size:
        raise UserError(f"{uri} is not a Parquet file: give Common Crawl's columnar index, or a complete copy of it")
    if length > len(end):
        end, size = read_end(uri, length)
    return end[-length:], size


def groups_of(file: int, uri: str, footer: bytes) -> pa.RecordBatch:
    """The row groups of a file, of schema GROUPS; raises UserError if a column is missing."""
    with _reading(uri):
        metadata = pq.read_metadata(pa.BufferReader(footer))
    columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    missing = [name for name in (KEY, *NEEDED) if name not in columns]
    if missing:
        raise UserError(f"{uri} has no column {', '.join(missing)}: it is no file of Common Crawl's columnar index")
    rows = []
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        statistics = about.column(columns[KEY]).statistics
        known = statistics is not None and statistics.has_min_max
        least, greatest = (_bytes(statistics.min), _bytes(statistics.max)) if known else (None, None)
        rows.append((file, group, about.num_rows, least, greatest))
    return batch_of(rows, GROUPS)


class Ranges(msgspec.Struct, frozen=True):
    """The plan of the join, made once all footers are read.

    Attributes:
      bounds: the least key of each range but the first.
      footers: path of each file's footer.
    """

    bounds: list[bytes]
    footers: list[str]


def plan_ranges(groups: pa.Table, urls: int) -> list[bytes]:
    """The least key of each range but the first, for ranges with about as many rows of the index each.

    `urls` is the number of the run's URLs, by which the number of ranges grows.
    """
    known = groups.filter(pc.is_valid(groups["least"])).sort_by([("least", "ascending"), ("file", "ascending")])
    if not len(known):
        return []
    wanted = min(max(urls // _URLS_PER_RANGE, _LEAST_RANGES), _MOST_RANGES, len(known))
    rows = np.cumsum(known["rows"].to_numpy())
    starts = np.searchsorted(rows, rows[-1] * np.arange(1, wanted) / wanted, side="right")
    return sorted(set(known["least"].take(pa.array(np.minimum(starts, len(known) - 1))).to_pylist()))


class IndexReader:
    """Reads columns of row groups of an index.

    Attributes:
      files: (crawl, URI) of each file.
      read_bytes: bytes read so far.
    """

    def __init__(self, files: Sequence[tuple[str, str]], footer: Callable[[int], bytes], read: Read):
        """A reader of `files`; `footer` gives the footer of one of them."""
        self.files, self._read = files, read
        self._metadata = lru_cache(64)(lambda file: pq.read_metadata(pa.BufferReader(footer(file))))  # some 100 kB each
        self.read_bytes = 0

    def columns(self, file: int, group: int, names: Sequence[str]) -> pa.Table:
        """The columns `names` of a row group, as far as the file has them; raises UserError."""
        uri, metadata = self.files[file][1], self._metadata(file)
        about = metadata.row_group(group)
        chunks = map(about.column, range(about.num_columns))
        wanted = [chunk for chunk in chunks if chunk.path_in_schema in names]
        pieces = _pieces(map(_place, wanted))
        contents = self._read(uri, pieces)
        with tempfile.TemporaryFile() as sparse:  # what was not read is a hole in it
            for (start, _), content in zip(pieces, contents, strict=True):
                sparse.seek(start)
                self.read_bytes += sparse.write(content)
            sparse.flush()  # outside of `_reading`, which would call a full disk a damaged index
            with _reading(uri):
                parquet = pq.ParquetFile(sparse, metadata=metadata)
                return parquet.read_row_group(group, columns=[chunk.path_in_schema for chunk in wanted])


@contextlib.contextmanager
def _reading(uri: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        problem = " ".join(str(error).split())[:200]
        raise UserError(f"{uri} cannot be read: {problem}; a complete copy of the index is needed") from error


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _place(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """(start, length) of a column chunk in its file."""
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    start = min(chunk.data_page_offset, dictionary) if dictionary else chunk.data_page_offset
    return start, chunk.total_compressed_size


def _pieces(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(start, length) of the requests that cover some places: neighbours together, long ones in pieces."""
    spans: list[list[int]] = []
    for at, length in sorted(places):
        if spans and at - spans[-1][1] <= _GAP_BYTES:
            spans[-1][1] = max(spans[-1][1], at + length)
        else:
            spans.append([at, at + length])
    return [(at, min(_MOST_BYTES, end - at)) for start, end in spans for at in range(start, end, _MOST_BYTES)]
