"""Sketches: what is kept of a document after its text has been read, namely the hashes of its text and of its bands.

Signatures are MinHash by datasketch 2's `affine32` scheme, computed for a batch of texts at once:
h_k(x) = a_k * fmix32(x) + b_k mod 2^32, a_k odd; datasketch/minhash.py explains why these are permutations and how
good they are. Equal 32-bit hashes give datasketch's signatures. Signatures are cut into bands, whose hashes fall into
buckets: locality-sensitive hashing, chapter 3 of Leskovec, Rajaraman and Ullman, Mining of Massive Datasets.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.errors import UserError
from owt_pipeline.stages.dedupe.shingles import Folded, Shingles, chunked, fold, hash_texts, mix, shingle

COMPILED_FROM = 1 << 25
"""Hashes per process from which numba pays: it takes 0.5 s to import and compile; numpy signs them in 0.6 s."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
_KEPT_BYTES = 128 << 20
_ARRAY_BYTES = 32 << 20  # the largest threshold that glibc accepts

_BLOCK = 1 << 16  # hashes per step: with their products they fit the second-level cache


@functools.cache
def permutations(num_perm: int) -> tuple[np.ndarray, np.ndarray]:
    """datasketch's (a, b), uint32[num_perm] each."""
    generator = np.random.RandomState(1)
    a = generator.randint(0, 1 << 31, num_perm, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    b = generator.randint(0, 1 << 32, num_perm, dtype=np.uint32)
    return a, b


def signatures(hashes: np.ndarray, offsets: np.ndarray, num_perm: int, *, compiled: bool = False) -> np.ndarray:
    """uint32[num_perm, texts]: the minimum of each permutation over each text's shingles.

    Args:
      hashes: uint32, the shingles of all texts end to end.
      offsets: int64, text i has the shingles offsets[i] to offsets[i + 1]. A text without any gets 2^32 - 1.
      num_perm: number of permutations.
      compiled: use a loop compiled by numba, if installed, which takes a sixth of numpy's time; the result is the same.
    """
    result = np.full((num_perm, len(offsets) - 1), 0xFFFFFFFF, np.uint32)
    a, b = permutations(num_perm)
    mixed = fmix32(hashes)
    if compiled and (loop := least_values()) is not None:
        loop(mixed, offsets, a, b, result)
        return result
    filled = np.flatnonzero(np.diff(offsets))
    for block in _blocks(offsets, filled):
        first, last = offsets[block[0]], offsets[block[-1] + 1]
        values, product = mixed[first:last], np.empty(last - first, np.uint32)
        starts = offsets[block] - first
        minima = np.empty((num_perm, len(block)), np.uint32)
        for k in range(num_perm):
            np.multiply(values, a[k], out=product)
            np.add(product, b[k], out=product)
            np.minimum.reduceat(product, starts, out=minima[k])
        result[:, block] = minima
    return result


@functools.cache
def least_values() -> Callable[..., None] | None:
    """The loop of `signatures`, compiled for this processor; None without numba.

    `least_values()(mixed, offsets, a, b, result)` sets result[k, i] to the minimum of a[k] * x + b[k] modulo 2^32 over
    the values x of text i.
    """
    try:
        from numba import njit
    except ImportError:  # an extra, and late to support new versions of numpy
        return None

    # Not cached on disk: that saves 0.1 s but fails if neither this folder nor the home is writable.
    @njit("void(uint32[::1], int64[::1], uint32[::1], uint32[::1], uint32[:, ::1])")
    def loop(mixed: np.ndarray, offsets: np.ndarray, a: np.ndarray, b: np.ndarray, result: np.ndarray) -> None:
        for i in range(len(offsets) - 1):
            values = mixed[offsets[i] : offsets[i + 1]]
            for k in range(len(a)):
                factor, term, least = a[k], b[k], np.uint32(0xFFFFFFFF)
                for j in range(len(values)):  # an index and no min(): otherwise numba does not vectorise
                    value = np.uint32(values[j] * factor + term)
                    least = value if value < least else least
                result[k, i] = least

    return loop


def fmix32(hashes: np.ndarray) -> np.ndarray:
    """MurmurHash3's 32-bit finalizer."""
    hashes = hashes ^ (hashes >> np.uint32(16))
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _blocks(offsets: np.ndarray, texts: np.ndarray) -> list[np.ndarray]:
    """`texts` in runs of about _BLOCK shingles; a longer text is a run of its own."""
    if not len(texts):
        return []
    block_of = offsets[texts] // _BLOCK
    return np.split(texts, np.flatnonzero(np.diff(block_of)) + 1)


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to 128 MB of freed memory for the arrays of the next texts.

    Otherwise glibc returns these arrays of about a megabyte to the system and gets them back page by page, which took
    a sixth of the workers' time. No effect with another C library.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _ARRAY_BYTES)


_CHAIN = np.uint64(0x9E3779B97F4A7C15)

SIMILARITIES = tuple(round(0.05 * step, 2) for step in range(21))
"""Similarities at which the S-curve is evaluated."""


@dataclass(frozen=True)
class Banding:
    """`bands` bands of `rows` signature values each; two documents are candidates if they agree in one band."""

    num_perm: int
    bands: int
    rows: int

    def probability(self, similarity: float) -> float:
        """The probability that two documents of this Jaccard similarity are candidates."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)

    def curve(self) -> list[tuple[float, float]]:
        """(similarity, probability) at SIMILARITIES: the S-curve."""
        return [(s, round(self.probability(s), 6)) for s in SIMILARITIES]


def choose_banding(
    threshold: float, num_perm: int, false_negative_weight: float, bands: int | None = None, rows: int | None = None
) -> Banding:
    """The given banding, or the cheapest one at the threshold, as datasketch chooses it.

    Args:
      threshold: least Jaccard similarity of duplicates.
      num_perm: most permutations to use.
      false_negative_weight: weight of missed pairs, from 0 to 1; the rest is the weight of false candidates, which
        only cost a verification.
      bands: with `rows`, the banding to use.
      rows: see `bands`.

    Raises UserError if only one of bands and rows is given, or if they need more than `num_perm` permutations.
    """
    if bands is None and rows is None:
        return _cheapest(threshold, num_perm, false_negative_weight)
    if bands is None or rows is None:
        raise UserError(f"dedupe: bands={bands} and rows={rows}: give both or neither")
    if bands * rows > num_perm:
        raise UserError(f"dedupe: bands={bands} times rows={rows} is {bands * rows}, more than num_perm={num_perm}")
    return Banding(num_perm, bands, rows)


@functools.cache  # every part calls it
def _cheapest(threshold: float, num_perm: int, false_negative_weight: float) -> Banding:
    """The banding with the least weighted sum of false positives and false negatives, as areas of the S-curve.

    datasketch's `_optimal_param`, but without scipy, which takes half a second to import.
    """
    bands, rows = np.array([(b, r) for b in range(1, num_perm + 1) for r in range(1, num_perm // b + 1)]).T
    nodes, weights = np.polynomial.legendre.leggauss(64)
    left, right = threshold / 2, (1 - threshold) / 2  # halves of the intervals of length 2 that nodes are for

    def found(similarities: np.ndarray) -> np.ndarray:
        return 1 - (1 - similarities ** rows[:, None]) ** bands[:, None]

    in_vain = found(left * (1 + nodes)) @ weights * left
    missed = (1 - found(threshold + right * (1 + nodes))) @ weights * right
    least = int(np.argmin(in_vain * (1 - false_negative_weight) + missed * false_negative_weight))
    return Banding(num_perm, int(bands[least]), int(rows[least]))


def band_hashes(signatures: np.ndarray, banding: Banding) -> np.ndarray:
    """uint64[bands, texts] from uint32[num_perm, texts]: hashes are equal if all rows of a band are."""
    result = np.empty((banding.bands, signatures.shape[1]), np.uint64)
    for band in range(banding.bands):
        hashes = np.full(signatures.shape[1], band + 1, np.uint64)
        for row in range(band * banding.rows, (band + 1) * banding.rows):
            hashes *= _CHAIN
            hashes += signatures[row]
            hashes ^= hashes >> np.uint64(29)
        result[band] = mix(hashes)
    return result


def star_edges(
    hashes: np.ndarray, documents: np.ndarray, oversized: int, further: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, Mapping[str, int]]:
    """Edges from each bucket's lowest-numbered document to the others: m - 1 for a bucket of m, not m(m - 1) / 2.

    Args:
      hashes: uint64, hashes of some bands (hashes of different bands differ).
      documents: uint32, the document of each hash.
      oversized: buckets of more documents are counted as oversized.
      further: uint64, the second half of 128-bit hashes.

    Returns: the other documents; for each, the lowest-numbered one of its bucket; and the counts `buckets` (of two or
    more documents), `oversized_buckets` and `pairs`.
    """
    order = np.argsort(hashes) if further is None else np.lexsort((further, hashes))
    is_first = np.ones(len(order), bool)
    np.not_equal(hashes[order[1:]], hashes[order[:-1]], out=is_first[1:])
    if further is not None:
        is_first[1:] |= further[order[1:]] != further[order[:-1]]
    starts = np.flatnonzero(is_first)
    sizes = np.diff(starts, append=len(order))
    shared = sizes > 1
    counts = {
        "buckets": int(shared.sum()),
        "oversized_buckets": int((sizes > oversized).sum()),
        "pairs": int((sizes * (sizes - 1) // 2).sum()),
    }
    members, sizes = documents[order[np.repeat(shared, sizes)]], sizes[shared]
    if not len(sizes):
        return members, members, counts
    least = np.repeat(np.minimum.reduceat(members, np.cumsum(sizes) - sizes), sizes)
    others = members != least
    return members[others], least[others], counts


COLUMNS = ["url_id", "text", "score", "created_utc"]
"""Columns of a document that sketching reads."""

_KNOWN = [
    ("url_id", pa.uint64()),
    ("precedence", pa.int64()),
    ("text_high", pa.uint64()),
    ("text_low", pa.uint64()),
    ("n_shingles", pa.uint32()),
]


@dataclass(frozen=True)
class Sketcher:
    """Makes sketches of documents.

    Attributes:
      banding: the banding of signatures.
      n: words or characters in a shingle.
      kind: unit of the shingles, `words` or `characters`.
      compiled: whether to compute signatures with numba; the result is the same.
    """

    banding: Banding
    n: int = 5
    kind: str = "words"
    compiled: bool = False

    @property
    def band_columns(self) -> list[str]:
        return [f"band_{band}" for band in range(self.banding.bands)]

    @property
    def schema(self) -> pa.Schema:
        """A document's id, precedence among duplicates, two halves of its text hash, number of shingles (repeats
        included), and the hash of each band."""
        return pa.schema([*_KNOWN, *((name, pa.uint64()) for name in self.band_columns)])

    def sketch(self, documents: Iterable[pa.RecordBatch], survivor: str) -> tuple[pa.RecordBatch, np.ndarray]:
        """(rows of `schema`, numbers of the rows with a new text) for documents with COLUMNS.

        A repeated text is signed once.
        """
        keep_freed_memory()
        ids: list[pa.Array] = []
        precedences: list[pa.Array] = []
        digests: list[bytes] = []
        sizes, bands = [np.empty(0, np.uint32)], [np.empty((self.banding.bands, 0), np.uint64)]
        slots: dict[bytes, int] = {}  # text hash → its number among the signed texts
        slot_of_row: list[int] = []
        first: list[int] = []
        for batch in documents:
            ids.append(batch["url_id"])
            precedences.append(precedence(batch, survivor))
            signed = []
            for chunk in chunked(batch["text"]):
                folded = fold(chunk)
                found = hash_texts(chunk, folded)
                new = []
                for i, digest in enumerate(found):
                    slot_of_row.append(slots.setdefault(digest, len(slots)))
                    if slot_of_row[-1] == len(first):
                        new.append(i)
                        first.append(len(slot_of_row) - 1)
                digests += found
                if len(new) < len(chunk):
                    folded = fold(chunk.take(pa.array(new, pa.int64())))
                if new:
                    shingles = self.shingle(folded)
                    sizes.append(np.diff(shingles.offsets).astype(np.uint32))
                    signed.append(self._sign(shingles))
            if signed:
                bands.append(band_hashes(np.concatenate(signed, axis=1), self.banding))
        halves = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)
        slot = np.array(slot_of_row, np.int64)
        columns = [
            pa.chunked_array(ids, pa.uint64()).combine_chunks(),
            pa.chunked_array(precedences, pa.int64()).combine_chunks(),
            *(pa.array(half) for half in halves.T),
            pa.array(np.concatenate(sizes)[slot]),
            *(pa.array(band[slot]) for band in np.concatenate(bands, axis=1)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), np.array(first, np.int64)

    def shingle(self, texts: Folded) -> Shingles:
        return shingle(texts, self.n, self.kind)

    def shingle_sets(self, texts: pa.Array) -> list[np.ndarray]:
        """The distinct shingles of each text, sorted."""
        return [one for chunk in chunked(texts) for one in self.shingle(fold(chunk)).sets()]

    def bands(self, texts: pa.Array) -> np.ndarray:
        """uint64[texts, bands]: the band hashes of the texts."""
        signed = [self._sign(self.shingle(fold(chunk))) for chunk in chunked(texts)]
        return band_hashes(np.concatenate(signed, axis=1), self.banding).T

    def _sign(self, shingles: Shingles) -> np.ndarray:
        hashes = (shingles.hashes >> np.uint64(32)).astype(np.uint32)
        used = self.banding.bands * self.banding.rows
        return signatures(hashes, shingles.offsets, used, compiled=self.compiled)


def precedence(documents: pa.RecordBatch, survivor: str) -> pa.Array:
    """int64 per document: among duplicates, the one with the lowest is kept; ties by url_id.

    `longest`: most characters first; `highest_score`: highest Reddit score first, documents without one last;
    `earliest`: earliest submission first, documents without one last.
    """
    last = np.iinfo(np.int64).max
    if survivor == "longest":
        return pc.negate(pc.cast(pc.utf8_length(documents["text"]), pa.int64()))
    if survivor == "highest_score":
        return pc.fill_null(pc.negate(pc.cast(documents["score"], pa.int64())), last)
    return pc.fill_null(pc.cast(documents["created_utc"], pa.int64()), last)
