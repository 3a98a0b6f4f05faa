"""A folder on a local disk or in a bucket (`gs://`, `s3://`), with files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.fs

from owt_pipeline.runtime.errors import UserError
from schemas.buckets import open_bucket


class Storage:
    """A folder; `storage / "name"` is the folder below it. Picklable, so that a Beam worker can open it."""

    def __init__(self, uri: str):
        """The folder at a local path or a `gs://` or `s3://` URI; raises UserError for another scheme."""
        self.uri = uri.rstrip("/") or "/"
        self._fs, self._root = _filesystem(self.uri)

    @property
    def is_local(self) -> bool:
        return isinstance(self._fs, pa.fs.LocalFileSystem)

    def __truediv__(self, name: str) -> Storage:
        return Storage(f"{self.uri}/{name}")

    def __reduce__(self) -> Any:
        return Storage, (self.uri,)

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    def path(self, name: str) -> str:
        """Path or URI of a file in the folder, for a message or another program."""
        return f"{self.uri}/{name}" if name else self.uri

    def exists(self, name: str = "") -> bool:
        return bool(self._fs.get_file_info(self._at(name)).type != pa.fs.FileType.NotFound)

    def open(self, name: str) -> pa.NativeFile:
        """The file for reading at any offset; raises FileNotFoundError, or OSError naming the file."""
        return self._fs.open_input_file(self._at(name))

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return bytes(file.read())

    def write(self, name: str, content: bytes, sync: bool = True) -> None:
        """Write a whole file, which appears at once or not at all."""
        with self.create(name, sync) as file:
            file.write(content)

    @contextlib.contextmanager
    def create(self, name: str, sync: bool = True) -> Iterator[HashingFile]:
        """A new file for writing that appears under `name` when the block ends, and never half-written.

        Locally it is written beside, synced and renamed; a bucket's object appears when it is closed. Without `sync`
        a killed process still leaves it whole or not at all, but a power failure may leave anything.
        """
        path = self._at(name)
        if self.is_local:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".tmp", "wb") as raw:
                file = HashingFile(raw)
                try:
                    yield file
                    raw.flush()
                    if sync:
                        os.fsync(raw.fileno())
                except BaseException:
                    file.abandon()
                    os.unlink(path + ".tmp")
                    raise
            os.replace(path + ".tmp", path)
        else:
            # Without `compression`, pyarrow would compress what is written to a name that ends in .gz once more.
            stream = self._fs.open_output_stream(path, compression=None)
            file = HashingFile(stream)
            try:
                yield file
            except BaseException:
                file.abandon()
                stream.close()  # which makes the object appear: pyarrow cannot abort an upload
                self._fs.delete_file(path)
                raise
            stream.close()

    def names(self) -> list[str]:
        """Paths of all files below the folder, relative to it, sorted; temporary ones left out."""
        selector = pa.fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        prefix = len(self._root.rstrip("/")) + 1
        return sorted(
            info.path[prefix:]
            for info in self._fs.get_file_info(selector)
            if info.type == pa.fs.FileType.File and not info.path.endswith(".tmp")
        )

    def size(self, name: str) -> int:
        """Bytes of a file; raises FileNotFoundError."""
        info = self._fs.get_file_info(self._at(name))
        if info.type == pa.fs.FileType.NotFound:
            raise FileNotFoundError(2, "No such file or directory", self.path(name))
        return int(info.size)

    def delete(self, name: str) -> None:
        """Delete a file; a missing one is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._at(name))

    def delete_all(self) -> None:
        """Delete the folder and all below it; a missing one is no error."""
        if isinstance(self._fs, pa.fs.GcsFileSystem):  # it has no folders, and finds the one missing that it emptied
            self._fs.delete_dir_contents(self._root, missing_dir_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self._root)

    def sha256(self, name: str) -> str:
        """Hex SHA-256 of a file, read in pieces."""
        digest = hashlib.sha256()
        with self.open(name) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root


class HashingFile:
    """A binary file being written that knows its length and SHA-256; what pyarrow's writers write into."""

    closed = False  # pyarrow asks; the file is closed by Storage.create, not by a writer

    def __init__(self, raw: BinaryIO):
        self._raw = raw
        self._digest = hashlib.sha256()
        self._abandoned = False
        self.bytes = 0

    def write(self, data: bytes) -> int:
        if not self._abandoned:
            self._raw.write(data)
            self._digest.update(data)
            self.bytes += len(data)
        return len(data)

    def abandon(self) -> None:
        """Take and drop what is still written: pyarrow's writers finish their file even after an error."""
        self._abandoned = True

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        self._raw.flush()

    def close(self) -> None:
        """Nothing: the file must be whole before it is closed, and only its opener knows."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def open_source(uri: str) -> pa.NativeFile:
    """A file from outside the working directory (path or URI), for reading; raises UserError if it cannot be."""
    try:
        folder, _, name = uri.rpartition("/")
        return Storage(folder or ("/" if uri.startswith("/") else ".")).open(name)
    except OSError as error:
        raise UserError(f"cannot read {uri}: {error}") from error


def describe_source(uri: str) -> dict[str, Any]:
    """What identifies a source file in a fingerprint: its name, length, and a digest of both its ends.

    The ends are enough: every format we read compressed ends in a checksum or length of its content,
    and reading hundreds of gigabytes of dumps to find that nothing changed would cost more than it tells.
    """
    with open_source(uri) as file:
        try:
            length = file.size()
            digest = hashlib.sha256(file.read(1 << 20))
            if length > 1 << 21:
                file.seek(length - (1 << 20))
            digest.update(file.read())
        except OSError as error:
            raise UserError(f"cannot read {uri}: {error}") from error
    return {"name": uri.rpartition("/")[2], "bytes": length, "ends_sha256": digest.hexdigest()}


def expand_globs(patterns: tuple[str, ...], what: str) -> list[str]:
    """The files that paths, folders and globs (local or in a bucket) name, sorted, each once.

    Raises UserError naming the first pattern that matches no file.
    """
    from pyarrow.fs import FileSelector, FileType

    found: set[str] = set()
    for pattern in patterns:
        if "://" not in pattern:
            matches = _local_matches(pattern)
        else:
            head = pattern.split("*", 1)[0].rsplit("/", 1)[0]
            storage = Storage(head)
            infos = storage._fs.get_file_info(FileSelector(storage._root, recursive=True, allow_not_found=True))
            scheme = pattern.split("://", 1)[0]
            paths = [f"{scheme}://{info.path}" for info in infos if info.type == FileType.File]
            matches = [path for path in paths if _glob_match(path, pattern)]
            if not matches and storage.exists(pattern[len(head) + 1 :]):
                matches = [pattern]
        for path in matches:
            _utf8(path)
        if not matches:
            raise UserError(f"{what}: no file matches {pattern!r}")
        found.update(matches)
    return sorted(found)


def _utf8(path: str) -> str:
    """The path, which Arrow takes as UTF-8 only; raises UserError for one that is not."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"the path {os.fsencode(path)!r} is not UTF-8: rename it") from None
    return path


def _local_matches(pattern: str) -> list[str]:
    import glob

    if os.path.isdir(pattern):
        return [path for path in sorted(glob.glob(os.path.join(pattern, "*"))) if os.path.isfile(path)]
    if os.path.isfile(pattern):
        return [pattern]
    return [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]


def _glob_match(path: str, pattern: str) -> bool:
    import fnmatch

    return fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")


def _filesystem(uri: str) -> tuple[pa.fs.FileSystem, str]:
    if "://" not in uri:
        return pa.fs.LocalFileSystem(), _utf8(os.path.abspath(uri))
    scheme = uri.split("://", 1)[0]
    if scheme not in ("gs", "s3", "file"):
        raise UserError(f"{uri}: unknown scheme {scheme}://; use a local path, gs:// or s3://")
    return open_bucket(uri)
