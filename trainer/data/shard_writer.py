"""Token shards of documents that are already ids, without a run of the pipeline.

write_shards("mine", documents)          an iterable of documents, each an iterable of ids
mine/tokens/train/part-00000.arrow       what --data mine reads
mine/ledger/manifest.json                written last: a folder without it is not read
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas import SettingsError
from schemas.datasets import LEDGER, SCHEMA_VERSION
from trainer.data.shards import GPT2_EOT, GPT2_VOCAB_SIZE, NO_TOKENIZER

# A file ends after this many tokens: 32 MiB as uint16.
_TOKENS_PER_FILE = 1 << 24


def write_shards(
    folder: str | Path,
    documents: Iterable[Iterable[int]],
    *,
    val_documents: Iterable[Iterable[int]] = (),
    vocab_size: int = GPT2_VOCAB_SIZE,
    eot: int = GPT2_EOT,
    tokenizer: str | Path | None = None,
) -> Path:
    """Write documents as token shards that `TrainConfig.data` and `open_corpora` read.

    Return the folder of the shards, `folder/tokens`. A document is the ids of a text without
    end-of-text. The second iterable has the documents of the validation split. The defaults of
    `vocab_size` and `eot` are GPT-2's. `tokenizer` is the tokenizer.json to sample and export with.
    Without it, the trained model reads and writes ids only. A document's url_id is its number in
    its split.

    Documents are read one after the other, and those of a file (16 million tokens) are in memory.
    Raises ValueError, which contains the document's number, for ids that the vocabulary does not
    have; SettingsError for a folder that is not empty or invalid arguments; OSError.
    """
    root = Path(folder)
    if not 0 <= eot < vocab_size <= 1 << 32:
        raise SettingsError(
            f"eot: {eot} is not an id of a vocabulary of {vocab_size}: ids are 0 to vocab_size − 1"
        )
    if root.name == "tokens":
        raise SettingsError(
            f"folder: {root} would be read as the shards of {root.parent}, because tokens is the "
            f"name of a run's shards: give another name"
        )
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise SettingsError(f"folder: {root} exists and is not an empty folder: give another one")
    tokenizer_json = Path(tokenizer or NO_TOKENIZER).read_bytes()
    files = []
    for split, documents_of_split in (("train", documents), ("val", val_documents)):
        named_documents = (
            _check_ids(document, f"document {number} of {split}", vocab_size, eot)
            for number, document in enumerate(documents_of_split)
        )
        files += [_describe(root, path, "data") for path in _write(root, split, named_documents)]
    if not files:
        raise ValueError("documents: there is none; token shards need a document")
    name = Path(tokenizer).name if tokenizer else "ids only"
    tokenizer_entry: dict[str, str | int] = {"name": name, "vocab_size": vocab_size, "eot": eot}
    _write_manifest(root, files, tokenizer_json, tokenizer_entry)
    return root / "tokens"


def _check_ids(document: Iterable[int], name: str, vocab_size: int, eot: int) -> np.ndarray:
    """Return a document's ids as an array.

    Raises ValueError, which contains `name`, unless they are below `vocab_size` and not `eot`.
    """
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    try:
        ids = np.asarray(document if hasattr(document, "__len__") else list(document))
    # Not iterable, or sequences of unequal lengths.
    except (TypeError, ValueError):
        ids = np.array(None)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} is not a sequence of token ids, which are whole numbers: encode its text first"
        )
    is_outside = (ids < 0) | (ids >= vocab_size)
    if is_outside.any():
        raise ValueError(
            f"{name} has the token id {ids[is_outside][0]}, outside the vocabulary of "
            f"{vocab_size}: give the tokenizer's vocab_size and eot"
        )
    if (ids == eot).any():
        raise ValueError(
            f"{name} contains the end-of-text {eot}, which the trainer inserts between documents: "
            f"give the ids without it"
        )
    return ids.astype(dtype)


def _write_manifest(
    root: Path,
    files: list[dict[str, str | int]],
    tokenizer_json: bytes,
    tokenizer_entry: dict[str, str | int],
) -> None:
    """Write the tokenizer, the list of files, and last the manifest."""
    ledger = root / LEDGER / "tokens"
    ledger.mkdir(parents=True)
    (ledger / "tokenizer.json").write_bytes(tokenizer_json)
    asset = _describe(root, ledger / "tokenizer.json", "asset")
    pq.write_table(pa.Table.from_pylist([*files, asset]), ledger / "files.parquet")
    list_entry = _describe(root, ledger / "files.parquet", "asset")
    tokenizer_entry |= {"file": asset["path"], "sha256": asset["sha256"]}
    dataset = {
        "dataset": "tokens",
        "files": {"path": list_entry["path"], "sha256": list_entry["sha256"]},
        "digest": list_entry["sha256"],
        "properties": {"tokenizer": tokenizer_entry, "ids_checked": True},
    }
    manifest = {"schema_version": SCHEMA_VERSION, "datasets": {"tokens": dataset}}
    part = ledger.parent / "manifest.json.part"
    part.write_text(json.dumps(manifest), encoding="utf-8")
    os.replace(part, ledger.parent / "manifest.json")


def _write(root: Path, split: str, documents: Iterable[np.ndarray]) -> Iterator[Path]:
    """Write the documents of one split to files; yield the path of each complete file."""
    first = 0
    chosen: list[np.ndarray] = []
    num_tokens = 0
    for number, ids in enumerate(documents):
        chosen.append(ids)
        num_tokens += len(ids)
        if num_tokens >= _TOKENS_PER_FILE:
            yield _write_file(root, split, _make_batch(chosen, first))
            first = number + 1
            chosen = []
            num_tokens = 0
    if chosen:
        yield _write_file(root, split, _make_batch(chosen, first))


def _write_file(root: Path, split: str, batch: pa.RecordBatch) -> Path:
    """Write the next file of a split."""
    folder = root / "tokens" / split
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{len(list(folder.iterdir())):05d}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return path


def _make_batch(documents: list[np.ndarray], first: int) -> pa.RecordBatch:
    """Return the documents as a record batch; `first` is the number of the first."""
    lengths = np.array([len(document) for document in documents])
    # Arrow raises an error if an offset needs more than 32 bits.
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    columns = {
        "url_id": np.arange(first, first + len(lengths), dtype=np.uint64),
        "n_tokens": lengths.astype(np.uint32),
        "tokens": pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(documents))),
    }
    return pa.RecordBatch.from_pydict(columns)


def _describe(root: Path, path: Path, kind: str) -> dict[str, str | int]:
    """Return a file's entry in the list of files."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "path": path.relative_to(root).as_posix(),
        "kind": kind,
        "bytes": path.stat().st_size,
        "sha256": digest,
    }
