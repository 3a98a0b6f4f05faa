"""Verification: a document is removed only if its exact similarity with a document that stays reaches the threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.prefix_index import PrefixIndex, Similarity

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

_SMALL = 8  # documents: in a component of no more, all are compared


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
        rare shingles come first.
      first_standing: documents at this place and after it stay in any case; their precedence is before all others'.
    """

    threshold: float = 0.8
    measure: str = "jaccard"
    max_comparisons: int = 64
    first_standing: int = 1 << 63

    def verify(self, candidates: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[str, int]]:
        """Decide over whole components; returns rows of PROVEN, and counts.

        Args:
          candidates: rows of `candidates_schema`, whole components, in any order.

        In a component, documents are taken by (precedence, url_id). Each is compared with those that stay so far
        and can be similar enough, whether or not they share a band. It goes if one of them is, in favour of the
        most similar; else it stays. So none goes in favour of one that goes itself.
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
            for gone, kept, similarity in self._split(sets, columns["place"][members] >= self.first_standing, counts):
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

    def _split(self, sets: list[np.ndarray], stands: np.ndarray, counts: Counter[str]) -> list[tuple[int, int, float]]:
        """(who goes, in favour of whom, similarity) of one component, its documents in the order of precedence."""
        index = (_All if len(sets) <= _SMALL else PrefixIndex)(sets, self.from_sizes, self.threshold)
        removed = []
        for i in range(len(sets)):
            if stands[i]:
                index.add(i)
                continue
            rivals, left_out = index.rivals(i)
            counts["comparisons"] += min(len(rivals), self.max_comparisons)
            counts["capped"] += bool(left_out) or len(rivals) > self.max_comparisons
            best, kept = self._most_similar(i, rivals[: self.max_comparisons], sets)
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
            if similarity >= self.threshold and (similarity, -rival) > (best, -kept):
                best, kept = similarity, rival
        return best, kept

    def similarity(self, gone: np.ndarray, kept: np.ndarray) -> float:
        """Of two shingle sets, each sorted; 0 where either is empty."""
        if not len(gone) or not len(kept):
            return 0.0
        both = np.sort(np.concatenate([gone, kept]), kind="stable")
        common = int((both[1:] == both[:-1]).sum())
        return float(self.from_sizes(common, len(gone), len(kept)))

    def from_sizes(self, common: Any, gone: Any, kept: Any) -> Any:
        """The similarity of sets of these sizes that have `common` shingles in common; grows with `common`."""
        return common / (gone + kept - common if self.measure == "jaccard" else gone)


class _All:
    """The documents of a small component that stay so far: a rival is any of like enough size."""

    def __init__(self, sets: Sequence[np.ndarray], similarity: Similarity, threshold: float):
        self.sizes = np.array([len(one) for one in sets])
        self.similarity, self.threshold = similarity, threshold
        self.added: list[int] = []

    def add(self, i: int) -> None:
        self.added.append(i)

    def rivals(self, i: int) -> tuple[np.ndarray, int]:
        others = np.array(self.added, np.int64)
        sizes = self.sizes[others]
        most = self.similarity(np.minimum(self.sizes[i], sizes), self.sizes[i], sizes)
        return others[most >= self.threshold], 0
