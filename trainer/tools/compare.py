"""Which corpus trains the better model: the same training on each, paired by seed, scored on the same texts.

This is how FineWeb (Penedo et al., 2024) and DCLM (Li et al., 2024) chose their filters.

OUT/comparison.html, comparison.md    differences and which are larger than the noise, scores, curves, settings
OUT/comparison.json                   settings of the training, digests of the corpora
OUT/runs/NAME/seed-1337/              a run of trainer.train, its scores text by text, and what it printed (output.txt)
"""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from schemas import SettingsError, option
from schemas.settings import ExitCode, add_flags, flags_given, from_table
from trainer.checkpoint import checkpoints
from trainer.command_line import CommandParser, parse_with_file, read_text, run_reporting
from trainer.config import TrainConfig
from trainer.corpora import check_length, open_corpora
from trainer.device import autocast_of, device_of
from trainer.distributed import StopSignals, sole_writer
from trainer.metrics import Diverged
from trainer.page import Page, replace_text
from trainer.pretrained import Pretrained, Tokenizer, load_pretrained
from trainer.remote import sha256_of
from trainer.resuming import changes
from trainer.shards import check_same_tokenizer
from trainer.tools.differences import Score, Scores, as_text, difference_table, value_table
from trainer.tools.evaluate import score_documents, written_bytes
from trainer.train import train

_OWN = {"data", "out", "val_every", "val_data", "publish", "sign_key"}  # settings of trainer.train that are set here


@dataclass(frozen=True)
class CompareOptions:
    """Settings of `trainer.tools.compare` beyond those of the training."""

    data: tuple[str, ...] = option(
        help="token shards of a corpus, WORKDIR/tokens; repeat it for each corpus. A mixture is one corpus, written "
        "with commas: wiki/tokens=0.3,web/tokens=0.7",
        metavar="DIR",
    )
    out: str = option(help="folder of the comparison: its runs, tables and page", metavar="DIR")
    eval_text: tuple[str, ...] = option(
        help="texts to score every model on: .jsonl with one text per line, or one plain text", metavar="FILE"
    )
    seeds: int = option(3, "models on each corpus, with --seed and the numbers after it", minimum=1)


_EXAMPLES = """\
examples:
  python -m trainer.tools.compare --data plain/tokens --data filtered/tokens --eval_text articles.jsonl --out which \\
      --preset tiny --max_steps 2000

For a seed, all models start from the same weights and take the same number of steps of the same size. The same command
again continues where it stopped. More seeds, corpora and evaluations can be added later; the model and its steps
cannot be changed. A difference counts as larger than the noise if its 95% confidence interval, by seeds and by texts,
excludes zero. Of twenty comparisons of equal corpora, about one does so by chance."""


@dataclass(frozen=True)
class Job:
    """A model to train and to score.

    Attributes:
      name: of its corpus.
      config: its training; `config.out` is the job's folder.
      evaluations: files of texts by the key under which their score is stored: path and digest.
    """

    name: str
    config: TrainConfig
    evaluations: dict[str, str]

    @property
    def folder(self) -> Path:
        return Path(self.config.out)

    def scores(self) -> dict[str, Score]:
        """The scores so far, by the evaluation's key."""
        return {key: Score(**own) for key, own in _read_json(self.folder / "scores.json").items()}

    @property
    def finished(self) -> bool:
        return self.evaluations.keys() <= self.scores().keys()

    def work(self) -> None:
        """Train the model, or continue, and score it; raises ValueError, OSError, Diverged as these do."""
        config, started = self.config, checkpoints(self.folder / "checkpoints")
        # Nobody signs the run's own checkpoints: the key is that of `init_from`, which is not read again.
        train(dataclasses.replace(config, verify_key=None) if started else config)
        device = device_of(config.device)
        trained, known = load_pretrained(config.out, device), self.scores()
        if trained.step != config.max_steps:
            return  # stopped by a signal
        with autocast_of(config.dtype, device):
            for key in self.evaluations.keys() - known.keys():
                known[key] = score(trained, self.evaluations[key], config.micro_batch or 8)
        entries = {key: dataclasses.asdict(own) for key, own in known.items()}
        replace_text(self.folder / "scores.json", json.dumps(entries))


def score(trained: Pretrained, path: str, micro_batch: int) -> Score:
    """The model's bits per byte of each text in a file that `read_documents` reads."""
    tokenizer, texts = Tokenizer(trained.tokenizer), read_documents(path)
    documents = list(map(tokenizer.encode, texts))
    sizes = [written_bytes(tokenizer, ids, text) for ids, text in zip(documents, texts, strict=True)]
    written = [k for k, size in enumerate(sizes) if size]
    if not written:
        raise ValueError(f"{path}: the models' tokenizer can write none of its texts")
    nats = score_documents(trained.model, [documents[k] for k in written], trained.eot, micro_batch=micro_batch)
    return Score((nats / math.log(2)).tolist(), [float(sizes[k]) for k in written])


def read_documents(path: str) -> list[str]:
    """The texts of a JSON Lines file, or a plain text as the only one; raises SettingsError, ValueError."""
    text = read_text(path, "eval_text")
    if not text.strip():
        raise SettingsError(f"eval_text: {path} is empty")
    if Path(path).suffix not in (".jsonl", ".ndjson"):
        return [text]
    texts = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):  # JSON may have what splitlines splits at
        try:
            texts.append(json.loads(line)["text"] + "")  # a TypeError for anything but a text
        except (ValueError, TypeError, KeyError):
            raise ValueError(f'{path}, line {number} is no JSON object with a text: {{"text": "…"}}') from None
    return texts


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
        if not (steps := config.resolved(0).max_steps):
            raise SettingsError("max_steps: give the number of steps")
        self.config = dataclasses.replace(config, max_steps=steps, val_every=0)
        self._what = (
            f"{options.seeds} models on each corpus, {steps:,} steps of {tokens:,} tokens. Scores are bits per byte: "
            "lower is better. Errors are standard errors of paired differences; a corpus is called better if the 95% "
            "interval excludes zero."
        )
        self._corpora = [["corpus", "training tokens", "passes over it", "shards"]]
        self._digests = {name: own.digest for name, own in zip(self.names, opened, strict=True)}
        for name, entry, own in zip(self.names, options.data, opened, strict=True):
            check_same_tokenizer(opened[0].datasets[0], own.datasets[0])
            check_length(sum(own.tokens), shape.context, f"{entry}, split train")
            self._corpora.append([name, f"{sum(own.tokens):,}", f"{steps * tokens / sum(own.tokens):.2f}", entry])
        for path in options.eval_text:
            read_documents(path)  # now, so that an error is found before the first model is trained
        evaluations = {f"{path} {sha256_of(Path(path))[:12]}": path for path in options.eval_text}
        self.jobs = []
        for seed in range(config.seed, config.seed + options.seeds):
            for name, entry in zip(self.names, options.data, strict=True):
                folder = str(self.out / "runs" / name / f"seed-{seed}")
                settings = dataclasses.replace(self.config, data=tuple(entry.split(",")), seed=seed, out=folder)
                self.jobs.append(Job(name, settings, evaluations))

    def check_same(self) -> None:
        """Raises SettingsError if the folder has a comparison with other settings or shards."""
        path, settings = self.out / "comparison.json", dataclasses.replace(self.config, seed=0)
        known = _read_json(path)
        digests = known.get("corpora", {}) | self._digests
        wrong = [change for kind in changes(known.get("settings", {}), settings) for change in kind]
        wrong += [f"the shards of {k} have changed" for k, was in known.get("corpora", {}).items() if digests[k] != was]
        if wrong:
            raise SettingsError(f"{self.out} has other settings or data: {'; '.join(wrong)}. Use another --out")
        replace_text(path, json.dumps({"settings": dataclasses.asdict(settings), "corpora": digests}, indent=1) + "\n")

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
                code = _run(job, device, stop)
                with reporting:
                    if not job.finished and not stop.received:
                        failed += 1
                        self._say(f"{job.folder} failed with exit code {code}; output.txt there says why")
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
            for key, own in job.scores().items():
                if key in job.evaluations:
                    scores[job.evaluations[key]][job.name][job.config.seed] = own
            path = job.folder / "metrics.jsonl"
            for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else ():
                if line.endswith("}"):  # the last one may still be in writing
                    record = json.loads(line)
                    page.point("Training loss, mean over the seeds", job.name, record["step"], record["loss"])
        differences, values = difference_table(scores, self.names), value_table(scores, self.names)
        left = sum(not job.finished for job in self.jobs)
        page.notes = [f"{left} of {len(self.jobs)} runs are not finished.", self._what]
        page.tables = {"Differences": differences, "Scores": values, "Corpora": self._corpora}
        page.write(finished=not left)
        text = "\n\n".join(map(as_text, page.tables.values()))
        replace_text(self.out / "comparison.md", f"{self._what}\n\n{text}\n")
        return text


def _run(job: Job, device: str, stop: StopSignals) -> int | None:
    """Do a job in a process of its own, which sees one device; its exit code."""
    job.folder.mkdir(parents=True, exist_ok=True)
    process = multiprocessing.get_context("spawn").Process(target=_process, args=(job, device), daemon=True)
    process.start()
    while process.is_alive():
        if stop.received:
            process.terminate()
        process.join(0.1)
    return process.exitcode


def _process(job: Job, device: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    with (job.folder / "output.txt").open("ab") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(run_reporting("trainer.tools.compare", job.work, Diverged))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # training saves and ends


def _names(data: Sequence[str]) -> list[str]:
    """A short name for each corpus, that of its run's folder; adding corpora does not change it."""
    folders = [[re.sub("/tokens(=|$)", r"\1", os.path.abspath(part)) for part in entry.split(",")] for entry in data]
    names = ["+".join(Path(folder).name for folder in own) for own in folders]
    for name, entry in zip(names, data, strict=True):
        if names.count(name) > 1:
            raise SettingsError(f"data: {entry} is called {name}, as another corpus is; rename or link its folder")
    return names


def _devices(device: str) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is in each of the processes at a time."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device_of(device).type != "cuda":
        return [visible or ""]
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def _read_json(path: Path) -> dict[str, Any]:
    """The entries of a file; none if there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


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
            comparison.check_same()
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
