"""A kind of archive file: how the captures in a file are listed, and how a capture is read."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from owt_pipeline.formats.captures import Broken, Capture


class ArchiveKind(abc.ABC):
    """A kind of the files that `--pages_from` names.

    Each file is listed once, in the step `index`. A capture is read when a shard has its URL, so
    the place of a capture, an offset and a length in the file, has to be enough to read it.

    Instances have no state: `index` and the shards run in different processes.

    Attributes:
      name: what messages call a file of this kind.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def matches(self, name: str) -> bool:
        """Return whether a file is of this kind, from its name without folders."""

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
