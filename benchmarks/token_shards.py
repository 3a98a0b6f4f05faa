"""Write token shards for benchmarks and tests from flat arrays.

It needs numpy and pyarrow only, since a GPU's machine may have nothing more.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.datasets import LEDGER, SCHEMA_VERSION

# The lengths of a shard's documents, and all their ids one after the other.
Shard = tuple[np.ndarray, np.ndarray]
# One document in so many is for validation.
VAL_INTERVAL = 20


def write_shards(
    folder: Path,
    splits: dict[str, list[Shard]],
    *,
    tokenizer: str,
    vocab_size: int,
    eot: int,
    rows: int = 1000,
) -> Path:
    """Write `tokens/` and its ledger as the trainer reads them; return the folder of the tokens.

    It is `folder` if that is called so, otherwise in it. A record batch has `rows` documents. A
    document's url_id is its place in its split.
    """
    if folder.name != "tokens":
        folder = folder / "tokens"
    run = folder.parent
    ledger = run / LEDGER / "tokens"
    ledger.mkdir(parents=True, exist_ok=True)
    files = []
    for split, shards in splits.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        first = 0
        for number, (lengths, ids) in enumerate(shards):
            path = folder / split / f"part-{number:05d}.arrow"
            _write_shard(path, lengths, ids, first, rows)
            first += len(lengths)
            files.append(_file(run, path, "data", len(lengths)))
    (ledger / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    asset = _file(run, ledger / "tokenizer.json", "asset", 0)
    pq.write_table(pa.Table.from_pylist([*files, asset]), ledger / "files.parquet")
    file_list = _file(run, ledger / "files.parquet", "", 0)
    tokenizer_entry = {
        "name": "test",
        "file": asset["path"],
        "sha256": asset["sha256"],
        "vocab_size": vocab_size,
        "eot": eot,
    }
    dataset = {
        "dataset": "tokens",
        "files": {"path": file_list["path"], "sha256": file_list["sha256"]},
        "digest": file_list["sha256"],
        "properties": {"tokenizer": tokenizer_entry},
    }
    root = {"schema_version": SCHEMA_VERSION, "datasets": {"tokens": dataset}}
    (ledger.parent / "manifest.json").write_text(json.dumps(root), encoding="utf-8")
    return folder


def _write_shard(path: Path, lengths: np.ndarray, ids: np.ndarray, first: int, rows: int) -> None:
    """Write a file of documents, whose numbers begin at `first`."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns = {
        "url_id": np.arange(first, first + len(lengths), dtype=np.uint64),
        "n_tokens": lengths.astype(np.uint32),
        "tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids)),
    }
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def library_tokens(folder: Path, files: int, vocab_size: int = 50257) -> Path:
    """Write the tokens of Python's standard library, a document for each of `files` files.

    Every twentieth is for validation.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    contents = []
    for path in sorted(library.rglob("*.py"))[:files]:
        if "site-packages" not in path.parts and path.stat().st_size:
            contents.append(path.read_bytes())
    documents, tokenizer = _encode(contents, vocab_size)
    splits: dict[str, list[np.ndarray]] = {"train": [], "val": []}
    for number, document in enumerate(documents):
        is_val = number % VAL_INTERVAL == 0
        splits["val" if is_val else "train"].append(document)
    shards: dict[str, list[Shard]] = {}
    for split, parts in splits.items():
        lengths = np.array([len(part) for part in parts])
        shards[split] = [(lengths, np.concatenate(parts))]
    return write_shards(
        folder, shards, tokenizer=tokenizer, vocab_size=vocab_size, eot=vocab_size - 1
    )


def _encode(contents: list[bytes], vocab_size: int) -> tuple[list[np.ndarray], str]:
    """Return the ids of texts by a tokenizer that is fitted to them, and its tokenizer.json.

    Without the package tokenizers, the ids are the bytes: the rates of training are the same.
    """
    try:
        from tokenizers import ByteLevelBPETokenizer
    except ImportError:
        return [np.frombuffer(content, np.uint8).astype(np.uint16) for content in contents], "{}"
    texts = [content.decode("utf-8", "replace") for content in contents]
    encoder = ByteLevelBPETokenizer()
    # The last id is end-of-text.
    encoder.train_from_iterator(texts, vocab_size=vocab_size - 1, show_progress=False)
    encodings = encoder.encode_batch(texts)
    return [np.array(encoding.ids, np.uint16) for encoding in encodings], encoder.to_str()


def _file(run: Path, path: Path, kind: str, rows: int) -> dict[str, str | int]:
    """Return a file's entry in the list of files."""
    content = path.read_bytes()
    return {
        "path": path.relative_to(run).as_posix(),
        "kind": kind,
        "rows": rows,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
