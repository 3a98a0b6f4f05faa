"""Which shard a row belongs to: by its host's bucket; a host too large for one shard is divided over several."""

from __future__ import annotations

from collections import Counter
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
"""Hosts that are kept per source; any other is far too rare to fill a shard."""

_MOST_HOSTS = 20 * TOP_HOSTS  # that stay in the count when there are twice as many

WORTH_SPREADING = 1_000
"""A host with fewer rows is never divided: at one request a second they take a quarter of an hour."""


class HostCounter:
    """Counts hosts in bounded memory: when there are too many, the rarest are dropped."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def add(self, hosts: pa.Array) -> None:
        found = pc.value_counts(hosts.drop_null()).to_pylist()
        self._counts.update({each["values"]: each["counts"] for each in found})
        if len(self._counts) > 2 * _MOST_HOSTS:
            self._counts = Counter(dict(self._top(_MOST_HOSTS)))

    def batch(self) -> pa.RecordBatch:
        """The most frequent hosts, as a batch of schema HOSTS."""
        top = self._top(TOP_HOSTS)
        return pa.RecordBatch.from_pydict({"host": [h for h, _ in top], "rows": [n for _, n in top]}, schema=HOSTS)

    def _top(self, n: int) -> list[tuple[str, int]]:
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:n]


@dataclass(frozen=True)
class Spread:
    """The shard of each row: shard k has bucket k, but hosts in `shards_of` are divided over the shards from there on.

    Attributes:
      num_shards: the number of shards, and of buckets.
      shards_of: number of shards of each host that has more than one.
    """

    num_shards: int
    shards_of: Mapping[str, int] = field(default_factory=dict)

    def shards_of_buckets(self) -> list[set[int]]:
        """For each bucket, the shards that may have some of its rows."""
        found = [{bucket} for bucket in range(self.num_shards)]
        for host, spread in self.shards_of.items():
            home = home_bucket(host, self.num_shards)
            found[home] |= {(home + k) % self.num_shards for k in range(spread)}
        return found

    @cached_property
    def _divided(self) -> set[int]:
        """Buckets whose rows are in several shards."""
        return {home_bucket(host, self.num_shards) for host in self.shards_of}

    def rows_of(self, shard: int, rows: pa.Table) -> pa.Table:
        """The rows that belong to `shard`, of `rows` of buckets that may have some."""
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
    """Divide each host with more rows than `max_share` of a mean shard, so that no shard has more of its rows.

    Args:
      counts: of schema HOSTS, from all sources.
      total: rows of all sources.
      num_shards: number of shards.
      max_share: the largest part of a shard that one host may fill, where 1 is total / num_shards rows.
    """
    rows = counts.group_by("host").aggregate([("rows", "sum")])
    limit = int(max(WORTH_SPREADING, total / num_shards * max_share))
    large = rows.filter(pc.greater(rows["rows_sum"], limit)).sort_by("host").to_pylist()
    return Spread(num_shards, {row["host"]: min(num_shards, -(-row["rows_sum"] // limit)) for row in large})
