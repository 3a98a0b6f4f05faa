"""A corpus/ with given texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import Outcome
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.owt_pipeline.making import write_dataset

FIRST_ID = 2**63  # of 64 bits, as real ones are


def write_corpus(workdir: Path, texts: Sequence[str], shards: int = 2) -> Path:
    """Write the texts as `workdir`/corpus, text i in shard i modulo `shards`; returns `workdir`."""

    def write(shard: int, writer: ShardWriter) -> None:
        rows = [
            {"url_id": FIRST_ID + i, "url": f"http://h/{i}", "text": texts[i], "subreddits": [], "language_score": 1.0}
            | {"n_words": 1, "n_chars": len(texts[i]), "n_bytes": len(texts[i].encode()), "copies": 1}
            for i in range(shard, len(texts), shards)
        ]
        writer.add(len(rows), Outcome(pa.RecordBatch.from_pylist(rows, DATASETS["corpus"].schema)))

    write_dataset(Storage(str(workdir)), "corpus", write, shards)
    return workdir
