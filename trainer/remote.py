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
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
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
    """A folder of downloaded shards, named by their SHA-256, of at most `limit` bytes.

    The file used longest ago goes first; one of the moment is never too many, so a shard larger than the
    limit is still read. Processes of a machine share the folder: one fetches a file while the others wait for it, it
    appears complete or not at all, and one that another process has mapped stays readable when it is removed.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._lock = threading.Lock()

    def get(self, file: TokenFile, fetch: Callable[[], Iterator[bytes]]) -> Path:
        """The local copy of `file`, by `fetch()` where there is none; raises ShardError for other bytes."""
        path = self.folder / f"{file.sha256}{Path(file.path).suffix}"
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

    def _make_room(self, size: int) -> None:
        """Remove what was used longest ago until `size` more bytes fit."""
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                status = path.stat()
                # One that is not being written any more is of a process that was killed.
                if path.suffix != ".tmp" or time.time() - status.st_mtime > _ABANDONED:
                    files.append((status.st_mtime_ns, status.st_size, path))
        kept = sum(entry[1] for entry in files)
        for _, length, path in sorted(files):
            if kept + size <= self.limit:
                return
            path.unlink(missing_ok=True)
            kept -= length


def _is_there(path: Path) -> bool:
    """Whether a file exists, which is then the one used last."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock `path`, where the file system has locks, and hold it."""
    with path.open("a") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class Folder:
    """A folder of shards, or of their ledger: on the local disk, or in a bucket, whose files go through a cache."""

    def __init__(self, uri: str, cache: Cache) -> None:
        """Raises ShardError for a URI of no known kind, or that is none, and where there are no credentials for it."""
        self.uri, self._cache, self.remote = uri.rstrip("/"), cache, "://" in uri
        self._fs: pyarrow.fs.FileSystem = pyarrow.fs.LocalFileSystem()
        if not self.remote:
            self.uri = self._root = os.path.abspath(uri)  # links are kept: the ledger is next to the folder named
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
        """A file to read from, mapped where it is local; raises FileNotFoundError, or another OSError."""
        path = f"{self._root}/{name}"
        return self._fs.open_input_file(path) if self.remote else pa.memory_map(path)

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError, or another OSError."""
        with self._fs.open_input_file(f"{self._root}/{name}") as file:
            return bytes(file.read())

    def has(self, name: str) -> bool:
        return bool(self._fs.get_file_info(f"{self._root}/{name}").type)

    def sizes(self, files: Iterable[TokenFile]) -> dict[str, int]:
        """Bytes of each of `files` that is there, by its path."""
        if not self.remote:
            paths = {file.path: Path(self._root, file.path) for file in files}
            return {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
        selector = pyarrow.fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        return {info.path[len(self._root) + 1 :]: info.size for info in self._fs.get_file_info(selector)}

    def local(self, file: TokenFile, verify: bool = False) -> Path:
        """The file on the local disk, fetched and verified where it is not there.

        Raises:
          ShardError: it cannot be fetched, or, fetched or with `verify`, has another SHA-256; it names the file.
        """
        try:
            if self.remote:
                return self._cache.get(file, lambda: self._pieces(file.path))
            path = Path(self._root, file.path)
            if verify and sha256_of(path) != file.sha256:
                raise ShardError(_CHANGED)
            return path
        except (ShardError, OSError) as error:
            raise ShardError(f"{self.path(file.path)} {error}") from error

    def shards_kept(self, files: Sequence[TokenFile]) -> int:
        """How many of these the cache holds: no more may be mapped, for a removed file is there while it is mapped."""
        return self._cache.limit // max((file.bytes for file in files), default=1)

    def _pieces(self, name: str) -> Iterator[bytes]:
        with self._fs.open_input_stream(f"{self._root}/{name}") as stream:
            while piece := stream.read(_PIECE):
                yield piece


def why_not(error: Exception) -> str:
    """What a bucket's client says in one line, and what to look at."""
    said = " ".join(str(error).split())
    return f"{said[:240]}{'…' * (len(said) > 240)}; check the bucket's name, the network and the credentials"


class Chunks(Protocol):
    """The token ids of each record batch."""

    def __getitem__(self, index: int) -> np.ndarray: ...


class FetchedChunks:
    """The record batches of remote shards, each shard fetched and mapped when one of its batches is asked for.

    Args:
      open_shard: the batches' token ids of the shard by its number, mapped.
      batches: how many record batches each shard has.
      mapped: shards to keep mapped; those of the last use are.
    """

    def __init__(self, open_shard: Callable[[int], list[np.ndarray]], batches: Sequence[int], mapped: int) -> None:
        self._open, self._mapped = open_shard, max(1, mapped)
        self._shard_of = np.repeat(np.arange(len(batches)), batches).tolist()
        self._first = (np.cumsum(batches) - batches).tolist()
        self._shards: OrderedDict[int, list[np.ndarray]] = OrderedDict()

    def __getitem__(self, index: int) -> np.ndarray:
        shard = self._shard_of[index]
        if shard in self._shards:
            self._shards.move_to_end(shard)
        else:
            while len(self._shards) >= self._mapped:
                self._shards.popitem(last=False)
            self._shards[shard] = self._open(shard)
        return self._shards[shard][index - self._first[shard]]


def default_cache_folder() -> Path:
    """`$OWT_CACHE`, or the user's cache folder."""
    base: Any = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("OWT_CACHE") or Path(base) / "owt" / "shards")


_RETRY = timedelta(seconds=60)
"""How long a request to Google's storage is retried: Arrow's 15 minutes are also those until missing credentials are
an error."""


def open_bucket(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a `gs://` or `s3://` URI, and the path in it.

    Credentials and endpoints are found as the clients of either find them; `s3://anonymous@BUCKET` and
    `gs://anonymous@BUCKET` need none. `STORAGE_EMULATOR_HOST` (`host:port`, or a URL) names another server for `gs://`,
    to be used without credentials; `AWS_ENDPOINT_URL` one for `s3://`.

    Raises pyarrow.ArrowInvalid for a URI that is none.
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
    """The file system of a public bucket, and the path in it: its URI has no form that says so."""
    scheme, _, server = _s3_endpoint().rstrip("/").rpartition("://")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not server:
        region = region or pyarrow.fs.resolve_s3_region(path.partition("/")[0])
    where = {"scheme": scheme or "https", "endpoint_override": server or None, "region": region}
    return pyarrow.fs.S3FileSystem(anonymous=True, **where), unquote(path)


def _s3_endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


_ATTEMPTS, _SECONDS = 3, 1.0
"""How often and how long a machine's metadata server is asked: it answers at once where there is one, but for the first
seconds of a container."""


def missing_credentials(uri: str) -> str:
    """What to do where nothing gives credentials for a `gs://` or `s3://` URI; "" where something may.

    Arrow's clients ask for them for minutes. So this looks where they look: variables, files, and the metadata server
    that a machine of the cloud has (https://cloud.google.com/docs/authentication/application-default-credentials,
    https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html).
    """
    scheme, _, path = uri.partition("://")
    if "@" in path.partition("/")[0]:
        return ""
    if scheme == "gs" and not _google_credentials():
        return (
            "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to the file of a key; "
            "gs://anonymous@BUCKET reads a public bucket"
        )
    if scheme == "s3" and not _aws_credentials():
        keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return f"set {keys}, or AWS_PROFILE; s3://anonymous@BUCKET reads a public bucket"
    return ""


def _google_credentials() -> bool:
    named = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_GCLOUD_ADC_PATH_OVERRIDE")
    if any(os.environ.get(name) for name in named):
        return True  # a file that does not exist is an error of Arrow's at once
    if os.path.exists(os.path.expanduser("~/.config/gcloud/application_default_credentials.json")):
        return True
    return _is_metadata_server(os.environ.get("GCE_METADATA_ROOT") or _METADATA, "Metadata-Flavor")


def _aws_credentials() -> bool:
    named = (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )
    if _s3_endpoint() or any(os.environ.get(name) for name in named):
        return True
    for name, file in (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")):
        if os.path.exists(os.environ.get(name) or os.path.expanduser(f"~/.aws/{file}")):
            return True
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    return _is_metadata_server(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _METADATA)


_METADATA = "169.254.169.254"


@functools.cache
def _is_metadata_server(address: str, header: str = "") -> bool:
    """Whether a server (`HOST[:PORT]` or a URL) answers: anything, or with that header, sent with Google's own."""
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
