"""Archive files, such as WARC files: the URLs of their HTML responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from owt_pipeline.formats.archives import (
    ArchiveKind,
    archive_kind_of,
    archives_of_option,
    package_of_archive,
)
from owt_pipeline.formats.captures import Broken
from owt_pipeline.formats.messages import REDIRECTS, is_html
from owt_pipeline.stages.collect.kind import Source, SourceKind, Tally, in_batches
from owt_pipeline.stages.collect.submissions import as_text
from owt_pipeline.storage.folder import open_source


class Warc(SourceKind):
    """An archive file of any kind. Its lines are the HTML responses that are not redirects."""

    name = "warc"
    option = "warcs"
    accepted = archives_of_option("--warcs")
    bytes_per_shard = 500 << 20
    link_source = "warc"
    has_lines = False

    def describe(self, uri: str, name: str, recorded: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**super().describe(uri, name, recorded), **package_of_archive(uri)}

    def read(
        self, source: Source, uri: str, tally: Tally, allow_damaged: bool
    ) -> Iterator[pa.RecordBatch]:
        with open_source(uri) as file:
            yield from in_batches(_rows(archive_kind_of(uri), file, tally))


def _rows(kind: ArchiveKind, file: Any, tally: Tally) -> Iterator[dict[str, Any]]:
    """Yield the URL of each HTML response, and tally the broken records."""
    line = 0
    num_broken = 0
    first_broken = ""
    for capture in kind.captures(file):
        if isinstance(capture, Broken):
            num_broken += 1
            first_broken = first_broken or str(capture)
            tally.remedy = capture.remedy
            tally.broken = f"{num_broken:,} broken records, the first is {first_broken}"
            if capture.offset is None:
                # It concerns the whole file: it is not a WARC file.
                tally.broken = str(capture)
        # Status 0 means that the bytes are not an HTTP response.
        elif capture.status not in (0, *REDIRECTS) and is_html(capture.content_type or ""):
            line += 1
            tally.bytes_read = file.tell()
            url = " ".join(capture.url.split())
            yield {"line": line, "url": as_text(url)}
