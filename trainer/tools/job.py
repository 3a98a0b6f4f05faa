"""A job of trainer.tools.compare: train one model and score it on texts.

`python -m trainer.tools.job FOLDER` does the job in FOLDER/job.json, or continues it. It ends when its input is closed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from schemas import SettingsError
from schemas.settings import from_table
from trainer.checkpoint import checkpoints
from trainer.command_line import read_text, run_reporting
from trainer.config import TrainConfig
from trainer.corpora import open_corpora
from trainer.device import autocast_of, device_of
from trainer.metrics import Diverged
from trainer.page import replace_text
from trainer.pretrained import Pretrained, Tokenizer, load_pretrained
from trainer.tools.differences import Score
from trainer.tools.evaluate import score_documents, written_bytes
from trainer.train import train


@dataclass(frozen=True)
class Job:
    """A model to train and to score.

    Attributes:
      name: of its corpus.
      data: digest of the corpus.
      config: settings of its training; `config.out` is the job's folder.
      evaluations: sources of texts (as of `score`) by the key under which their score is stored.
      most_tokens: of each source; 0 for all.
    """

    name: str
    data: str
    config: TrainConfig
    evaluations: dict[str, str]
    most_tokens: int

    def __str__(self) -> str:
        return f"{self.name}, seed {self.config.seed}"

    @property
    def folder(self) -> Path:
        return Path(self.config.out)

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.folder / "job.json", json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def load(cls, folder: Path) -> Job:
        entries = read_json(folder / "job.json")
        settings = {key: own for key, own in entries["config"].items() if own is not None}
        return cls(**{**entries, "config": from_table(TrainConfig, settings, str(folder / "job.json"))})

    def scores(self) -> dict[str, Score]:
        """The scores so far, by the evaluation's key."""
        return {key: Score(**entry) for key, entry in read_json(self.folder / "scores.json").items()}

    @property
    def finished(self) -> bool:
        return self.evaluations.keys() <= self.scores().keys()


def read_json(path: Path) -> dict[str, Any]:
    """The entries of a file; none if there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def score(trained: Pretrained, source: str, most_tokens: int, micro_batch: int, cache: str | None = None) -> Score:
    """The model's bits per byte of each text in `source`: a file as of `read_documents`, or corpora's val split.

    Of more than about `most_tokens`, evenly spaced texts are scored; 0 for all.
    """
    tokenizer, documents, sizes = Tokenizer(trained.tokenizer), [], []
    if Path(source).is_file():
        for text in read_documents(source):
            documents.append(tokenizer.encode(text))
            sizes.append(written_bytes(tokenizer, documents[-1], text))
    else:
        for split in (dataset.documents("val") for dataset in open_corpora(source.split(","), cache).datasets):
            documents += [split[number].tolist() for number in range(len(split))]
        sizes = list(map(tokenizer.count_bytes, documents))
    every = max(1, -(-sum(map(len, documents)) // most_tokens)) if most_tokens else 1
    chosen = [number for number in range(0, len(documents), every) if sizes[number]]
    if not chosen:
        raise ValueError(f"{source}: the models' tokenizer can write none of its texts")
    nats = score_documents(trained.model, [documents[k] for k in chosen], trained.eot, micro_batch=micro_batch)
    return Score((nats / math.log(2)).tolist(), [float(sizes[k]) for k in chosen])


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


def work(job: Job) -> None:
    """Train the model of `job` and score it; raises ValueError, OSError, Diverged as these do."""
    config = job.config
    # Nobody signs the run's own checkpoints: the key is that of `init_from`, which is not read again.
    train(dataclasses.replace(config, verify_key=None) if checkpoints(job.folder / "checkpoints") else config)
    device = device_of(config.device)
    trained = load_pretrained(str(job.folder), device)
    if trained.step != config.max_steps:
        return  # stopped by a signal
    known = job.scores()
    with autocast_of(config.dtype, device):
        for key, source in job.evaluations.items():
            if key not in known:
                known[key] = score(trained, source, job.most_tokens, config.micro_batch or 8, config.cache)
                print(f"{key}: {known[key].value:.4f} bits per byte", flush=True)
    replace_text(job.folder / "scores.json", json.dumps({key: dataclasses.asdict(own) for key, own in known.items()}))


def _end_with_parent() -> None:
    """Wait until the other end of the standard input is closed, and end this process."""
    os.read(0, 1)  # sys.stdin's lock, held when a job ends, would abort the interpreter
    os.kill(os.getpid(), signal.SIGTERM)  # training saves and ends
    time.sleep(60)
    os._exit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    (folder,) = sys.argv[1:] if arguments is None else arguments
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return run_reporting("trainer.tools.job", partial(work, Job.load(Path(folder))), Diverged)


if __name__ == "__main__":
    sys.exit(main())
