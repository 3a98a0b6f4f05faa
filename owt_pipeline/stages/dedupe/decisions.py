"""Decisions on complete components: which documents are removed, and which is kept for each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from owt_pipeline.stages.dedupe.numbering import MAX_DOCUMENTS

CANDIDATES = pa.schema(
    [
        ("document", pa.uint32()),
        ("text", pa.uint32()),
        ("component", pa.uint32()),
        ("url_id", pa.uint64()),
        ("precedence", pa.int64()),
        ("bands", pa.list_(pa.uint64())),
        ("shingles", pa.list_(pa.uint64())),
    ]
)
"""A document of a component.

`text` is the lowest-numbered document with the same text. Only that one has band hashes and a
sorted shingle set, and only if the component has several texts.
"""


@dataclass(frozen=True)
class Decisions:
    """Removed documents, by row of the candidates.

    Attributes:
      removed: int64, the removed document.
      kept: int64, the document kept in its place.
      is_near: bool, true for a near-duplicate, false for an exact copy.
      similarity: float32, similarity of the two shingle sets.
      contained: float32, share of the removed document's shingles that the kept one has; 1 for
        exact copies.
      shared_bands: uint16, number of bands in which the two agree; 0 for exact copies.
      cluster_size: uint32, documents in its cluster, with the kept one, without those of later
        generations.
    """

    removed: np.ndarray
    kept: np.ndarray
    is_near: np.ndarray
    similarity: np.ndarray
    contained: np.ndarray
    shared_bands: np.ndarray
    cluster_size: np.ndarray


# A document is compared with at most this many kept documents, in the order of their votes. A
# shared band gives one vote, divided among the kept documents that have it: all pages of a template
# share bands, but a page and its copy also share bands that no other page has.
MAX_COMPARISONS = 192

# After this many comparisons, a document is compared with more only if the highest similarity
# reached this share of the threshold. Versions of one page reach it, pages of a template do not.
_FEW_COMPARISONS = 32
_NEAR_THRESHOLD = 0.75

# Of the kept documents that have a band, the first this many count.
MAX_DOCUMENTS_OF_BAND = 256


def decide(
    rows: pa.Table, generations: np.ndarray, threshold: float, first_of_against: int = MAX_DOCUMENTS
) -> tuple[Decisions, Mapping[str, int]]:
    """Decide on complete components; return the decisions, and counts for the manifest.

    Documents are taken in the order of generation, precedence, url_id. A document with the same
    text as an earlier document is removed, and the earlier one is kept. Every other document is
    compared with the kept documents before it that share a band with it. If the similarity to the
    most similar of them reaches the threshold, it is removed. Otherwise it is kept. A later
    document never removes a kept one, so a later generation changes no decision.

    Args:
      rows: rows of CANDIDATES, in any order.
      generations: int64, the number of each generation's first document.
      threshold: minimum similarity of a near-duplicate.
      first_of_against: documents with this number or a higher one are texts of `against`. They come
        first and are never removed.
    """
    document = rows["document"].to_numpy()
    generation = np.searchsorted(generations, document, side="right")
    generation[document >= first_of_against] = 0
    decider = _Decider(rows, generation, threshold)
    order = np.lexsort(
        [
            document,
            rows["url_id"].to_numpy(),
            rows["precedence"].to_numpy(),
            generation,
            rows["component"].to_numpy(),
        ]
    )
    for row in order.tolist():
        decider.decide_row(row)
    return decider.decisions(), decider.counts


@dataclass(frozen=True)
class _Match:
    """A kept document that is similar enough: its row, and the two measures of `Decisions`."""

    row: int
    similarity: float
    contained: float


class _Decider:
    """Decides on one document after another, and remembers which it kept."""

    def __init__(self, rows: pa.Table, generation: np.ndarray, threshold: float):
        document = rows["document"].to_numpy()
        text = rows["text"].to_numpy()
        self._generation = generation
        self._threshold = threshold
        self._bands = ListColumn(rows["bands"])
        self._sets = ListColumn(rows["shingles"])
        row_by_text: dict[int, int] = {}
        for row in np.flatnonzero(document == text).tolist():
            row_by_text[int(document[row])] = row
        self._text = text.tolist()
        # The row that has the bands and the shingles of each row's text.
        self._source = [row_by_text[number] for number in self._text]
        self._first_of_text: dict[int, int] = {}
        self._kept_by_band: defaultdict[int, list[int]] = defaultdict(list)
        num_rows = len(document)
        self._kept = np.arange(num_rows)
        self._is_near = np.zeros(num_rows, bool)
        self._similarity = np.ones(num_rows, np.float32)
        self._contained = np.ones(num_rows, np.float32)
        self._shared_bands = np.zeros(num_rows, np.uint16)
        self.counts: Counter[str] = Counter(comparisons=0, capped=0)

    def decide_row(self, row: int) -> None:
        """Decide on the document of a row."""
        first = self._first_of_text.setdefault(self._text[row], row)
        stays = self._generation[row] == 0
        if first != row:
            if not stays:
                self._copy_decision(first, row)
            return
        bands = self._bands[self._source[row]].tolist()
        match = None if stays else self._find_match(row, bands)
        if match is not None:
            own_bands = self._bands[self._source[row]]
            kept_bands = self._bands[self._source[match.row]]
            self._kept[row] = match.row
            self._is_near[row] = True
            self._similarity[row] = match.similarity
            self._contained[row] = match.contained
            self._shared_bands[row] = np.count_nonzero(own_bands == kept_bands)
            return
        for band in bands:
            if len(self._kept_by_band[band]) < MAX_DOCUMENTS_OF_BAND:
                self._kept_by_band[band].append(row)

    def _copy_decision(self, first: int, row: int) -> None:
        """Decide on a copy of a text as on the first document with it."""
        # The first document may itself be removed: then its copies repeat the same kept document.
        self._kept[row] = self._kept[first]
        self._is_near[row] = self._is_near[first]
        self._similarity[row] = self._similarity[first]
        self._contained[row] = self._contained[first]
        self._shared_bands[row] = self._shared_bands[first]

    def _find_match(self, row: int, bands: list[int]) -> _Match | None:
        """Return the most similar kept document that reaches the threshold; None without one."""
        votes: defaultdict[int, float] = defaultdict(float)
        for band in bands:
            kept_rows = self._kept_by_band.get(band, ())
            for kept_row in kept_rows:
                votes[kept_row] += 1 / len(kept_rows)
        best_match: _Match | None = None
        highest = 0.0
        num_compared = 0
        own_set = self._sets[self._source[row]]
        most_votes_first = sorted(votes, key=lambda kept_row: (-votes[kept_row], kept_row))
        for kept_row in most_votes_first[:MAX_COMPARISONS]:
            if num_compared >= _FEW_COMPARISONS and highest < _NEAR_THRESHOLD * self._threshold:
                break
            num_compared += 1
            kept_set = self._sets[self._source[kept_row]]
            similarity, contained = compare(own_set, kept_set, self._threshold)
            if similarity > highest:
                highest = similarity
                if similarity >= self._threshold:
                    best_match = _Match(kept_row, similarity, contained)
        self.counts["comparisons"] += num_compared
        self.counts["capped"] += MAX_COMPARISONS == num_compared < len(votes)
        return best_match

    def decisions(self) -> Decisions:
        """Return the decisions on all removed documents."""
        removed = np.flatnonzero(self._kept != np.arange(len(self._kept)))
        kept = self._kept[removed]
        return Decisions(
            removed=removed,
            kept=kept,
            is_near=self._is_near[removed],
            similarity=self._similarity[removed],
            contained=self._contained[removed],
            shared_bands=self._shared_bands[removed],
            cluster_size=_cluster_sizes(kept, self._generation[removed]),
        )


def compare(one: np.ndarray, other: np.ndarray, threshold: float = 0.0) -> tuple[float, float]:
    """Return the Jaccard similarity of two sorted shingle sets, and the share of `one` in `other`.

    Both are 0 if either set is empty, or if their sizes rule out the threshold.
    """
    smaller = min(len(one), len(other))
    larger = max(len(one), len(other))
    if not len(one) or smaller < threshold * larger:
        return 0.0, 0.0
    both = np.sort(np.concatenate([one, other]), kind="stable")
    num_common = int((both[1:] == both[:-1]).sum())
    return num_common / (len(both) - num_common), num_common / len(one)


def _cluster_sizes(kept: np.ndarray, generation: np.ndarray) -> np.ndarray:
    """Return the size of the cluster of each removed document, uint32.

    It is 1 + the documents that were removed in favour of the same one by the end of its
    generation.
    """
    first_key = kept.astype(np.int64) << 32
    key = first_key | generation
    sorted_keys = np.sort(key)
    ends = np.searchsorted(sorted_keys, key, side="right")
    starts = np.searchsorted(sorted_keys, first_key)
    return (1 + ends - starts).astype(np.uint32)


class ListColumn:
    """Random access to a column of lists of uint64."""

    def __init__(self, column: pa.ChunkedArray):
        array = column.combine_chunks()
        self._values = array.values.to_numpy()
        self._offsets = array.offsets.to_numpy()

    def __getitem__(self, row: int) -> np.ndarray:
        return self._values[self._offsets[row] : self._offsets[row + 1]]
