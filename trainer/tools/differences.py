"""Differences between models trained on several corpora, and whether they exceed chance: paired by seed and by text.

A score has two sources of chance: another seed would have given another model, and other texts would have been easier
for one model or the other. Both are estimated from paired differences, in which what the models share cancels out.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Student's t of a two-sided interval of 95%, for 1, 2, … 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Score:
    """What one model scored on texts, always the same ones in the same order: bits and bytes of each."""

    bits: Sequence[float]
    bytes: Sequence[float]

    @property
    def value(self) -> float:
        """Bits per byte; lower is better."""
        return math.fsum(self.bits) / math.fsum(self.bytes)


@dataclass(frozen=True)
class Difference:
    """The second corpus's score minus the first's, over paired seeds.

    Attributes:
      mean: over the seeds.
      of_seeds, of_texts: its standard errors by seeds and by texts; NaN for a single one.
      interval: half the width of its 95% confidence interval, from both errors; NaN for a single seed.
    """

    mean: float
    of_seeds: float
    of_texts: float
    interval: float

    def verdict(self, first: str, second: str) -> str:
        """Which corpus is better if the interval excludes zero, or why neither."""
        if not self.mean and not self.of_seeds:
            return "no difference"
        if math.isnan(self.interval):
            return "unknown: one seed"
        if abs(self.mean) <= self.interval:
            return "within the noise"
        return f"{second if self.mean < 0 else first} is better"


def difference(first: Sequence[Score], second: Sequence[Score]) -> Difference:
    """The difference of two corpora on some texts; entry s of both has seed s.

    The error by texts is that of a ratio of sums (Cochran, 1977, section 6.4), from differences averaged over the
    seeds, over complete texts, since the tokens of one are not independent (Miller, 2024). The interval is the root of
    the sum of both squared errors, each times its own t (Zou and Donner's MOVER, 2008). With two or three seeds,
    degrees of freedom as by Welch and Satterthwaite would find a difference of equal corpora twice as often.
    """
    by_seed = [b.value - a.value for a, b in zip(first, second, strict=True)]
    mean, seeds = statistics.fmean(by_seed), len(by_seed)
    of_seeds = statistics.stdev(by_seed) / math.sqrt(seeds) if seeds > 1 else math.nan
    sizes = np.asarray(first[0].bytes, dtype=np.float64)
    bits = [np.mean([score.bits for score in own], axis=0, dtype=np.float64) for own in (first, second)]
    rest, n = bits[1] - bits[0] - mean * sizes, len(sizes)
    of_texts = math.sqrt(n / (n - 1) * float(rest @ rest)) / float(sizes.sum()) if n > 1 else math.nan
    interval = math.hypot(_t(seeds - 1) * of_seeds, _t(n - 1) * of_texts if n > 1 else 0.0)
    return Difference(mean, of_seeds, of_texts, interval)


def _t(freedom: int) -> float:
    if not freedom:
        return math.nan
    return _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.5 / freedom  # within 0.002


Scores = dict[str, dict[str, dict[int, Score]]]
"""By texts, corpus and seed."""

Table = list[list[str]]
"""Its first row has the columns' names."""


def value_table(scores: Scores, names: Sequence[str]) -> Table:
    """For each set of texts: mean ± standard deviation over the seeds of each corpus."""
    rows = [["texts", *names]]
    for texts, by_name in scores.items():
        rows.append([texts])
        for values in ([score.value for score in by_name.get(name, {}).values()] for name in names):
            deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            rows[-1].append(f"{statistics.fmean(values):.4f}{deviation}" if values else "")
    return rows


def difference_table(scores: Scores, names: Sequence[str]) -> Table:
    """For each set of texts and pair of corpora: their difference over the seeds that both have."""
    rows = [["texts", "difference", "mean", "95% interval", "error by seeds", "error by texts", "result"]]
    for (texts, by_name), (first, second) in itertools.product(scores.items(), itertools.combinations(names, 2)):
        a, b = by_name.get(first, {}), by_name.get(second, {})
        if seeds := sorted(a.keys() & b.keys()):
            found = difference([a[seed] for seed in seeds], [b[seed] for seed in seeds])
            interval = f"{found.mean - found.interval:+.4f} to {found.mean + found.interval:+.4f}"
            numbers = [f"{found.mean:+.4f}", interval, f"{found.of_seeds:.4f}", f"{found.of_texts:.4f}"]
            cells = ("unknown" if "nan" in number else number for number in numbers)
            rows.append([texts, f"{second} − {first}", *cells, found.verdict(first, second)])
    return rows


def as_text(table: Table) -> str:
    """The table as aligned Markdown, for a terminal and a report."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(rows)
