"""Token shards for benchmarks and tests, from flat arrays by numpy and pyarrow alone: more, a
GPU's machine lacks."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.datasets import LEDGER, SCHEMA_VERSION

Shard = tuple[np.ndarray, np.ndarray]
"""Lengths of the documents, and all their ids one after the other."""


def write_shards(
    folder: Path,
    splits: dict[str, list[Shard]],
    *,
    tokenizer: str,
    vocab_size: int,
    eot: int,
    rows: int = 1000,
) -> Path:
    """Write `tokens/` (the folder, or one in it) with `rows` documents per batch, and its ledger
    for the trainer.

    A document's url_id is its place in its split.
    """
    folder = folder if folder.name == "tokens" else folder / "tokens"
    ledger = folder.parent / LEDGER / "tokens"
    ledger.mkdir(parents=True, exist_ok=True)
    files = []
    for split, shards in splits.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        first = 0
        for number, (lengths, ids) in enumerate(shards):
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            table = pa.table(
                {
                    "url_id": np.arange(first, first + len(lengths), dtype=np.uint64),
                    "n_tokens": lengths.astype(np.uint32),
                    "tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids)),
                }
            )
            path = folder / split / f"part-{number:05d}.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=rows)
            first += len(lengths)
            files.append(_file(folder.parent, path, "data", len(lengths)))
    (ledger / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    asset = _file(folder.parent, ledger / "tokenizer.json", "asset", 0)
    pq.write_table(pa.Table.from_pylist([*files, asset]), ledger / "files.parquet")
    listed = _file(folder.parent, ledger / "files.parquet", "", 0)
    known = {"name": "test", "file": asset["path"], "sha256": asset["sha256"]}
    manifest = {
        "dataset": "tokens",
        "files": {key: listed[key] for key in ("path", "sha256")},
        "digest": listed["sha256"],
        "properties": {"tokenizer": {**known, "vocab_size": vocab_size, "eot": eot}},
    }
    root = {"schema_version": SCHEMA_VERSION, "datasets": {"tokens": manifest}}
    (ledger.parent / "manifest.json").write_text(json.dumps(root), encoding="utf-8")
    return folder


def library_tokens(folder: Path, files: int, vocab_size: int = 50257) -> Path:
    """Write the tokens of Python's standard library, a document for each of `files` files.

    Every twentieth is for validation.
    """
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))[:files]
    contents = [
        path.read_bytes()
        for path in paths
        if "site-packages" not in path.parts and path.stat().st_size
    ]
    try:
        from tokenizers import ByteLevelBPETokenizer

        texts = [content.decode("utf-8", "replace") for content in contents]
        encoder = ByteLevelBPETokenizer()
        encoder.train_from_iterator(texts, vocab_size=vocab_size - 1, show_progress=False)
        ids = [np.array(encoding.ids, np.uint16) for encoding in encoder.encode_batch(texts)]
        tokenizer = encoder.to_str()
    except ImportError:  # as bytes: their rates are the same
        ids, tokenizer = (
            [np.frombuffer(content, np.uint8).astype(np.uint16) for content in contents],
            "{}",
        )
    splits: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    for number, document in enumerate(ids):
        splits["val" if number % 20 == 0 else "train"].append(document)
    shards = {
        split: [(np.array(list(map(len, parts))), np.concatenate(parts))]
        for split, parts in splits.items()
    }
    return write_shards(
        folder, shards, tokenizer=tokenizer, vocab_size=vocab_size, eot=vocab_size - 1
    )


def _file(run: Path, path: Path, kind: str, rows: int) -> dict[str, str | int]:
    content = path.read_bytes()
    return {
        "path": path.relative_to(run).as_posix(),
        "kind": kind,
        "rows": rows,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
