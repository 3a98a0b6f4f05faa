"""How long a stage takes and how much it writes, from measured rates.

The rates are those of this run where its log has them. Else they are those of one run over real data (100,728
submissions, 1,308 pages in a WARC file) on two cores of a server; extraction's, tokenization's and deduplication's
are from `benchmarks/`, which measure them on more rows. They tell minutes from hours, no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from owt_pipeline.engine.phases import RUN_LOG
from owt_pipeline.engine.storage import Storage

SHIPPED_RATES = "the rates that ship"


@dataclass(frozen=True)
class Rate:
    """What a stage does with a row.

    Attributes:
      rows_per_second: rows that enter, in a second of one core.
      kept: share of the rows that leave it.
      bytes_per_row: bytes written for a row that leaves.
      measured: where the figures are from.
    """

    rows_per_second: float
    kept: float
    bytes_per_row: float
    measured: str = SHIPPED_RATES


SHIPPED: Mapping[str, Rate] = {
    "collect": Rate(17_700, 0.22, 283),
    "fetch": Rate(6_800, 0.6, 28_300),
    "fetch from the web": Rate(15, 0.6, 28_300),
    "extract": Rate(150, 0.98, 4_000),
    "clean": Rate(140, 0.96, 4_150),
    "dedupe": Rate(6_300, 0.93, 27),
    "export": Rate(3_000, 0.93, 4_150),
    "tokenize": Rate(4_100, 1.0, 6_250),
    "report": Rate(700, 1.0, 1_000),
}

BYTES_PER_SUBMISSION = 135
"""Of a compressed dump of 2013; later ones are larger a submission."""

_LEAST_SECONDS = 2.0  # a shorter run tells more of how long a process takes to start


def rate_of(stage: str, log: list[dict], *, live: bool = False) -> Rate:
    """The rate of the last whole run of `stage` in a run's log, or the one that ships."""
    shipped = SHIPPED["fetch from the web" if stage == "fetch" and live else stage]
    for entry in reversed(log):
        whole = entry.get("shards_written", 0) == entry.get("shards", 0)
        if entry.get("stage") == stage and whole and entry["seconds"] >= _LEAST_SECONDS and entry["entered"]:
            return Rate(
                entry["entered"] / entry["seconds"] / busy(stage, entry["workers"], live=live),
                entry["left"] / entry["entered"],
                entry["bytes"] / max(entry["left"], 1),
                "this run's log",
            )
    return shipped


def busy(stage: str, workers: int, *, live: bool = False) -> int:
    """Of so many workers, those that a stage has work for: the report is one process', and the web is waited for."""
    return 1 if stage == "report" or live else workers


def read_log(workdir: Storage) -> list[dict]:
    """The entries of a run's log; those that cannot be read are left out."""
    if not workdir.exists(RUN_LOG):
        return []
    entries = []
    for line in workdir.read(RUN_LOG).decode(errors="replace").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue  # a line that a crash cut off
    return entries


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
