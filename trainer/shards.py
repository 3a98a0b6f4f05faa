"""The token shards, memory-mapped: checked against their manifest, then read without a copy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas import DATASETS, Manifest, ManifestError, ShardFile
from schemas.manifest import MANIFEST_NAME


class ShardError(ValueError):
    """Token shards that are missing, damaged, or of a kind this program does not know."""


@dataclass(frozen=True)
class TokenizerInfo:
    """What the shards' manifest says of their tokenizer.

    Attributes:
      name: for people.
      path: the tokenizer's own file, in the format of Hugging Face's tokenizers.
      sha256: hex digest of that file; two datasets share a tokenizer when they share it.
      vocab_size: ids are below it.
      eot: id of end-of-text.
    """

    name: str
    path: Path
    sha256: str
    vocab_size: int
    eot: int


@dataclass(frozen=True)
class TokenDataset:
    """A `tokens/` folder whose manifest has been read and whose files are there.

    Attributes:
      folder: the folder of the manifest.
      digest: SHA-256 over all files' names and digests, as in the manifest.
      tokenizer: its tokenizer.
      files: the data files by split (`train`, `val`).
    """

    folder: Path
    digest: str
    tokenizer: TokenizerInfo
    files: dict[str, list[ShardFile]]

    def documents(self, split: str) -> Documents:
        """The documents of one split; raises ShardError naming a file that is not what it should be."""
        return Documents.open(self.folder, self.files.get(split, []), self.tokenizer.vocab_size)


def open_dataset(folder: str | Path, *, verify: bool = False) -> TokenDataset:
    """The token shards in `folder`, by its manifest.

    Every file's presence and length are checked here, so that a damaged dataset fails before training
    and not in the middle of it; with `verify` its SHA-256 too.

    Raises:
      ShardError: no manifest, an unknown schema version or tokenizer, or a file that is missing, cut
        short or (with `verify`) changed. It names the file.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    tokenizer = _read_tokenizer(folder, manifest)
    splits: dict[str, list[ShardFile]] = {}
    for file in manifest.files:
        if file.kind in ("data", "asset"):
            _check_file(folder, file, verify)
        if file.kind == "data":
            splits.setdefault(file.path.split("/")[0], []).append(file)
    return TokenDataset(folder, manifest.digest, tokenizer, splits)


class Documents:
    """The documents of one split, addressed 0 … n−1 in the order of the shards' paths and rows.

    Attributes:
      lengths: tokens of each document, int64 (n,).
    """

    def __init__(self, chunks: list[np.ndarray], starts: np.ndarray, lengths: np.ndarray, first: np.ndarray) -> None:
        self._chunks = chunks  # the token ids of each record batch, mapped from its file
        self._first = first  # the first document of each chunk
        self._starts = starts  # where in its chunk each document starts
        self.lengths = lengths
        self.dtype = np.dtype(np.uint32 if any(c.dtype == np.uint32 for c in chunks) else np.uint16)

    @classmethod
    def open(cls, folder: Path, files: Sequence[ShardFile], vocab_size: int) -> Documents:
        """Map `files`, reading nothing but their lengths."""
        chunks: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        lengths: list[np.ndarray] = []
        for file in files:
            path = folder / file.path
            rows = 0
            for batch in _record_batches(path, vocab_size):
                n_tokens, offsets, tokens = batch
                chunks.append(tokens)
                starts.append(offsets[:-1])
                lengths.append(n_tokens)
                rows += len(n_tokens)
                if not np.array_equal(np.diff(offsets), n_tokens):
                    raise ShardError(f"{path}: n_tokens is not the length of tokens; run tokenize again")
            if rows != file.rows:
                raise ShardError(f"{path} has {rows} rows, its manifest says {file.rows}; run tokenize again")
        counts = np.array([len(n) for n in lengths], dtype=np.int64)
        return cls(
            chunks,
            np.concatenate(starts) if starts else np.zeros(0, np.int32),
            np.concatenate(lengths).astype(np.int64) if lengths else np.zeros(0, np.int64),
            np.cumsum(counts) - counts,
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> np.ndarray:
        """The token ids of one document, a view of the mapped file."""
        chunk = int(np.searchsorted(self._first, document, side="right")) - 1
        start = int(self._starts[document])
        return self._chunks[chunk][start : start + int(self.lengths[document])]

    def copy_into(
        self, out: np.ndarray, documents: np.ndarray, at: np.ndarray, begin: np.ndarray, count: np.ndarray
    ) -> None:
        """For each k: `out[at[k]:at[k]+count[k]] = document[k][begin[k]:begin[k]+count[k]]`."""
        chunk_of = np.searchsorted(self._first, documents, side="right") - 1
        source = self._starts[documents] + begin
        chunks = self._chunks
        # One slice assignment a document: with the indices as Python integers, about a microsecond each.
        for chunk, s, e, o, p in zip(
            chunk_of.tolist(),
            source.tolist(),
            (source + count).tolist(),
            at.tolist(),
            (at + count).tolist(),
            strict=True,
        ):
            out[o:p] = chunks[chunk][s:e]


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_NAME
    try:
        manifest = Manifest.from_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        below = folder / "tokens" / MANIFEST_NAME
        hint = f"; did you mean {folder / 'tokens'}?" if below.exists() else "; run the tokenize stage first"
        raise ShardError(f"no token shards in {folder}: it has no {MANIFEST_NAME}{hint}") from None
    except ManifestError as error:
        raise ShardError(str(error)) from error
    if manifest.dataset != "tokens":
        raise ShardError(f"{path} describes the dataset '{manifest.dataset}', not 'tokens'; --data names tokens/")
    return manifest


def _read_tokenizer(folder: Path, manifest: Manifest) -> TokenizerInfo:
    where = folder / MANIFEST_NAME
    entry = manifest.properties.get("tokenizer")
    wanted = {"name": str, "file": str, "sha256": str, "vocab_size": int, "eot": int}
    if not isinstance(entry, dict) or any(type(entry.get(key)) is not kind for key, kind in wanted.items()):
        raise ShardError(
            f"{where} names no tokenizer this program knows: found {entry!r}, expected {', '.join(wanted)}"
        )
    asset = next((file for file in manifest.of_kind("asset") if file.path == entry["file"]), None)
    if asset is None or asset.sha256 != entry["sha256"]:
        found = "not among its files" if asset is None else f"of SHA-256 {asset.sha256[:12]}…"
        raise ShardError(f"{where}: the tokenizer {entry['file']} should be {entry['sha256'][:12]}…, but is {found}")
    if not 0 <= entry["eot"] < entry["vocab_size"]:
        raise ShardError(f"{where}: end-of-text is {entry['eot']}, outside the vocabulary of {entry['vocab_size']}")
    return TokenizerInfo(entry["name"], folder / entry["file"], entry["sha256"], entry["vocab_size"], entry["eot"])


def _check_file(folder: Path, file: ShardFile, verify: bool) -> None:
    path = folder / file.path
    if not path.is_file():
        raise ShardError(f"{path} is missing, though its manifest names it; copy it again or run tokenize again")
    size = path.stat().st_size
    if size != file.bytes:
        state = "cut short" if size < file.bytes else "too long"
        raise ShardError(f"{path} is {state}: {size} bytes, its manifest says {file.bytes}; copy it again")
    if verify and sha256_of(path) != file.sha256:
        raise ShardError(f"{path} was changed or damaged: its SHA-256 is not the manifest's; copy it again")


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _record_batches(path: Path, vocab_size: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(n_tokens, offsets, tokens) of each record batch, the tokens mapped and not read."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    except (pa.ArrowInvalid, OSError) as error:
        raise ShardError(f"{path} is no Arrow IPC file ({error}); run tokenize again") from error
    _check_schema(path, reader.schema, vocab_size)
    columns = []
    for batch in batches:
        tokens = batch.column("tokens")
        try:
            ids = tokens.values.to_numpy(zero_copy_only=True)
            columns.append((batch.column("n_tokens").to_numpy(), tokens.offsets.to_numpy(), ids))
        except pa.ArrowInvalid as error:
            raise ShardError(f"{path} holds nulls or is compressed ({error}); run tokenize again") from error
    return columns


def _check_schema(path: Path, schema: pa.Schema, vocab_size: int) -> None:
    wanted = DATASETS["tokens"].schema
    for field in wanted:
        index = schema.get_field_index(field.name)
        found = schema.field(index).type if index >= 0 else None
        known = [pa.list_(pa.uint16()), pa.list_(pa.uint32())] if field.name == "tokens" else [field.type]
        if found is None or not any(_same_type(found, kind) for kind in known):
            raise ShardError(f"{path}: column {field.name} is {found}, expected {' or '.join(map(str, known))}")
    if vocab_size > 1 << 16 and schema.field("tokens").type.value_type == pa.uint16():
        raise ShardError(f"{path}: 16-bit ids cannot hold the tokenizer's vocabulary of {vocab_size}")


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):  # the items' name and nullability are no matter
        return pa.types.is_list(found) and found.value_type == wanted.value_type
    return found == wanted
