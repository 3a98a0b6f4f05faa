"""What the report's two passes gather, how what was gathered apart is put together, and how it lies in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.report.sketches import Candidates, Frequencies, LogHistogram, Sample

SCORE_EDGES = (0, 1, 2, 3, 4, 5, 7, 10, 15, 25, 50, 100, 250, 500, 1000, 2500, 5000)
"""Scores are counted in bins that start at these; the first one holds all below 0 too."""

SIMILARITY_BINS = 50

MOST_REMOVALS = 20
"""Removals of which the texts are shown side by side."""

_CLUSTERS, _CLUSTER_MEMBERS = 20, 5

T = TypeVar("T")


@dataclass
class Summary:
    """What the first pass gathers; `dataset/column` names each statistic.

    Attributes:
      counters: how often each of a few keys occurs.
      histograms: distributions of numbers.
      frequencies: how often each of many keys occurs.
      samples: rows at random.
      latest: the greatest value.
      clusters: the largest clusters of duplicates: size and some members, by the id of the document that stays.
      vocabulary: how often each token id occurs.
    """

    counters: dict[str, Counter] = field(default_factory=dict)
    histograms: dict[str, LogHistogram] = field(default_factory=dict)
    frequencies: dict[str, Frequencies] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    clusters: dict[int, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    vocabulary: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def merge(self, other: Summary) -> None:
        for name, counter in other.counters.items():
            self.counters.setdefault(name, Counter()).update(counter)
        for name, histogram in other.histograms.items():
            self.histograms.setdefault(name, LogHistogram()).merge(histogram)
        for name, frequencies in other.frequencies.items():
            self.frequencies.setdefault(name, Frequencies()).merge(frequencies)
        for name, sample in other.samples.items():
            self.samples.setdefault(name, Sample(sample.size)).merge(sample)
        for name, value in other.latest.items():
            self.latest[name] = max(value, self.latest.get(name, value))
        for kept, (size, members) in other.clusters.items():
            self.add_cluster(kept, size, members)
        self.add_vocabulary(other.vocabulary)

    def count(self, name: str, keys: pa.Array | pa.ChunkedArray) -> None:
        counted = pc.value_counts(keys.drop_null())
        counts = dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
        self.counters.setdefault(name, Counter()).update(counts)

    def add_by(self, name: str, keys: pa.Array, values: pa.Array) -> None:
        """Add to each key the sum of its values."""
        summed = pa.table({"key": keys, "value": values}).filter(pc.is_valid(keys)).group_by("key")
        columns = summed.aggregate([("value", "sum")])
        sums = dict(zip(columns["key"].to_pylist(), columns["value_sum"].to_pylist(), strict=True))
        self.counters.setdefault(name, Counter()).update(sums)

    def measure(self, name: str, values: pa.Array) -> None:
        self.histograms.setdefault(name, LogHistogram()).add(values.to_numpy(zero_copy_only=False))

    def tally(self, name: str, keys: pa.Array) -> None:
        self.frequencies.setdefault(name, Frequencies()).add(keys)

    def sample(self, name: str, size: int) -> Sample:
        return self.samples.setdefault(name, Sample(size))

    def see(self, name: str, values: pa.Array) -> None:
        """Remember the greatest of all values."""
        if (greatest := pc.max(values).as_py()) is not None:
            self.latest[name] = max(greatest, self.latest.get(name, greatest))

    def add_cluster(self, kept: int, size: int, members: list[dict[str, Any]]) -> None:
        """Members of a cluster; of all clusters, the largest ones stay, and of each, the members of least id."""
        known = self.clusters.get(kept, (size, []))[1]
        self.clusters[kept] = (size, sorted(known + members, key=lambda m: m["url_id"])[:_CLUSTER_MEMBERS])
        if len(self.clusters) > _CLUSTERS:
            # A cluster's size is in each of its rows, so one that falls out could never have come back.
            del self.clusters[min(self.clusters, key=lambda k: (self.clusters[k][0], -k))]

    def add_vocabulary(self, counts: np.ndarray) -> None:
        if len(counts) > len(self.vocabulary):
            self.vocabulary = np.pad(self.vocabulary, (0, len(counts) - len(self.vocabulary)))
        self.vocabulary[: len(counts)] += counts

    def rows(self, name: str) -> list[Any]:
        """The rows of a sample; none where nothing was sampled."""
        return self.samples[name].rows() if name in self.samples else []

    def clustered_ids(self) -> set[int]:
        """The documents of `clusters`."""
        return set(self.clusters) | {member["url_id"] for _, members in self.clusters.values() for member in members}

    def removals(self) -> list[dict[str, Any]]:
        """The decisions to be shown with their texts: near-duplicates at random, then exact copies."""
        return [*self.rows("duplicates/near"), *self.rows("duplicates/exact")][:MOST_REMOVALS]

    def candidates(self) -> dict[str, Candidates]:
        """The keys that the second pass counts, by list: those frequent by any list of the same kind."""
        own = {name: frequencies.candidates() for name, frequencies in self.frequencies.items()}
        chosen: dict[str, Candidates] = {}
        for name, candidates in own.items():
            kind = name.partition("/")[2]
            chosen[kind] = candidates.union(chosen.get(kind, candidates))
        return {name: chosen[name.partition("/")[2]].bounded(candidates.bound) for name, candidates in own.items()}


@dataclass
class Details:
    """What the second pass gathers of the keys that the first found frequent, and of some documents.

    Attributes:
      counts: exact counts of keys.
      urls: of documents, by id.
      texts: of documents, by id.
      pages: of documents, by id: what is left of a short page without scripts, styles and images.
    """

    counts: dict[str, Counter] = field(default_factory=dict)
    urls: dict[int, str | None] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    pages: dict[int, str] = field(default_factory=dict)

    def merge(self, other: Details) -> None:
        for name, counter in other.counts.items():
            self.add(name, counter)
        self.urls.update(other.urls)
        self.texts.update(other.texts)
        self.pages.update(other.pages)

    def add(self, name: str, counts: Mapping[Any, int]) -> None:
        self.counts.setdefault(name, Counter()).update(counts)


def pack(value: Any) -> bytes:
    """A summary, or what is wanted, as bytes: MessagePack, compressed, since most counters of a sketch are zero."""
    content = msgspec.msgpack.encode(value, enc_hook=_encoded)
    compressed: bytes = pa.compress(content, "zstd", asbytes=True)
    return compressed


def unpack(content: bytes | pa.Buffer, kind: type[T]) -> T:
    """What `pack` made bytes of; raises msgspec.DecodeError or OSError where they are damaged."""
    unpacked = pa.input_stream(pa.py_buffer(content), compression="zstd").read()
    return msgspec.msgpack.decode(unpacked, type=kind, dec_hook=_decoded)


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    raise NotImplementedError(type(value))


def _decoded(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        dtype, content = value
        return np.frombuffer(content, dtype).copy()  # which can be written to
    if kind is Counter:
        return Counter(value)
    raise NotImplementedError(kind)


PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def share(part: float, total: float) -> float | None:
    """`part / total` to six digits, None of nothing."""
    return round(part / total, 6) if total else None


def distribution(summary: Summary, name: str) -> dict[str, Any]:
    """A histogram of `summary` with its percentiles."""
    histogram = summary.histograms.get(name, LogHistogram())
    return {
        "count": histogram.count,
        "sum": histogram.total,
        "mean": round(histogram.total / histogram.count, 2) if histogram.count else None,
        "minimum": histogram.minimum,
        "maximum": histogram.maximum,
        "percentiles": {str(q): histogram.percentile(q) for q in PERCENTILES},
        "histogram": [list(item) for item in histogram.bins()],
    }


def by_key(counter: Counter) -> dict[str, int]:
    """In the order of the keys."""
    return {str(key): counter[key] for key in sorted(counter)}


def by_count(counter: Counter) -> dict[str, int]:
    """The most frequent first, equal ones in the order of their names."""
    return {key: counter[key] for key in sorted(counter, key=lambda key: (-counter[key], key)) if counter[key]}
