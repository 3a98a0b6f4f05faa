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

CANDIDATES = pa.schema(
    [
        ("component", pa.uint32()),
        ("text", pa.uint32()),
        ("document", pa.uint32()),
        ("url_id", pa.uint64()),
        ("precedence", pa.int64()),
        ("host", pa.string()),
        ("bands", pa.list_(pa.uint64())),
        ("shingles", pa.list_(pa.uint64())),
    ]
)
"""A document of a component; with its bands' hashes and its shingle set, sorted, where it may have to be compared."""

_SMALL = 8  # documents: in a component of no more, all are compared


@dataclass(frozen=True)
class Decisions:
    """The documents that go, as rows of the candidates.

    Attributes:
      gone: int64, who goes.
      kept: int64, in favour of whom, who stays.
      near: whether as a near-duplicate; else as an exact one.
      similarity: float32, of the two shingle sets.
      shared_bands: uint16, in which the two agree.
    """

    gone: np.ndarray
    kept: np.ndarray
    near: np.ndarray
    similarity: np.ndarray
    shared_bands: np.ndarray

    @property
    def cluster_size(self) -> np.ndarray:
        """uint32, documents in the cluster of each, the one that stays included."""
        _, cluster, sizes = np.unique(self.kept, return_inverse=True, return_counts=True)
        return (sizes[cluster] + 1).astype(np.uint32)


@dataclass(frozen=True)
class Verifier:
    """What makes a near-duplicate, and how much is compared.

    Attributes:
      threshold: least similarity.
      measure: `jaccard`, |A & B| / |A | B|; or `containment`, |A & B| / |A| with A the document that goes.
      max_comparisons: with how many documents that stay each one is compared, at most. Those that share most
        rare shingles come first.
      own_documents: documents of this number and greater ones stay in any case, and come before all others.
    """

    threshold: float = 0.8
    measure: str = "jaccard"
    max_comparisons: int = 64
    own_documents: int = 1 << 32

    def decide(self, candidates: pa.RecordBatch | pa.Table) -> tuple[Decisions, Mapping[str, int]]:
        """Decide over complete components, rows of CANDIDATES in any order; returns who goes, and counts.

        In a component, documents are taken by (precedence, url_id), those that stay in any case first. Of those with
        one text, the first is left; each of the others goes in its favour. Each that is left is compared with those
        that stay so far and can be similar enough, whether or not they share a band. It goes if one of them is, in
        favour of the most similar; else it stays. A copy of a document that goes as a near-duplicate goes in favour of
        the same one: its shingles are the same, so the similarity is. So none goes in favour of one that goes itself.
        """
        columns = {
            name: candidates[name].to_numpy() for name in ("component", "text", "document", "url_id", "precedence")
        }
        own = columns["document"] < self.own_documents
        before = np.where(own, columns["precedence"], 0)
        order = np.lexsort([columns["document"], columns["url_id"], before, own, columns["component"]])
        component, text, document = (columns[name][order] for name in ("component", "text", "document"))
        _, first, of_text = np.unique(text, return_index=True, return_inverse=True)
        kept = first[of_text]  # by order, as all below
        is_own = document < self.own_documents
        is_copy = (kept != np.arange(len(order))) & is_own
        bands, shingles = (_Lists(candidates[name]) for name in ("bands", "shingles"))
        similarity, shared = np.ones(len(order), np.float32), np.zeros(len(order), np.uint16)
        is_near = np.zeros(len(order), bool)
        counts: Counter[str] = Counter()
        left = np.flatnonzero(~is_copy)
        for members in np.split(left, np.flatnonzero(np.diff(component[left])) + 1):
            if len(members) < 2 or not is_own[members].any():
                continue
            sets = [shingles[order[i]] for i in members]
            for i, j, found in self._split(sets, ~is_own[members], counts):
                one, other = members[i], members[j]
                is_near[one], kept[one], similarity[one] = True, other, found
                shared[one] = (bands[order[one]] == bands[order[other]]).sum()
        heir = kept[is_copy]
        passed_on = is_near[heir]
        for values in (is_near, similarity, shared, kept):
            values[np.flatnonzero(is_copy)[passed_on]] = values[heir[passed_on]]
        gone = np.flatnonzero(is_copy | is_near)
        return Decisions(order[gone], order[kept[gone]], is_near[gone], similarity[gone], shared[gone]), counts

    def superseding(self, candidates: pa.RecordBatch | pa.Table, decisions: Decisions) -> np.ndarray:
        """Whether each document that goes would stay in place of the one it goes for, which is of an earlier corpus,
        if precedence alone decided; of several that go for one, at most the first."""
        document, url_id, precedence = (candidates[name].to_numpy() for name in ("document", "url_id", "precedence"))
        gone, kept = decisions.gone, decisions.kept
        order = np.lexsort([url_id[gone], precedence[gone], kept])
        is_first = np.zeros(len(order), bool)
        is_first[order[np.flatnonzero(np.diff(kept[order], prepend=-1))]] = True
        earlier = (precedence[gone] < precedence[kept]) | (
            (precedence[gone] == precedence[kept]) & (url_id[gone] < url_id[kept])
        )
        return is_first & earlier & (document[kept] >= self.own_documents)

    def _split(self, sets: list[np.ndarray], stays: np.ndarray, counts: Counter[str]) -> list[tuple[int, int, float]]:
        """(who goes, in favour of whom, similarity) of one component, its documents in the order of precedence."""
        index = (_All if len(sets) <= _SMALL else PrefixIndex)(sets, self.from_sizes, self.threshold)
        removed = []
        for i in range(len(sets)):
            if stays[i]:
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


class _Lists:
    """The items of a column of lists of uint64."""

    def __init__(self, column: pa.Array | pa.ChunkedArray):
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        self._values = column.flatten().to_numpy()
        offsets = column.offsets.to_numpy().astype(np.int64)
        self._offsets = offsets - offsets[0]

    def __getitem__(self, row: int) -> np.ndarray:
        return self._values[self._offsets[row] : self._offsets[row + 1]]


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
