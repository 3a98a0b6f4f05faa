"""Which of several corpora trains the better model.

    python -m benchmarks.compare RUNS... --eval_text FILES

The runs of the trainer differ only in `--data` and `--seed`, and are scored on the same texts.
Scores are bits per byte: lower is better. Differences are paired by seed and by text, so that what
models share cancels out: another seed would have given another model, and other texts would have
been easier for one model or the other. FineWeb (Penedo et al., 2024) and DCLM (Li et al., 2024)
chose their filters by such comparisons.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from schemas import SettingsError
from trainer.checkpoint import Record
from trainer.command_line import read_text, run_reporting
from trainer.config import TrainConfig
from trainer.data.text import Tokenizer
from trainer.device import compute_dtype, device_of
from trainer.evaluate import score_texts
from trainer.pretrained import Pretrained, load_pretrained

# Student's t of a two-sided interval of 95%, for 1, 2, … 30 degrees of freedom.
_STUDENTS_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Score:
    """One model's bits and bytes of each text; the texts and their order are always the same."""

    bits: Sequence[float]
    bytes: Sequence[float]

    @property
    def bits_per_byte(self) -> float:
        """The score of all texts together; lower is better."""
        return math.fsum(self.bits) / math.fsum(self.bytes)


# By texts, corpus and seed.
Scores = dict[str, dict[str, dict[int, Score]]]


def scores_of(
    runs: Sequence[str], eval_text: Sequence[str], *, device: str = "auto", dtype: str = "auto"
) -> Scores:
    """Return the scores of each run's newest checkpoint, by the names of its data.

    Raises SettingsError if two runs do not compare.
    """
    texts_by_path = {path: read_documents(path) for path in eval_text}
    place = device_of(device)
    scores: Scores = {path: defaultdict(dict) for path in texts_by_path}
    records: dict[str, Record] = {}
    for run in runs:
        trained = load_pretrained(run, place)
        if not trained.record:
            raise SettingsError(f"{run} is not a run of the trainer")
        check_comparable(run, trained.record, records)
        records[run] = trained.record
        trained.model.compute_in(compute_dtype(dtype, place))
        seed = trained.record.settings["seed"]
        for path, texts in texts_by_path.items():
            scores[path][corpus_of(trained.record)][seed] = score(trained, texts)
    return scores


def check_comparable(run: str, record: Record, earlier: dict[str, Record]) -> None:
    """Raise SettingsError if a run cannot be compared with those before it."""
    corpus = corpus_of(record)
    seed = record.settings["seed"]
    for other, other_record in earlier.items():
        problem = ""
        if Path(run).resolve() == Path(other).resolve():
            raise SettingsError(
                f"{run} is named twice; a run has no difference from itself: name each run once"
            )
        if setting := differs(other_record, record):
            problem = setting
        elif corpus_of(other_record) != corpus:
            continue
        elif _digests(other_record) != _digests(record):
            problem = (
                f"another corpus is called {corpus}; rename the folder of one, and train there"
            )
        elif other_record.settings["seed"] == seed:
            problem = f"both were trained on the same corpus, {corpus}, with the same seed, {seed}"
        if problem:
            raise SettingsError(f"{run} cannot be compared with {other}: {problem}")


def corpus_of(record: Record) -> str:
    """Return the names of the folders of the runs that a model was trained on, with their shares.

    A single one has no share.
    """
    names = [Path(entry["folder"]).parent.name for entry in record.data]
    if len(names) == 1:
        return names[0]
    shares = [f"{entry['share']:.2g}" for entry in record.data]
    return "+".join(f"{name}={share}" for name, share in zip(names, shares, strict=True))


def _digests(record: Record) -> list[str]:
    return [entry["digest"] for entry in record.data]


def differs(first: Record, second: Record) -> str:
    """Return the first setting in which two runs may not differ and do; "" if there is none.

    Data and seed may differ.
    """
    for field in dataclasses.fields(TrainConfig):
        if field.name in ("data", "seed") or not field.metadata["shapes_bytes"]:
            continue
        old = first.settings.get(field.name)
        new = second.settings.get(field.name)
        if old != new:
            return f"{field.name} is {new}, there {old}"
    if first.step != second.step:
        return f"step is {second.step}, there {first.step}"
    return ""


def score(trained: Pretrained, texts: Sequence[str]) -> Score:
    """Return the model's bits and bytes of each text that its tokenizer can write.

    Raises ValueError if it can write none.
    """
    tokenizer = Tokenizer(trained.tokenizer)
    scores = score_texts(trained.model, tokenizer, texts, trained.eot)
    return Score(
        bits=[text.nats / math.log(2) for text in scores],
        bytes=[text.num_bytes for text in scores],
    )


def read_documents(path: str) -> list[str]:
    """Return the texts of a JSON Lines file, or a plain text as the only one.

    Raises SettingsError if the file is empty or cannot be read; ValueError naming a line.
    """
    text = read_text(path, "eval_text")
    if not text.strip():
        raise SettingsError(f"eval_text: {path} is empty")
    if Path(path).suffix not in (".jsonl", ".ndjson"):
        return [text]
    texts = []
    # JSON may contain characters at which splitlines would split.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        try:
            # Adding "" raises a TypeError for anything except a text.
            texts.append(json.loads(line)["text"] + "")
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f'{path}, line {number} is not a JSON object with a text: {{"text": "…"}}'
            ) from None
    return texts


@dataclass(frozen=True)
class Difference:
    """The second corpus's score minus the first's, over paired seeds."""

    mean: float  # over the seeds
    error_by_seeds: float  # standard error; NaN for a single seed
    error_by_texts: float  # standard error; NaN for a single text
    # Half the width of its 95% confidence interval, from both errors; NaN for a single seed.
    interval: float

    def verdict(self, first: str, second: str) -> str:
        """Return which corpus is better if the interval excludes zero, or why neither."""
        if not self.mean and not self.error_by_seeds:
            return "no difference"
        if math.isnan(self.interval):
            return "unknown: one seed"
        if abs(self.mean) <= self.interval:
            return "within the noise"
        return f"{second if self.mean < 0 else first} is better"

    def cells(self) -> list[str]:
        """Return the numbers as the table shows them."""
        numbers = [
            f"{self.mean:+.4f}",
            f"{self.mean - self.interval:+.4f} to {self.mean + self.interval:+.4f}",
            f"{self.error_by_seeds:.4f}",
            f"{self.error_by_texts:.4f}",
        ]
        return ["unknown" if "nan" in number else number for number in numbers]


def difference(first: Sequence[Score], second: Sequence[Score]) -> Difference:
    """Return the difference of two corpora on some texts; entry s of both has seed s.

    The error by texts is that of a ratio of sums (Cochran, 1977, section 6.4), from differences
    averaged over the seeds, over complete texts, since the tokens of one are not independent
    (Miller, 2024). The interval is the root of the sum of both squared errors, each times its own t
    (Zou and Donner's MOVER, 2008). With two or three seeds, degrees of freedom as by Welch and
    Satterthwaite would find a difference of equal corpora twice as often.
    """
    pairs = list(zip(first, second, strict=True))
    by_seed = [b.bits_per_byte - a.bits_per_byte for a, b in pairs]
    mean = statistics.fmean(by_seed)
    num_seeds = len(by_seed)
    error_by_seeds = math.nan
    if num_seeds > 1:
        error_by_seeds = statistics.stdev(by_seed) / math.sqrt(num_seeds)

    sizes = np.asarray(first[0].bytes, dtype=np.float64)
    bits_of_first = np.mean([score.bits for score in first], axis=0, dtype=np.float64)
    bits_of_second = np.mean([score.bits for score in second], axis=0, dtype=np.float64)
    residuals = bits_of_second - bits_of_first - mean * sizes
    num_texts = len(sizes)
    error_by_texts = math.nan
    width_by_texts = 0.0
    if num_texts > 1:
        squares = num_texts / (num_texts - 1) * float(residuals @ residuals)
        error_by_texts = math.sqrt(squares) / float(sizes.sum())
        width_by_texts = _students_t(num_texts - 1) * error_by_texts

    interval = math.hypot(_students_t(num_seeds - 1) * error_by_seeds, width_by_texts)
    return Difference(mean, error_by_seeds, error_by_texts, interval)


def _students_t(freedom: int) -> float:
    if not freedom:
        return math.nan
    if freedom <= len(_STUDENTS_T):
        return _STUDENTS_T[freedom - 1]
    # Within 0.002 of it.
    return 1.96 + 2.5 / freedom


_COLUMNS = (
    "texts",
    "corpus",
    "bits per byte",
    "95% interval",
    "error by seeds",
    "error by texts",
    "result",
)


def table(scores: Scores) -> str:
    """Return a Markdown table of each set of texts.

    It has each corpus with its standard deviation over seeds, and each two corpora's difference
    over the seeds that both have.
    """
    rows = [[*_COLUMNS], ["---"] * len(_COLUMNS)]
    for texts, score_by_corpus in scores.items():
        for corpus, score_by_seed in score_by_corpus.items():
            values = [score.bits_per_byte for score in score_by_seed.values()]
            deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            mean = f"{statistics.fmean(values):.4f}{deviation}"
            rows.append([texts, corpus, mean, "", "", "", ""])
        for (first, a), (second, b) in itertools.combinations(score_by_corpus.items(), 2):
            seeds = sorted(a.keys() & b.keys())
            if not seeds:
                continue
            result = difference([a[seed] for seed in seeds], [b[seed] for seed in seeds])
            verdict = result.verdict(first, second)
            rows.append([texts, f"{second} − {first}", *result.cells(), verdict])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="runs that differ only in --data and --seed"
    )
    parser.add_argument(
        "--eval_text",
        nargs="+",
        required=True,
        metavar="FILE",
        help="texts to score on: .jsonl with one text per line, or one plain text",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    given = parser.parse_args(arguments)

    def print_table() -> None:
        scores = scores_of(given.runs, given.eval_text, device=given.device, dtype=given.dtype)
        print(table(scores))

    return run_reporting("benchmarks.compare", print_table)


if __name__ == "__main__":
    sys.exit(main())
