"""What collect reads: dumps, URL lists and WARC files, in blocks of lines of which rows are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from owt_pipeline.collect.lines import Block, LineReader
from owt_pipeline.collect.rows import SUBMISSIONS, RowMaker
from owt_pipeline.collect.rules import Rules
from owt_pipeline.collect.submissions import read_block
from owt_pipeline.collect.warc_urls import WarcUrlReader
from schemas import Reason

BLOCKS = pa.schema(
    [pa.field("data", pa.large_binary()), pa.field("first_line", pa.int64()), pa.field("num_lines", pa.int64())]
)
"""A block of lines on its way to a worker process."""


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
      number: its place among all sources.
      kind: `dump` (submissions as JSON, one a line), `list` (URLs, one a line) or `warc`.
      uri: path or URI.
      name: what the ledger calls it: the file's name without its folder, or `r/SUBREDDIT`.
    """

    number: int
    kind: str
    uri: str
    name: str


def open_reader(source: Source, file: pa.NativeFile) -> LineReader | WarcUrlReader:
    """A reader of the source's blocks; after the last one, its `broken` says where the file broke off, if it did."""
    return WarcUrlReader(file, file.size()) if source.kind == "warc" else LineReader(file)


def block_batches(reader: LineReader | WarcUrlReader) -> Iterator[pa.RecordBatch]:
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
    submissions = read_block(block, rules) if source.kind == "dump" else _read_urls(block)
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
