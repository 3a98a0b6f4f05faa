"""The kinds of archive files: how the captures in a file are listed, and how a capture is read.

`--pages_from` and `--warcs` read the same kinds. Packages add kinds by entry points.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

import pyarrow as pa

from owt_pipeline.additions import ARCHIVES, added_kinds, package_of
from owt_pipeline.formats.captures import Broken, Capture, captures
from owt_pipeline.formats.file_kinds import read_start
from owt_pipeline.formats.files import AcceptedFiles, extension_of
from owt_pipeline.storage.folder import open_source


class ArchiveKind(abc.ABC):
    """A kind of the files that `--pages_from` and `--warcs` name.

    Each file is listed once, in the step `index`. A capture is read when a shard has its URL, so
    the place of a capture, an offset and a length in the file, has to be enough to read it.

    Instances have no state: `index` and the shards run in different processes.

    Attributes:
      name: what messages call a file of this kind.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def matches(self, name: str, start: bytes) -> bool:
        """Return whether a file is of this kind.

        Args:
          name: its name without folders.
          start: its first bytes, decompressed.
        """

    @abc.abstractmethod
    def captures(self, file: pa.NativeFile) -> Iterator[Capture | Broken]:
        """Yield each response in a file with its place, in the order of the places.

        A part that cannot be read is a `Broken`. It ends the run with its problem and its remedy,
        or is counted with `--allow_damaged`.
        """

    def read(self, content: bytes, url: str, date: int) -> bytes:
        """Return the WARC record of a capture, plain or as a gzip member.

        `content` are the bytes at its place, `url` is its canonical URL, and `date` is its time in
        seconds since 1970. Bytes without a page in them are returned as they are: whoever reads the
        record rejects the URL, and the detail names the place.
        """
        return content


class WarcFile(ArchiveKind):
    """A WARC file, plain or with a gzip member for each record."""

    name = "a WARC file"

    def matches(self, name: str, start: bytes) -> bool:
        return start.startswith(b"WARC/")

    def captures(self, file: BinaryIO) -> Iterator[Capture | Broken]:
        return captures(file, file.size())  # type: ignore[attr-defined]


def archives_of_option(option: str) -> AcceptedFiles:
    """Return the files of an option that takes archive files."""
    return AcceptedFiles(
        option,
        "archive files",
        kinds=("warc",),
        is_promised=lambda name: extension_of(name) in ("warc", "arc"),
        is_added=lambda name, start: _added_kind_of(name, start) is not None,
    )


@functools.lru_cache(maxsize=1024)  # a shard asks for the kind with each page that it reads
def archive_kind_of(path: str) -> ArchiveKind:
    """Return the kind of the archive file at a path or URI.

    A file that no kind matches is read as a WARC file, which reports what is wrong.
    """
    if not added_kinds(ARCHIVES):
        return WarcFile()
    with open_source(path) as file:
        start = read_start(file)
    return _added_kind_of(path.rpartition("/")[2], start) or WarcFile()


def package_of_archive(path: str) -> dict[str, str]:
    """Return the package whose kind reads an archive file, as a field of a source."""
    return package_of(ARCHIVES, archive_kind_of(path))


def _added_kind_of(name: str, start: bytes) -> ArchiveKind | None:
    """Return the kind of a package that takes a file; None if there is none."""
    return next((kind for kind in added_kinds(ARCHIVES) if kind.matches(name, start)), None)
