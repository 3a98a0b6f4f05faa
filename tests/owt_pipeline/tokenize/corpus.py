"""A corpus/ with given texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import Outcome
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.owt_pipeline.making import write_dataset


def write_corpus(workdir: Path, texts: Sequence[str], shards: int = 2) -> Path:
    """Write the texts as `workdir`/corpus, their numbers as ids; returns `workdir`."""
    write = partial(_write, texts=list(texts), shards=shards)
    write_dataset(Storage(str(workdir)), "corpus", write, shards)
    return workdir


def _write(shard: int, writer: ShardWriter, *, texts: list[str], shards: int) -> None:
    rows = [
        {"url_id": i, "url": f"http://h/{i}", "text": texts[i], "subreddits": [], "language_score": 1.0, "n_words": 1}
        | {"n_chars": len(texts[i]), "n_bytes": len(texts[i].encode()), "copies": 1}
        for i in range(shard, len(texts), shards)
    ]
    writer.add(len(rows), Outcome(pa.RecordBatch.from_pylist(rows, DATASETS["corpus"].schema)))
