"""Fingerprints of forgotten texts, and the search for texts that repeat a forgotten one.

A text repeats another if it has the same words in the same order, or if the Jaccard similarity of
their sets of word 5-grams is at least MIN_SIMILARITY, whatever the run's options are. The search
is exact: it misses no such text.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.errors import UserError
from owt_pipeline.formats import fingerprint
from owt_pipeline.formats.fingerprint import Fingerprint
from owt_pipeline.formats.takedowns import read_kept, write_kept
from owt_pipeline.storage.folder import Storage
from schemas.datasets import LEDGER

# In no key: who changes it raises the version of `export`, and mends docs/how-to/takedown.md and
# docs/design.md. Files that were searched before are not searched again.
MIN_SIMILARITY = 0.8

_TEXTS = pa.schema(
    [
        pa.field("url_id", pa.uint64(), nullable=False),
        pa.field("digest", pa.binary(16), nullable=False),
        pa.field("shingles", pa.list_(pa.uint64()), nullable=False),
    ]
)
_HASHING = b"hashing"


class Match(NamedTuple):
    """A text that repeats forgotten ones: its row, and the documents, the most similar first."""

    row: int
    url_ids: list[int]


@dataclass(frozen=True)
class ForgottenTexts:
    """Fingerprints of forgotten texts; memory is 12 bytes per word of them.

    Attributes:
      url_ids: uint64, the forgotten documents, ascending.
      sizes: int64, the number of distinct shingles of each.
      owners_by_digest: for each digest, the positions of the documents that have it.
      shingles: uint64, the shingles of all, sorted.
      owners: uint32, the position of the document of each shingle.
    """

    url_ids: np.ndarray
    sizes: np.ndarray
    owners_by_digest: dict[bytes, list[int]]
    shingles: np.ndarray
    owners: np.ndarray

    @classmethod
    def of(cls, fingerprint_by_id: dict[int, Fingerprint]) -> ForgottenTexts:
        """Return the texts with these fingerprints."""
        ids = sorted(fingerprint_by_id)
        sets = [fingerprint_by_id[key].shingles for key in ids]
        owners_by_digest: dict[bytes, list[int]] = {}
        for position, key in enumerate(ids):
            owners_by_digest.setdefault(fingerprint_by_id[key].digest, []).append(position)
        sizes = np.fromiter(map(len, sets), np.int64, len(sets))
        shingles = np.concatenate([np.empty(0, np.uint64), *sets])
        owners = np.repeat(np.arange(len(ids), dtype=np.uint32), sizes)
        order = np.argsort(shingles, kind="stable")
        return cls(
            np.array(ids, np.uint64), sizes, owners_by_digest, shingles[order], owners[order]
        )

    def matches(self, texts: pa.Array) -> list[Match]:
        """Return the rows whose text repeats forgotten ones, in order."""
        if not len(self.url_ids):
            return []
        matches = []
        for row, text in enumerate(fingerprint.fingerprints(texts)):
            similar = self._similar(text.shingles)
            equal = self.owners_by_digest.get(text.digest, [])
            owners = [*equal, *(owner for owner in similar if owner not in equal)]
            if owners:
                matches.append(Match(row, [int(self.url_ids[owner]) for owner in owners]))
        return matches

    def _similar(self, shingles: np.ndarray) -> list[int]:
        """Return the positions of the documents that reach MIN_SIMILARITY."""
        start = np.searchsorted(self.shingles, shingles)
        end = np.searchsorted(self.shingles, shingles, side="right")
        # An early exit: a text shares at least this part of its shingles with each text that it
        # repeats. At least 1, since a text without words has none.
        if np.count_nonzero(end > start) < max(MIN_SIMILARITY * len(shingles), 1):
            return []
        pieces = [self.owners[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
        owners, common = np.unique(np.concatenate(pieces), return_counts=True)
        similarity = common / (self.sizes[owners] + len(shingles) - common)
        order = np.lexsort((owners, -similarity))
        return [int(owners[k]) for k in order if similarity[k] >= MIN_SIMILARITY]


def is_outdated(workdir: Storage, path: str) -> bool:
    """Return whether the fingerprints of a file were made in another way than this release's."""
    schema = pq.read_schema(pa.BufferReader(read_kept(workdir, path)))
    return bool((schema.metadata or {}).get(_HASHING) != fingerprint.hashing().encode())


def write_forgotten(workdir: Storage, fingerprint_by_id: dict[int, Fingerprint]) -> str:
    """Write the fingerprints of forgotten documents; return the path, "" without documents."""
    if not fingerprint_by_id:
        return ""
    rows = sorted(fingerprint_by_id.items())
    table = pa.table(
        {
            "url_id": pa.array([key for key, _ in rows], pa.uint64()),
            "digest": pa.array([text.digest for _, text in rows], pa.binary(16)),
            "shingles": pa.array([text.shingles for _, text in rows], pa.list_(pa.uint64())),
        },
        schema=_TEXTS.with_metadata({_HASHING: fingerprint.hashing().encode()}),
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return write_kept(workdir, f"{LEDGER}/forgotten", ".parquet", sink.getvalue().to_pybytes())


# A process needs it for every shard. A file's name is made of its content, so it never changes.
@functools.lru_cache(maxsize=2)
def read_forgotten(workdir: Storage, paths: tuple[str, ...]) -> ForgottenTexts:
    """Return the fingerprints in some files; raise UserError for a file that cannot be used."""
    fingerprint_by_id: dict[int, Fingerprint] = {}
    for path in paths:
        # Not `read_table`, which imports pyarrow.dataset and with it pandas, in half a second.
        source = pa.BufferReader(read_kept(workdir, path))
        table = pq.ParquetFile(source).read(use_threads=False)
        if (table.schema.metadata or {}).get(_HASHING) != fingerprint.hashing().encode():
            raise UserError(
                f"{workdir.path(path)} was written by a release that hashes texts in another way, "
                "so copies of removed documents would not be recognised: use that release, or run "
                f"`echo {table['url_id'][0]} | owt forget {workdir} -` to hash the remaining texts "
                "again"
            )
        columns = (table["url_id"], table["digest"], table["shingles"])
        for key, digest, shingles in zip(*columns, strict=True):
            text = Fingerprint(digest.as_py(), shingles.values.to_numpy())
            fingerprint_by_id.setdefault(key.as_py(), text)
    return ForgottenTexts.of(fingerprint_by_id)
