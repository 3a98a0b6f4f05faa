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


def url_id(i: int) -> int:
    """The id of text i, distributed over 64 bits like real ids."""
    return (i + 1) * 0x9E3779B97F4A7C15 % 2**64


def write_clean(
    workdir: Path, texts: Sequence[str], num_shards: int = 3, **columns: Sequence[Any]
) -> None:
    """`clean/` with text i in shard i modulo num_shards; `columns` give score, created_utc and
    the like."""

    def write(shard: int, writer: ShardWriter) -> None:
        mine = range(shard, len(texts), num_shards)
        for start in range(0, len(mine), 5000):
            some = mine[start : start + 5000]
            values: dict[str, list[Any]] = {name: [None] * len(some) for name in CLEAN.names}
            values["url_id"] = [url_id(i) for i in some]
            values["url"] = [f"http://host-{i % 7}.com/{i}" for i in some]
            values["text"] = [texts[i] for i in some]
            values["subreddits"] = [[]] * len(some)
            values["language_score"] = [1.0] * len(some)
            values["n_words"] = values["n_bytes"] = [len(texts[i].split()) for i in some]
            values["n_chars"] = [len(texts[i]) for i in some]
            for name, column in columns.items():
                values[name] = [column[i] for i in some]
            writer.enter(len(some))
            writer.write(pa.RecordBatch.from_pydict(values, CLEAN))

    write_dataset(Storage(str(workdir)), "clean", write, num_shards)


def dedupe(
    workdir: Path, workers: int = 1, **options: Any
) -> tuple[Manifest, list[dict[str, Any]]]:
    """Run dedupe; returns its manifest and the decisions of all shards."""
    manifest, _ = run_stage(DEDUPE, Options(**options), Runtime(Storage(str(workdir)), workers))
    return manifest, DatasetReader(Storage(str(workdir)), manifest).table().to_pylist()


def decide(
    workdir: Path, texts: Sequence[str], num_shards: int = 3, **options: Any
) -> dict[int, dict[str, Any]]:
    """The decision on each removed text, by its number; `kept` is the number of the kept text."""
    write_clean(workdir, texts, num_shards)
    number = {url_id(i): i for i in range(len(texts))}
    _, rows = dedupe(workdir, **options)
    return {number[row["url_id"]]: {**row, "kept": number[row["kept_url_id"]]} for row in rows}


def prose(rng: random.Random, words: int) -> list[str]:
    """Random words that do not repeat between texts."""
    return [
        f"{rng.choice('bcdfgklmnprstv')}{rng.choice('aeiou')}{rng.randrange(10_000)}"
        for _ in range(words)
    ]


def edited(rng: random.Random, text: Sequence[str], share: float) -> list[str]:
    """`text` with a share of its words replaced."""
    words = list(text)
    for i in rng.sample(range(len(words)), round(share * len(words))):
        words[i] = f"edit{rng.randrange(10**9)}"
    return words


def corpus_with_copies(seed: int, documents: int = 120, words: int = 200) -> list[str]:
    """Documents of which about half are copies of earlier ones, edited by 0 to 10% of their
    words."""
    rng = random.Random(seed)
    texts: list[list[str]] = []
    for _ in range(documents):
        if texts and rng.random() < 0.5:
            share = rng.choice([0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1])
            texts.append(edited(rng, rng.choice(texts), share))
        else:
            texts.append(prose(rng, rng.randrange(words // 2, words * 2)))
    return [" ".join(text) for text in texts]
