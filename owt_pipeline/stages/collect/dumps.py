"""Dumps of submissions as JSON, one on each line."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from owt_pipeline.errors import UserError
from owt_pipeline.formats import lines
from owt_pipeline.formats.files import AcceptedFiles, extension_of, known_format
from owt_pipeline.formats.lines import LineReader, wide_encoding
from owt_pipeline.stages.collect.kind import Source, SourceKind, Tally, problem_row
from owt_pipeline.storage.folder import open_source
from schemas import Reason

BLOCKS = pa.schema([pa.field("data", pa.large_binary()), pa.field("first_line", pa.int64())])
"""A block of lines, as it is sent to a worker process."""


def _is_named_as_dump(name: str) -> bool:
    """Return whether a file has the name of a dump, such as RS_2013-05.zst or links.jsonl."""
    return (name.startswith("RS_") and not extension_of(name)) or known_format(name) == "jsonl"


class Dump(SourceKind):
    """A monthly dump of Reddit's submissions."""

    name = "dump"
    option = "dumps"
    accepted = AcceptedFiles(
        "--dumps", "dumps of submissions", kinds=("json",), is_promised=_is_named_as_dump
    )
    # One submission in twenty stays, and dumps are compressed.
    bytes_per_shard = 100 << 20
    link_source = "reddit"

    def read(
        self, source: Source, uri: str, tally: Tally, allow_damaged: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield blocks of lines. Raises UserError for a dump in UTF-16."""
        with open_source(uri) as file:
            reader = LineReader(file)
            for block in reader:
                encoding = wide_encoding(block.data) if block.first_line == 1 else None
                if encoding is not None:
                    advice = f"convert it (iconv -f {encoding} -t UTF-8 {source.name})"
                    raise UserError(f"{source.uri}, line 1: {encoding}; expected UTF-8: {advice}")
                data = pa.array([block.data], pa.large_binary())
                tally.bytes_read = file.tell()
                yield pa.record_batch([data, [block.first_line]], schema=BLOCKS)
            for line in reader.overlong:
                yield problem_row(line, Reason.BAD_LINE, f"over {lines.MAX_LINE_BYTES:,} bytes")
            tally.overlong = min(reader.overlong, default=0)
            tally.ends_within_line = reader.ends_within_line
            tally.broken = reader.source.broken

    def find_end(self, tally: Tally) -> str | None:
        """Return why the dump is incomplete: it is empty, or its last line is cut off."""
        if not tally.lines:
            return "the file has no lines"
        is_last_malformed = tally.last_malformed == tally.last_line
        if tally.ends_within_line and is_last_malformed and not tally.is_another_kind:
            return f"the file ends in the middle of line {tally.last_line:,}"
        return None
