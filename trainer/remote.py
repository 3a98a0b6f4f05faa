"""Folders of token shards, on the local disk or in a bucket (`s3://`, `gs://`), which is copied before it is read."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from trainer.manifest import ShardError, TokenFile

T = TypeVar("T")
_PIECE = 8 << 20  # bytes of one read
_AT_ONCE = 8  # files copied at a time
_SECONDS = 45  # that a bucket may take to answer: without credentials, clients retry for up to 15 minutes


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Folder:
    """A folder of shards or of their ledger.

    Raises:
      ShardError: an invalid URI or an unknown scheme.
    """

    def __init__(self, uri: str) -> None:
        self.uri, self.remote = uri.rstrip("/"), "://" in uri
        self._fs: pyarrow.fs.FileSystem = pyarrow.fs.LocalFileSystem()
        if not self.remote:
            self.uri = self._root = os.path.abspath(uri)  # keeps links: the ledger is next to the folder named
            return
        scheme, _, path = uri.partition("://")
        if scheme not in ("s3", "gs") or not path.strip("/"):
            raise ShardError(f"{uri}: give a local folder, s3://BUCKET/PATH or gs://BUCKET/PATH")
        try:
            self._fs, self._root = open_bucket(self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            raise ShardError(f"{uri} cannot be opened: {why_not(error)}") from error

    def __str__(self) -> str:
        return self.uri

    def path(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError, or another OSError."""
        with self._fs.open_input_stream(f"{self._root}/{name}") as file:
            return bytes(file.read())

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None if there is none."""
        return self._fs.get_file_info(f"{self._root}/{name}").size

    def sizes(self) -> dict[str, int]:
        """Bytes of each file, by path."""
        selector = pyarrow.fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        return {info.path[len(self._root) + 1 :]: info.size for info in self._fs.get_file_info(selector)}

    def rows(self, columns: Sequence[str], which: ds.Expression) -> pa.Table | None:
        """These columns of the rows for which `which` holds, from all Parquet files below; None if there are none.

        Raises ShardError if a column is missing or a file cannot be read.
        """
        try:
            paths = [f"{self._root}/{path}" for path in sorted(self.sizes()) if path.endswith(".parquet")]
            if not paths:
                return None
            files = ds.dataset(paths, filesystem=self._fs, format="parquet")
            if missing := set(columns) - set(files.schema.names):
                raise ShardError(f"{self}: the Parquet files have no column {min(missing)}")
            return files.to_table(list(columns), filter=which)
        except (pa.ArrowException, OSError) as error:
            raise ShardError(f"{self} cannot be read: {' '.join(str(error).split())[:240]}") from error

    def fetch(self, files: Sequence[TokenFile], cache: str | Path | None) -> list[Path]:
        """The files on the local disk; those of a bucket are copied to `cache`, if they are not there.

        The ranks of a machine share the cache: one copies while the others wait. A copy is named by its SHA-256, which
        is checked, and appears complete or not at all.

        Args:
          cache: by default `$OWT_CACHE`, or the user's cache folder.

        Raises:
          ShardError: names the file, which cannot be copied, or whose SHA-256 is not the manifest's.
        """
        if not self.remote:
            return [Path(self._root, file.path) for file in files]
        folder = Path(cache) if cache else default_cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a") as lock, ThreadPoolExecutor(_AT_ONCE) as threads:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return list(threads.map(lambda file: self._copy(file, folder), files))

    def _copy(self, file: TokenFile, folder: Path) -> Path:
        path = folder / f"{file.sha256}{Path(file.path).suffix}"
        if path.exists() and path.stat().st_size == file.bytes:
            return path
        part, digest = path.with_suffix(".part"), hashlib.sha256()
        try:
            with self._fs.open_input_stream(f"{self._root}/{file.path}") as stream, part.open("wb") as copy:
                while piece := stream.read(_PIECE):
                    copy.write(piece)
                    digest.update(piece)
        except OSError as error:
            raise ShardError(f"{self.path(file.path)} cannot be copied to {folder}: {why_not(error)}") from error
        if digest.hexdigest() != file.sha256:
            part.unlink()
            raise ShardError(
                f"{self.path(file.path)} was changed or damaged: its SHA-256 is not the manifest's; copy it again"
            )
        return part.replace(path)


def why_not(error: Exception) -> str:
    """The error of a bucket's client in one line, and what to check."""
    said = " ".join(str(error).split())
    return f"{said[:240]}{'…' * (len(said) > 240)}; check the bucket's name, the network and the credentials"


def default_cache_folder() -> Path:
    """`$OWT_CACHE`, or the user's cache folder."""
    base: Any = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("OWT_CACHE") or Path(base) / "owt" / "shards")


def open_bucket(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a `gs://` or `s3://` URI, and the path in it, after one request to it.

    Credentials and endpoints are found as each vendor's clients find them; `s3://anonymous@BUCKET` and
    `gs://anonymous@BUCKET` need none. `STORAGE_EMULATOR_HOST` (`host:port`, or a URL) names another server for `gs://`,
    which is used without credentials; `AWS_ENDPOINT_URL` names one for `s3://`.

    Raises:
      pyarrow.ArrowInvalid: an invalid URI.
      OSError: the bucket refuses access, or does not answer within a minute.
    """

    def opened() -> tuple[pyarrow.fs.FileSystem, str]:
        filesystem, path = _file_system(uri)
        filesystem.get_file_info(path)
        return filesystem, path

    return _within(_SECONDS, opened)


def _within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work`, which may go on in its thread if it takes longer; raises TimeoutError then."""
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError(f"no answer within {seconds:.0f} seconds, as without credentials")
    return found[0]


def _file_system(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    if uri.startswith("s3://anonymous@"):
        return _public_s3(uri.removeprefix("s3://anonymous@"))
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    if not uri.startswith("gs://"):
        return filesystem, path
    retry = timedelta(seconds=_SECONDS)
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        scheme, _, host = emulator.rpartition("://")
        filesystem = pyarrow.fs.GcsFileSystem(
            anonymous=True, scheme=scheme or "http", endpoint_override=host.rstrip("/"), retry_time_limit=retry
        )
    elif not uri.startswith("gs://anonymous@"):
        filesystem = pyarrow.fs.GcsFileSystem(retry_time_limit=retry)
    return filesystem, path


def _public_s3(path: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a public bucket, and the path in it. Arrow's URIs cannot express anonymous access."""
    scheme, _, server = _s3_endpoint().rstrip("/").rpartition("://")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not server:
        region = region or pyarrow.fs.resolve_s3_region(path.partition("/")[0])
    where = {"scheme": scheme or "https", "endpoint_override": server or None, "region": region}
    return pyarrow.fs.S3FileSystem(anonymous=True, **where), unquote(path)


def _s3_endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
