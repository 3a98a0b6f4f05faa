"""Files of a run, on the local disk or in a bucket (`s3://`, `gs://`), from which they are copied to be read."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.fs

_AT_ONCE = 8  # files copied at a time
_SECONDS = 45  # that a bucket may take to answer: without credentials, clients retry for up to 15 minutes


class ShardError(ValueError):
    """Token shards that are missing, damaged, or of a kind this program does not know."""


@dataclass(frozen=True)
class TokenFile:
    """A file, as a list of files describes it; `path` is in the run's folder, after `fetch` on the local disk."""

    path: str
    bytes: int
    sha256: str


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class RunFolder:
    """A run's folder, by the path or URI of the run or of its `tokens/`.

    Raises ShardError for another kind of URI, or a bucket that does not answer.
    """

    def __init__(self, given: str) -> None:
        scheme, self.remote, path = given.partition("://")
        if self.remote and not (scheme in ("s3", "gs") and path.strip("/")):
            raise ShardError(f"{given}: give a local folder, s3://BUCKET/PATH or gs://BUCKET/PATH")
        # abspath keeps links: the ledger is next to the folder that was named.
        self.uri = (given.rstrip("/") if self.remote else os.path.abspath(given)).removesuffix("/tokens")
        try:
            self._fs, self._root = open_bucket(self.uri) if self.remote else (pyarrow.fs.LocalFileSystem(), self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            raise ShardError(f"{given} cannot be opened: {why_not(error)}") from error

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError, or another OSError."""
        try:
            with self._fs.open_input_stream(f"{self._root}/{path}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.uri}/{path} is missing") from None

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of each file below `folder`, by path."""
        selector = pyarrow.fs.FileSelector(f"{self._root}/{folder}", recursive=True, allow_not_found=True)
        return {info.path[len(self._root) + 1 :]: info.size for info in self._fs.get_file_info(selector)}

    def fetch(self, files: Sequence[TokenFile], cache: str | Path | None) -> list[TokenFile]:
        """The files with paths on the local disk; those of a bucket are copied to `cache`, if they are not there.

        The ranks of a machine share the cache (by default `$OWT_CACHE`, or the user's cache folder): one copies while
        the others wait. A copy is named by its SHA-256, which is checked, and appears complete or not at all.

        Raises ShardError, which names the file that cannot be copied or whose SHA-256 is not the manifest's.
        """
        if not self.remote:
            return [dataclasses.replace(file, path=f"{self._root}/{file.path}") for file in files]
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(cache or os.environ.get("OWT_CACHE") or base / "owt" / "shards")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a") as lock, ThreadPoolExecutor(_AT_ONCE) as threads:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return list(threads.map(partial(self._copy, folder), files))

    def _copy(self, folder: Path, file: TokenFile) -> TokenFile:
        path = folder / f"{file.sha256}{Path(file.path).suffix}"
        if not (path.exists() and path.stat().st_size == file.bytes):
            part = path.with_suffix(".part")
            try:
                pyarrow.fs.copy_files(f"{self._root}/{file.path}", str(part), source_filesystem=self._fs)
            except OSError as error:
                raise ShardError(f"{self.uri}/{file.path} cannot be copied to {folder}: {why_not(error)}") from error
            if sha256_of(part) != file.sha256:
                part.unlink()
                raise ShardError(f"{self.uri}/{file.path} was changed or damaged: its SHA-256 is not the manifest's")
            part.replace(path)
        return dataclasses.replace(file, path=str(path))


def why_not(error: Exception) -> str:
    """The error of a bucket's client in one line, and what to check."""
    return f"{' '.join(str(error).split())[:240]}; check the bucket's name, the network and the credentials"


def open_bucket(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a `gs://` or `s3://` URI, and the path in it, after one request to it.

    Credentials and endpoints are found as each vendor's clients find them; `s3://anonymous@BUCKET` and
    `gs://anonymous@BUCKET` need none. `STORAGE_EMULATOR_HOST` (`host:port`, or a URL) names another server for `gs://`,
    which is used without credentials; `AWS_ENDPOINT_URL` names one for `s3://`.

    Raises:
      pyarrow.ArrowInvalid: an invalid URI.
      OSError: the bucket refuses access, or does not answer within 45 seconds.
    """
    answer: Future[tuple[pyarrow.fs.FileSystem, str]] = Future()

    def ask() -> None:
        try:
            filesystem, path = _file_system(uri)
            filesystem.get_file_info(path)
            answer.set_result((filesystem, path))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()  # a daemon: it may go on for minutes
    try:
        return answer.result(_SECONDS)
    except TookTooLong:
        raise TimeoutError(f"no answer within {_SECONDS} seconds, as without credentials") from None


def _file_system(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    if uri.startswith("s3://anonymous@"):  # which Arrow's URIs cannot express
        path = uri.removeprefix("s3://anonymous@")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = None if endpoint else pyarrow.fs.resolve_s3_region(path.partition("/")[0])
        return pyarrow.fs.S3FileSystem(anonymous=True, endpoint_override=endpoint, region=region), path
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    scheme, _, host = os.environ.get("STORAGE_EMULATOR_HOST", "").rpartition("://")
    if uri.startswith("gs://") and host:
        server = {"scheme": scheme or "http", "endpoint_override": host.strip("/")}
        filesystem = pyarrow.fs.GcsFileSystem(anonymous=True, **server)
    return filesystem, path
