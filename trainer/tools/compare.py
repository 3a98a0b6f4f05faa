"""Which corpus trains the better model: the same training on each, paired by seed, scored on the same texts and tasks.

This is how FineWeb (Penedo et al., 2024) and DCLM (Li et al., 2024) chose their filters.

OUT/comparison.html, comparison.md    differences and which are larger than the noise, scores, curves, settings
OUT/scores.json                       each score, by evaluation, corpus and seed
OUT/runs/NAME/seed-1337/              a run of trainer.train, with its last checkpoint
    scores/step-00001000.json         its scores after this step, item by item
    output.txt                        what it printed
"""

from __future__ import annotations

import dataclasses
import html
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from schemas import SettingsError, option
from schemas.settings import ExitCode, add_flags, flags_given, from_table
from trainer import page
from trainer.checkpoint import CheckpointError, checkpoints, prune, read_record
from trainer.command_line import CommandParser, run_reporting
from trainer.config import TrainConfig, changes, parse_with_file
from trainer.data import check_length, open_corpora
from trainer.distributed import Ranks, StopSignals, autocast_of, device_of
from trainer.metrics import Diverged
from trainer.pretrained import Tokenizer, load_pretrained
from trainer.remote import sha256_of
from trainer.setup import sole_writer
from trainer.shards import check_same_tokenizer
from trainer.tools.differences import Scores, as_text, difference_table, value_table
from trainer.tools.evaluate import TASKS, json_lines
from trainer.tools.evaluations import Evaluation, Score, read_documents
from trainer.train import train

_OWN = {  # settings of trainer.train that are set here
    "data", "out", "verify_shards", "preflight", "extend_steps", "fsdp", "val_every", "val_data",
    "val_windows", "save_every", "keep_last", "keep_every", "publish", "sample_tokens", "sign_key",
}  # fmt: skip
_MANY_EPOCHS = 4  # up to about four, repeated text is worth nearly as much as new text (Muennighoff et al., 2023)


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
    lambada: str | None = option(None, "LAMBADA's lambada_test.jsonl", metavar="FILE")
    hellaswag: str | None = option(None, "HellaSwag's hellaswag_val.jsonl", metavar="FILE")
    eval_tokens: int = option(
        262_144, "most tokens of each val split and --eval_text, in complete texts; 0 for all", minimum=0
    )
    eval_val: bool = option(True, "also score models on the val split of each corpus")
    points: int = option(5, "times that each model is scored, at even intervals of its training", minimum=1)
    processes: int = option(0, "runs at a time (default: one per GPU; 1 on a CPU)", minimum=0)


_EXAMPLES = """\
examples:
  python -m trainer.tools.compare --data plain/tokens --data filtered/tokens --out which --preset tiny --tokens 20000000
  python -m trainer.tools.compare --data a/tokens --data b/tokens --data c/tokens --out which --seeds 5 \\
      --tokens 2500000000 --micro_batch 32 --compile --eval_text articles.jsonl \\
      --lambada lambada_test.jsonl --hellaswag hellaswag_val.jsonl

For a seed, all models start from the same weights and take the same number of steps of the same size. The same command
again continues where it stopped. More seeds, corpora and evaluations can be added later; the model and its steps
cannot be changed. A difference counts as larger than the noise if its 95% confidence interval, by seeds and by texts,
excludes zero. Of twenty comparisons of equal corpora, about one does so by chance."""


@dataclass(frozen=True)
class Job:
    """A model to train and to score.

    Attributes:
      name: of the corpus.
      config: settings of its training; `config.out` is its folder.
      evaluations: what it is scored on.
      gpu: the only GPU that its process sees; empty for a CPU.
      threads: of its process on a CPU; 0 for torch's default.
    """

    name: str
    config: TrainConfig
    evaluations: tuple[Evaluation, ...]
    gpu: str = ""
    threads: int = 0

    @property
    def folder(self) -> Path:
        return Path(self.config.out)

    def scores_of(self, step: int) -> Path:
        return self.folder / "scores" / f"step-{step:08d}.json"

    def __str__(self) -> str:
        return f"{self.name}, seed {self.config.seed}"

    @property
    def last_line(self) -> str:
        """The last line that its process printed."""
        path = self.folder / "output.txt"
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
        return next((line for line in reversed(lines) if line), "starting")

    @property
    def finished(self) -> bool:
        known = _read_json(self.scores_of(self.config.last_step))
        return all(evaluation.key in known for evaluation in self.evaluations)


def work(job: Job) -> None:
    """Train the model of `job`, score its checkpoints and delete all but the last; continues an interrupted job.

    Raises:
      ValueError, OSError, Diverged: as `train` and the evaluations.
    """
    saved = job.folder / "checkpoints"
    if not _complete(saved, job.config.last_step):
        # Nobody signs the run's own checkpoints: the key is that of `init_from`, which is not read again.
        train(dataclasses.replace(job.config, verify_key=None) if checkpoints(saved) else job.config)
    if not _complete(saved, job.config.last_step):
        return  # stopped by a signal
    with Ranks.join(job.config.device) as ranks, autocast_of(job.config.dtype, ranks.device):
        for path in checkpoints(saved):
            step = read_record(path).step
            known = _read_json(job.scores_of(step))
            missing = [evaluation for evaluation in job.evaluations if evaluation.key not in known]
            if not missing:
                continue
            trained = load_pretrained(str(path), ranks.device)
            for evaluation in missing:
                found = evaluation.scores(trained, ranks, job.config.micro_batch or 8, **_cache_of(job.config))
                known[evaluation.key] = {name: dataclasses.asdict(score) for name, score in found.items()}
            job.scores_of(step).parent.mkdir(exist_ok=True)
            page.replace_text(job.scores_of(step), json.dumps(known))
            print(f"step {step}: {', '.join(f'{name} {score.value:.4f}' for name, score in found.items())}", flush=True)
    prune(checkpoints(saved)[-1], keep_last=1)


def _cache_of(config: TrainConfig) -> dict[str, Any]:
    return {"cache": config.cache, "cache_gb": config.cache_gb}


def _complete(saved: Path, last_step: int) -> bool:
    """Whether the checkpoint of the last step exists and is intact."""
    try:
        return any(read_record(path).step == last_step for path in checkpoints(saved)[-1:])
    except CheckpointError:
        return False


def _in_process(job: Job) -> None:
    """Do `work` in a process of its own, which ends with its parent and prints to OUT/…/output.txt."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)  # training saves and ends
        time.sleep(5)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    with (job.folder / "output.txt").open("a", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if job.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpu
    if job.threads:
        torch.set_num_threads(job.threads)
    sys.exit(run_reporting("trainer.tools.compare", partial(work, job), Diverged))


class Comparison:
    """The runs of a comparison and their results so far.

    Raises:
      SettingsError, ShardError, OSError: what cannot be compared, and what to do.
    """

    def __init__(self, options: CompareOptions, config: TrainConfig, say: Callable[[str], None]) -> None:
        self.options, self._say = options, say
        self.out = Path(options.out)
        if config.device == "xla":
            raise SettingsError("device: compare trains on CUDA or on a CPU")
        if len(options.data) < 2:
            raise SettingsError("data: name at least two corpora, --data A/tokens --data B/tokens")
        self.names = _names(options.data)
        self.corpora = [open_corpora(entry.split(","), **_cache_of(config)) for entry in options.data]
        first = self.corpora[0]
        for other in self.corpora[1:]:
            check_same_tokenizer(first.datasets[0], other.datasets[0])
        shape = config.model_config(first.tokenizer.vocab_size)
        self._step_tokens = config.windows_per_batch(shape.context) * shape.context
        if options.tokens:
            config = dataclasses.replace(config, max_steps=-(-options.tokens // self._step_tokens))
        steps = config.resolved(0).max_steps
        if not steps:
            raise SettingsError("the length of the training is not set: give --tokens or --max_steps")
        for entry, own in zip(options.data, self.corpora, strict=True):
            check_length(sum(own.tokens), shape.context, f"{entry}, split train")
        every = -(-steps // options.points)
        # Where a run was stopped is no point of its curve: that checkpoint goes with the next one.
        self.config = dataclasses.replace(
            config, max_steps=steps, save_every=every, keep_every=every, keep_last=1, val_every=0, sample_tokens=0
        )
        self.evaluations = self._find_evaluations()
        self.jobs = [
            Job(name, dataclasses.replace(self.config, data=tuple(entry.split(",")), seed=seed,
                out=str(self.out / "runs" / name / f"seed-{seed}")), self.evaluations)
            for seed in range(config.seed, config.seed + options.seeds)
            for name, entry in zip(self.names, options.data, strict=True)
        ]  # fmt: skip

    def _find_evaluations(self) -> tuple[Evaluation, ...]:
        options, found = self.options, []
        for name, entry, own in zip(self.names, options.data, self.corpora, strict=True):
            if options.eval_val and any(len(dataset.documents("val")) for dataset in own.datasets):
                found.append(Evaluation(f"val of {name}", "val", entry, own.digest, options.eval_tokens))
            elif options.eval_val:
                self._say(f"{name} has no document in its val split, so no model is scored on it")
        Tokenizer(self.corpora[0].tokenizer.path)
        kinds = [("text", path, options.eval_tokens) for path in options.eval_text]
        kinds += [(kind, path, 0) for kind in ("lambada", "hellaswag") if (path := getattr(options, kind))]
        for kind, path, most in kinds:
            # Read it now, so that an error is found before the first model is trained.
            if kind == "text":
                read_documents(path)
            else:
                list(json_lines(Path(path), TASKS[kind]))
            found.append(Evaluation(path if kind == "text" else kind, kind, path, sha256_of(Path(path)), most))
        if not found:
            raise SettingsError("nothing to score the models on, without a val split: give --eval_text FILE")
        return tuple(found)

    def prepare(self) -> None:
        """Create each run's folder, or check that an existing one has these settings and corpora."""
        digests = {name: own.digest for name, own in zip(self.names, self.corpora, strict=True)}
        for job in self.jobs:
            path = job.folder / "settings.json"
            settings = {"settings": dataclasses.asdict(job.config), "data": digests[job.name]}
            if known := _read_json(path):
                wrong = [change for kind in changes(known["settings"], job.config) for change in kind]
                if known["data"] != settings["data"]:
                    wrong.append(f"the shards of {job.name} have changed")
                if wrong:
                    raise SettingsError(
                        f"{job.folder} has other settings or data: {'; '.join(wrong)}. Use another --out"
                    )
            job.folder.mkdir(parents=True, exist_ok=True)
            page.replace_text(path, json.dumps(settings, indent=1))

    def run(self, stop: StopSignals) -> int:
        """Do the runs that are not finished, each in a process of its own; returns how many failed."""
        slots = self._slots()
        self.report()
        waiting = [job for job in self.jobs if not job.finished]
        total = len(self.jobs)
        if len(waiting) < total:
            self._say(f"{total - len(waiting)} of {total} runs are finished")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["trainer.train"])  # importing it takes longer than a small evaluation
        running: dict[Any, tuple[Any, Job]] = {}
        failed, shown = 0, time.monotonic()
        while (waiting and not stop.received) or running:
            while waiting and slots and not stop.received:
                job = dataclasses.replace(waiting.pop(0), **slots.pop())
                process = context.Process(target=_in_process, args=(job,))
                process.start()
                running[process.sentinel] = process, job
            for sentinel in wait(list(running), timeout=1):
                process, job = running.pop(sentinel)
                process.join()
                slots.append({"gpu": job.gpu, "threads": job.threads})
                if not job.finished and not stop.received:
                    failed += 1
                    self._say(f"{job} failed with exit code {process.exitcode}; see {job.folder / 'output.txt'}")
                self.report()
                left = sum(not job.finished for job in self.jobs)
                self._say(f"{job}: {job.last_line}; {left} of {total} runs left")
            if stop.received:
                for process, _ in running.values():
                    process.terminate()
                wait(list(running), timeout=1)
            elif time.monotonic() - shown > 30:
                shown = time.monotonic()
                for _, job in running.values():
                    self._say(f"{job}: {job.last_line}")
        return failed

    def _slots(self) -> list[dict[str, Any]]:
        """What each process gets: a GPU, or threads of the CPU."""
        count = self.options.processes
        if device_of(self.config.device).type == "cuda":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            gpus = visible.split(",") if visible else [str(k) for k in range(torch.cuda.device_count())]
            return [{"gpu": gpu} for gpu in gpus][: count or None]
        own = "OMP_NUM_THREADS" in os.environ
        return [{"threads": 0 if own else max(1, (os.cpu_count() or 1) // (count or 1))}] * (count or 1)

    def scores(self) -> tuple[Scores, dict[str, dict[str, page.Curve]]]:
        """(scores of the last step, curves by evaluation and corpus)."""
        last: Scores = defaultdict(lambda: defaultdict(dict))
        curves: dict[str, dict[str, page.Curve]] = defaultdict(lambda: defaultdict(page.Curve))
        for job in self.jobs:
            for path in sorted((job.folder / "scores").glob("step-*.json")):
                step, known = int(path.stem.removeprefix("step-")), _read_json(path)
                for evaluation in self.evaluations:
                    for name, entry in known.get(evaluation.key, {}).items():
                        score = Score(**entry)
                        curves[name][job.name].add(step, score.value)
                        if step == self.config.last_step:
                            last[name][job.name][job.config.seed] = score
        return last, curves

    def report(self) -> str:
        """Write the page and the tables, and return the tables."""
        scores, curves = self.scores()
        losses: dict[str, page.Curve] = defaultdict(page.Curve)
        for job in self.jobs:
            for record in _records(job.folder / "metrics.jsonl"):
                losses[job.name].add(record["step"], record["loss"])
        tables = {
            "Differences": difference_table(scores, self.names),
            "Scores": value_table(scores, self.names),
            "Corpora": self._corpora_table(),
        }
        left, steps = sum(not job.finished for job in self.jobs), self.config.last_step
        state = f"{left} of {len(self.jobs)} runs are not finished" if left else "Finished"
        what = (
            f"{len(self.jobs)} models, {self.options.seeds} on each corpus, {steps:,} steps of {self._step_tokens:,} "
            "tokens. Bits per byte: lower is better; accuracy: higher is better. Errors are standard errors of paired "
            "differences; a corpus is called better if the 95% interval excludes zero."
        )
        parts = [f"<p>{html.escape(text)}</p>" for text in (f"{state}; {page.written_now()}", what)]
        for title, (head, *rows) in tables.items():
            parts += [f"<h2>{title}</h2>", page.table(rows, head) if rows else "<p>None yet.</p>"]
        parts += ["<h2>Curves</h2><p>Mean over the seeds, with a band from the minimum to the maximum.</p>"]
        parts += ['<div class="charts">', *(page.chart(name, own, steps) for name, own in curves.items())]
        parts += [page.chart("Training loss", losses, steps), "</div>"]
        parts += [page.settings_table(dataclasses.asdict(self.config), page.commit())]
        page.replace_text(self.out / "comparison.html", page.page_of("Comparison of corpora", parts, renewed=left > 0))
        text = "\n\n".join(as_text(table) for table in tables.values())
        page.replace_text(self.out / "comparison.md", f"{what}\n\n{text}\n")
        values = {
            evaluation: {name: {str(seed): score.value for seed, score in own.items()} for name, own in by_name.items()}
            for evaluation, by_name in scores.items()
        }
        page.replace_text(self.out / "scores.json", json.dumps(values, indent=1) + "\n")
        return text

    def _corpora_table(self) -> list[list[str]]:
        rows = [["corpus", "training tokens", "passes over it", "shards"]]
        for name, entry, own in zip(self.names, self.options.data, self.corpora, strict=True):
            tokens = sum(own.tokens)
            epochs = self.config.last_step * self._step_tokens / tokens
            rows.append([name, f"{tokens:,}", f"{epochs:.2f}", entry])
            if epochs > _MANY_EPOCHS:
                rows[-1][2] += " (many: its text repeats)"
        return rows


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


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _records(path: Path) -> list[dict[str, Any]]:
    """The steps recorded so far, without a last line that is still being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.endswith("}")]


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
        settings = {"tracker": "none", **settings, **flags_given(TrainConfig, given), "data": (), "out": options.out}
        say = partial(print, flush=True)
        comparison = Comparison(options, from_table(TrainConfig, settings, where), say)
        with ExitStack() as ending, StopSignals() as stop:
            ending.enter_context(sole_writer(comparison.out, say))
            comparison.prepare()
            failed = comparison.run(stop)
        say(f"\n{comparison.report()}\n\n{comparison.out / 'comparison.html'} has the curves")
        if failed:
            say(f"{failed} of {len(comparison.jobs)} runs failed; the same command runs them again")
        elif stop.received:
            say(f"stopped by {stop.received}; the same command continues here")
            return ExitCode.INTERRUPTED if stop.received == "SIGINT" else ExitCode.TERMINATED
        return ExitCode.ERROR if failed else ExitCode.DONE

    return run_reporting("trainer.tools.compare", compare)


if __name__ == "__main__":
    sys.exit(main())
