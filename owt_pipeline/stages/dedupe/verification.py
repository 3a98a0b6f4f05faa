"""Decisions on complete components: which documents go, and in favour of which."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from owt_pipeline.stages.dedupe.numbering import MOST_DOCUMENTS

CANDIDATES = pa.schema(
    [
        *((name, pa.uint32()) for name in ("document", "text", "component")),
        ("url_id", pa.uint64()),
        ("precedence", pa.int64()),
        ("bands", pa.list_(pa.uint64())),
        ("shingles", pa.list_(pa.uint64())),
    ]
)
"""A document of a component. `text` is the lowest-numbered document with the same text, which
alone has band hashes and a sorted shingle set, and only if the component has several texts."""


@dataclass(frozen=True)
class Decisions:
    """Removed documents, by row of the candidates.

    Attributes:
      gone: int64, the removed document.
      kept: int64, the document kept in its place.
      near: bool, true for a near-duplicate, false for an exact copy.
      similarity: float32, similarity of the two shingle sets.
      contained: float32, share of the removed document's shingles that the kept one has; 1 for
        exact copies.
      shared_bands: uint16, number of bands in which the two agree; 0 for exact copies.
      cluster_size: uint32, documents in its cluster, with the kept one, without those of later
        generations.
    """

    gone: np.ndarray
    kept: np.ndarray
    near: np.ndarray
    similarity: np.ndarray
    contained: np.ndarray
    shared_bands: np.ndarray
    cluster_size: np.ndarray


# A document is compared with at most this many kept ones: those first that share most bands with
# it, each divided by the number of kept documents that have it, of which the first 256 count. Pages
# of one template share bands with all others of it; a page and its copy also share bands that no
# other has.
MAX_COMPARISONS = 128

# After this many comparisons, a document is compared with more only if one of them was nearly
# similar enough: versions of one page are, pages of one template are not.
_FEW_COMPARISONS, _NEARLY = 32, 0.75

MAX_DOCUMENTS_OF_BAND = 256


def decide(
    rows: pa.Table, generations: np.ndarray, threshold: float, own: int = MOST_DOCUMENTS
) -> tuple[Decisions, Mapping[str, int]]:
    """Decide on complete components.

    Documents are taken in the order of generation, precedence, url_id. A copy of the text of an
    earlier one goes in its favour. Every other document is compared with the kept documents before
    it that share a band with it. It goes in favour of the most similar one, if that similarity
    reaches the threshold, or else is kept. What was kept is never removed, whatever comes later: so
    no kept document is itself removed, and a later generation changes no decision.

    Args:
      rows: rows of CANDIDATES, in any order.
      generations: int64, the number of each generation's first document.
      threshold: least similarity of a near-duplicate.
      own: documents with this number or a higher one come first, and stay.
    """
    columns = ("document", "text", "component", "url_id", "precedence")
    document, text, component, url_id, before = (rows[name].to_numpy() for name in columns)
    generation = np.searchsorted(generations, document, side="right")
    generation[document >= own] = 0
    order = np.lexsort([document, url_id, before, generation, component])
    bands, sets = ListColumn(rows["bands"]), ListColumn(rows["shingles"])
    row_of_text = {int(document[row]): row for row in np.flatnonzero(document == text).tolist()}
    kept, similarity, contained = np.arange(len(order)), *np.ones((2, len(order)), np.float32)
    near, shared = np.zeros(len(order), bool), np.zeros(len(order), np.uint16)
    first_of_text: dict[int, int] = {}
    index: defaultdict[int, list[int]] = defaultdict(list)  # band -> kept documents that have it
    counts: Counter[str] = Counter()
    for row in order.tolist():
        same = first_of_text.setdefault(int(text[row]), row)
        if same != row and generation[row] == 0:
            continue
        if same != row:  # what was decided of the first holds for its copies
            for column in (kept, near, similarity, contained, shared):
                column[row] = column[same]
            continue
        source = row_of_text[int(text[row])]
        mine = bands[source].tolist()
        votes: defaultdict[int, float] = defaultdict(float)
        for band in mine if generation[row] else ():
            have = index.get(band, ())
            for other in have:
                votes[other] += 1 / len(have)
        best, share, rival = 0.0, 0.0, -1
        closest = 0.0
        most_votes_first = sorted(votes, key=lambda other: (-votes[other], other))
        num_compared = 0
        for other in most_votes_first[:MAX_COMPARISONS]:
            if num_compared >= _FEW_COMPARISONS and closest < _NEARLY * threshold:
                break
            num_compared += 1
            alike, part = compare(sets[source], sets[row_of_text[int(text[other])]], threshold)
            closest = max(closest, alike)
            if alike >= threshold and alike > best:
                best, share, rival = alike, part, other
        counts["comparisons"] += num_compared
        counts["capped"] += MAX_COMPARISONS == num_compared < len(votes)
        if rival >= 0:
            kept[row], near[row], similarity[row], contained[row] = rival, True, best, share
            shared[row] = np.count_nonzero(bands[source] == bands[row_of_text[int(text[rival])]])
            continue
        for band in mine:
            if len(index[band]) < MAX_DOCUMENTS_OF_BAND:
                index[band].append(row)
    gone = np.flatnonzero(kept != np.arange(len(order)))
    size = _cluster_sizes(kept[gone], generation[gone])
    found = Decisions(
        gone, kept[gone], near[gone], similarity[gone], contained[gone], shared[gone], size
    )
    return found, counts


def compare(one: np.ndarray, other: np.ndarray, threshold: float = 0.0) -> tuple[float, float]:
    """(Jaccard similarity of two sorted shingle sets, share of `one` that `other` has); 0 if
    either is empty or their sizes rule out the threshold."""
    if not len(one) or min(len(one), len(other)) < threshold * max(len(one), len(other)):
        return 0.0, 0.0
    both = np.sort(np.concatenate([one, other]), kind="stable")
    common = int((both[1:] == both[:-1]).sum())
    return common / (len(both) - common), common / len(one)


def _cluster_sizes(kept: np.ndarray, generation: np.ndarray) -> np.ndarray:
    """For each removed document: 1 + those that were removed in favour of the same one by the
    end of its generation."""
    key = kept.astype(np.int64) << 32 | generation
    ordered = np.sort(key)
    ends, starts = (
        np.searchsorted(ordered, key, side="right"),
        np.searchsorted(ordered, kept.astype(np.int64) << 32),
    )
    return (1 + ends - starts).astype(np.uint32)


class ListColumn:
    """Random access to a column of lists of uint64."""

    def __init__(self, column: pa.ChunkedArray):
        array = column.combine_chunks()
        self._values, self._offsets = array.values.to_numpy(), array.offsets.to_numpy()

    def __getitem__(self, row: int) -> np.ndarray:
        return self._values[self._offsets[row] : self._offsets[row + 1]]
