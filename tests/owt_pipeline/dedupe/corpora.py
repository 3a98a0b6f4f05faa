"""Corpora for the tests of dedupe and export: texts as `clean/`, and the stages run over them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.dedupe.options import Options
from owt_pipeline.stages.dedupe.stage import STAGE as DEDUPE
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from schemas.manifest import Manifest
from tests.owt_pipeline.making import write_dataset

CLEAN = DATASETS["clean"].schema


def url_id(number: int) -> int:
    """Return the id of a text. The ids are distributed over 64 bits like real ids."""
    return (number + 1) * 0x9E3779B97F4A7C15 % 2**64


def write_clean(
    workdir: Path, texts: Sequence[str], num_shards: int = 3, **columns: Sequence[Any]
) -> None:
    """Write texts as `clean/`, text i in shard i modulo `num_shards`.

    `columns` replace columns such as score and created_utc.
    """

    def write(shard: int, writer: ShardWriter) -> None:
        numbers_of_shard = range(shard, len(texts), num_shards)
        for start in range(0, len(numbers_of_shard), 5000):
            numbers = numbers_of_shard[start : start + 5000]
            values: dict[str, list[Any]] = {name: [None] * len(numbers) for name in CLEAN.names}
            values["url_id"] = [url_id(number) for number in numbers]
            values["url"] = [f"http://host-{number % 7}.com/{number}" for number in numbers]
            values["text"] = [texts[number] for number in numbers]
            values["subreddits"] = [[]] * len(numbers)
            values["language_score"] = [1.0] * len(numbers)
            values["n_words"] = [len(texts[number].split()) for number in numbers]
            values["n_bytes"] = values["n_words"]
            values["n_chars"] = [len(texts[number]) for number in numbers]
            for name, column in columns.items():
                values[name] = [column[number] for number in numbers]
            writer.enter(len(numbers))
            writer.write(pa.RecordBatch.from_pydict(values, CLEAN))

    write_dataset(Storage(str(workdir)), "clean", write, num_shards)


def dedupe(
    workdir: Path, workers: int = 1, **options: Any
) -> tuple[Manifest, list[dict[str, Any]]]:
    """Run dedupe; return its manifest and the decisions of all shards."""
    manifest, _ = run_stage(DEDUPE, Options(**options), Runtime(Storage(str(workdir)), workers))
    return manifest, DatasetReader(Storage(str(workdir)), manifest).table().to_pylist()


def decide(
    workdir: Path, texts: Sequence[str], num_shards: int = 3, **options: Any
) -> dict[int, dict[str, Any]]:
    """Run dedupe over texts; return the decision on each removed text by its number.

    `kept` is the number of the kept text.
    """
    write_clean(workdir, texts, num_shards)
    number_by_id = {url_id(number): number for number in range(len(texts))}
    _, rows = dedupe(workdir, **options)
    decisions = {}
    for row in rows:
        kept_number = number_by_id[row["kept_url_id"]]
        decisions[number_by_id[row["url_id"]]] = {**row, "kept": kept_number}
    return decisions


def prose(rng: random.Random, words: int) -> list[str]:
    """Return random words that do not repeat between texts."""
    return [
        f"{rng.choice('bcdfgklmnprstv')}{rng.choice('aeiou')}{rng.randrange(10_000)}"
        for _ in range(words)
    ]


def edited(rng: random.Random, text: Sequence[str], share: float) -> list[str]:
    """Return a text with a share of its words replaced."""
    words = list(text)
    for position in rng.sample(range(len(words)), round(share * len(words))):
        words[position] = f"edit{rng.randrange(10**9)}"
    return words


def corpus_with_copies(seed: int, documents: int = 120, words: int = 200) -> list[str]:
    """Return documents. Half of them are copies of earlier ones, with up to 10% of words edited."""
    rng = random.Random(seed)
    texts: list[list[str]] = []
    for _ in range(documents):
        if texts and rng.random() < 0.5:
            share = rng.choice([0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1])
            texts.append(edited(rng, rng.choice(texts), share))
        else:
            texts.append(prose(rng, rng.randrange(words // 2, words * 2)))
    return [" ".join(text) for text in texts]
