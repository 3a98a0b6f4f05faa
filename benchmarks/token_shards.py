"""Token shards for the benchmarks, written from flat arrays."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from owt_pipeline.runtime.commit import publish
from owt_pipeline.runtime.storage import Storage
from schemas.manifest import Counts, ShardFile, ShardRecord

Shard = tuple[np.ndarray, np.ndarray]
"""Lengths of the documents, and all their ids one after the other as uint16."""


def write_shards(folder: Path, splits: dict[str, list[Shard]], *, tokenizer: str, vocab_size: int, eot: int) -> Path:
    """`tokens/` (the folder, or below it) and its ledger as the tokenize stage writes them, 1,000 documents a batch."""
    folder = folder if folder.name == "tokens" else folder / "tokens"
    run = Storage(str(folder.parent))
    files: dict[int, list[ShardFile]] = {}
    for split, shards in splits.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        for number, (lengths, ids) in enumerate(shards):
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            table = pa.table(
                {
                    "url_id": np.arange(len(lengths), dtype=np.uint64),
                    "n_tokens": lengths.astype(np.uint32),
                    "tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids.astype(np.uint16))),
                }
            )
            path = folder / split / f"part-{number:05d}.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=1000)
            files.setdefault(number, []).append(_file(folder.parent, path, "data", number, len(lengths)))
    run.write("ledger/tokens/tokenizer.json", tokenizer.encode())
    asset = _file(folder.parent, folder.parent / "ledger/tokens/tokenizer.json", "asset", -1, 0)
    known = {"name": "benchmark", "file": asset.path, "sha256": asset.sha256, "vocab_size": vocab_size, "eot": eot}
    rows = sum(file.rows for of_shard in files.values() for file in of_shard)
    publish(
        run,
        [ShardRecord(number, Counts(), of_shard) for number, of_shard in files.items()],
        [asset],
        dataset="tokens",
        stage="tokenize",
        stage_version=1,
        fingerprint="0" * 64,
        num_shards=len(files),
        counts=Counts(rows, rows),
        properties={"tokenizer": known},
    )
    return folder


def _file(folder: Path, path: Path, kind: str, shard: int, rows: int) -> ShardFile:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return ShardFile(path.relative_to(folder).as_posix(), kind, shard, rows, path.stat().st_size, sha256)
