"""WARC files, plain or with a gzip member for each record."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from owt_pipeline.formats.captures import Broken, Capture, captures
from owt_pipeline.stages.fetch.archives.kind import ArchiveKind


class WarcFile(ArchiveKind):
    """The kind of every file that no other kind matches: WARC files have names of all sorts."""

    name = "a WARC file"

    def matches(self, name: str) -> bool:
        return True

    def captures(self, file: pa.NativeFile) -> Iterator[Capture | Broken]:
        return captures(file, file.size())
