"""Which corpus trains the better model: the same training on each, paired by seed, scored on the same texts.

This is how FineWeb (Penedo et al., 2024) and DCLM (Li et al., 2024) chose their filters.

OUT/comparison.html, comparison.md    differences and which are larger than the noise, scores, curves, settings
OUT/scores.json                       each score, by evaluation, corpus and seed
OUT/runs/NAME/seed-1337/              a run of trainer.train, with its checkpoints
    scores.json                       its scores, text by text
    output.txt                        what it printed
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from schemas import SettingsError, option
from schemas.settings import ExitCode, add_flags, flags_given, from_table
from trainer.command_line import CommandParser, parse_with_file, run_reporting
from trainer.config import TrainConfig
from trainer.corpora import check_length, open_corpora
from trainer.device import device_of
from trainer.distributed import StopSignals, sole_writer
from trainer.page import Page, replace_text
from trainer.pretrained import Tokenizer
from trainer.remote import sha256_of
from trainer.resuming import changes
from trainer.shards import check_same_tokenizer
from trainer.tools.differences import Scores, as_text, difference_table, value_table
from trainer.tools.job import Job, read_documents, read_json

_OWN = {  # settings of trainer.train that are set here
    "data", "out", "val_every", "val_data", "publish", "sign_key",
}  # fmt: skip


@dataclass(frozen=True)
class CompareOptions:
    """Settings of `trainer.tools.compare` beyond those of the training."""

    data: tuple[str, ...] = option(
        help="token shards of a corpus, WORKDIR/tokens; repeat it for each corpus. A mixture is one corpus, written "
        "with commas: wiki/tokens=0.3,web/tokens=0.7",
        metavar="DIR",
    )
    out: str = option(help="folder of the comparison: its runs, tables and page", metavar="DIR")
    tokens: int = option(0, "tokens to train each model on, in place of --max_steps", minimum=0)
    seeds: int = option(3, "models on each corpus, with --seed and the numbers after it", minimum=1)
    eval_text: tuple[str, ...] = option(
        (), "texts to score every model on: .jsonl with one text per line, or one plain text", metavar="FILE"
    )
    eval_tokens: int = option(
        262_144, "most tokens of each val split and --eval_text, in complete texts; 0 for all", minimum=0
    )
    eval_val: bool = option(True, "also score models on the val split of each corpus")


_EXAMPLES = """\
examples:
  python -m trainer.tools.compare --data plain/tokens --data filtered/tokens --out which --preset tiny --tokens 20000000
  python -m trainer.tools.compare --data a/tokens --data b/tokens --data c/tokens --out which --seeds 5 \\
      --tokens 2500000000 --micro_batch 32 --eval_text articles.jsonl

For a seed, all models start from the same weights and take the same number of steps of the same size. The same command
again continues where it stopped. More seeds, corpora and evaluations can be added later; the model and its steps
cannot be changed. A difference counts as larger than the noise if its 95% confidence interval, by seeds and by texts,
excludes zero. Of twenty comparisons of equal corpora, about one does so by chance."""


class Comparison:
    """The jobs of a comparison and their results so far.

    Raises:
      SettingsError, ShardError, OSError: what cannot be compared, and what to do.
    """

    def __init__(self, options: CompareOptions, config: TrainConfig, say: Callable[[str], None]) -> None:
        if config.device == "xla":
            raise SettingsError("device: compare trains on CUDA or on a CPU")
        if len(options.data) < 2:
            raise SettingsError("data: name at least two corpora, --data A/tokens --data B/tokens")
        self.names, self.out, self._say = _names(options.data), Path(options.out), say
        opened = [open_corpora(entry.split(","), config.cache) for entry in options.data]
        shape = config.model_config(opened[0].tokenizer.vocab_size)
        tokens = config.windows_per_batch(shape.context) * shape.context  # of a step
        steps = -(-options.tokens // tokens) or config.resolved(0).max_steps
        if not steps:
            raise SettingsError("the length of the training is not set: give --tokens or --max_steps")
        self.config = dataclasses.replace(config, max_steps=steps, val_every=0)
        self._what = (
            f"{options.seeds} models on each corpus, {steps:,} steps of {tokens:,} tokens. Scores are bits per byte: "
            "lower is better. Errors are standard errors of paired differences; a corpus is called better if the 95% "
            "interval excludes zero."
        )
        Tokenizer(opened[0].tokenizer.path)
        evaluations = {}  # the source of each set of texts, by its name, digest and most tokens
        self._corpora = [["corpus", "training tokens", "passes over it", "shards"]]
        for name, entry, own in zip(self.names, options.data, opened, strict=True):
            check_same_tokenizer(opened[0].datasets[0], own.datasets[0])
            check_length(sum(own.tokens), shape.context, f"{entry}, split train")
            self._corpora.append([name, f"{sum(own.tokens):,}", f"{steps * tokens / sum(own.tokens):.2f}", entry])
            if options.eval_val and any(len(dataset.documents("val")) for dataset in own.datasets):
                evaluations[f"val of {name} {own.digest[:12]} {options.eval_tokens}"] = entry
            elif options.eval_val:
                say(f"{name} has no document in its val split, so no model is scored on it")
        for path in options.eval_text:
            read_documents(path)  # now, so that an error is found before the first model is trained
            evaluations[f"{path} {sha256_of(Path(path))[:12]} {options.eval_tokens}"] = path
        if not evaluations:
            raise SettingsError("nothing to score the models on, without a val split: give --eval_text FILE")
        self.jobs = []
        for seed in range(config.seed, config.seed + options.seeds):
            for name, entry, own in zip(self.names, options.data, opened, strict=True):
                folder = str(self.out / "runs" / name / f"seed-{seed}")
                settings = dataclasses.replace(self.config, data=tuple(entry.split(",")), seed=seed, out=folder)
                self.jobs.append(Job(name, own.digest, settings, evaluations, options.eval_tokens))

    def prepare(self) -> None:
        """Create each job's folder, or check that an existing one has these settings and corpora."""
        for job in self.jobs:
            if known := read_json(job.folder / "job.json"):
                wrong = [change for kind in changes(known["config"], job.config) for change in kind]
                wrong += [f"the shards of {job.name} have changed"] * (known["data"] != job.data)
                if wrong:
                    raise SettingsError(
                        f"{job.folder} has other settings or data: {'; '.join(wrong)}. Use another --out"
                    )
            job.save()

    def run(self, stop: StopSignals) -> int:
        """Do the jobs that are not finished, one at a time on each GPU or on the CPU; returns how many failed."""
        waiting = [job for job in self.jobs if not job.finished]
        self._say(f"{len(self.jobs) - len(waiting)} of {len(self.jobs)} runs are finished")
        jobs, reporting = iter(waiting), threading.Lock()  # a thread of each device takes the next job

        def work_on(device: str) -> int:
            failed = 0
            for job in jobs:
                if stop.received:
                    break
                code, said = _do(job, device, stop)
                with reporting:
                    self._say(f"{job}: {said}")
                    if not job.finished and not stop.received:
                        failed += 1
                        self._say(f"{job} failed with exit code {code}; see {job.folder / 'output.txt'}")
                    self.report()
            return failed

        with ThreadPoolExecutor() as threads:
            return sum(threads.map(work_on, _devices(self.config.device)))

    def report(self) -> str:
        """Write the page and the tables, and return the tables."""
        scores: Scores = defaultdict(lambda: defaultdict(dict))
        settings = dataclasses.asdict(self.config)
        page = Page(self.out / "comparison.html", "Comparison of corpora", self.config.max_steps, settings)
        for job in self.jobs:
            known = job.scores()
            for key in (key for key in job.evaluations if key in known):
                scores[key.rsplit(" ", 2)[0]][job.name][job.config.seed] = known[key]
            for step, loss in _losses(job.folder / "metrics.jsonl"):
                page.point("Training loss, mean over the seeds", job.name, step, loss)
        differences, values = difference_table(scores, self.names), value_table(scores, self.names)
        left = sum(not job.finished for job in self.jobs)
        page.notes = [f"{left} of {len(self.jobs)} runs are not finished.", self._what]
        page.tables = {"Differences": differences, "Scores": values, "Corpora": self._corpora}
        page.write(finished=not left)
        text = "\n\n".join(map(as_text, page.tables.values()))
        replace_text(self.out / "comparison.md", f"{self._what}\n\n{text}\n")
        plain = {
            texts: {name: {seed: score.value for seed, score in own.items()} for name, own in by_name.items()}
            for texts, by_name in scores.items()
        }
        replace_text(self.out / "scores.json", json.dumps(plain, indent=1) + "\n")
        return text


def _do(job: Job, device: str, stop: StopSignals) -> tuple[int, str]:
    """Do a job in a process of its own, which sees one device; its exit code and the last line that it printed."""
    path = job.folder / "output.txt"
    with path.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.tools.job", str(job.folder)],
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends; then the job ends
            stdout=output,
            stderr=output,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": device},
        )
        while process.poll() is None:
            if stop.received:
                process.terminate()
            time.sleep(0.1)
    return process.returncode, path.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]


def _names(data: Sequence[str]) -> list[str]:
    """A short name for each corpus, that of its run's folder; adding corpora does not change it."""
    names = ["+".join(map(_name, entry.split(","))) for entry in data]
    for name, entry in zip(names, data, strict=True):
        if names.count(name) > 1:
            raise SettingsError(
                f"data: {entry} is called {name}, as another corpus is; rename its folder, or link it under another "
                "name next to it"
            )
    return names


def _name(entry: str) -> str:
    folder = Path(os.path.abspath(entry))
    return folder.parent.name + folder.name.removeprefix("tokens") if folder.name.startswith("tokens") else folder.name


def _devices(device: str) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is in each of the processes at a time."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device_of(device).type != "cuda":
        return [visible or ""]
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def _losses(path: Path) -> Iterator[tuple[int, float]]:
    """(step, training loss) so far, without a last line that is still being written."""
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else ():
        if line.endswith("}"):
            record = json.loads(line)
            yield record["step"], record["loss"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.tools.compare", description=__doc__, epilog=_EXAMPLES)
    add_flags(parser, CompareOptions)
    add_flags(parser.add_argument_group("the training, as of trainer.train"), TrainConfig, without=_OWN)

    def compare() -> int:
        given, table, where = parse_with_file(parser, arguments)
        options = from_table(CompareOptions, flags_given(CompareOptions, given), "flags")
        if "RANK" in os.environ:
            raise SettingsError("compare starts a process for each GPU itself: run it without torchrun")
        settings = {key: value for key, value in table.items() if key not in _OWN}
        settings |= {**flags_given(TrainConfig, given), "data": (), "out": options.out}
        say = partial(print, flush=True)
        comparison = Comparison(options, from_table(TrainConfig, settings, where), say)
        with sole_writer(comparison.out, say), StopSignals() as stop:
            comparison.prepare()
            failed = comparison.run(stop)
        say(f"\n{comparison.report()}\n\n{comparison.out / 'comparison.html'} has the curves")
        if failed:
            say(f"{failed} of {len(comparison.jobs)} runs failed; the same command runs them again")
            return ExitCode.ERROR
        if stop.received:
            say(f"stopped by {stop.received}; the same command continues here")
            return ExitCode.INTERRUPTED if stop.received == "SIGINT" else ExitCode.TERMINATED
        return ExitCode.DONE

    return run_reporting("trainer.tools.compare", compare)


if __name__ == "__main__":
    sys.exit(main())
