"""Token shards for the benchmarks, written from flat arrays."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas import Counts, Manifest, ShardFile

Shard = tuple[np.ndarray, np.ndarray]
"""Lengths of the documents, and all their ids one after the other as uint16."""


def write_shards(folder: Path, splits: dict[str, list[Shard]], *, tokenizer: str, vocab_size: int, eot: int) -> Path:
    """A tokens/ folder as the tokenize stage writes it, in record batches of 1,000 documents."""
    files = []
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
            files.append(_file(folder, path, "data", number, len(lengths)))
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    asset = _file(folder, folder / "tokenizer.json", "asset", -1, 0)
    known = {"name": "benchmark", "file": asset.path, "sha256": asset.sha256, "vocab_size": vocab_size, "eot": eot}
    rows = sum(file.rows for file in files)
    manifest = Manifest(
        dataset="tokens",
        stage="tokenize",
        stage_version=1,
        fingerprint="0" * 64,
        num_shards=max(map(len, splits.values())),
        counts=Counts(rows, rows),
        properties={"tokenizer": known},
        files=sorted([asset, *files], key=lambda file: file.path),
    )
    (folder / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    return folder


def _file(folder: Path, path: Path, kind: str, shard: int, rows: int) -> ShardFile:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return ShardFile(path.relative_to(folder).as_posix(), kind, shard, rows, path.stat().st_size, sha256)
