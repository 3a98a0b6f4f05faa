"""A job of trainer.tools.compare: train one model and score it on texts.

`python -m trainer.tools.job FOLDER` does the job in FOLDER/job.json, and continues it where it was interrupted.
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
from trainer.checkpoint import checkpoints
from trainer.command_line import read_text, run_reporting
from trainer.config import TrainConfig
from trainer.data import open_corpora
from trainer.distributed import autocast_of, device_of
from trainer.metrics import Diverged
from trainer.page import replace_text
from trainer.pretrained import Pretrained, Tokenizer, load_pretrained
from trainer.tools.differences import Score
from trainer.tools.evaluate import score_documents, written_bytes
from trainer.train import train


@dataclass(frozen=True)
class Evaluation:
    """Texts that models are scored on.

    Attributes:
      name: in tables.
      source: corpora as in `--data`, for their val split, or a file as of `read_documents`.
      val: whether it is a val split.
      digest: of the content.
      most_tokens: about how many tokens are used, in complete texts; 0 for all.
    """

    name: str
    source: str
    val: bool
    digest: str
    most_tokens: int

    @property
    def key(self) -> str:
        """The key under which a score is stored."""
        return f"{self.name} {self.digest[:12]} {self.most_tokens}"

    def score(self, trained: Pretrained, micro_batch: int, cache: str | None = None) -> Score:
        """The model's bits per byte of each text; of more texts than needed, of evenly spaced ones."""
        tokenizer, texts = Tokenizer(trained.tokenizer), [] if self.val else read_documents(self.source)
        documents = [tokenizer.encode(text) for text in texts]
        if self.val:
            splits = [
                dataset.documents("val") for dataset in open_corpora(self.source.split(","), cache=cache).datasets
            ]
            documents = [own[number].tolist() for own in splits for number in range(len(own))]
        every = -(-sum(map(len, documents)) // self.most_tokens) if self.most_tokens else 1
        chosen, sizes = [], []
        for number in range(0, len(documents), max(1, every)):
            ids = documents[number]
            size = tokenizer.count_bytes(ids) if self.val else written_bytes(tokenizer, ids, texts[number])
            if size:
                chosen.append(ids)
                sizes.append(float(size))
        if not chosen:
            raise ValueError(f"{self.source}: the models' tokenizer can write none of its texts")
        nats = score_documents(trained.model, chosen, trained.eot, micro_batch=micro_batch)
        return Score((nats / math.log(2)).tolist(), sizes)


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
            entry = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is no JSON object: {error}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
            raise ValueError(f"{path}, line {number} has no text; expected an object with text")
        texts.append(entry["text"])
    return texts


@dataclass(frozen=True)
class Job:
    """A model to train and to score.

    Attributes:
      name: of its corpus.
      data: digest of the corpus.
      config: settings of its training; `config.out` is its folder.
      evaluations: what it is scored on.
    """

    name: str
    data: str
    config: TrainConfig
    evaluations: tuple[Evaluation, ...]

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
        settings: dict[str, Any] = {
            key: tuple(own) if isinstance(own, list) else own for key, own in entries["config"].items()
        }
        evaluations = tuple(Evaluation(**entry) for entry in entries["evaluations"])
        return cls(entries["name"], entries["data"], TrainConfig(**settings), evaluations)

    def scores(self) -> dict[str, Score]:
        """The scores so far, by the evaluation's key."""
        return {key: Score(**entry) for key, entry in read_json(self.folder / "scores.json").items()}

    @property
    def finished(self) -> bool:
        return {evaluation.key for evaluation in self.evaluations} <= self.scores().keys()


def read_json(path: Path) -> dict[str, Any]:
    """The entries of a file; none if there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def work(job: Job) -> None:
    """Train the model of `job` and score it; raises ValueError, OSError, Diverged as these do."""
    config = job.config
    # Nobody signs the run's own checkpoints: the key is that of `init_from`, which is not read again.
    train(dataclasses.replace(config, verify_key=None) if checkpoints(job.folder / "checkpoints") else config)
    device = device_of(config.device)
    trained = load_pretrained(str(job.folder), device)
    if trained.step != config.last_step:
        return  # stopped by a signal
    known = job.scores()
    with autocast_of(config.dtype, device):
        for evaluation in job.evaluations:
            if evaluation.key not in known:
                known[evaluation.key] = score = evaluation.score(trained, config.micro_batch or 8, config.cache)
                print(f"{evaluation.name}: {score.value:.4f} bits per byte", flush=True)
    replace_text(job.folder / "scores.json", json.dumps({key: dataclasses.asdict(own) for key, own in known.items()}))


def _end_with_parent() -> None:
    """Wait until the other end of the standard input is closed, and end this process."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)  # training saves and ends
    time.sleep(10)
    os._exit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    (folder,) = sys.argv[1:] if arguments is None else arguments
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return run_reporting("trainer.tools.job", partial(work, Job.load(Path(folder))), Diverged)


if __name__ == "__main__":
    sys.exit(main())
