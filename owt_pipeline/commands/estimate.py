"""How long a run takes and how much it writes, from measured rates; on a cluster also its cost and requests.

The rates are those of this run where its log has them. Else they are those of one run over real data (100,728
submissions, 1,308 pages in a WARC file) on two cores of a server; extraction's, tokenization's and deduplication's
are from `benchmarks/`, which measure them on more rows. They give an order of magnitude.

A cluster is simulated, in a second: a stage's parts are given to the first worker that is free, in no order, as
Dataflow does after a shuffle; every step waits for the last part of the one before. The times of parts spread as
measured ones do. What one worker does alone (planning, publishing, the spanning forest of near-duplicates) is added
and shown separately, since more workers do not shorten it. `benchmarks/scale.py` measures the constants.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.command_line import aligned
from owt_pipeline.engine.submission import Machines, Prices

SHIPPED_RATES = "the default rates"


@dataclass(frozen=True)
class Rate:
    """What a stage does with a row.

    Attributes:
      rows_per_second: rows that enter per second of one core.
      kept: share of the rows that leave it.
      bytes_per_row: bytes written for a row that leaves.
      measured: where the figures are from.
    """

    rows_per_second: float
    kept: float
    bytes_per_row: float
    measured: str = SHIPPED_RATES


SHIPPED: Mapping[str, Rate] = {
    "collect": Rate(60_000, 0.22, 283),
    "fetch": Rate(600, 0.6, 28_300),
    "fetch from the web": Rate(15, 0.6, 28_300),
    "extract": Rate(45, 0.98, 4_000),
    "clean": Rate(240, 0.96, 4_150),
    "dedupe": Rate(6_300, 0.93, 27),
    "export": Rate(3_000, 0.93, 4_150),
    "tokenize": Rate(4_100, 1.0, 6_250),
    "report": Rate(700, 1.0, 1_000),
}

ARCHIVE_BYTES_PER_SECOND = 50e6
"""Bytes of compressed WARC files that one core searches for pages in a second."""

START_SECONDS = 0.6
"""Seconds of one core for each stage, to start its process, import libraries, plan and publish."""

BYTES_PER_SUBMISSION = 135
"""Bytes in a compressed dump of 2013; later dumps have more per submission."""

LOOKUPS_OF_FOUND = 2
"""Collections of a CDX index that are asked for a URL with a page: 1.9 where each has half of all URLs, 2.2 where it
has 0.3 of them. A test asks collections of 9 days that begin every 30, as Common Crawl's did in 2018 and 2019."""

_LEAST_SECONDS = 20.0  # the time of a shorter run is mostly that of starting processes


def rate_of(stage: str, log: list[dict], *, live: bool = False) -> Rate:
    """The rate of the last complete run of `stage` in a run's log, or the one that ships."""
    shipped = SHIPPED["fetch from the web" if stage == "fetch" and live else stage]
    for entry in reversed(log):
        complete = "workers" in entry and entry.get("shards_written", 0) == entry.get("shards", 0)
        if entry.get("stage") == stage and complete and entry["seconds"] >= _LEAST_SECONDS and entry["entered"]:
            return Rate(
                entry["entered"] / entry["seconds"] / (1 if live else entry["workers"]),  # the web limits it
                entry["left"] / entry["entered"],
                entry["bytes"] / max(entry["left"], 1),
                "this run's log",
            )
    return shipped


def duration(seconds: float) -> str:
    """`seconds` for a person: `40 s`, `12 min`, `3.5 h`, `4.2 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def size(count: float) -> str:
    """Bytes for a person, in powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


SPREAD = 0.5
"""Sigma of the lognormal distribution of part times, where none was measured: shards differ by their hosts' pages."""
PLAN_SECONDS = 0.0002
PUBLISH_SECONDS = 0.0002
"""Of one worker, for each shard, apart from what it waits for a bucket: the list of files, the plan of the parts."""
PUBLISH_REQUESTS = 1.65
REQUESTS_TOGETHER = 16
"""Of one worker, for each shard of a stage: it reads the shard's record, and deletes what the steps have left, 6.5
objects, by a hundred; deleting a hundred is assumed to take as long as ten requests."""
FOREST_SECONDS = 6e-8
"""Of one worker, for each document of `dedupe` (benchmarks/dedupe_forest.py)."""
REQUEST_SECONDS = 0.05
"""Seconds that a part waits for each answer of a bucket: an assumption, typical of a bucket in the same region."""
RECORD_BYTES = 1_000
HANDLE_BYTES = 400
"""Bytes that go through the runner's shuffle for each part: its record to Publish, its handles to Work."""


@dataclass(frozen=True)
class Work:
    """What a stage has to do.

    Attributes:
      stage: its name.
      parts: how many, in each of its steps.
      core_seconds: of one core, for all parts of all steps.
      steps: how many; `core_seconds` are divided equally.
      alone: seconds of one worker while the others wait, planning and publishing not included.
      read, written: bytes, in the bucket.
      longest: seconds of the longest part, where it is known to be longer than its like: a dump cannot be divided.
      spread: sigma of the lognormal distribution of part times.
      reads, writes, objects: requests of each part, and objects it leaves.
    """

    stage: str
    parts: int
    core_seconds: float
    steps: int = 1
    alone: float = 0
    read: float = 0
    written: float = 0
    longest: float = 0
    spread: float = SPREAD
    reads: float = 14
    writes: float = 5.2
    objects: float = 2.5


@dataclass(frozen=True)
class Forecast:
    """What one stage takes, or all of them (`stage` is then "in all").

    Attributes:
      seconds: by the clock.
      alone: seconds of these in which one worker works and the others wait.
      busy: share of the workers' time in which they work.
    """

    stage: str
    seconds: float
    alone: float
    busy: float
    dollars: float
    shuffled: float
    objects: float
    reads: float
    writes: float


def forecast(works: Sequence[Work], machines: Machines, prices: Prices) -> list[Forecast]:
    """What each stage takes, and all of them: the last one, with the machines' start."""
    found = [_stage(work, machines, prices) for work in works]
    seconds = machines.start_seconds + sum(stage.seconds for stage in found)
    total = Forecast(
        "in all",
        seconds,
        sum(stage.alone for stage in found),
        sum(stage.busy * stage.seconds for stage in found) / seconds,
        sum(stage.dollars for stage in found) + machines.dollars(machines.start_seconds, prices),
        *(sum(getattr(stage, name) for stage in found) for name in ("shuffled", "objects", "reads", "writes")),
    )
    return [*found, total]


def table(found: Sequence[Forecast], machines: Machines) -> str:
    """The forecast as a table, and the longest work that one worker does alone."""
    rows = [("stage", "time", "alone", "busy", "dollars", "shuffle", "objects", "requests")]
    for stage in found:
        rows.append(
            (
                stage.stage,
                duration(stage.seconds),
                duration(stage.alone),
                f"{stage.busy:.0%}",
                f"{stage.dollars:,.2f}",
                size(stage.shuffled),
                f"{stage.objects:,.0f}",
                f"{stage.reads + stage.writes:,.0f}",
            )
        )
    lines = aligned(rows)
    *stages, total = found
    longest = max(stages, key=lambda stage: stage.alone)
    lines.append(
        f"{machines.workers} workers of {machines.type}: the longest work of one alone takes {duration(longest.alone)} "
        f"({longest.alone / total.seconds:.1%} of the run), in {longest.stage}"
    )
    return "\n".join(lines)


def _stage(work: Work, machines: Machines, prices: Prices) -> Forecast:
    slots = machines.workers * machines.vcpus
    waiting = PUBLISH_REQUESTS / REQUESTS_TOGETHER * REQUEST_SECONDS
    alone = work.alone + work.parts * (PLAN_SECONDS + PUBLISH_SECONDS + waiting)
    seconds = alone + work.steps * _makespan(work, slots)
    reads = work.parts * work.steps * work.reads
    writes = work.parts * work.steps * work.writes + work.parts / 1_000  # listing counts as writing
    shuffled = work.parts * (RECORD_BYTES + work.steps * HANDLE_BYTES)
    dollars = (
        machines.dollars(seconds, prices)
        + shuffled / 1e9 * prices.shuffle_gb
        + writes / 1_000 * prices.thousand_writes
        + reads / 1_000 * prices.thousand_reads
    )
    busy = (work.core_seconds + alone) / max(seconds * slots, 1e-9)
    return Forecast(
        work.stage, seconds, alone, busy, dollars, shuffled, work.parts * work.steps * work.objects, reads, writes
    )


def _makespan(work: Work, slots: int) -> float:
    """Seconds until the last part of one step has ended."""
    mean = work.core_seconds / work.steps / max(work.parts, 1)
    waiting = (work.reads + work.writes) * REQUEST_SECONDS
    drawn = np.random.default_rng(work.parts).lognormal(-(work.spread**2) / 2, work.spread, work.parts)
    times = drawn * (mean * work.parts / max(drawn.sum(), 1e-9)) + waiting
    if work.longest and work.parts:
        times[len(times) // 2] = max(times.max(), work.longest / work.steps)
    if len(times) <= slots:
        return float(times.max(initial=0.0))
    free = [0.0] * slots
    for seconds in times.tolist():
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)
