"""The kinds of archive files that are read. A file is of the first kind that matches its name."""

from __future__ import annotations

from owt_pipeline.stages.fetch.archives.kind import ArchiveKind
from owt_pipeline.stages.fetch.archives.warc import WarcFile

KINDS: tuple[ArchiveKind, ...] = (WarcFile(),)


def kind_of(path: str) -> ArchiveKind:
    """Return the kind of the archive file at a path or URI."""
    name = path.rpartition("/")[2]
    return next(kind for kind in KINDS if kind.matches(name))
