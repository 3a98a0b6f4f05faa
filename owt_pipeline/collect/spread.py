"""Where rows go: the bucket of their host, and over how many shards a host is spread that is too large for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

HOSTS = pa.schema([pa.field("host", pa.string(), nullable=False), pa.field("rows", pa.int64(), nullable=False)])
"""The most frequent hosts of one source."""

TOP_HOSTS = 10_000
"""Kept for each source. A host beyond them is far too rare to fill a shard."""

_MOST_HOSTS = 20 * TOP_HOSTS  # or up to twice as many, that are counted at all
_TOGETHER = 1 << 17  # hosts that are counted in one go

WORTH_SPREADING = 1_000
"""A host with fewer rows is never spread: one visit a second gets through them in a quarter of an hour."""


class HostCounter:
    """Counts hosts in bounded memory: when there are too many, the rarest are forgotten."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._waiting: list[pa.Array] = []

    def add(self, hosts: pa.Array) -> None:
        self._waiting.append(hosts)
        if sum(map(len, self._waiting)) >= _TOGETHER:
            self._count()

    def batch(self) -> pa.RecordBatch:
        """The most frequent hosts, as a batch of schema HOSTS."""
        self._count()
        top = self._top(TOP_HOSTS)
        return pa.RecordBatch.from_pydict({"host": [h for h, _ in top], "rows": [n for _, n in top]}, schema=HOSTS)

    def _count(self) -> None:
        found = pc.value_counts(pa.chunked_array(self._waiting, pa.string()))
        self._waiting = []
        for host, count in zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True):
            if host is not None:
                self._counts[host] = self._counts.get(host, 0) + count
        if len(self._counts) > 2 * _MOST_HOSTS:
            self._counts = dict(self._top(_MOST_HOSTS))

    def _top(self, n: int) -> list[tuple[str, int]]:
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:n]


@dataclass(frozen=True)
class Spread:
    """Where rows go: shard k holds bucket k, but for the hosts that are spread from there over the shards after it.

    Attributes:
      num_shards: shards, as many as buckets.
      shards_of: number of shards of each host that has more than one.
    """

    num_shards: int
    shards_of: Mapping[str, int] = field(default_factory=dict)

    def shards_of_buckets(self) -> list[set[int]]:
        """For each bucket, the shards that may have rows of it."""
        found = [{bucket} for bucket in range(self.num_shards)]
        for host, spread in self.shards_of.items():
            home = home_bucket(host, self.num_shards)
            found[home] |= {(home + k) % self.num_shards for k in range(spread)}
        return found

    @cached_property
    def _divided(self) -> set[int]:
        """Buckets of which not all rows are in one shard."""
        return {home_bucket(host, self.num_shards) for host in self.shards_of}

    def rows_of(self, shard: int, rows: pa.Table) -> pa.Table:
        """Those of `rows` (of schema ROWS, of buckets that may have some) that belong to `shard`."""
        return rows.filter(pa.array(self.shards(rows) == shard)) if self._divided else rows

    def shards(self, rows: pa.Table | pa.RecordBatch) -> np.ndarray:
        """The shard of each row."""
        homes = rows["bucket"].to_numpy().astype("uint64")
        if self._divided.isdisjoint(np.unique(homes).tolist()):
            return homes
        spread = self.host_shards(rows["host"]).to_numpy().astype("uint64")
        return (homes + rows["url_id"].to_numpy() % spread) % self.num_shards

    def host_shards(self, hosts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Number of shards of each host; 1 for null."""
        if not self.shards_of:
            return pa.repeat(pa.scalar(1, pa.uint16()), len(hosts))
        places = pc.index_in(hosts, value_set=pa.array(list(self.shards_of), pa.string()), skip_nulls=True)
        return pc.fill_null(pc.take(pa.array(list(self.shards_of.values()), pa.uint16()), places), 1)


def home_bucket(host: str, num_buckets: int) -> int:
    """The bucket of a host."""
    return xxhash.xxh3_64_intdigest(host.encode()) % num_buckets


def plan_spread(counts: pa.Table, total: int, num_shards: int, max_share: float) -> Spread:
    """Spread each host with more rows than `max_share` of a shard's mean, so that no shard has more of it.

    Args:
      counts: of schema HOSTS, of all sources.
      total: rows of all sources.
      num_shards: shards.
      max_share: the largest part of a shard that one host may fill, where 1 is total / num_shards rows.
    """
    rows = counts.group_by("host").aggregate([("rows", "sum")])
    limit = int(max(WORTH_SPREADING, total / num_shards * max_share))
    large = rows.filter(pc.greater(rows["rows_sum"], limit)).sort_by("host").to_pylist()
    return Spread(num_shards, {row["host"]: min(num_shards, -(-row["rows_sum"] // limit)) for row in large})
