"""Copies of JSON Lines and Parquet files without some of their rows, in bounded memory."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from owt_pipeline.errors import UserError, raise_unless_damage
from owt_pipeline.formats.parquet import bounded_batches
from owt_pipeline.formats.records import format_of, json_text_of, lines_of, open_decompressed
from owt_pipeline.storage.folder import Storage, open_source

COPIED_FORMATS = ("jsonl", "parquet")

# Batches wait for as many bytes, since a row group of a few rows would be read slowly.
_ROW_GROUP_BYTES = 32 << 20


def copy_without(path: str, removed: np.ndarray, folder: Storage, name: str) -> int:
    """Write a file as `name` in `folder` without some of its rows; return how many it had.

    The lines of JSON Lines stay byte for byte, compressed as the name's ending declares. Parquet
    keeps its schema.

    Args:
      path: path or URI of a file of COPIED_FORMATS.
      removed: int64, the numbers of the rows to leave out, from 0, ascending.
      folder: where the copy appears when it is complete, in place of a file of this name.
      name: name of the copy.

    Raises UserError if the file cannot be read, or the disk is full.
    """
    copy = _copy_parquet if format_of(path) == "parquet" else _copy_lines
    try:
        with folder.spool() as file:
            num_rows = copy(path, removed, cast("IO[bytes]", file))
            file.publish(name)
    finally:
        # No hidden file stays in the user's folder.
        folder.remove_dead_spools()
    return num_rows


def _copy_lines(path: str, removed: np.ndarray, target: IO[bytes]) -> int:
    number = num_removed = 0
    with open_decompressed(path) as file, _compressed(target, path) as copy:
        for line in lines_of(file):
            if not json_text_of(line):
                copy.write(line)
                continue
            if num_removed < len(removed) and removed[num_removed] == number:
                num_removed += 1
            else:
                copy.write(line)
            number += 1
    return number


def _compressed(file: IO[bytes], name: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file for writing; bytes are compressed if the name's ending declares it."""
    ending = name.lower().rpartition(".")[2]
    if ending == "gz":
        # Without the time, so that equal rows give equal files.
        return cast("IO[bytes]", gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
    if ending == "bz2":
        return bz2.BZ2File(file, "wb")
    if ending == "xz":
        return lzma.LZMAFile(file, "wb")
    if ending == "zst":
        writer = zstandard.ZstdCompressor().stream_writer(file, closefd=False)
        return cast("AbstractContextManager[IO[bytes]]", writer)
    return contextlib.nullcontext(file)


def _copy_parquet(path: str, removed: np.ndarray, target: IO[bytes]) -> int:
    try:
        with open_source(path) as source:
            file = pq.ParquetFile(source)
            with pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer:
                batches = bounded_batches(file, file.schema_arrow.names)
                return _copy_batches(batches, file.schema_arrow, removed, writer)
    except (pa.ArrowException, OSError) as error:
        raise_unless_damage(error, path)
        raise UserError(f"{path} cannot be copied as Parquet: {error}") from error


def _copy_batches(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    removed: np.ndarray,
    writer: pq.ParquetWriter,
) -> int:
    number = num_waiting_bytes = 0
    waiting: list[pa.RecordBatch] = []

    def flush() -> None:
        writer.write_table(pa.Table.from_batches(waiting, schema))
        waiting.clear()

    for batch in batches:
        start, end = np.searchsorted(removed, [number, number + batch.num_rows])
        # Slices cost no copy, and Arrow cannot filter columns of every type.
        gaps = [-1, *(removed[start:end] - number).tolist(), batch.num_rows]
        for before, after in pairwise(gaps):
            if after - before > 1:
                waiting.append(batch.slice(before + 1, after - before - 1))
        number += batch.num_rows
        num_waiting_bytes += batch.nbytes
        if num_waiting_bytes >= _ROW_GROUP_BYTES:
            flush()
            num_waiting_bytes = 0
    if waiting:
        flush()
    return number
