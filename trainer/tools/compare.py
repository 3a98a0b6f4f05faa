"""Which corpus trains the better model: runs of trainer.train on several corpora, scored on the
same texts.

Scores are bits per byte: lower is better. Differences are paired by seed and by text, so that what
models share cancels out: another seed would have given another model, and other texts would have
been easier for one model or the other. FineWeb (Penedo et al., 2024) and DCLM (Li et al., 2024)
chose their filters by such comparisons.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from schemas import SettingsError, option
from trainer.checkpoint import Record
from trainer.command_line import read_text, run_command
from trainer.config import TrainConfig, config_of
from trainer.device import autocast_of, device_of
from trainer.pretrained import Pretrained, Tokenizer, load_pretrained
from trainer.tools.evaluate import score_texts

# Student's t of a two-sided interval of 95%, for 1, 2, … 30 degrees of freedom.
_T = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)


@dataclass(frozen=True)
class CompareOptions:
    """Settings of `trainer.tools.compare`."""

    eval_text: tuple[str, ...] = option(
        help="texts to score every model on: .jsonl with one text per line, or one plain text",
        metavar="FILE",
    )
    micro_batch: int = option(8, "windows in one forward pass", minimum=1)
    device: str = option("auto", "auto is cuda if there is a GPU", choices=("auto", "cpu", "cuda"))
    dtype: str = option("auto", "auto is bfloat16 on cuda", choices=("auto", "float32", "bfloat16"))


@dataclass(frozen=True)
class Score:
    """What one model scored on texts, always the same ones in the same order: bits and bytes of
    each."""

    bits: Sequence[float]
    bytes: Sequence[float]

    @property
    def value(self) -> float:
        """Bits per byte; lower is better."""
        return math.fsum(self.bits) / math.fsum(self.bytes)


Scores = dict[str, dict[str, dict[int, Score]]]  # by texts, corpus and seed


def scores_of(runs: Sequence[str], options: CompareOptions) -> Scores:
    """The scores of each run's last checkpoint, by the name of its corpus's run; ValueError:
    they do not compare."""
    texts = {path: read_documents(path) for path in options.eval_text}
    device, first = device_of(options.device), None
    scores: Scores = {path: defaultdict(dict) for path in texts}
    known: dict[tuple[str, int], str] = {}  # runs by corpus and seed
    digests: dict[str, list[str]] = {}
    for run in runs:
        trained = load_pretrained(run, device)
        if not (record := trained.record):
            raise SettingsError(f"{run} is no run of trainer.train")
        first = first or record
        name, seed, data = (
            corpus_of(record),
            config_of(record.settings, run).seed,
            [own["digest"] for own in record.data],
        )
        problem = ""
        if digests.setdefault(name, data) != data:
            problem = f"another corpus is called {name}; rename the folder of one, and train there"
        elif (other := known.setdefault((name, seed), run)) != run:
            problem = f"{other} was trained on the same corpus, {name}, with the same seed, {seed}"
        if problem := differs(first, record) or problem:
            raise SettingsError(f"{run} cannot be compared with {runs[0]}: {problem}")
        with autocast_of(options.dtype, device):
            for path, own in texts.items():
                scores[path][name][seed] = score(trained, own, options.micro_batch)
    return scores


def corpus_of(record: Record) -> str:
    """The names of the folders of the runs that a model was trained on, with their shares."""
    parts = [(Path(own["folder"]).parent.name, own["share"]) for own in record.data]
    return (
        "+".join(f"{name}={share:.2g}" for name, share in parts) if len(parts) > 1 else parts[0][0]
    )


def differs(first: Record, second: Record) -> str:
    """The first setting that two runs to be compared must not differ in, and do; data and seed
    may differ."""
    one, other = (
        {**dataclasses.asdict(config_of(record.settings, "a run's record")), "step": record.step}
        for record in (first, second)
    )
    names = [
        field.name for field in dataclasses.fields(TrainConfig) if field.metadata["shapes_bytes"]
    ]
    wrong = (
        key for key in [*names, "step"] if key not in ("data", "seed") and one[key] != other[key]
    )
    return next((f"{key} is {other[key]}, there {one[key]}" for key in wrong), "")


def score(trained: Pretrained, texts: Sequence[str], micro_batch: int) -> Score:
    """The model's bits per byte of each text that its tokenizer can write; raises ValueError if
    it can write none."""
    found = score_texts(
        trained.model, Tokenizer(trained.tokenizer), texts, trained.eot, micro_batch=micro_batch
    )
    return Score([nats / math.log(2) for nats, _, _ in found], [size for _, _, size in found])


def read_documents(path: str) -> list[str]:
    """The texts of a JSON Lines file, or a plain text as the only one; raises SettingsError,
    ValueError."""
    text = read_text(path, "eval_text")
    if not text.strip():
        raise SettingsError(f"eval_text: {path} is empty")
    if Path(path).suffix not in (".jsonl", ".ndjson"):
        return [text]
    texts = []
    for number, line in enumerate(
        text.removesuffix("\n").split("\n"), 1
    ):  # JSON may have what splitlines splits at
        try:
            texts.append(json.loads(line)["text"] + "")  # a TypeError for anything but a text
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f'{path}, line {number} is no JSON object with a text: {{"text": "…"}}'
            ) from None
    return texts


@dataclass(frozen=True)
class Difference:
    """The second corpus's score minus the first's, over paired seeds."""

    mean: float  # over the seeds
    of_seeds: float  # its standard error by seeds; NaN for a single one
    of_texts: float  # and by texts
    # half the width of its 95% confidence interval, from both errors; NaN for a single seed
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

    The error by texts is that of a ratio of sums (Cochran, 1977, section 6.4), from differences
    averaged over the seeds, over complete texts, since the tokens of one are not independent
    (Miller, 2024). The interval is the root of the sum of both squared errors, each times its own t
    (Zou and Donner's MOVER, 2008). With two or three seeds, degrees of freedom as by Welch and
    Satterthwaite would find a difference of equal corpora twice as often.
    """
    by_seed = [b.value - a.value for a, b in zip(first, second, strict=True)]
    mean, seeds = statistics.fmean(by_seed), len(by_seed)
    of_seeds = statistics.stdev(by_seed) / math.sqrt(seeds) if seeds > 1 else math.nan
    sizes = np.asarray(first[0].bytes, dtype=np.float64)
    bits = [
        np.mean([score.bits for score in own], axis=0, dtype=np.float64) for own in (first, second)
    ]
    rest, n = bits[1] - bits[0] - mean * sizes, len(sizes)
    of_texts = (
        math.sqrt(n / (n - 1) * float(rest @ rest)) / float(sizes.sum()) if n > 1 else math.nan
    )
    interval = math.hypot(_t(seeds - 1) * of_seeds, _t(n - 1) * of_texts if n > 1 else 0.0)
    return Difference(mean, of_seeds, of_texts, interval)


def _t(freedom: int) -> float:
    if not freedom:
        return math.nan
    return _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.5 / freedom  # within 0.002


def table(scores: Scores) -> str:
    """Markdown: for each set of texts, each corpus with its standard deviation over seeds, and
    each two corpora's difference over the seeds that both have.
    """
    rows = [
        [
            "texts",
            "corpus",
            "bits per byte",
            "95% interval",
            "error by seeds",
            "error by texts",
            "result",
        ]
    ]
    rows.append(["---"] * len(rows[0]))
    for texts, by_name in scores.items():
        for name, of_seeds in by_name.items():
            values = [score.value for score in of_seeds.values()]
            deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            rows.append([texts, name, f"{statistics.fmean(values):.4f}{deviation}", "", "", "", ""])
        for (first, a), (second, b) in itertools.combinations(by_name.items(), 2):
            if seeds := sorted(a.keys() & b.keys()):
                found = difference([a[seed] for seed in seeds], [b[seed] for seed in seeds])
                interval = (
                    f"{found.mean - found.interval:+.4f} to {found.mean + found.interval:+.4f}"
                )
                numbers = [
                    f"{found.mean:+.4f}",
                    interval,
                    f"{found.of_seeds:.4f}",
                    f"{found.of_texts:.4f}",
                ]
                cells = ["unknown" if "nan" in number else number for number in numbers]
                rows.append([texts, f"{second} − {first}", *cells, found.verdict(first, second)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def print_table(runs: Sequence[str], options: CompareOptions) -> None:
    print(table(scores_of(runs, options)))


_NAMED = {"runs": "folders of runs that differ in --data and --seed alone"}
main = partial(run_command, "trainer.tools.compare", __doc__, _NAMED, CompareOptions, print_table)


if __name__ == "__main__":
    sys.exit(main())
