"""Mergeable statistics of fixed size, however many values go in.

Each has `merge`, which is commutative and associative, and what it comes to depends on the values alone: not on
their order, nor on how they were spread over shards and workers. So the report has the same bytes on any runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
            self._add_bins(np.bincount(_bin_of(values)))
            self.total += int(values.sum())
            self._widen(int(values.min()), int(values.max()))

    def merge(self, other: LogHistogram) -> None:
        self._add_bins(other.counts)
        self.total += other.total
        if other.minimum is not None and other.maximum is not None:
            self._widen(other.minimum, other.maximum)

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

    def _add_bins(self, bins: np.ndarray) -> None:
        if len(bins) > len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros(len(bins) - len(self.counts), np.int64)])
        self.counts[: len(bins)] += bins

    def _widen(self, minimum: int, maximum: int) -> None:
        self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
        self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)


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
        names, counts = _value_counts(keys)
        if not names:
            return
        hashes = _hashes(names)
        np.add.at(self.buckets, _bucket_of(hashes), counts)
        low = hashes & np.uint64((1 << (64 - _BUCKET_BITS)) - 1)  # bits that do not choose the bucket
        register = (low & np.uint64((1 << _REGISTER_BITS) - 1)).astype(np.int64)
        rest = (low >> np.uint64(_REGISTER_BITS)).astype(np.float64)
        width = 64 - _BUCKET_BITS - _REGISTER_BITS
        rank = (width + 1 - np.frexp(rest)[1]).astype(np.uint8)  # leading zeros, and one
        np.maximum.at(self.registers, register, rank)
        self.total += int(counts.sum())

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
        names, counts = _value_counts(keys)
        return {name: int(n) for name, n, yes in zip(names, counts, self._among(names), strict=True) if yes}

    def mask(self, keys: pa.Array) -> pa.Array:
        """Which of `keys`, strings, are candidates; nulls are none."""
        encoded = keys.dictionary_encode()
        among = pa.array(self._among(encoded.dictionary.to_pylist()), pa.bool_())
        return pc.fill_null(among.take(encoded.indices), False)

    def union(self, other: Candidates) -> Candidates:
        """The candidates of either; what is in neither is no more frequent than the greater bound."""
        return Candidates(self.selected | other.selected, max(self.bound, other.bound))

    def bounded(self, bound: int) -> Candidates:
        """The same candidates, for keys of which no other is more frequent than `bound`."""
        return Candidates(self.selected, bound)

    def _among(self, names: Sequence[str]) -> np.ndarray:
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

    def add(self, url_ids: np.ndarray, row: Callable[[int], Any]) -> None:
        """Consider rows by their ids, uint64; `row(k)` gives the k-th one's content where it is wanted."""
        if not self.size:
            return
        spread = _spread(url_ids)
        for k in np.lexsort((url_ids, spread)).tolist():
            key = (int(spread[k]), int(url_ids[k]))
            if len(self.chosen) == self.size and key > max(self.chosen):
                break
            self._put(key, row(k))

    def merge(self, other: Sample) -> None:
        for key, row in other.chosen.items():
            self._put(key, row)

    def rows(self) -> list[Any]:
        return [self.chosen[key] for key in sorted(self.chosen)]

    def _put(self, key: tuple[int, int], row: Any) -> None:
        self.chosen[key] = min(self.chosen.get(key, row), row, key=repr)  # an id may have several rows
        if len(self.chosen) > self.size:
            del self.chosen[max(self.chosen)]


def _value_counts(keys: pa.Array) -> tuple[list[str], np.ndarray]:
    counted = pc.value_counts(keys.drop_null())
    return counted.field("values").to_pylist(), counted.field("counts").to_numpy()


def _bucket_of(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def _hashes(names: Sequence[str]) -> np.ndarray:
    return np.fromiter((xxhash.xxh3_64_intdigest(name.encode()) for name in names), np.uint64, len(names))


def _spread(url_ids: np.ndarray) -> np.ndarray:
    """A hash of the ids that neither shards nor the validation split go by: MurmurHash3's finalizer, salted."""
    mixed = url_ids.astype(np.uint64) ^ np.uint64(0x5EED5A317C0FFEE5)
    with np.errstate(over="ignore"):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return mixed ^ (mixed >> np.uint64(33))
