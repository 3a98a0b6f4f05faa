"""The token shards: checked against their manifest, memory-mapped, and read without a copy."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from schemas import DATASETS
from trainer.manifest import MANIFEST_NAME, TOKENS, ShardError, TokenFile, TokenManifest, ledger_of, read_manifest
from trainer.remote import Folder, why_not


@dataclass(frozen=True)
class TokenizerInfo:
    """What the shards' manifest says of their tokenizer.

    Attributes:
      name: shown in messages.
      path: the tokenizer's own file, in the format of Hugging Face's tokenizers.
      sha256: hex digest of that file; datasets with the same digest have the same tokenizer.
      vocab_size: ids are below it.
      eot: id of end-of-text.
    """

    name: str
    path: Path
    sha256: str
    vocab_size: int
    eot: int


@dataclass(frozen=True)
class LocalFile:
    """A shard on the local disk: its documents, and the SHA-256 that its manifest gives."""

    path: Path
    rows: int
    sha256: str


@dataclass(frozen=True)
class TokenDataset:
    """A `tokens/` folder whose manifest has been read and whose files exist, on the local disk.

    Attributes:
      folder: the folder of the shards, a path or URI.
      manifest: what its ledger says of it.
      tokenizer: its tokenizer.
      files: the data files by split (`train`, `val`), in the order in which their documents are numbered.
      opened: the documents of the splits asked for so far, so that their lengths are read once.
    """

    folder: str
    manifest: TokenManifest
    tokenizer: TokenizerInfo
    files: dict[str, list[LocalFile]]
    opened: dict[str, Documents] = field(default_factory=dict, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of the files of each split."""
        lines = (f"{split} {file.sha256}\n" for split, files in sorted(self.files.items()) for file in files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def first(self, counts: dict[str, int]) -> TokenDataset:
        """The dataset of the first files of each split, as it was before it grew."""
        files = {split: self.files.get(split, [])[:count] for split, count in counts.items()}
        return dataclasses.replace(self, files=files, opened={})

    def documents(self, split: str) -> Documents:
        """The documents of one split; raises ShardError naming a file that does not match its manifest."""
        if split not in self.opened:
            files, vocab_size = self.files.get(split, []), self.tokenizer.vocab_size
            self.opened[split] = Documents.open(files, vocab_size, self.manifest.ids_checked)
        return self.opened[split]

    def url_ids(self, split: str) -> np.ndarray:
        """The url_id of each document of one split, uint64 (n,)."""
        files = self.files.get(split, [])
        batches = [own for file in files for own in columns(file, ["url_id"], self.tokenizer.vocab_size)]
        return np.concatenate([np.zeros(0, np.uint64), *(batch.column("url_id").to_numpy() for batch in batches)])


def check_same_tokenizer(dataset: TokenDataset, other: TokenDataset) -> None:
    """Raises ShardError naming both datasets unless they have the same tokenizer."""
    ours, theirs = dataset.tokenizer, other.tokenizer
    if (ours.sha256, ours.vocab_size, ours.eot) != (theirs.sha256, theirs.vocab_size, theirs.eot):
        raise ShardError(
            f"{dataset.folder} has the tokenizer {ours.name} ({ours.sha256[:12]}…, end-of-text {ours.eot}), "
            f"{other.folder} has {theirs.name} ({theirs.sha256[:12]}…, end-of-text {theirs.eot}); tokenize both "
            "with one"
        )


def open_dataset(folder: str | Path, cache: str | Path | None = None) -> TokenDataset:
    """The token shards in `folder`.

    Every file's existence and length are checked, so that a damaged dataset fails before training and not in the middle
    of it. Those of a bucket are copied, and their SHA-256s checked.

    Args:
      folder: a local folder, or one in a bucket: `s3://BUCKET/PATH` or `gs://BUCKET/PATH`.
      cache: where shards of a bucket are copied to (default: `$OWT_CACHE`, or the user's cache folder).

    Raises:
      ShardError: no manifest, an unknown schema version or tokenizer, or a file that is missing, truncated or (in a
        bucket) changed. It names the file.
    """
    place = Folder(str(folder))
    ledger = Folder(ledger_of(str(place)))
    try:
        if str(place).rpartition("/")[2] != TOKENS:
            raise FileNotFoundError
        manifest = read_manifest(ledger.read, str(ledger))
        sizes = place.sizes()
        tokenizer, asset = _tokenizer_of(manifest, ledger.path(MANIFEST_NAME))
        _check_size(ledger.path(asset.path), ledger.size(asset.path), asset)
    except FileNotFoundError:
        below = f"{place}/tokens"
        there = Folder(ledger_of(below)).size(MANIFEST_NAME)
        hint = (
            f"did you mean {below}?" if there is not None else "run the tokenize stage first, or copy that folder too"
        )
        raise ShardError(f"no token shards in {place}, as {ledger}/{MANIFEST_NAME} does not name it; {hint}") from None
    except OSError as error:
        if not place.remote:
            raise
        raise ShardError(f"no token shards can be read at {place}: {why_not(error)}") from error
    for file in (file for files in manifest.files.values() for file in files):
        _check_size(place.path(file.path), sizes.get(file.path), file)
    files = {
        split: [
            LocalFile(path, file.rows, file.sha256) for file, path in zip(own, place.fetch(own, cache), strict=True)
        ]
        for split, own in manifest.files.items()
    }
    (path,) = ledger.fetch([asset], cache)
    return TokenDataset(str(place), manifest, dataclasses.replace(tokenizer, path=path), files)


class Documents:
    """The documents of one split, addressed 0 … n−1 in the order of the shards' paths and rows.

    Attributes:
      lengths: tokens of each document, int64 (n,).
    """

    def __init__(
        self,
        chunks: list[np.ndarray],
        starts: np.ndarray,
        lengths: np.ndarray,
        first: np.ndarray,
        dtype: np.dtype | type = np.uint16,
    ) -> None:
        self._chunks = chunks  # the token ids of each record batch, mapped from its file
        self._first = first  # the first document of each chunk
        self._starts = starts  # where in its chunk each document starts
        self.lengths = lengths
        self.dtype = np.dtype(dtype)

    @classmethod
    def open(cls, files: Sequence[LocalFile], vocab_size: int, ids_checked: bool) -> Documents:
        """Map `files` and read the documents' lengths, and all ids unless `ids_checked`."""
        lengths: list[np.ndarray] = []
        chunks: list[np.ndarray] = []
        for file in files:
            found = [batch.column("n_tokens").to_numpy() for batch in columns(file, ["n_tokens"], vocab_size)]
            if (rows := sum(map(len, found))) != file.rows:
                raise ShardError(f"{file.path} has {rows} rows, its manifest says {file.rows}; run tokenize again")
            lengths += found
            chunks += _token_ids(file, None if ids_checked else vocab_size)
        counts = np.array([len(n) for n in lengths], dtype=np.int64)
        starts = [np.cumsum(n_tokens, dtype=np.int64) - n_tokens for n_tokens in lengths]
        return cls(
            chunks,
            np.concatenate(starts) if starts else np.zeros(0, np.int64),
            np.concatenate(lengths).astype(np.int64) if lengths else np.zeros(0, np.int64),
            np.cumsum(counts) - counts,
            max((chunk.dtype for chunk in chunks), default=np.dtype(np.uint16)),
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
        # One slice assignment per document: about a microsecond each, with Python integers as indices.
        for chunk, s, e, o, p in zip(
            chunk_of.tolist(),
            source.tolist(),
            (source + count).tolist(),
            at.tolist(),
            (at + count).tolist(),
            strict=True,
        ):
            out[o:p] = chunks[chunk][s:e]


def _tokenizer_of(manifest: TokenManifest, where: str) -> tuple[TokenizerInfo, TokenFile]:
    """The tokenizer, and its file in the ledger's folder."""
    entry = manifest.tokenizer
    wanted = {"name": str, "file": str, "sha256": str, "vocab_size": int, "eot": int}
    if not isinstance(entry, dict) or any(type(entry.get(key)) is not kind for key, kind in wanted.items()):
        raise ShardError(
            f"{where} names no tokenizer this program knows: found {entry!r}, expected {', '.join(wanted)}"
        )
    name = entry["file"].partition("/")[2]  # without `ledger/`
    asset = next((file for file in manifest.assets if file.path == name), None)
    if asset is None or asset.sha256 != entry["sha256"]:
        found = "not among its files" if asset is None else f"of SHA-256 {asset.sha256[:12]}…"
        raise ShardError(f"{where}: the tokenizer {name} should be {entry['sha256'][:12]}…, but is {found}")
    if not 0 <= entry["eot"] < entry["vocab_size"]:
        raise ShardError(f"{where}: end-of-text is {entry['eot']}, outside the vocabulary of {entry['vocab_size']}")
    return TokenizerInfo(entry["name"], Path(name), entry["sha256"], entry["vocab_size"], entry["eot"]), asset


def _check_size(path: str, size: int | None, file: TokenFile) -> None:
    if size is None:
        raise ShardError(f"{path} is missing, though its manifest names it; copy it again or run tokenize again")
    if size != file.bytes:
        state = "cut short" if size < file.bytes else "too long"
        raise ShardError(f"{path} is {state}: {size} bytes, its manifest says {file.bytes}; copy it again")


def columns(file: LocalFile, names: Sequence[str], vocab_size: int) -> list[pa.RecordBatch]:
    """Some columns of a shard, of which only their own bytes are read; raises ShardError naming it."""
    try:
        with pa.memory_map(str(file.path)) as source:
            schema = pa.ipc.open_file(source).schema
            _check_schema(file.path, schema, vocab_size)
            options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
            reader = pa.ipc.open_file(source, options=options)
            return [reader.get_batch(index) for index in range(reader.num_record_batches)]
    except (pa.ArrowInvalid, OSError) as error:
        raise ShardError(f"{file.path} is no Arrow IPC file ({error}); run tokenize again") from error


def _token_ids(file: LocalFile, vocab_size: int | None) -> Iterator[np.ndarray]:
    """The mapped token ids of each record batch, checked against `vocab_size`; raises ShardError naming the file."""
    first, where = 0, file.path
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(where)))
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    except (pa.ArrowInvalid, OSError) as error:
        raise ShardError(f"{where} was damaged ({error}); copy it again") from error
    for batch in batches:
        tokens = batch.column("tokens")
        try:
            ids, offsets = tokens.values.to_numpy(zero_copy_only=True), tokens.offsets.to_numpy()
        except pa.ArrowInvalid as error:
            raise ShardError(f"{where} holds nulls or is compressed ({error}); run tokenize again") from error
        if offsets[0] or not np.array_equal(np.diff(offsets), batch.column("n_tokens").to_numpy()):
            raise ShardError(f"{where}: n_tokens is not the length of tokens; run tokenize again")
        if vocab_size is not None and ids.max(initial=0) >= vocab_size:
            row = first + int(np.searchsorted(offsets, ids.argmax(), side="right")) - 1
            raise ShardError(
                f"{where}, row {row}: token id {ids.max()} is outside the tokenizer's vocabulary of {vocab_size}; run "
                "tokenize again"
            )
        first += len(batch)
        yield ids


def _check_schema(path: Path, schema: pa.Schema, vocab_size: int) -> None:
    wanted = DATASETS["tokens"].schema
    for column in wanted:
        index = schema.get_field_index(column.name)
        found = schema.field(index).type if index >= 0 else None
        known = [pa.list_(pa.uint16()), pa.list_(pa.uint32())] if column.name == "tokens" else [column.type]
        if found is None or not any(_same_type(found, kind) for kind in known):
            raise ShardError(f"{path}: column {column.name} is {found}, expected {' or '.join(map(str, known))}")
    if vocab_size > 1 << 16 and schema.field("tokens").type.value_type == pa.uint16():
        raise ShardError(f"{path}: 16-bit ids cannot hold the tokenizer's vocabulary of {vocab_size}")


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):  # the items' name and nullability do not matter
        return pa.types.is_list(found) and found.value_type == wanted.value_type
    return found == wanted
