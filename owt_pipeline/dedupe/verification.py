"""Verification: a document is removed only if its exact similarity with a document that stays reaches the threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

MEASURES = ("jaccard", "containment")

PROVEN = pa.schema(
    [
        ("place", pa.uint64()),
        ("url_id", pa.uint64()),
        ("kept_place", pa.uint64()),
        ("kept_url_id", pa.uint64()),
        ("similarity", pa.float32()),
        ("shared_bands", pa.uint16()),
    ]
)
"""One row for each document that goes."""

_SLOTS = 1 << 20  # of the filter before the exact comparison: a megabyte of flags


def candidates_schema(bands: int) -> pa.Schema:
    """Rows of `verify`: a document of a component, with its band hashes and its shingle set, sorted."""
    return pa.schema(
        [
            ("component", pa.uint64()),
            ("precedence", pa.int64()),
            ("url_id", pa.uint64()),
            ("place", pa.uint64()),
            ("bands", pa.list_(pa.uint64(), bands)),
            ("shingles", pa.list_(pa.uint64())),
        ]
    )


@dataclass(frozen=True)
class Verifier:
    """What makes a near-duplicate, and how much is compared.

    Attributes:
      threshold: least similarity.
      measure: `jaccard`, |A & B| / |A | B|; or `containment`, |A & B| / |A| with A the document that goes.
      max_comparisons: with how many documents that stay each one is compared, at most. Those that share most
        bands come first.
    """

    threshold: float = 0.8
    measure: str = "jaccard"
    max_comparisons: int = 64

    def verify(self, candidates: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[str, int]]:
        """Decide over whole components; returns rows of PROVEN, and counts.

        Args:
          candidates: rows of `candidates_schema`, whole components, in any order.

        In a component, documents are taken by (precedence, url_id). Each is compared with those that stay so far:
        with all, in a small component, else with those that share a band. It goes if one of them is similar
        enough, in favour of the most similar; else it stays. So none goes in favour of one that goes itself.
        """
        columns = {name: candidates[name].to_numpy() for name in ("component", "precedence", "url_id", "place")}
        order = np.lexsort([columns[name] for name in ("url_id", "precedence", "component")])
        component = columns["component"][order]
        starts = np.flatnonzero(np.concatenate([[True], component[1:] != component[:-1]])[: len(component)])
        bands = candidates["bands"].flatten().to_numpy().reshape(len(candidates), -1)
        shingles = candidates["shingles"]
        values, offsets = shingles.flatten().to_numpy(), shingles.offsets.to_numpy().astype(np.int64)
        offsets = offsets - offsets[0]
        removed: list[tuple[int, int, float, int]] = []
        counts: Counter[str] = Counter()
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            members = order[start:end]
            sets = [values[offsets[i] : offsets[i + 1]] for i in members]
            for gone, kept, similarity in self._split(sets, bands[members], counts):
                shared = int((bands[members[gone]] == bands[members[kept]]).sum())
                removed.append((members[gone], members[kept], similarity, shared))
        gone_rows = np.array([row[0] for row in removed], np.int64)
        kept_rows = np.array([row[1] for row in removed], np.int64)
        proven = pa.RecordBatch.from_arrays(
            [
                pa.array(columns["place"][gone_rows]),
                pa.array(columns["url_id"][gone_rows]),
                pa.array(columns["place"][kept_rows]),
                pa.array(columns["url_id"][kept_rows]),
                pa.array([row[2] for row in removed], pa.float32()),
                pa.array([row[3] for row in removed], pa.uint16()),
            ],
            schema=PROVEN,
        )
        return proven, counts

    def _split(self, sets: list[np.ndarray], bands: np.ndarray, counts: Counter[str]) -> list[tuple[int, int, float]]:
        """(who goes, in favour of whom, similarity) of one component, its documents in the order of precedence."""
        sizes = np.array([len(s) for s in sets])
        index = _BucketIndex(bands, self.max_comparisons)
        removed = []
        for i in range(len(sets)):
            rivals, capped = index.sharing(i)
            counts["capped_comparisons"] += capped
            rivals = rivals[self._bound(sizes[i], sizes[rivals]) >= self.threshold]
            counts["comparisons"] += len(rivals)
            best, kept = self._most_similar(i, rivals, sets)
            if kept >= 0:
                removed.append((i, kept, best))
            else:
                index.add(i)
        return removed

    def _most_similar(self, i: int, rivals: np.ndarray, sets: list[np.ndarray]) -> tuple[float, int]:
        """(similarity, document) of the most similar rival, the first of several; (0, -1) where none reaches."""
        best, kept = 0.0, -1
        for rival in rivals.tolist():
            similarity = self.similarity(sets[i], sets[rival])
            if similarity >= self.threshold and similarity > best:
                best, kept = similarity, rival
        return best, kept

    def similarity(self, gone: np.ndarray, kept: np.ndarray) -> float:
        """Of two shingle sets, each sorted; 0 where either is empty."""
        if not len(gone) or not len(kept):
            return 0.0
        both = np.sort(np.concatenate([gone, kept]), kind="stable")
        common = int((both[1:] == both[:-1]).sum())
        return common / (len(both) - common if self.measure == "jaccard" else len(gone))

    def _bound(self, gone: int, kept: np.ndarray) -> np.ndarray:
        """The greatest similarity that sets of these sizes can have."""
        common = np.minimum(gone, kept)
        return common / np.maximum(gone + kept - common if self.measure == "jaccard" else gone, 1)


class _BucketIndex:
    """The documents of a component that stay so far, by the buckets they are in."""

    def __init__(self, bands: np.ndarray, limit: int):
        self.limit = limit
        self.added: list[int] = []
        self.small = len(bands) <= limit
        if self.small:
            return
        _, bucket, sizes = np.unique(bands, return_inverse=True, return_counts=True)
        self.bucket = bucket.reshape(bands.shape)
        # A bucket keeps its latest documents: with precedence by length, they are the ones of like length.
        self.capacity = np.minimum(sizes, 16 * limit)
        self.start = np.concatenate([[0], np.cumsum(self.capacity)])
        self.fill = np.zeros(len(sizes), np.int64)
        self.members = np.empty(self.start[-1], np.int64)
        self.alone = sizes == 1

    def add(self, i: int) -> None:
        self.added.append(i)
        if not self.small:
            bucket = self.bucket[i]
            self.members[self.start[bucket] + self.fill[bucket] % self.capacity[bucket]] = i
            self.fill[bucket] += 1

    def sharing(self, i: int) -> tuple[np.ndarray, int]:
        """Documents that share a bucket with document i, those that share most first; and how many are left out."""
        if self.small:
            return np.array(self.added, np.int64), 0
        bucket = self.bucket[i]
        bucket = bucket[~self.alone[bucket]]
        fill = np.minimum(self.fill[bucket], self.capacity[bucket])
        ranges = zip(self.start[bucket].tolist(), fill.tolist(), strict=True)
        found = [self.members[start : start + filled] for start, filled in ranges if filled]
        if not found:
            return np.empty(0, np.int64), 0
        documents, shared = np.unique(np.concatenate(found), return_counts=True)
        most = np.argsort(-shared, kind="stable")[: self.limit]
        return documents[most], len(documents) - len(most)
