"""Scores of models, item by item: texts and val splits in bits per byte, LAMBADA and HellaSwag in accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas import SettingsError
from trainer.command_line import read_text
from trainer.data import open_corpora
from trainer.distributed import Ranks
from trainer.pretrained import Pretrained, Tokenizer
from trainer.tools.evaluate import hellaswag, json_lines, lambada, score_documents, written_bytes

BITS, ACCURACY = "bits per byte", "accuracy"
_TASKS = {"lambada": lambada, "hellaswag": hellaswag}


@dataclass(frozen=True)
class Score:
    """One evaluation of one model, item by item: texts or questions, always the same ones in the same order.

    Attributes:
      unit: BITS (lower is better) or ACCURACY (higher is better).
      amounts: bits of each text, or 1 for each correct answer and 0 for each wrong one.
      weights: bytes of each text, or 1 for each question.
    """

    unit: str
    amounts: Sequence[float]
    weights: Sequence[float]

    @property
    def value(self) -> float:
        return math.fsum(self.amounts) / math.fsum(self.weights)


@dataclass(frozen=True)
class Evaluation:
    """What models are scored on.

    Attributes:
      name: in tables.
      kind: val, text, lambada or hellaswag.
      source: the corpus as in `--data`, or a file.
      digest: of the content.
      most_tokens: about how many tokens are used, in complete texts; 0 for all.
    """

    name: str
    kind: str
    source: str
    digest: str
    most_tokens: int

    @property
    def key(self) -> str:
        """The key under which scores are stored."""
        return f"{self.name} {self.digest[:12]} {self.most_tokens}"

    def scores(self, trained: Pretrained, ranks: Ranks, micro_batch: int, **options: Any) -> dict[str, Score]:
        """The model's scores, by name; `options` are those of `open_dataset`."""
        model, tokenizer = trained.model, Tokenizer(trained.tokenizer)
        if self.kind in _TASKS:
            items = _TASKS[self.kind](model, tokenizer, Path(self.source), ranks, micro_batch)
            accuracies = {name: own.tolist() for name, own in items.items() if name != "lambada_nats"}
            return {name: Score(ACCURACY, own, [1.0] * len(own)) for name, own in accuracies.items()}
        documents, sizes = self._documents(tokenizer, options)
        nats = score_documents(model, documents, trained.eot, micro_batch=micro_batch)
        return {self.name: Score(BITS, (nats / math.log(2)).tolist(), sizes)}

    def _documents(self, tokenizer: Tokenizer, options: dict[str, Any]) -> tuple[list[list[int]], list[float]]:
        """(token ids, UTF-8 bytes) of each text; of more texts than needed, evenly spaced ones."""
        texts: list[str] = []
        if self.kind == "val":
            corpora = open_corpora(self.source.split(","), **options)
            splits = [dataset.documents("val") for dataset in corpora.datasets]
            documents = [own[number].tolist() for own in splits for number in range(len(own))]
        else:
            texts = read_documents(self.source)
            documents = [tokenizer.encode(text) for text in texts]
        every = -(-sum(map(len, documents)) // self.most_tokens) if self.most_tokens else 1
        chosen, sizes = [], []
        for number in range(0, len(documents), max(1, every)):
            ids = documents[number]
            size = written_bytes(tokenizer, ids, texts[number]) if texts else tokenizer.count_bytes(ids)
            if size:
                chosen.append(ids)
                sizes.append(float(size))
        if not chosen:
            raise ValueError(f"{self.source}: the models' tokenizer can write none of its texts")
        return chosen, sizes


def read_documents(path: str) -> list[str]:
    """The texts of a JSON Lines file, or a plain text as the only one; raises SettingsError, ValueError."""
    text = read_text(path, "eval_text")
    if not text.strip():
        raise SettingsError(f"eval_text: {path} is empty")
    if Path(path).suffix in (".jsonl", ".ndjson"):
        return [entry["text"] for _, entry in json_lines(Path(path), {"text": str})]
    return [text]
