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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from schemas.datasets import LEDGER, SCHEMA_VERSION
from trainer.data.buckets import open_bucket, why_not
from trainer.data.mapped_documents import (
    Chunk,
    Documents,
    find_documents,
    is_bin_file,
    map_ids,
)

_TOKENS = "tokens"
# GPT-2's vocabulary.
GPT2_VOCAB_SIZE = 50_257
GPT2_EOT = 50_256
# The tokenizer of shards whose ids came without one: a model of them reads and writes ids only.
NO_TOKENIZER = Path(__file__).with_name("no_tokenizer.json")
_NUM_COPYING = 8  # files at a time


class ShardError(ValueError):
    """Token shards that are missing, damaged, or of a kind this program does not know."""


@dataclass(frozen=True)
class TokenFile:
    """A file of the list of files.

    `path` is in the run's folder, and once the dataset is open on the local disk.
    """

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TokenizerInfo:
    """The shards' tokenizer: a file in the format of Hugging Face's tokenizers.

    Its digest distinguishes it from others.
    """

    name: str
    path: Path
    sha256: str
    vocab_size: int  # ids are below it
    eot: int  # end-of-text

    def __post_init__(self) -> None:
        if not 0 <= self.eot < self.vocab_size:
            raise ValueError(f"end-of-text {self.eot} is not below {self.vocab_size}")

    def same_as(self, other: TokenizerInfo) -> bool:
        """Return whether both give the same ids."""
        ours = (self.sha256, self.vocab_size, self.eot)
        return ours == (other.sha256, other.vocab_size, other.eot)

    def __str__(self) -> str:
        return f"{self.name} ({self.sha256[:12]}…, end-of-text {self.eot})"


@dataclass(frozen=True)
class TokenDataset:
    """A `tokens/` folder (a path or URI) whose files exist on the local disk, or a .bin file."""

    folder: str
    tokenizer: TokenizerInfo
    # By split (`train`, `val`), in the order in which their documents are numbered.
    files: dict[str, list[TokenFile]]
    ids_checked: bool  # whether all ids are known to be within the vocabulary
    has_grown: bool = False  # whether the folder has more files than these
    # The documents of each split that has been read.
    opened: dict[str, Documents] = field(default_factory=dict, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of the files of each split."""
        digest = hashlib.sha256()
        for split, files in sorted(self.files.items()):
            for file in files:
                digest.update(f"{split} {file.sha256}\n".encode())
        return digest.hexdigest()

    def first(self, counts: dict[str, int]) -> TokenDataset:
        """Return the dataset of the first files of each split, as it was before it grew."""
        files = {split: self.files.get(split, [])[:count] for split, count in counts.items()}
        has_grown = any(
            len(all_files) > len(files.get(split, [])) for split, all_files in self.files.items()
        )
        return dataclasses.replace(self, files=files, has_grown=has_grown, opened={})

    def documents(self, split: str) -> Documents:
        """Return the documents of one split.

        Raises ShardError, which names a file that does not match its manifest.
        """
        if split not in self.opened:
            chunks: list[Chunk] = []
            for file in self.files.get(split, []):
                if is_bin_file(file.path):
                    chunks.append(_read_bin(file, self.tokenizer))
                else:
                    chunks += _read_chunks(file, self.tokenizer.vocab_size, self.ids_checked)
            self.opened[split] = Documents(chunks)
        return self.opened[split]

    def url_ids(self, split: str) -> np.ndarray:
        """Return the url_id of each document of one split, uint64 (n,).

        Documents of a .bin file have their number in place of it.
        """
        if is_bin_file(self.folder):
            return np.arange(len(self.documents(split)), dtype=np.uint64)
        url_ids = [np.zeros(0, np.uint64)]
        for file in self.files.get(split, []):
            table = pa.ipc.open_file(pa.memory_map(file.path)).read_all()
            url_ids.append(table["url_id"].to_numpy())
        return np.concatenate(url_ids)


def _read_bin(file: TokenFile, tokenizer: TokenizerInfo) -> Chunk:
    """Return the documents of a .bin file; raises ShardError naming it."""
    try:
        ids = map_ids(file.path)
        starts, lengths = find_documents(ids, tokenizer.vocab_size, tokenizer.eot)
    except ValueError as error:
        raise ShardError(f"{file.path}: {error}") from None
    return Chunk(ids, lengths, starts)


def _advice(path: str) -> str:
    """Return how to have a damaged shard again: from its run if it lies in one, else by a copy."""
    run, is_in_run, _ = path.rpartition(f"/{_TOKENS}/")
    if not is_in_run:
        return "copy it again"
    quoted = shlex.quote(run)
    return f"run `owt verify {quoted} --repair`, then `owt run {quoted} --until tokenize`"


def _read_chunks(file: TokenFile, vocab_size: int, ids_checked: bool) -> Iterator[Chunk]:
    """Yield the record batches of a file; raises ShardError naming it."""
    path = file.path
    first_row = 0
    try:
        reader = pa.ipc.open_file(pa.memory_map(path))
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            tokens = batch.column("tokens")
            lengths = batch.column("n_tokens").to_numpy()
            ids = tokens.values.to_numpy(zero_copy_only=True)
            offsets = tokens.offsets.to_numpy()
            is_id_type = ids.dtype in (np.uint16, np.uint32)
            if not is_id_type or offsets[0] or not np.array_equal(np.diff(offsets), lengths):
                raise ShardError(
                    f"{path} has no tokens as tokenize writes them ({tokens.type}); {_advice(path)}"
                )
            if not ids_checked and ids.max(initial=0) >= vocab_size:
                row = int(np.searchsorted(offsets, ids.argmax(), side="right")) - 1
                raise ShardError(
                    f"{path}, row {first_row + row}: token id {ids.max()} is outside the "
                    f"tokenizer's vocabulary of {vocab_size}; {_advice(path)}"
                )
            first_row += len(batch)
            yield Chunk(ids, lengths, offsets[:-1].astype(np.int64))
    except (pa.ArrowInvalid, AttributeError, KeyError, OSError) as error:
        raise ShardError(
            f"{path} is not a file that tokenize wrote ({error}); copy it again"
        ) from error


def open_dataset(folder: str | Path) -> TokenDataset:
    """Open the token shards in `folder`: a run or its `tokens/`, local or at s3:// or gs://.

    It can also be nanoGPT's train.bin, with val.bin beside it as the validation split.

    Every file's existence and length are checked, so that a damaged dataset fails before training
    and not in the middle of it. Those of a bucket are copied to `$OWT_CACHE` (by default to the
    user's cache folder) if they are not there, and their SHA-256s checked. Raises ShardError,
    naming the file: no manifest, an unknown schema version or tokenizer, or a file that is missing,
    truncated, (in a bucket) changed, or cannot be copied.
    """
    scheme, separator, path = str(folder).partition("://")
    is_remote = bool(separator)
    if is_bin_file(folder) and not is_remote:
        return _open_bin(os.path.abspath(folder))
    if is_remote and not (scheme in ("s3", "gs") and path.strip("/")):
        raise ShardError(f"{folder}: give a local folder, s3://BUCKET/PATH or gs://BUCKET/PATH")
    # abspath keeps links: the ledger is next to the folder that was named.
    run = str(folder).rstrip("/") if is_remote else os.path.abspath(folder)
    run = run.removesuffix(f"/{_TOKENS}")
    try:
        filesystem: pyarrow.fs.FileSystem = pyarrow.fs.LocalFileSystem()
        root = run
        if is_remote:
            filesystem, root = open_bucket(run)
        source = _Run(run, filesystem, root)
        manifest = _read_manifest(source)
    except FileNotFoundError as error:
        hint = f"run `owt run {shlex.quote(run)} --until tokenize`, or copy that file too"
        parent = os.path.dirname(run)
        # Another dataset of a run was named, such as its corpus/.
        if os.path.isfile(os.path.join(parent, LEDGER, "manifest.json")):
            hint = f"the tokens of this run are in {os.path.join(parent, _TOKENS)}"
        # A data set of nanoGPT.
        if os.path.isfile(os.path.join(run, "train.bin")):
            hint = f"name the file: {shlex.quote(os.path.join(run, 'train.bin'))}"
        raise ShardError(f"no token shards in {folder}: {error}; {hint}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise ShardError(f"{folder} cannot be opened: {why_not(error)}") from error
    files = [*manifest.files, manifest.tokenizer_file]
    *paths, tokenizer_path = _copy_all(source, files) if is_remote else _check_all(source, files)
    splits: dict[str, list[TokenFile]] = {}
    for file, local_path in zip(manifest.files, paths, strict=True):
        split = file.path.split("/")[1]
        splits.setdefault(split, []).append(dataclasses.replace(file, path=local_path))
    return TokenDataset(
        folder=f"{run}/{_TOKENS}",
        tokenizer=dataclasses.replace(manifest.tokenizer, path=Path(tokenizer_path)),
        files=splits,
        ids_checked=manifest.ids_checked,
    )


def _open_bin(path: str) -> TokenDataset:
    """Open nanoGPT's file of ids; train.bin has its validation split in val.bin beside it."""
    path_by_split = {"train": Path(path)}
    val_path = Path(path).with_name("val.bin")
    if Path(path).name == "train.bin" and val_path.is_file():
        path_by_split["val"] = val_path
    files = {}
    for split, bin_path in path_by_split.items():
        try:
            num_bytes = map_ids(bin_path).nbytes
            with bin_path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except (ValueError, OSError) as error:
            raise ShardError(f"data: {error}") from error
        files[split] = [TokenFile(str(bin_path), num_bytes, digest)]
    tokenizer = TokenizerInfo(
        name="gpt2, ids only",
        path=NO_TOKENIZER,
        sha256=hashlib.sha256(NO_TOKENIZER.read_bytes()).hexdigest(),
        vocab_size=GPT2_VOCAB_SIZE,
        eot=GPT2_EOT,
    )
    return TokenDataset(path, tokenizer, files, ids_checked=False)


@dataclass(frozen=True)
class _Run:
    """A run's folder, as the user named it, and as its file system does."""

    name: str
    filesystem: pyarrow.fs.FileSystem
    root: str

    def read(self, path: str) -> bytes:
        """Return a file's content; raises FileNotFoundError, which names it."""
        try:
            with self.filesystem.open_input_stream(f"{self.root}/{path}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.name}/{path} is missing") from None


def _check_all(run: _Run, files: list[TokenFile]) -> list[str]:
    """Return the paths of local files; raises ShardError for one of another length."""
    paths = [Path(run.name, file.path) for file in files]
    for path, file in zip(paths, files, strict=True):
        if path.is_file() and path.stat().st_size == file.bytes:
            continue
        state = f"has {path.stat().st_size} bytes" if path.is_file() else "is missing"
        raise ShardError(
            f"{path} {state}, its manifest specifies {file.bytes} bytes; copy it again"
        )
    return [str(path) for path in paths]


def _copy_all(run: _Run, files: list[TokenFile]) -> list[str]:
    """Return the paths of copies in the cache, made now where they are missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    cache = Path(os.environ.get("OWT_CACHE") or base / "owt" / "shards").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("a") as lock, ThreadPoolExecutor(_NUM_COPYING) as threads:
        # The ranks of a machine share the cache: one copies while the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return [str(path) for path in threads.map(lambda file: _copy(run, file, cache), files)]


def _copy(run: _Run, file: TokenFile, cache: Path) -> Path:
    """Return the copy of a file, which is named by its SHA-256.

    The digest is checked, and the copy appears complete or not at all.
    """
    path = cache / f"{file.sha256}{Path(file.path).suffix}"
    if path.exists() and path.stat().st_size == file.bytes:
        return path
    part = path.with_suffix(".part")
    try:
        pyarrow.fs.copy_files(
            f"{run.root}/{file.path}", str(part), source_filesystem=run.filesystem
        )
    except OSError as error:
        raise ShardError(
            f"{run.name}/{file.path} cannot be copied to {cache}: {why_not(error)}"
        ) from error
    with part.open("rb") as copied:
        digest = hashlib.file_digest(copied, "sha256")
    if digest.hexdigest() != file.sha256:
        part.unlink()
        raise ShardError(
            f"{run.name}/{file.path} was changed or damaged: its SHA-256 is not the manifest's"
        )
    part.replace(path)
    return path


@dataclass(frozen=True)
class _Manifest:
    """The entries of the tokens in a run's manifest."""

    files: list[TokenFile]
    tokenizer: TokenizerInfo
    tokenizer_file: TokenFile
    ids_checked: bool


def _read_manifest(run: _Run) -> _Manifest:
    """Return the manifest's entries of the tokens; raises ShardError, or FileNotFoundError."""
    name = f"{LEDGER}/manifest.json"
    content = run.read(name)
    path = f"{run.name}/{name}"
    try:
        root = json.loads(content)
        version = root["schema_version"]
        if version != SCHEMA_VERSION:
            raise ShardError(
                f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}"
            )
        if _TOKENS not in root["datasets"]:
            raise ShardError(
                f"{path} has no finished tokens: run "
                f"`owt run {shlex.quote(run.name)} --until tokenize`"
            )
        dataset = root["datasets"][_TOKENS]
        file_by_kind = _read_files(run, dataset["files"])
        properties = dataset["properties"]
        entry = properties["tokenizer"]
        tokenizer = TokenizerInfo(
            name=entry["name"],
            path=Path(entry["file"]),
            sha256=entry["sha256"],
            vocab_size=entry["vocab_size"],
            eot=entry["eot"],
        )
        (tokenizer_file,) = [
            file
            for file in file_by_kind["asset"]
            if (file.path, file.sha256) == (entry["file"], entry["sha256"])
        ]
        return _Manifest(
            file_by_kind.get("data", []),
            tokenizer,
            tokenizer_file,
            ids_checked=properties.get("ids_checked") is True,
        )
    except (ShardError, FileNotFoundError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise ShardError(f"{path} is damaged ({error!r}); copy it again") from error


def _read_files(run: _Run, entry: dict[str, Any]) -> dict[str, list[TokenFile]]:
    """Return the files of a dataset by their kind: data, asset."""
    content = run.read(entry["path"])
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise ShardError(f"{run.name}/{entry['path']} was changed or damaged; copy it again")
    columns = ["path", "kind", "bytes", "sha256"]
    files: dict[str, list[TokenFile]] = {}
    for row in pq.read_table(io.BytesIO(content), columns=columns).to_pylist():
        files.setdefault(row.pop("kind"), []).append(TokenFile(**row))
    return files
