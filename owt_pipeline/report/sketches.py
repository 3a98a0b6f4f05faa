"""What the two passes gather: mergeable statistics of fixed size, however many values go in.

Each has `merge`, which is commutative and associative, and what it comes to depends on the values alone: not on
their order, nor on how they were spread over shards and workers. So the report has the same bytes on any runner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

_SUB_BUCKET_BITS = 7
_SUB_BUCKETS = 1 << _SUB_BUCKET_BITS
_BUCKET_BITS, _REGISTER_BITS = 18, 14
_ALL, _SOME = 1 << 16, 1 << 12


class LogHistogram(msgspec.Struct, eq=False):
    """Counts of non-negative integers in bins whose width grows with the value: percentiles to within 0.4 %.

    Values under 256 have a bin each; above, each octave has 128. (HdrHistogram, Gil Tene; DDSketch, Masson, Rim
    and Lee 2019, has the same guarantee with logarithms, whose last bit differs between machines.)

    Attributes:
      counts: of each bin, up to the last one that counts anything.
      total: sum of the values.
      minimum: least value; None without any.
      maximum: greatest value; None without any.
    """

    counts: np.ndarray = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    total: int = 0
    minimum: int | None = None
    maximum: int | None = None

    def add(self, values: np.ndarray) -> None:
        if len(values):
            values = values.astype(np.int64)
            bins, total = np.bincount(_bin_of(values)), int(values.sum())
            self.merge(LogHistogram(bins, total, int(values.min()), int(values.max())))

    def merge(self, other: LogHistogram) -> None:
        self.counts = _sum(self.counts, other.counts)
        self.total += other.total
        self.minimum = min((n for n in (self.minimum, other.minimum) if n is not None), default=None)
        self.maximum = max((n for n in (self.maximum, other.maximum) if n is not None), default=None)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def percentile(self, q: float) -> int | None:
        """The value that `q` % of the values do not exceed, to within half a bin; None without values."""
        if self.minimum is None or self.maximum is None:
            return None
        rank = max(0, int(np.ceil(q / 100 * self.count)) - 1)
        index = int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))
        low, high = _edges(index)
        return min(max((low + high - 1) // 2, self.minimum), self.maximum)

    def values(self, most: int) -> np.ndarray:
        """The values, ascending, int64, each to within half a bin; of more than `most`, so many evenly by rank."""
        count = min(self.count, most)
        ranks = (2 * np.arange(count) + 1) * self.count // (2 * max(count, 1))
        index = np.searchsorted(np.cumsum(self.counts), ranks, side="right")
        middle = np.array([(low + high - 1) // 2 for low, high in map(_edges, range(len(self.counts)))], np.int64)
        return middle[index]

    def bins(self, per_octave: int = 4) -> list[tuple[int, int, int]]:
        """(low, high, count) with low <= value < high: `per_octave` bins each doubling, from the first that counts."""
        counted = np.flatnonzero(self.counts)
        merged: dict[tuple[int, int], int] = {}
        for index in counted.tolist():
            bounds = coarse_edges(_edges(index)[0], per_octave)
            merged[bounds] = merged.get(bounds, 0) + int(self.counts[index])
        return [(low, high, count) for (low, high), count in sorted(merged.items())]


def _sum(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The sum of two lists of counts, as long as the longer one."""
    shorter, longer = sorted((one, other), key=len)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total


def _bin_of(values: np.ndarray) -> np.ndarray:
    """Below 256 the value; above, an octave's number and the 7 bits after the leading one."""
    _, exponent = np.frexp(values.astype(np.float64))  # exact below 2**53: value < 2**exponent
    shift = np.maximum(exponent - (_SUB_BUCKET_BITS + 1), 0).astype(np.int64)
    return shift * _SUB_BUCKETS + (values >> shift)


def _edges(index: int) -> tuple[int, int]:
    """(least value, least value above) of a bin."""
    if index < 2 * _SUB_BUCKETS:
        return index, index + 1
    shift = index // _SUB_BUCKETS - 1
    lead = index - shift * _SUB_BUCKETS
    return lead << shift, (lead + 1) << shift


def coarse_edges(value: int, per_octave: int) -> tuple[int, int]:
    """The bin of `value` among those that cut each octave into `per_octave` equal parts; small values one each."""
    if value < per_octave:
        return value, value + 1
    octave = 1 << (value.bit_length() - 1)
    width = octave // per_octave
    low = octave + (value - octave) // width * width
    return low, low + width


class Frequencies(msgspec.Struct, eq=False):
    """How often each key occurs, by hash: what is needed to find the most frequent ones exactly in a second pass.

    2**18 counters, each the sum over the keys that fall into it (one row of a Count-Min sketch, Cormode and
    Muthukrishnan 2005), so no counter is less than the count of any of its keys; and a HyperLogLog (Flajolet,
    Fusy, Gandouet and Meunier 2007) of 2**14 registers, for how many keys there are.

    Attributes:
      buckets: the counters.
      registers: the HyperLogLog's.
      total: keys counted, each as often as it occurs.
    """

    buckets: np.ndarray = msgspec.field(default_factory=lambda: np.zeros(1 << _BUCKET_BITS, np.int64))
    registers: np.ndarray = msgspec.field(default_factory=lambda: np.zeros(1 << _REGISTER_BITS, np.uint8))
    total: int = 0

    def add(self, keys: pa.Array) -> None:
        """Count an array of strings; nulls are left out."""
        counted = counts_of(keys)
        if not counted:
            return
        hashes = _hashes(counted)
        np.add.at(self.buckets, _bucket_of(hashes), list(counted.values()))
        low = hashes & np.uint64((1 << (64 - _BUCKET_BITS)) - 1)  # bits that do not choose the bucket
        register = (low & np.uint64((1 << _REGISTER_BITS) - 1)).astype(np.int64)
        rest = (low >> np.uint64(_REGISTER_BITS)).astype(np.float64)
        width = 64 - _BUCKET_BITS - _REGISTER_BITS
        rank = (width + 1 - np.frexp(rest)[1]).astype(np.uint8)  # leading zeros, and one
        np.maximum.at(self.registers, register, rank)
        self.total += sum(counted.values())

    def merge(self, other: Frequencies) -> None:
        self.buckets += other.buckets
        self.registers = np.maximum(self.registers, other.registers)
        self.total += other.total

    def candidates(self) -> Candidates:
        """The keys worth counting exactly: all where they are few, else those in the largest counters."""
        order = np.argsort(-self.buckets, kind="stable")
        used = int((self.buckets > 0).sum())
        chosen = used if used <= _ALL else _SOME
        selected = np.zeros(len(self.buckets), bool)
        selected[order[:chosen]] = True
        bound = int(self.buckets[order[chosen]]) if chosen < len(order) else 0
        return Candidates(np.packbits(selected), bound)

    def distinct(self) -> int:
        """About how many keys there are: standard error 0.8 %."""
        m = float(len(self.registers))
        estimate = 0.7213 / (1 + 1.079 / m) * m * m / float(np.sum(2.0 ** -self.registers.astype(np.float64)))
        zeros = int((self.registers == 0).sum())
        return round(m * np.log(m / zeros) if estimate <= 2.5 * m and zeros else estimate)


class Candidates(msgspec.Struct, frozen=True, eq=False):
    """Which keys a second pass counts exactly.

    Attributes:
      selected: the chosen counters of `Frequencies`, a bit each.
      bound: no other key is more frequent than this: a key counted more often is proven to be among the top.
    """

    selected: np.ndarray
    bound: int

    def count(self, keys: pa.Array) -> dict[str, int]:
        """How often each candidate is among `keys`."""
        counted = counts_of(keys)
        return {name: counted[name] for name, yes in zip(counted, self._among(counted), strict=True) if yes}

    def mask(self, keys: pa.Array) -> pa.Array:
        """Which of `keys`, strings, are candidates; nulls are none."""
        encoded = keys.dictionary_encode()
        among = pa.array(self._among(encoded.dictionary.to_pylist()), pa.bool_())
        return pc.fill_null(among.take(encoded.indices), False)

    def _among(self, names: Collection[str]) -> np.ndarray:
        bucket = _bucket_of(_hashes(names))
        return ((self.selected[bucket >> 3] >> (7 - (bucket & 7)).astype(np.uint8)) & 1).astype(bool)


class Sample(msgspec.Struct, eq=False):
    """`size` rows at random, by a hash of their ids: the same ones in whatever order they come.

    Attributes:
      size: how many rows.
      chosen: the rows, by the hash and the id.
    """

    size: int
    chosen: dict[tuple[int, int], Any] = {}

    def add(self, rows: pa.RecordBatch, shown: Callable[[dict[str, Any]], Any] = dict) -> None:
        """Consider rows by their `url_id`; `shown` makes of a row that is wanted what is kept of it."""
        if not self.size:
            return
        url_ids = rows["url_id"].to_numpy()
        spread = _spread(url_ids)
        for k in np.lexsort((url_ids, spread)).tolist():
            key = (int(spread[k]), int(url_ids[k]))
            if len(self.chosen) == self.size and key > max(self.chosen):
                break
            self._put(key, shown(rows.slice(k, 1).to_pylist()[0]))

    def merge(self, other: Sample) -> None:
        for key, row in other.chosen.items():
            self._put(key, row)

    def rows(self) -> list[Any]:
        return [self.chosen[key] for key in sorted(self.chosen)]

    def _put(self, key: tuple[int, int], row: Any) -> None:
        self.chosen[key] = min(self.chosen.get(key, row), row, key=repr)  # an id may have several rows
        if len(self.chosen) > self.size:
            del self.chosen[max(self.chosen)]


def counts_of(keys: pa.Array) -> dict[Any, int]:
    """How often each key occurs; nulls are left out."""
    counted = pc.value_counts(keys.drop_null())
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def sums_of(keys: pa.Array, values: pa.Array) -> dict[Any, int]:
    """The sum of the values of each key; rows without a key are left out."""
    rows = pa.table({"key": keys, "value": values}).filter(pc.is_valid(keys))
    summed = rows.group_by("key").aggregate([("value", "sum")])
    return dict(zip(summed["key"].to_pylist(), summed["value_sum"].to_pylist(), strict=True))


def _bucket_of(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def _hashes(names: Collection[str]) -> np.ndarray:
    return np.fromiter((xxhash.xxh3_64_intdigest(name.encode()) for name in names), np.uint64, len(names))


def _spread(url_ids: np.ndarray) -> np.ndarray:
    """A hash of the ids that neither shards nor the validation split go by: MurmurHash3's finalizer, salted."""
    mixed = url_ids.astype(np.uint64) ^ np.uint64(0x5EED5A317C0FFEE5)
    with np.errstate(over="ignore"):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return mixed ^ (mixed >> np.uint64(33))


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
      captured: the month of the last capture, in months since year 0; 0 without any.
      clusters: the largest clusters of duplicates: size and some members, by the id of the document that stays.
      vocabulary: how often each token id occurs.
    """

    counters: dict[str, Counter] = field(default_factory=dict)
    histograms: dict[str, LogHistogram] = field(default_factory=dict)
    frequencies: dict[str, Frequencies] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    captured: int = 0
    clusters: dict[int, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    vocabulary: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def merge(self, other: Summary) -> None:
        for name, counter in other.counters.items():
            self.counter(name).update(counter)
        for name, histogram in other.histograms.items():
            self.histogram(name).merge(histogram)
        for name, frequencies in other.frequencies.items():
            self.frequencies.setdefault(name, Frequencies()).merge(frequencies)
        for name, sample in other.samples.items():
            self.sample(name, sample.size).merge(sample)
        self.captured = max(self.captured, other.captured)
        for kept, (size, members) in other.clusters.items():
            self.add_cluster(kept, size, members)
        self.add_vocabulary(other.vocabulary)

    def counter(self, name: str) -> Counter:
        return self.counters.setdefault(name, Counter())

    def histogram(self, name: str) -> LogHistogram:
        return self.histograms.setdefault(name, LogHistogram())

    def count(self, name: str, keys: pa.Array | pa.ChunkedArray) -> None:
        self.counter(name).update(counts_of(keys))

    def measure(self, name: str, values: pa.Array) -> None:
        self.histogram(name).add(values.to_numpy(zero_copy_only=False))

    def tally(self, name: str, keys: pa.Array) -> None:
        self.frequencies.setdefault(name, Frequencies()).add(keys)

    def sample(self, name: str, size: int) -> Sample:
        return self.samples.setdefault(name, Sample(size))

    def add_cluster(self, kept: int, size: int, members: list[dict[str, Any]]) -> None:
        """Members of a cluster; of all clusters, the largest ones stay, and of each, the members of least id."""
        known = self.clusters.get(kept, (size, []))[1]
        self.clusters[kept] = (size, sorted(known + members, key=lambda m: m["url_id"])[:_CLUSTER_MEMBERS])
        if len(self.clusters) > _CLUSTERS:
            # A cluster's size is in each of its rows, so one that falls out could never have come back.
            del self.clusters[min(self.clusters, key=lambda k: (self.clusters[k][0], -k))]

    def add_vocabulary(self, counts: np.ndarray) -> None:
        self.vocabulary = _sum(self.vocabulary, counts)

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
        selected: dict[str, np.ndarray] = {}
        for name, candidates in own.items():
            kind = name.partition("/")[2]
            selected[kind] = candidates.selected | selected.get(kind, candidates.selected)
        return {name: Candidates(selected[name.partition("/")[2]], own[name].bound) for name in own}


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
            self.counter(name).update(counter)
        self.urls.update(other.urls)
        self.texts.update(other.texts)
        self.pages.update(other.pages)

    def counter(self, name: str) -> Counter:
        return self.counts.setdefault(name, Counter())


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
    raise TypeError(f"a summary holds no {type(value).__name__}")


def _decoded(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        dtype, content = value
        return np.frombuffer(content, dtype).copy()  # which can be written to
    if kind is Counter:
        return Counter(value)
    raise TypeError(f"a summary holds no {kind.__name__}")


PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def share(part: float, total: float) -> float | None:
    """`part / total` to six digits, None of nothing."""
    return round(part / total, 6) if total else None


def distribution(summary: Summary, name: str) -> dict[str, Any]:
    """A histogram of `summary` with its percentiles."""
    histogram = summary.histogram(name)
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
