"""The token shards: checked against their manifest, memory-mapped, and read without a copy.

`RUN/ledger/manifest.json` names the list of their files and their tokenizer; `schemas.manifest` has
the formats.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import io
import json
import os
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from schemas.datasets import LEDGER, SCHEMA_VERSION
from trainer.remote import open_bucket, why_not

_TOKENS = "tokens"
_AT_ONCE = 8  # files copied at a time


class ShardError(ValueError):
    """Token shards that are missing, damaged, or of a kind this program does not know."""


@dataclass(frozen=True)
class TokenFile:
    """A file of the list of files; `path` is in the run's folder, once the dataset is open on
    the local disk."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TokenizerInfo:
    """The shards' tokenizer: a file in the format of Hugging Face's tokenizers, whose digest
    tells it from others."""

    name: str
    path: Path
    sha256: str
    vocab_size: int  # ids are below it
    eot: int  # end-of-text

    def same_as(self, other: TokenizerInfo) -> bool:
        return (self.sha256, self.vocab_size, self.eot) == (
            other.sha256,
            other.vocab_size,
            other.eot,
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.sha256[:12]}…, end-of-text {self.eot})"


@dataclass(frozen=True)
class TokenDataset:
    """A `tokens/` folder (a path or URI) whose manifest has been read and whose files exist, on
    the local disk."""

    folder: str
    tokenizer: TokenizerInfo
    files: dict[
        str, list[TokenFile]
    ]  # by split (`train`, `val`), in the order in which their documents are numbered
    ids_checked: bool  # whether all ids are known to be within the vocabulary
    grown: bool = False  # whether the folder has more files than these
    opened: dict[str, Documents] = field(
        default_factory=dict, repr=False, compare=False
    )  # by split, once asked for

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of the files of each split."""
        lines = (
            f"{split} {file.sha256}\n"
            for split, files in sorted(self.files.items())
            for file in files
        )
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def first(self, counts: dict[str, int]) -> TokenDataset:
        """The dataset of the first files of each split, as it was before it grew."""
        files = {split: self.files.get(split, [])[:count] for split, count in counts.items()}
        grown = any(len(own) > len(files.get(split, [])) for split, own in self.files.items())
        return dataclasses.replace(self, files=files, grown=grown, opened={})

    def documents(self, split: str) -> Documents:
        """The documents of one split; raises ShardError naming a file that does not match its
        manifest."""
        if split not in self.opened:
            how = self.tokenizer.vocab_size, self.ids_checked
            parts = [part for file in self.files.get(split, []) for part in _token_ids(file, *how)]
            self.opened[split] = Documents(
                [ids for ids, _ in parts], [lengths for _, lengths in parts]
            )
        return self.opened[split]

    def url_ids(self, split: str) -> np.ndarray:
        """The url_id of each document of one split, uint64 (n,)."""
        tables = (
            pa.ipc.open_file(pa.memory_map(file.path)).read_all()
            for file in self.files.get(split, [])
        )
        return np.concatenate(
            [np.zeros(0, np.uint64), *(table["url_id"].to_numpy() for table in tables)]
        )


def open_dataset(folder: str | Path) -> TokenDataset:
    """The token shards in `folder`: `tokens/` of a run, or the run, on the local disk, at s3://
    or gs://.

    Every file's existence and length are checked, so that a damaged dataset fails before training
    and not in the middle of it. Those of a bucket are copied to `$OWT_CACHE` (by default to the
    user's cache folder) if they are not there, and their SHA-256s checked. Raises ShardError,
    naming the file: no manifest, an unknown schema version or tokenizer, or a file that is missing,
    truncated, (in a bucket) changed, or cannot be copied.
    """
    scheme, remote, path = str(folder).partition("://")
    if remote and not (scheme in ("s3", "gs") and path.strip("/")):
        raise ShardError(f"{folder}: give a local folder, s3://BUCKET/PATH or gs://BUCKET/PATH")
    # abspath keeps links: the ledger is next to the folder that was named.
    run = (str(folder).rstrip("/") if remote else os.path.abspath(folder)).removesuffix(
        f"/{_TOKENS}"
    )

    def read(path: str) -> bytes:
        try:
            with filesystem.open_input_stream(f"{root}/{path}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            raise FileNotFoundError(f"{run}/{path} is missing") from None

    try:
        filesystem, root = open_bucket(run) if remote else (pyarrow.fs.LocalFileSystem(), run)
        files, tokenizer, asset, checked = _read_manifest(run, read)
    except FileNotFoundError as error:
        hint = f"run `owt run {shlex.quote(run)} --until tokenize`, or copy that file too"
        raise ShardError(f"no token shards in {folder}: {error}; {hint}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise ShardError(f"{folder} cannot be opened: {why_not(error)}") from error
    *paths, tokenizer_path = (_copied if remote else _found)(run, [*files, asset], filesystem, root)
    splits: dict[str, list[TokenFile]] = {}
    for file, local in zip(files, paths, strict=True):
        splits.setdefault(file.path.split("/")[1], []).append(dataclasses.replace(file, path=local))
    tokenizer = dataclasses.replace(tokenizer, path=Path(tokenizer_path))
    return TokenDataset(f"{run}/{_TOKENS}", tokenizer, splits, checked)


def _found(run: str, files: list[TokenFile], *_: object) -> list[str]:
    for file in files:
        path = Path(run, file.path)
        if not path.is_file() or path.stat().st_size != file.bytes:
            found = f"has {path.stat().st_size} bytes" if path.is_file() else "is missing"
            raise ShardError(f"{path} {found}, its manifest says {file.bytes} bytes; copy it again")
    return [f"{run}/{file.path}" for file in files]


def _copied(
    run: str,
    files: list[TokenFile],
    filesystem: pyarrow.fs.FileSystem,
    root: str,
) -> list[str]:
    """The paths of the copies: each is named by its SHA-256, which is checked, and appears
    complete or not at all.

    The ranks of a machine share the cache: one copies while the others wait.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("OWT_CACHE") or base / "owt" / "shards")
    folder.mkdir(parents=True, exist_ok=True)

    def copied(file: TokenFile) -> str:
        path = folder / f"{file.sha256}{Path(file.path).suffix}"
        if not (path.exists() and path.stat().st_size == file.bytes):
            part = path.with_suffix(".part")
            try:
                pyarrow.fs.copy_files(
                    f"{root}/{file.path}", str(part), source_filesystem=filesystem
                )
            except OSError as error:
                raise ShardError(
                    f"{run}/{file.path} cannot be copied to {folder}: {why_not(error)}"
                ) from error
            if sha256_of(part) != file.sha256:
                part.unlink()
                raise ShardError(
                    f"{run}/{file.path} was changed or damaged: its SHA-256 is not the manifest's"
                )
            part.replace(path)
        return str(path)

    with (folder / ".lock").open("a") as lock, ThreadPoolExecutor(_AT_ONCE) as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return list(threads.map(copied, files))


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_manifest(
    run: str, read: Callable[[str], bytes]
) -> tuple[list[TokenFile], TokenizerInfo, TokenFile, bool]:
    """(data files, tokenizer, its file, whether ids are checked); raises ShardError, or
    FileNotFoundError."""
    name = f"{LEDGER}/manifest.json"
    content, where = read(name), f"{run}/{name}"
    try:
        root = json.loads(content)
        if (version := root["schema_version"]) != SCHEMA_VERSION:
            raise ShardError(
                f"{where} has schema version {version}, this program reads {SCHEMA_VERSION}"
            )
        if _TOKENS not in root["datasets"]:
            raise ShardError(
                f"{where} has no finished tokens: run `owt run {shlex.quote(run)} --until tokenize`"
            )
        record = root["datasets"][_TOKENS]
        table = read(record["files"]["path"])
        if hashlib.sha256(table).hexdigest() != record["files"]["sha256"]:
            raise ShardError(
                f"{run}/{record['files']['path']} was changed or damaged; copy it again"
            )
        files: dict[str, list[TokenFile]] = {"data": [], "asset": []}
        for row in pq.read_table(
            io.BytesIO(table), columns=["path", "kind", "bytes", "sha256"]
        ).to_pylist():
            files.setdefault(row.pop("kind"), []).append(TokenFile(**row))
        own = record["properties"]["tokenizer"]
        tokenizer = TokenizerInfo(
            own["name"], Path(own["file"]), own["sha256"], own["vocab_size"], own["eot"]
        )
        assets = [
            file
            for file in files["asset"]
            if (file.path, file.sha256) == (own["file"], own["sha256"])
        ]
        if not assets or not 0 <= tokenizer.eot < tokenizer.vocab_size:
            raise ShardError(
                f"{where} has no tokenizer of this kind, or not its file: {own}; copy it again"
            )
        return files["data"], tokenizer, assets[0], record["properties"].get("ids_checked") is True
    except (ShardError, FileNotFoundError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise ShardError(f"{where} is damaged ({error!r}); copy it again") from error


class Documents:
    """The documents of one split, addressed 0 … n−1 in the order of the shards' paths and rows.

    `lengths` are the tokens of each document, int64 (n,), `dtype` is that of the ids, mapped from
    their files.
    """

    def __init__(self, chunks: list[np.ndarray], lengths: list[np.ndarray]) -> None:
        counts, empty = (
            np.array([len(own) for own in lengths], dtype=np.int64),
            np.zeros(0, np.int64),
        )
        starts = [np.cumsum(own, dtype=np.int64) - own for own in lengths]
        self._chunks = chunks
        self._first = np.cumsum(counts) - counts  # the first document of each chunk
        self._starts = np.concatenate([empty, *starts])  # where in its chunk each document starts
        self.lengths = np.concatenate([empty, *lengths]).astype(np.int64)
        self.dtype = max((chunk.dtype for chunk in chunks), default=np.dtype(np.uint16))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> np.ndarray:
        """The token ids of one document, a view of the mapped file."""
        chunk = int(np.searchsorted(self._first, document, side="right")) - 1
        start = int(self._starts[document])
        return self._chunks[chunk][start : start + int(self.lengths[document])]

    def copy_into(
        self,
        out: np.ndarray,
        documents: np.ndarray,
        at: np.ndarray,
        begin: np.ndarray,
        count: np.ndarray,
    ) -> None:
        """For each k: `out[at[k]:at[k]+count[k]] = document[k][begin[k]:begin[k]+count[k]]`."""
        chunk, source = (
            np.searchsorted(self._first, documents, side="right") - 1,
            self._starts[documents] + begin,
        )
        chunks, slices = self._chunks, (chunk, source, source + count, at, at + count)
        # One slice assignment per document: about a microsecond each, with Python integers as
        # indices.
        for k, s, e, o, p in zip(*(part.tolist() for part in slices), strict=True):
            out[o:p] = chunks[k][s:e]


def _advice(path: str) -> str:
    """Return how to have a damaged shard again: from its run if it lies in one, else by a copy."""
    run, is_in_run, _ = path.rpartition(f"/{_TOKENS}/")
    if not is_in_run:
        return "copy it again"
    quoted = shlex.quote(run)
    return f"run `owt verify {quoted} --repair`, then `owt run {quoted} --until tokenize`"


def _token_ids(
    file: TokenFile, vocab_size: int, checked: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(token ids, lengths of the documents) of each record batch, mapped; raises ShardError
    naming the file."""
    first, where = 0, file.path
    try:
        reader = pa.ipc.open_file(pa.memory_map(where))
        for batch in map(reader.get_batch, range(reader.num_record_batches)):
            tokens, lengths = batch.column("tokens"), batch.column("n_tokens").to_numpy()
            ids, offsets = tokens.values.to_numpy(zero_copy_only=True), tokens.offsets.to_numpy()
            if (
                ids.dtype not in (np.uint16, np.uint32)
                or offsets[0]
                or not np.array_equal(np.diff(offsets), lengths)
            ):
                raise ShardError(
                    f"{where} has no tokens as tokenize writes them ({tokens.type}); "
                    f"{_advice(where)}"
                )
            if not checked and ids.max(initial=0) >= vocab_size:
                row = first + int(np.searchsorted(offsets, ids.argmax(), side="right")) - 1
                raise ShardError(
                    f"{where}, row {row}: token id {ids.max()} is outside the tokenizer's "
                    f"vocabulary of {vocab_size}; "
                    f"{_advice(where)}"
                )
            first += len(batch)
            yield ids, lengths
    except (pa.ArrowInvalid, AttributeError, KeyError, OSError) as error:
        raise ShardError(
            f"{where} is no file that tokenize wrote ({error}); copy it again"
        ) from error
