"""A forecast of collect's output, from some blocks of each source.

A compressed stream can only be read from its beginning, so blocks are decompressed one after the other, and the first
ones, then ever fewer of them, are parsed until the time is over. The number of distinct URLs grows as a power of the
number of submissions (Heaps' law); the exponent is estimated from half of the sample and all of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.stages.collect.rules import Rules
from owt_pipeline.stages.collect.sources import Reader, Source, block_batches, rows_of_block

_FIRST = 8  # blocks that are parsed before others are skipped


@dataclass(frozen=True)
class Sample:
    """What was read of some sources, and what is expected of all of them.

    Attributes:
      read: submissions that were read.
      submissions: expected submissions of all sources.
      urls: expected distinct URLs that are accepted.
      ids: `url_id` of those in the sample, uint64 (n,).
      busiest: the largest share of these that one host has, 0 to 1.
    """

    read: int
    submissions: float
    urls: float
    ids: np.ndarray
    busiest: float = 0.0

    def without(self, known: np.ndarray) -> Sample:
        """The sample without the URLs `known` to an earlier run."""
        ids = self.ids[~np.isin(self.ids, known)]
        return replace(self, ids=ids, urls=self.urls * len(ids) / max(len(self.ids), 1))


def sample_source(
    reader: Reader, source: Source, size: int, rules: Rules, seconds: float
) -> tuple[pa.RecordBatch | None, float]:
    """(some columns of ROWS, submissions of the complete source), from what is read in `seconds` of one core.

    `size` is the file's, in bytes.
    """
    work = partial(rows_of_block, source=source, rules=rules, num_buckets=1)
    found: list[pa.RecordBatch] = []
    lines = taken = seen = 0
    started, until, complete = time.process_time(), time.monotonic() + 3 * seconds, True
    for number, block in enumerate(block_batches(reader, source)):
        length = len(block["data"][0].as_buffer())
        seen += length
        if number >= _FIRST and number % (number.bit_length() - 1):
            continue
        rows = work(block)
        found.append(rows.select(["url_id", "reason", "score", "host"]))
        lines, taken = lines + rows.num_rows, taken + length
        if time.process_time() - started > seconds or time.monotonic() > until:
            complete = False
            break
    if not taken:
        return None, 0.0
    total: float = seen
    if not complete:
        decompressed = reader.bytes_decompressed or seen
        total = max(seen, decompressed * size / max(reader.bytes_read, 1))
    return pa.Table.from_batches(found).combine_chunks().to_batches()[0], lines * total / taken


def forecast(rows: Sequence[pa.RecordBatch], submissions: float, min_score: int, score_policy: str) -> Sample:
    """The forecast for sources with so many `submissions`, of which these `rows` were read."""
    read = sum(batch.num_rows for batch in rows)
    if not read:
        return Sample(0, submissions, 0.0, np.zeros(0, np.uint64))
    table = pa.Table.from_batches(rows)
    accepted = _accepted(table, min_score, score_policy)
    half = len(_accepted(table.take(np.random.default_rng(0).permutation(read)[: read // 2]), min_score, score_policy))
    power = math.log2(len(accepted) / half) if half and len(accepted) else 1.0
    urls = len(accepted) * (max(submissions, read) / read) ** min(max(power, 0.0), 1.0)
    of_host = pc.max(accepted["host_min"].value_counts().field("counts")).as_py() or 0
    return Sample(read, submissions, urls, accepted["url_id"].to_numpy(), of_host / max(len(accepted), 1))


def _accepted(table: pa.Table, min_score: int, score_policy: str) -> pa.Table:
    """The URLs (`url_id`, `host_min`) that are accepted by the scores of all submissions, or have no score."""
    wanted = table.filter(pc.is_null(table["reason"]))
    of_url = wanted.group_by("url_id").aggregate([("score", score_policy), ("host", "min")])
    score = of_url[f"score_{score_policy}"]
    return of_url.filter(pc.or_kleene(pc.is_null(score), pc.greater_equal(score, min_score)))
