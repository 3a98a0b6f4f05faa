"""Sketches that a corpus stores so that later runs find duplicates of its documents without reading its texts.

They hold all text and band hashes, sorted, with their documents: about 160 bytes per document at 21 bands. Two bytes
of each entry are stored apart from the rest, so a later run reads two bytes per entry, and five more only where the
two match. Each shard has one file:

    sections    one for each range of hashes whose key is the shard's modulo the number of shards:
                  starts      <u4[buckets + 1]  where each bucket's entries begin; a bucket is an interval of hashes
                  remainders  <u2[n]            the 16 bits of the hash below its bucket's, ascending within the bucket
                  entries     n times (document <u4, further): 8 more bits of a band hash, or a text hash's other half
    gone        (row, kept) <u4 each            the shard's removed documents, and the documents kept in their place
    contents    MessagePack: key, offset and n of each section; offset and n of `gone`
    tail        length of the contents, <u8

Band hashes match if their bucket (15 bits at a million documents) and 16 + 8 further bits are equal. A chance match
only costs reading a text: similarities are computed from texts.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from owt_pipeline.engine.stage import StageRun, read_record
from owt_pipeline.ledger.commit import ShardWriter, record_name
from owt_pipeline.ledger.dataset import reading
from owt_pipeline.storage.disk import HashingFile
from owt_pipeline.storage.folder import Storage

SKETCHES = "sketches"
"""Kind of files with sketches: a part's while dedupe runs; a shard's, kept for later runs."""

NOBODY = 0xFFFFFFFF
"""Represents a kept document that belongs to another corpus."""

RANGE_ROWS = 1 << 21  # hashes in a range; a worker holds a few ranges at 16 bytes per hash
LEAST_RANGE_ROWS = 1 << 18  # bands with fewer hashes share a part

_BUCKET_ENTRIES = 128  # most entries per bucket, on average; at least half as many
_NEAR = 1024  # places at most this many entries apart are read by one request
_REQUESTS_TOGETHER = 16  # concurrent requests to a bucket
_COPY_BYTES = 1 << 20
_TAIL = struct.Struct("<Q")
_BAND_ENTRY = np.dtype([("document", "<u4"), ("further", "u1")])
_TEXT_ENTRY = np.dtype([("document", "<u4"), ("further", "<u8")])
_GONE = np.dtype([("row", "<u4"), ("kept", "<u4")])


class Ranges(msgspec.Struct, frozen=True):
    """Ranges of hashes, each with a key: first the ranges of text hashes, then those of one band or several together.

    Attributes:
      bands: bands of a sketch.
      of_band: number of ranges per band, and of text hashes.
      together: number of bands that share a range.
    """

    bands: int
    of_band: int
    together: int

    @classmethod
    def of(cls, documents: int, bands: int) -> Ranges:
        """The ranges for this number of documents."""
        together = min(bands, max(1, LEAST_RANGE_ROWS // max(documents, 1)))
        return cls(bands, max(1, documents // RANGE_ROWS), together)

    @property
    def keys(self) -> int:
        """The number of ranges."""
        return self.first_of(self.bands - 1) + self.of_band

    def first_of(self, band: int) -> int:
        """The key of a band's first range."""
        return self.of_band * (1 + band // self.together)

    def is_of_texts(self, key: int) -> bool:
        return key < self.of_band

    def span(self, key: int) -> tuple[int, int]:
        """The upper 32 bits of the first hash of a range, and of the first hash after it."""
        number = key % self.of_band
        return tuple(-(-(at << 32) // self.of_band) for at in (number, number + 1))  # type: ignore[return-value]

    def that_meet(self, other: Ranges, key: int) -> Iterator[int]:
        """The keys of the ranges that may share hashes with range `key` of `other`."""
        first, number = divmod(key, other.of_band)
        numbers = range(number * self.of_band // other.of_band, -(-(number + 1) * self.of_band // other.of_band))
        if not first:
            yield from numbers
            return
        bands = range((first - 1) * other.together, min(first * other.together, self.bands))
        for start in sorted({self.first_of(band) for band in bands}):
            yield from (start + number for number in numbers)


class Contents(msgspec.Struct, frozen=True):
    """The contents of a file: (offset, entries) of each section by key, and of `gone`."""

    sections: dict[int, tuple[int, int]]
    gone: tuple[int, int]


class Corpus(msgspec.Struct, frozen=True):
    """The run's own corpus, or an earlier one with its stored sketches.

    Attributes:
      workdir: its working directory.
      ranges: the ranges of its documents' hashes.
      files: each shard's file of sketches; empty for the run's own corpus.
      first_shard: the number of its first shard; shards are numbered across all corpora.
    """

    workdir: str
    ranges: Ranges
    files: tuple[str, ...] = ()
    first_shard: int = 0

    def find(self, key: int, hashes: np.ndarray, further: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(index into `hashes`, number of the document with that hash), int64, for each hash found in range `key`.

        Args:
          key: key of one of `ranges`.
          hashes: uint64; hashes outside the range are not found.
          further: uint64, the other halves of text hashes; None for bands.
        """
        nothing = np.zeros(0, np.int64)
        name = self.files[key % len(self.files)]
        section = _contents(self.workdir, name).sections.get(key)
        if section is None or not len(hashes):
            return nothing, nothing
        offset, entries = section
        place = _Place(entries, self.ranges.span(key))
        asked = np.flatnonzero(place.has(hashes))
        asked = asked[np.argsort(hashes[asked], kind="stable")]
        bucket, remainder, last = place.cut(hashes[asked])
        folder = Storage(self.workdir)
        with reading(folder.path(name)):
            data = folder.read_range(name, offset, place.head_bytes)
        starts = np.frombuffer(data, "<u4", place.buckets + 1)
        remainders = np.frombuffer(data, "<u2", entries, starts.nbytes)
        known = np.repeat(np.arange(place.buckets) << 16, np.diff(starts)) | remainders
        first, end = (np.searchsorted(known, bucket << 16 | remainder, side) for side in ("left", "right"))
        count = end - first
        asked, last = np.repeat(asked, count), np.repeat(last, count)
        at = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        found = _read_entries(
            folder, name, offset + place.head_bytes, at, _BAND_ENTRY if further is None else _TEXT_ENTRY
        )
        same = found["further"] == (last if further is None else further[asked])
        return asked[same], found["document"][same].astype(np.int64)

    def gone(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """(row, document kept in its place or NOBODY) for each removed document of a shard."""
        name = self.files[shard]
        offset, rows = _contents(self.workdir, name).gone
        folder = Storage(self.workdir)
        with reading(folder.path(name)):
            found = np.frombuffer(folder.read_range(name, offset, rows * _GONE.itemsize), _GONE, rows)
        return found["row"].astype(np.int64), found["kept"].astype(np.int64)


def write_section(
    file: HashingFile, span: tuple[int, int], hashes: np.ndarray, documents: np.ndarray, further: np.ndarray | None
) -> None:
    """Write the section of a hash range.

    Args:
      file: the file to write to.
      span: the span of the range.
      hashes: uint64, text or band hashes.
      documents: uint32, the document of each hash.
      further: uint64, the other halves of text hashes; None for bands.
    """
    order = np.argsort(hashes, kind="stable")  # other sorts order equal hashes differently by processor
    place = _Place(len(hashes), span)
    bucket, remainder, last = place.cut(hashes[order])
    file.write(np.searchsorted(bucket, np.arange(place.buckets + 1)).astype("<u4").tobytes())
    file.write(remainder.astype("<u2").tobytes())
    entries = np.empty(len(order), _BAND_ENTRY if further is None else _TEXT_ENTRY)
    entries["document"] = documents[order]
    entries["further"] = last if further is None else further[order]
    file.write(entries.tobytes())


def keep_sketches(
    run: StageRun, shard: int, writer: ShardWriter, ranges: Ranges, rows: np.ndarray, kept: np.ndarray
) -> None:
    """Write a shard's file of sketches from the sections that the step `buckets` made.

    Args:
      run: the running stage.
      shard: the shard.
      writer: the shard's writer.
      ranges: hash ranges of the run's own documents.
      rows: rows of the shard's removed documents, ascending.
      kept: the number of the document kept in place of each; NOBODY if it belongs to another corpus.
    """
    file = writer.open_file(".sketches", SKETCHES)
    sections: dict[int, tuple[int, int]] = {}
    for key in range(shard, ranges.keys, run.num_shards):
        try:
            record = read_record(run.records("buckets"), record_name(key))
        except FileNotFoundError:
            continue  # the range is empty
        (made,) = (made for made in record.files if made.kind == SKETCHES)
        sections[key] = file.bytes, made.rows
        with run.work.open(made.path) as source:
            while piece := source.read(_COPY_BYTES):
                file.write(piece)
        file.rows += made.rows
    gone = np.empty(len(rows), _GONE)
    gone["row"], gone["kept"] = rows, kept
    contents = Contents(sections, (file.bytes, len(gone)))
    file.write(gone.tobytes())
    encoded = msgspec.msgpack.encode(contents)
    file.write(encoded)
    file.write(_TAIL.pack(len(encoded)))


@functools.lru_cache(maxsize=4096)  # a part reads several ranges of a file
def _contents(workdir: str, name: str) -> Contents:
    folder = Storage(workdir)
    with reading(folder.path(name)):
        size = folder.size(name)
        (length,) = _TAIL.unpack(folder.read_range(name, size - _TAIL.size, _TAIL.size))
        return msgspec.msgpack.decode(folder.read_range(name, size - _TAIL.size - length, length), type=Contents)


class _Place:
    """Splits the hashes of a section into bucket number, 16 bits, 8 bits, and bits that are dropped."""

    def __init__(self, entries: int, span: tuple[int, int]):
        self.low, self.high = span
        width = (self.high - self.low) << 32
        bits = max(1, (entries // _BUCKET_ENTRIES).bit_length())
        self.shift = (width - 1).bit_length() - bits
        self.buckets = ((width - 1) >> self.shift) + 1
        self.head_bytes = 4 * (self.buckets + 1) + 2 * entries

    def has(self, hashes: np.ndarray) -> np.ndarray:
        upper = hashes >> np.uint64(32)
        return (upper >= self.low) & (upper < self.high)

    def cut(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(bucket int64, remainder uint16, further uint8) of hashes within the span."""
        hashes = hashes - np.uint64(self.low << 32)
        bucket = (hashes >> np.uint64(self.shift)).astype(np.int64)
        remainder = (hashes >> np.uint64(self.shift - 16)).astype(np.uint16)
        return bucket, remainder, (hashes >> np.uint64(self.shift - 24)).astype(np.uint8)


def _read_entries(folder: Storage, name: str, start: int, at: np.ndarray, kind: np.dtype) -> np.ndarray:
    """The entries at these places; one request reads neighbouring ones."""
    found = np.empty(len(at), kind)
    order = np.argsort(at, kind="stable")
    near = np.split(order, np.flatnonzero(np.diff(at[order]) > _NEAR) + 1) if len(order) else []

    def read(places: np.ndarray) -> None:
        first, last = int(at[places[0]]), int(at[places[-1]])
        data = folder.read_range(name, start + first * kind.itemsize, (last + 1 - first) * kind.itemsize)
        found[places] = np.frombuffer(data, kind)[at[places] - first]

    with reading(folder.path(name)):
        if folder.is_local:
            for places in near:
                read(places)
        else:
            with ThreadPoolExecutor(_REQUESTS_TOGETHER) as threads:
                list(threads.map(read, near))
    return found
