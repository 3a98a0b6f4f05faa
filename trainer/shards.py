"""The token shards: checked against their manifest, memory-mapped, and read without a copy.

`RUN/tokens/` holds the shards, `RUN/ledger/manifest.json` describes them, and `RUN/ledger/tokens/` has the list of
files and the tokenizer; to take the tokens elsewhere, copy `tokens/` and these. `schemas.manifest` has the formats,
which are read here with json and pyarrow only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas import DATASETS
from schemas.datasets import LEDGER, SCHEMA_VERSION
from trainer.remote import Folder, ShardError, TokenFile, why_not

_MANIFEST, _TOKENS = "manifest.json", "tokens"


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

    def same_as(self, other: TokenizerInfo) -> bool:
        return (self.sha256, self.vocab_size, self.eot) == (other.sha256, other.vocab_size, other.eot)

    def __str__(self) -> str:
        return f"{self.name} ({self.sha256[:12]}…, end-of-text {self.eot})"


@dataclass(frozen=True)
class TokenDataset:
    """A `tokens/` folder whose manifest has been read and whose files exist, on the local disk.

    Attributes:
      folder: the folder of the shards, a path or URI.
      tokenizer: its tokenizer.
      files: the data files by split (`train`, `val`), in the order in which their documents are numbered.
      ids_checked: whether all ids are known to be within the vocabulary.
      grown: whether the folder has more files than these.
      opened: the documents of the splits asked for so far, so that their lengths are read once.
    """

    folder: str
    tokenizer: TokenizerInfo
    files: dict[str, list[TokenFile]]
    ids_checked: bool
    grown: bool = False
    opened: dict[str, Documents] = field(default_factory=dict, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of the files of each split."""
        lines = (f"{split} {file.sha256}\n" for split, files in sorted(self.files.items()) for file in files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def first(self, counts: dict[str, int]) -> TokenDataset:
        """The dataset of the first files of each split, as it was before it grew."""
        files = {split: self.files.get(split, [])[:count] for split, count in counts.items()}
        grown = any(len(own) > len(files.get(split, [])) for split, own in self.files.items())
        return dataclasses.replace(self, files=files, grown=grown, opened={})

    def documents(self, split: str) -> Documents:
        """The documents of one split; raises ShardError naming a file that does not match its manifest."""
        if split not in self.opened:
            self.opened[split] = Documents.open(self.files.get(split, []), self.tokenizer.vocab_size, self.ids_checked)
        return self.opened[split]

    def url_ids(self, split: str) -> np.ndarray:
        """The url_id of each document of one split, uint64 (n,)."""
        batches = [own for file in self.files.get(split, []) for own in _batches(file, self.tokenizer.vocab_size)]
        return np.concatenate([np.zeros(0, np.uint64), *(batch.column("url_id").to_numpy() for batch in batches)])


def check_same_tokenizer(dataset: TokenDataset, other: TokenDataset) -> None:
    """Raises ShardError naming both datasets unless they have the same tokenizer."""
    ours, theirs = dataset.tokenizer, other.tokenizer
    if not ours.same_as(theirs):
        raise ShardError(
            f"{dataset.folder} has the tokenizer {ours}, {other.folder} has {theirs}; tokenize both with one"
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
    ledger = Folder(f"{place.uri.rpartition('/')[0]}/{LEDGER}")
    try:
        if place.uri.rpartition("/")[2] != _TOKENS:
            raise FileNotFoundError
        properties, rows = _read_manifest(ledger)
        sizes = place.sizes()
        tokenizer, asset = _tokenizer_of(properties, rows, f"{ledger}/{_MANIFEST}")
        _check_size(f"{ledger}/{asset.path}", ledger.size(asset.path), asset)
    except FileNotFoundError:
        below = place.size(f"{LEDGER}/{_MANIFEST}") is not None
        hint = f"did you mean {place}/{_TOKENS}?" if below else "run the tokenize stage first, or copy that folder too"
        raise ShardError(f"no token shards in {place}, as {ledger}/{_MANIFEST} does not name it; {hint}") from None
    except OSError as error:
        if not place.remote:
            raise
        raise ShardError(f"no token shards can be read at {place}: {why_not(error)}") from error
    files: dict[str, list[TokenFile]] = {}
    for file in _files(rows, "data"):
        _check_size(f"{place}/{file.path}", sizes.get(file.path), file)
        files.setdefault(file.path.partition("/")[0], []).append(file)
    for split, own in files.items():
        paths = place.fetch(own, cache)
        files[split] = [dataclasses.replace(file, path=str(path)) for file, path in zip(own, paths, strict=True)]
    (path,) = ledger.fetch([asset], cache)
    checked = properties.get("ids_checked") is True
    return TokenDataset(str(place), dataclasses.replace(tokenizer, path=path), files, checked)


def _read_manifest(ledger: Folder) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(properties, rows of the list of files) of tokens/; raises ShardError, or FileNotFoundError for no manifest."""
    content, name, list_name = ledger.read(_MANIFEST), f"{ledger}/{_MANIFEST}", ""
    try:
        record = json.loads(content)
        if (version := record["schema_version"]) != SCHEMA_VERSION:
            raise ShardError(f"{name} has schema version {version}, this program reads {SCHEMA_VERSION}")
        if _TOKENS not in record["datasets"]:
            raise ShardError(f"{name} has no finished tokens: run the tokenize stage first")
        record = record["datasets"][_TOKENS]
        list_name = record["files"]["path"].partition("/")[2]
        table = ledger.read(list_name)
        if hashlib.sha256(table).hexdigest() != record["files"]["sha256"]:
            raise ShardError(f"{ledger}/{list_name} was changed or damaged; copy it again")
        rows = pq.read_table(io.BytesIO(table), columns=["path", "kind", "rows", "bytes", "sha256"]).to_pylist()
        return dict(record["properties"]), rows
    except ShardError:
        raise
    except FileNotFoundError as error:
        raise ShardError(f"{ledger}/{list_name}, the list of files, is missing; copy it again") from error
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise ShardError(f"{name} is damaged ({error!r}); copy it again") from error


def _files(rows: list[dict[str, Any]], kind: str) -> list[TokenFile]:
    """The files of one kind, with paths that leave out the folder of the dataset or the ledger."""
    return [
        TokenFile(row["path"].partition("/")[2], row["rows"], row["bytes"], row["sha256"])
        for row in rows
        if row["kind"] == kind
    ]


class Documents:
    """The documents of one split, addressed 0 … n−1 in the order of the shards' paths and rows.

    Args:
      chunks: the token ids of each record batch, mapped from its file.
      lengths: tokens of each document of each chunk, in order.

    Attributes:
      lengths: tokens of each document, int64 (n,).
      dtype: of the ids.
    """

    def __init__(self, chunks: list[np.ndarray], lengths: list[np.ndarray]) -> None:
        counts = np.array([len(own) for own in lengths], dtype=np.int64)
        starts = [np.cumsum(own, dtype=np.int64) - own for own in lengths]
        self._chunks = chunks
        self._first = np.cumsum(counts) - counts  # the first document of each chunk
        self._starts = np.concatenate([np.zeros(0, np.int64), *starts])  # where in its chunk each document starts
        self.lengths = np.concatenate([np.zeros(0, np.int64), *lengths]).astype(np.int64)
        self.dtype = max((chunk.dtype for chunk in chunks), default=np.dtype(np.uint16))

    @classmethod
    def open(cls, files: Sequence[TokenFile], vocab_size: int, ids_checked: bool) -> Documents:
        """Map `files` and read the documents' lengths, and all ids unless `ids_checked`."""
        parts = [part for file in files for part in _token_ids(file, vocab_size, ids_checked)]
        return cls([ids for ids, _ in parts], [lengths for _, lengths in parts])

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
        chunk, source = np.searchsorted(self._first, documents, side="right") - 1, self._starts[documents] + begin
        chunks, slices = self._chunks, (chunk, source, source + count, at, at + count)
        # One slice assignment per document: about a microsecond each, with Python integers as indices.
        for k, s, e, o, p in zip(*(part.tolist() for part in slices), strict=True):
            out[o:p] = chunks[k][s:e]


def _tokenizer_of(
    properties: dict[str, Any], rows: list[dict[str, Any]], where: str
) -> tuple[TokenizerInfo, TokenFile]:
    """The tokenizer, and its file in the ledger's folder."""
    entry = properties.get("tokenizer")
    wanted = {"name": str, "file": str, "sha256": str, "vocab_size": int, "eot": int}
    if not isinstance(entry, dict) or any(type(entry.get(key)) is not kind for key, kind in wanted.items()):
        raise ShardError(
            f"{where} names no tokenizer this program knows: found {entry!r}, expected {', '.join(wanted)}"
        )
    name = entry["file"].partition("/")[2]  # without `ledger/`
    asset = next((file for file in _files(rows, "asset") if file.path == name), None)
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


def _batches(file: TokenFile, vocab_size: int) -> list[pa.RecordBatch]:
    """The record batches of a shard, mapped: only the bytes that are used are read. Raises ShardError naming it."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(file.path))
        _check_schema(file.path, reader.schema, vocab_size)
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    except (pa.ArrowInvalid, OSError) as error:
        raise ShardError(f"{file.path} is no Arrow IPC file ({error}); copy it again") from error
    if (rows := sum(map(len, batches))) != file.rows:
        raise ShardError(f"{file.path} has {rows} rows, its manifest says {file.rows}; run tokenize again")
    return batches


def _token_ids(file: TokenFile, vocab_size: int, checked: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(token ids, lengths of the documents) of each record batch; raises ShardError naming the file."""
    first, where = 0, file.path
    for batch in _batches(file, vocab_size):
        tokens, lengths = batch.column("tokens"), batch.column("n_tokens").to_numpy()
        try:
            ids, offsets = tokens.values.to_numpy(zero_copy_only=True), tokens.offsets.to_numpy()
        except pa.ArrowInvalid as error:
            raise ShardError(f"{where} holds nulls or is compressed ({error}); run tokenize again") from error
        if offsets[0] or not np.array_equal(np.diff(offsets), lengths):
            raise ShardError(f"{where}: n_tokens is not the length of tokens; run tokenize again")
        if not checked and ids.max(initial=0) >= vocab_size:
            row = first + int(np.searchsorted(offsets, ids.argmax(), side="right")) - 1
            raise ShardError(
                f"{where}, row {row}: token id {ids.max()} is outside the tokenizer's vocabulary of {vocab_size}; run "
                "tokenize again"
            )
        first += len(batch)
        yield ids, lengths


def _check_schema(path: str, schema: pa.Schema, vocab_size: int) -> None:
    for column in DATASETS[_TOKENS].schema:
        found = schema.field(column.name).type if column.name in schema.names else None
        kinds = [pa.list_(pa.uint16()), pa.list_(pa.uint32())] if column.name == "tokens" else [column.type]
        # The name and nullability of a list's items do not matter.
        same = pa.list_(found.value_type) if found is not None and pa.types.is_list(found) else found
        if same not in kinds:
            raise ShardError(f"{path}: column {column.name} is {found}, expected {' or '.join(map(str, kinds))}")
    if vocab_size > 1 << 16 and schema.field("tokens").type.value_type == pa.uint16():
        raise ShardError(f"{path}: 16-bit ids cannot hold the tokenizer's vocabulary of {vocab_size}")
