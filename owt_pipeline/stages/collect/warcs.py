"""WARC files: the URLs of their HTML responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from owt_pipeline.formats.captures import Broken, captures
from owt_pipeline.formats.messages import REDIRECTS, is_html
from owt_pipeline.stages.collect.kind import Source, SourceKind, Tally, in_batches
from owt_pipeline.stages.collect.submissions import as_text
from owt_pipeline.storage.folder import open_source


class Warc(SourceKind):
    """A WARC file. Its lines are the HTML responses that are not redirects."""

    name = "warc"
    option = "warcs"
    bytes_per_shard = 500 << 20
    link_source = "warc"
    has_lines = False

    def read(
        self, source: Source, uri: str, tally: Tally, allow_damaged: bool
    ) -> Iterator[pa.RecordBatch]:
        with open_source(uri) as file:
            yield from in_batches(_rows(file, tally))


def _rows(file: Any, tally: Tally) -> Iterator[dict[str, Any]]:
    """Yield the URL of each HTML response, and tally the broken records."""
    line = 0
    num_broken = 0
    first_broken = ""
    for capture in captures(file, file.size()):
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
            url = " ".join(capture.url.split())
            yield {"line": line, "url": as_text(url)}
