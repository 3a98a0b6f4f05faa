"""Write a corpus/ with given texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.making import add_rows, write_dataset

# The ids have 64 bits, as real ids have.
FIRST_ID = 2**63


def write_corpus(workdir: Path, texts: Sequence[str], shards: int = 2) -> Path:
    """Write texts as `workdir`/corpus, text i in shard i modulo `shards`; return `workdir`."""

    def write(shard: int, writer: ShardWriter) -> None:
        numbers = range(shard, len(texts), shards)
        rows = [
            {"url_id": FIRST_ID + i, "url": f"http://h/{i}", "text": texts[i], "copies": 1}
            for i in numbers
        ]
        add_rows(writer, "corpus", rows)

    write_dataset(Storage(str(workdir)), "corpus", write, shards)
    return workdir
