"""What collect reads: dumps, URL lists and WARC files, in blocks of lines of which rows are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from owt_pipeline.collect.lines import Block
from owt_pipeline.collect.rows import SUBMISSIONS, RowMaker
from owt_pipeline.collect.rules import Rules
from owt_pipeline.collect.submissions import read_block
from owt_pipeline.fetch.acceptance import REDIRECTS, is_html
from owt_pipeline.fetch.captures import captures
from schemas import Reason

BLOCKS = pa.schema(
    [pa.field("data", pa.large_binary()), pa.field("first_line", pa.int64()), pa.field("num_lines", pa.int64())]
)
"""A block of lines on its way to a worker process."""

_BLOCK_URLS = 10_000


@dataclass(frozen=True)
class Source:
    """One file, or one subreddit.

    Attributes:
      number: its place among all sources.
      kind: `dump` (submissions as JSON, one a line), `list` (URLs, one a line), `warc` or `subreddit`.
      uri: path or URI; name of the subreddit.
      name: what the ledger calls it: the file's name without its folder, or `r/SUBREDDIT`.
    """

    number: int
    kind: str
    uri: str
    name: str

    @property
    def has_submissions(self) -> bool:
        return self.kind in ("dump", "subreddit")


class Reader(Protocol):
    """What reads a source, in blocks.

    Attributes:
      bytes_read: of the file, so far.
      bytes_decompressed: so far; 0 where unknown.
      broken: after the last block: where and why the source broke off, or None.
    """

    bytes_decompressed: int

    @property
    def bytes_read(self) -> int: ...

    @property
    def broken(self) -> str | None: ...

    def __iter__(self) -> Iterator[Block]: ...


def block_batches(reader: Reader) -> Iterator[pa.RecordBatch]:
    """Each block of a reader as a batch of schema BLOCKS, without a copy of its data."""
    for block in reader:
        offsets = pa.array([0, len(block.data)], pa.int64()).buffers()[1]
        data = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(block.data)])
        yield pa.record_batch([data, [block.first_line], [block.num_lines]], schema=BLOCKS)


def rows_of_block(batch: pa.RecordBatch, source: Source, rules: Rules, num_buckets: int) -> pa.RecordBatch:
    """The rows (of schema ROWS) of a batch of schema BLOCKS with one block."""
    _, offsets, data = batch["data"].buffers()  # the scalar would be a copy
    start, end = np.frombuffer(offsets, np.int64)[batch["data"].offset :][:2].tolist()
    block = Block(data.slice(start, end - start), batch["first_line"][0].as_py(), batch["num_lines"][0].as_py())
    submissions = read_block(block, rules) if source.has_submissions else _read_urls(block)
    return _row_maker(rules, num_buckets).rows(submissions, source.number, source.name)


def row_of_break(source: Source, problem: str, line: int, num_buckets: int) -> pa.RecordBatch:
    """One row that stands for what is lost of a source that broke off in its line `line`."""
    fields = {"line": line, "reason": str(Reason.BROKEN_FILE), "note": problem}
    submissions = pa.Table.from_pylist([fields], schema=SUBMISSIONS)
    return _row_maker(Rules(), num_buckets).rows(submissions, source.number, source.name)


@lru_cache(2)  # so that hosts stay known from block to block
def _row_maker(rules: Rules, num_buckets: int) -> RowMaker:
    return RowMaker(rules, num_buckets)


def _read_urls(block: Block) -> pa.Table:
    """URLs, one a line, of which no submission is known; blank lines and those that begin with `#` are none."""
    urls, lines = [], []
    for line, text in enumerate(bytes(block.data).decode("utf-8-sig", "replace").split("\n"), block.first_line):
        text = text.strip()
        if text and not text.startswith("#"):
            urls.append(text)
            lines.append(line)
    known = {"line": pa.array(lines, pa.int64()), "url": pa.array(urls, pa.string())}
    columns = [known.get(field.name, pa.nulls(len(urls), field.type)) for field in SUBMISSIONS]
    return pa.Table.from_arrays(columns, schema=SUBMISSIONS)


class WarcUrlReader:
    """The target URI of each HTML response that is no redirect, as blocks of one URI a line.

    A "line" counts such responses. Attributes are those of `LineReader`; broken records are skipped and counted.
    """

    def __init__(self, file: Any, size: int):
        self._file, self.bytes_read = file, size
        self.bytes_decompressed = 0  # unknown
        self._skipped = 0

    @property
    def broken(self) -> str | None:
        return f"{self._skipped} broken records skipped" if self._skipped else None

    def __iter__(self) -> Iterator[Block]:
        urls: list[str] = []
        first = 1
        for url in self._urls():
            urls.append(url)
            if len(urls) == _BLOCK_URLS:
                yield Block("\n".join(urls).encode(), first, len(urls))
                first += len(urls)
                urls = []
        if urls:
            yield Block("\n".join(urls).encode(), first, len(urls))

    def _urls(self) -> Iterator[str]:
        for capture in captures(self._file, self.bytes_read, copy=lambda record: 0):
            if capture is None:
                self._skipped += 1
            elif capture.status not in REDIRECTS and is_html(capture.content_type or ""):
                yield " ".join(capture.url.split())
