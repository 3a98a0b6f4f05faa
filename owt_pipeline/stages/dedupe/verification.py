"""Verification: a document is removed only if its exact similarity with a kept document reaches the threshold.

In a large component, only pairs that can reach the threshold are compared. Prefix filtering (Chaudhuri, Ganti and
Kaushik 2006) orders shingles by their frequency in the component, rarest first: two sets of a given similarity must
share one of the first few shingles of each. The positional filter of PPJoin (Xiao et al. 2008) drops pairs whose first
shared shingle comes so late that too few can follow. Documents that share only a template are therefore not compared,
since the template's shingles are not rare. No pair that reaches the threshold is missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pyarrow as pa

Similarity = Callable[[np.ndarray, "int | np.ndarray", np.ndarray], np.ndarray]
"""(shingles in common, shingles of the removed document, shingles of the kept one) -> similarity"""

_MAX_ENTRIES = 1 << 16  # most entries read for one document: 2 ms

_COUNT_SLOTS = 1 << 22  # most slots of the table that counts documents per shingle: 32 MB
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class PrefixIndex:
    """Index of a component's kept documents by their rarest shingles."""

    def __init__(self, sets: Sequence[np.ndarray], similarity: Similarity, threshold: float):
        """An empty index.

        Args:
          sets: the shingle set of each document, sorted; one or more.
          similarity: the similarity as a function of set sizes.
          threshold: least similarity to find.
        """
        self.sizes = np.array([len(one) for one in sets], np.int64)
        self.similarity, self.threshold = similarity, threshold
        frequencies = _Frequencies(sets)
        smallest, largest = int(self.sizes.min()), int(self.sizes.max())
        shingles, positions = [], []
        for one in sets:
            length = self._prefix_length(len(one), smallest, largest)
            first, at = frequencies.rarest(one, length)
            shingles.append(first)
            positions.append(at)
        self.offsets = np.concatenate([[0], np.cumsum([len(at) for at in positions])])
        self.positions = np.concatenate(positions)
        _, self.shingles, counts = np.unique(np.concatenate(shingles), return_inverse=True, return_counts=True)
        # Entries of one shingle are adjacent, with room for all documents that have it in their prefix.
        self.start = np.concatenate([[0], np.cumsum(counts)])[:-1]
        self.filled = np.zeros(len(counts), np.int64)
        self.documents = np.empty(len(self.shingles), np.int64)
        self.at = np.empty(len(self.shingles), np.int64)

    def add(self, i: int) -> None:
        """Add document i, which is kept."""
        mine = slice(self.offsets[i], self.offsets[i + 1])
        shingles = self.shingles[mine]
        entry = self.start[shingles] + self.filled[shingles]
        self.documents[entry] = i
        self.at[entry] = self.positions[mine]
        self.filled[shingles] += 1

    def rivals(self, i: int) -> tuple[np.ndarray, int]:
        """(kept documents that may be similar enough to document i, those sharing most of its rarest shingles first;
        number of entries not read because of _MAX_ENTRIES)."""
        mine = slice(self.offsets[i], self.offsets[i + 1])
        shingles, positions = self.shingles[mine], self.positions[mine]
        counts = self.filled[shingles]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        if total == 0:
            return np.empty(0, np.int64), 0
        if total > _MAX_ENTRIES:  # keep the entries of the rarest shingles
            counts = np.minimum(counts, np.maximum(_MAX_ENTRIES - (ends - counts), 0))
            ends = np.cumsum(counts)
        entry = np.arange(ends[-1]) + np.repeat(self.start[shingles] - (ends - counts), counts)
        documents = self.documents[entry]
        left = np.minimum(self.sizes[i] - np.repeat(positions, counts), self.sizes[documents] - self.at[entry])
        possible = self.similarity(left, self.sizes[i], self.sizes[documents]) >= self.threshold
        found, shared = np.unique(documents[possible], return_counts=True)
        return found[np.argsort(-shared, kind="stable")], total - int(ends[-1])

    def _prefix_length(self, size: int, smallest: int, largest: int) -> int:
        """How many of a document's rarest shingles can be the first that it shares with a similar enough document.

        If the first is at position p, at most size - p are shared. That must reach the threshold for some size of the
        other document, from `smallest` to `largest`, whichever of the two is removed.
        """
        common = np.minimum(size - np.arange(size), largest)
        other = np.maximum(common, smallest)
        mine = np.full(size, size)
        enough = (self.similarity(common, mine, other) >= self.threshold) | (
            self.similarity(common, other, mine) >= self.threshold
        )
        return int(enough.sum())


class _Frequencies:
    """An upper bound on the number of documents with each shingle: shingles that share a slot are counted together.

    Any order of shingles that is the same for all documents gives correct results; this one puts rare ones first.
    """

    def __init__(self, sets: Sequence[np.ndarray]):
        total = sum(len(one) for one in sets)
        self.bits = np.uint64(64 - min(max(2 * total, 2) - 1, _COUNT_SLOTS - 1).bit_length())
        slots = 1 << (64 - int(self.bits))
        self.counts = np.zeros(slots, np.int64)
        waiting: list[np.ndarray] = []
        size = 0
        for one in sets:
            waiting.append(one)
            size += len(one)
            if size >= slots:
                self._count(waiting)
                waiting, size = [], 0
        self._count(waiting)

    def _count(self, sets: list[np.ndarray]) -> None:
        if sets:
            self.counts += np.bincount(self._slot(np.concatenate(sets)), minlength=len(self.counts))

    def _slot(self, shingles: np.ndarray) -> np.ndarray:
        return (shingles * _MULTIPLIER >> self.bits).astype(np.int64)

    def rarest(self, shingles: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """(shingles, positions) of those among the `length` rarest that are in more than one document."""
        counts = self.counts[self._slot(shingles)]
        order = np.argsort(counts, kind="stable")[:length]
        positions = np.flatnonzero(counts[order] > 1)
        return shingles[order[positions]], positions


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
"""A document of a component; band hashes and sorted shingle set only where a comparison may be needed."""

_SMALL = 8  # most documents of a component in which all pairs are compared


@dataclass(frozen=True)
class Decisions:
    """Removed documents, by row of the candidates.

    Attributes:
      gone: int64, the removed document.
      kept: int64, the document kept in its place.
      near: bool, true for a near-duplicate, false for an exact copy.
      similarity: float32, similarity of the two shingle sets.
      shared_bands: uint16, number of bands in which the two agree.
    """

    gone: np.ndarray
    kept: np.ndarray
    near: np.ndarray
    similarity: np.ndarray
    shared_bands: np.ndarray

    @property
    def cluster_size(self) -> np.ndarray:
        """uint32, documents in each one's cluster, including the kept document."""
        _, cluster, sizes = np.unique(self.kept, return_inverse=True, return_counts=True)
        return (sizes[cluster] + 1).astype(np.uint32)


@dataclass(frozen=True)
class Verifier:
    """Decides which candidates are duplicates.

    Attributes:
      threshold: least similarity of near-duplicates.
      measure: `jaccard`, |A & B| / |A | B|; or `containment`, |A & B| / |A| with A the removed document.
      max_comparisons: most kept documents to compare each one with, those sharing most rare shingles first.
      own_documents: documents with this number or a higher one are never removed and take precedence.
    """

    threshold: float = 0.8
    measure: str = "jaccard"
    max_comparisons: int = 64
    own_documents: int = 1 << 32

    def decide(self, candidates: pa.RecordBatch | pa.Table) -> tuple[Decisions, Mapping[str, int]]:
        """Decide on complete components, given as rows of CANDIDATES in any order; returns decisions and counts.

        Documents of a component are processed by (precedence, url_id), documents of earlier corpora first. Exact
        copies of an earlier one are removed in its favour. Every other document is compared with the documents kept so
        far that can be similar enough, whether or not they share a band. It is removed in favour of the most similar
        one that reaches the threshold, or else kept. Copies of a removed near-duplicate are removed in favour of the
        same document, with the same similarity. So no kept document is itself removed.
        """
        columns = {
            name: candidates[name].to_numpy() for name in ("component", "text", "document", "url_id", "precedence")
        }
        own = columns["document"] < self.own_documents
        before = np.where(own, columns["precedence"], 0)
        order = np.lexsort([columns["document"], columns["url_id"], before, own, columns["component"]])
        component, text, document = (columns[name][order] for name in ("component", "text", "document"))
        _, first, of_text = np.unique(text, return_index=True, return_inverse=True)
        kept = first[of_text]  # positions in `order`, as below
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
        successor = kept[is_copy]
        passed_on = is_near[successor]
        for values in (is_near, similarity, shared, kept):
            values[np.flatnonzero(is_copy)[passed_on]] = values[successor[passed_on]]
        gone = np.flatnonzero(is_copy | is_near)
        return Decisions(order[gone], order[kept[gone]], is_near[gone], similarity[gone], shared[gone]), counts

    def _split(self, sets: list[np.ndarray], stays: np.ndarray, counts: Counter[str]) -> list[tuple[int, int, float]]:
        """(removed, kept, similarity) of one component, whose documents are in order of precedence."""
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
        """(similarity, document) of the most similar rival, the first of equals; (0, -1) if none is similar enough."""
        best, kept = 0.0, -1
        for rival in rivals.tolist():
            similarity = self.similarity(sets[i], sets[rival])
            if similarity >= self.threshold and (similarity, -rival) > (best, -kept):
                best, kept = similarity, rival
        return best, kept

    def similarity(self, gone: np.ndarray, kept: np.ndarray) -> float:
        """The similarity of two sorted shingle sets; 0 if either is empty."""
        if not len(gone) or not len(kept):
            return 0.0
        both = np.sort(np.concatenate([gone, kept]), kind="stable")
        common = int((both[1:] == both[:-1]).sum())
        return float(self.from_sizes(common, len(gone), len(kept)))

    def from_sizes(self, common: Any, gone: Any, kept: Any) -> Any:
        """The similarity of sets of sizes `gone` and `kept` with `common` shared shingles; grows with `common`."""
        return common / (gone + kept - common if self.measure == "jaccard" else gone)


class _Lists:
    """Random access to a column of lists of uint64."""

    def __init__(self, column: pa.Array | pa.ChunkedArray):
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        self._values = column.flatten().to_numpy()
        offsets = column.offsets.to_numpy().astype(np.int64)
        self._offsets = offsets - offsets[0]

    def __getitem__(self, row: int) -> np.ndarray:
        return self._values[self._offsets[row] : self._offsets[row + 1]]


class _All:
    """PrefixIndex for small components: every kept document of suitable size is a rival."""

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


_SAMPLE = 5
_CLUSTERS = 10
_HOSTS = 1000  # hosts kept per group: a host's total is short of at most a thousandth of the corpus


class Cluster(msgspec.Struct, frozen=True):
    """Duplicates of one document.

    Attributes:
      kept_url_id: url_id of the kept document.
      kept_shard: its shard.
      documents: number of documents, including the kept one.
      sample: numbers of some removed documents.
    """

    kept_url_id: int
    kept_shard: int
    documents: int
    sample: list[int]


class Host(msgspec.Struct, frozen=True):
    """A host, how many of its documents are removed, and the numbers of some of them."""

    host: str
    documents: int
    sample: list[int]


class Largest(msgspec.Struct, frozen=True):
    """The largest clusters and the hosts with most removed documents, largest first."""

    clusters: list[Cluster]
    hosts: list[Host]


def find_largest(
    documents: np.ndarray, hosts: Sequence[str], kept_url_id: np.ndarray, kept_shard: np.ndarray
) -> Largest:
    """The largest clusters and hosts among removed documents, given by number (ascending), host and kept document."""
    kept, first, cluster, gone = np.unique(kept_url_id, return_index=True, return_inverse=True, return_counts=True)
    clusters = [
        Cluster(int(kept[i]), int(kept_shard[first[i]]), int(gone[i]) + 1, documents[cluster == i][:_SAMPLE].tolist())
        for i in np.argsort(-gone, kind="stable")[:_CLUSTERS].tolist()
    ]
    count = Counter(host for host in hosts if host)
    most = sorted(count, key=lambda host: (-count[host], host))[:_HOSTS]
    sample: dict[str, list[int]] = {host: [] for host in most}
    for host, document in zip(hosts, documents.tolist(), strict=True):
        if host in sample and len(sample[host]) < _SAMPLE:
            sample[host].append(document)
    return Largest(clusters, [Host(host, count[host], sample[host]) for host in most])


def merge_largest(found: Iterable[Largest]) -> Largest:
    """Merge the results of all groups."""
    clusters: list[Cluster] = []
    count: Counter[str] = Counter()
    sample: dict[str, list[int]] = {}
    for largest in found:
        clusters += largest.clusters
        for host in largest.hosts:
            count[host.host] += host.documents
            sample[host.host] = sorted([*sample.get(host.host, []), *host.sample])[:_SAMPLE]
    clusters.sort(key=lambda cluster: (-cluster.documents, cluster.kept_url_id))
    most = sorted(count, key=lambda host: (-count[host], host))
    return Largest(clusters[:_CLUSTERS], [Host(host, count[host], sample[host]) for host in most])


def host_of(url: str | None) -> str:
    """The URL's host without `www.`; empty for None."""
    return (urlsplit(url).hostname or "").removeprefix("www.") if url else ""
