"""Folders of token shards: on the local disk, or in a bucket (`s3://`, `gs://`), read through a bounded cache."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import http.client
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.fs

from trainer.manifest import ShardError, TokenFile

DEFAULT_CACHE_GB = 100.0
_PIECE = 8 << 20  # bytes of one request
_ABANDONED = 3600  # seconds
_CHANGED = "was changed or damaged: its SHA-256 is not the manifest's; copy it again"


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Cache:
    """A folder of downloaded shards, named by their SHA-256, of at most `limit` bytes, and of their tokenizers.

    The least recently used shard is removed first. The file being fetched is always kept, so a shard larger than the
    limit can still be read. Tokenizers stay, since every checkpoint gets a copy. The processes of a machine share the
    folder: one fetches a file while the others wait, the file appears complete or not at all, and a process that has
    mapped a file can read it after it is removed.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._lock = threading.Lock()

    def get(self, file: TokenFile, fetch: Callable[[], Iterator[bytes]]) -> Path:
        """The local copy of `file`, fetched by `fetch()` if there is none; raises ShardError for other bytes."""
        path = self._copy_of(file)
        if _is_there(path):
            return path
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock, _alone(path.with_suffix(".lock")):
            if _is_there(path):  # another process fetched it
                return path
            self._make_room(file.bytes)
            with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".tmp", delete=False) as part:
                try:
                    digest = hashlib.sha256()
                    for piece in fetch():
                        part.write(piece)
                        digest.update(piece)
                    part.flush()
                    if digest.hexdigest() != file.sha256:
                        raise ShardError(_CHANGED)
                    os.replace(part.name, path)
                except BaseException:
                    os.unlink(part.name)
                    raise
            return path

    def drop_damaged(self, file: TokenFile) -> None:
        """Remove the local copy of `file` if its SHA-256 is another one, so that it is fetched again."""
        with contextlib.suppress(FileNotFoundError):
            if sha256_of(self._copy_of(file)) != file.sha256:
                self._copy_of(file).unlink()

    def _copy_of(self, file: TokenFile) -> Path:
        return self.folder / f"{file.sha256}{Path(file.path).suffix}"

    def _make_room(self, size: int) -> None:
        """Remove the least recently used shards until `size` more bytes fit."""
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = path.stat()
                # A temporary file that is no longer written was left by a killed process.
                abandoned = time.time() - status.st_mtime > _ABANDONED
                if path.suffix != ".json" and (path.suffix != ".tmp" or abandoned):
                    files.append((status.st_mtime_ns, status.st_size, path))
        kept = sum(entry[1] for entry in files)
        for _, length, path in sorted(files):
            if kept + size <= self.limit:
                return
            path.unlink(missing_ok=True)
            kept -= length


def _is_there(path: Path) -> bool:
    """Whether a file exists; if so, it becomes the most recently used one."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, which one process holds at a time if the file system has locks."""
    with path.open("a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class Folder:
    """A folder of shards or of their ledger, on the local disk or in a bucket; files of a bucket go through a cache."""

    def __init__(self, uri: str, cache: Cache) -> None:
        """Raises ShardError for an invalid URI or an unknown scheme, and if there are no credentials for it."""
        self.uri, self._cache, self.remote = uri.rstrip("/"), cache, "://" in uri
        self._fs: pyarrow.fs.FileSystem = pyarrow.fs.LocalFileSystem()
        if not self.remote:
            self.uri = self._root = os.path.abspath(uri)  # keeps links: the ledger is next to the folder named
            return
        scheme, _, path = uri.partition("://")
        if scheme not in ("s3", "gs") or not path.strip("/"):
            raise ShardError(f"{uri}: give a local folder, s3://BUCKET/PATH or gs://BUCKET/PATH")
        if missing := missing_credentials(uri):
            raise ShardError(f"{uri}: no credentials found: {missing}")
        try:
            self._fs, self._root = open_bucket(self.uri)
        except (pa.ArrowInvalid, OSError) as error:
            raise ShardError(f"{uri} cannot be opened: {why_not(error)}") from error

    def __str__(self) -> str:
        return self.uri

    def path(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def open(self, name: str) -> pa.NativeFile:
        """The file opened for reading, mapped if it is local; raises FileNotFoundError or another OSError."""
        path = f"{self._root}/{name}"
        return self._fs.open_input_file(path) if self.remote else pa.memory_map(path)

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError, or another OSError."""
        with self._fs.open_input_file(f"{self._root}/{name}") as file:
            return bytes(file.read())

    def has(self, name: str) -> bool:
        return bool(self._fs.get_file_info(f"{self._root}/{name}").type)

    def sizes(self, files: Iterable[TokenFile]) -> dict[str, int]:
        """Bytes of each of `files` that exists, by path."""
        if not self.remote:
            paths = {file.path: Path(self._root, file.path) for file in files}
            return {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
        selector = pyarrow.fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        return {info.path[len(self._root) + 1 :]: info.size for info in self._fs.get_file_info(selector)}

    def local(self, file: TokenFile, verify: bool = False) -> Path:
        """The file on the local disk; one of a bucket is fetched and verified if it is not in the cache.

        With `verify`, a copy in the cache is verified too, and a damaged one is fetched again.

        Raises:
          ShardError: names the file, which cannot be fetched, or whose SHA-256, if it is computed, is another one.
        """
        try:
            if self.remote:
                if verify:
                    self._cache.drop_damaged(file)
                return self._cache.get(file, lambda: self._pieces(file.path))
            path = Path(self._root, file.path)
            if verify and sha256_of(path) != file.sha256:
                raise ShardError(_CHANGED)
            return path
        except (ShardError, OSError) as error:
            raise ShardError(f"{self.path(file.path)} {error}") from error

    def map(self, file: TokenFile) -> pa.MemoryMappedFile:
        """The file mapped, fetched as by `local`; raises ShardError as `local`."""
        while True:
            path = self.local(file)
            try:
                return pa.memory_map(str(path))
            except FileNotFoundError:  # another process removed it from the cache before it was mapped
                if not self.remote:
                    raise

    def shards_kept(self, files: Sequence[TokenFile]) -> int:
        """How many of these may stay mapped, with one more being opened: a removed file uses the disk while mapped."""
        return self._cache.limit // max((file.bytes for file in files), default=1) - 1

    def _pieces(self, name: str) -> Iterator[bytes]:
        with self._fs.open_input_stream(f"{self._root}/{name}") as stream:
            while piece := stream.read(_PIECE):
                yield piece


def why_not(error: Exception) -> str:
    """The error of a bucket's client in one line, and what to check."""
    said = " ".join(str(error).split())
    return f"{said[:240]}{'…' * (len(said) > 240)}; check the bucket's name, the network and the credentials"


class FetchedChunks:
    """The token ids of each record batch of remote shards; a shard is fetched and mapped when a batch of it is read.

    Args:
      open_shard: maps a shard, given its number, and returns the token ids of each batch.
      batches: how many record batches each shard has.
      mapped: how many shards stay mapped, the most recently used ones.
    """

    def __init__(self, open_shard: Callable[[int], list[np.ndarray]], batches: Sequence[int], mapped: int) -> None:
        self._shard = functools.lru_cache(max(1, mapped))(open_shard)
        self._places = [(shard, batch) for shard, count in enumerate(batches) for batch in range(count)]

    def __getitem__(self, index: int) -> np.ndarray:
        shard, batch = self._places[index]
        return self._shard(shard)[batch]


def default_cache_folder() -> Path:
    """`$OWT_CACHE`, or the user's cache folder."""
    base: Any = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("OWT_CACHE") or Path(base) / "owt" / "shards")


_RETRY = timedelta(seconds=60)
"""How long a request to Google's storage is retried. Arrow's default is 15 minutes, also for missing credentials."""


def open_bucket(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a `gs://` or `s3://` URI, and the path in it.

    Credentials and endpoints are found as each vendor's clients find them; `s3://anonymous@BUCKET` and
    `gs://anonymous@BUCKET` need none. `STORAGE_EMULATOR_HOST` (`host:port`, or a URL) names another server for `gs://`,
    which is used without credentials; `AWS_ENDPOINT_URL` names one for `s3://`.

    Raises pyarrow.ArrowInvalid for an invalid URI.
    """
    if uri.startswith("s3://anonymous@"):
        return _public_s3(uri.removeprefix("s3://anonymous@"))
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    if not uri.startswith("gs://"):
        return filesystem, path
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        scheme, _, host = emulator.rpartition("://")
        filesystem = pyarrow.fs.GcsFileSystem(
            anonymous=True, scheme=scheme or "http", endpoint_override=host.rstrip("/"), retry_time_limit=_RETRY
        )
    elif not uri.startswith("gs://anonymous@"):
        filesystem = pyarrow.fs.GcsFileSystem(retry_time_limit=_RETRY)
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


_ATTEMPTS, _SECONDS = 3, 1.0
"""Requests to a machine's metadata server and the timeout of each. It answers at once, except in the first seconds of a
container."""


def missing_credentials(uri: str) -> str:
    """What to do if there are no credentials for a `gs://` or `s3://` URI; "" if there may be some.

    Arrow's clients retry for minutes without credentials, so this looks where they look: variables, files, and the
    metadata server of a cloud machine (https://cloud.google.com/docs/authentication/application-default-credentials,
    https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html).
    """
    scheme, _, path = uri.partition("://")
    google, env = scheme == "gs", os.environ
    files = [_GOOGLE_FILE] if google else [env.get(name) or default for name, default in _AWS_FILES.items()]
    if (
        "@" in path.partition("/")[0]
        or any(env.get(name) for name in _VARIABLES[scheme])  # if one names a missing file, Arrow says so at once
        or any(os.path.exists(os.path.expanduser(file)) for file in files)
    ):
        return ""
    if google:
        found = _is_metadata_server(env.get("GCE_METADATA_ROOT") or _METADATA, "Metadata-Flavor")
    else:
        found = env.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true" and _is_metadata_server(
            env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _METADATA
        )
    return "" if found else _HINTS[scheme]


_VARIABLES = {
    "gs": ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_GCLOUD_ADC_PATH_OVERRIDE"),
    "s3": (
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ),
}
_GOOGLE_FILE = "~/.config/gcloud/application_default_credentials.json"
_AWS_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
_HINTS = {
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the file of a key; "
    "gs://anonymous@BUCKET reads a public bucket",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
    "s3://anonymous@BUCKET reads a public bucket",
}
_METADATA = "169.254.169.254"


@functools.cache
def _is_metadata_server(address: str, header: str = "") -> bool:
    """Whether a server (`HOST[:PORT]` or a URL) answers a request, with `header` in its answer if one is given."""
    server = urlsplit(address).netloc or address.rstrip("/")
    for attempt in range(_ATTEMPTS):
        time.sleep(0.5 if attempt else 0)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(server, timeout=_SECONDS)
            with contextlib.closing(connection):
                connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
                answer = connection.getresponse()
                return not header or answer.getheader(header) is not None
    return False
