"""`owt near-duplicates`: find which records of some files repeat which."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.command_line import Command, CommandParser, add_output_flags, configure_output
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.formats.records import texts_of_files
from owt_pipeline.library import find_duplicates
from owt_pipeline.stages.dedupe.options import Comparison
from owt_pipeline.storage.folder import expand_globs, folder_of
from schemas import SettingsError
from schemas.settings import add_flags, flags_given, from_table


def _flags(parser: CommandParser) -> None:
    """Find the records of Parquet or JSON Lines files that repeat others: exact copies, and
    near-duplicates whose exact similarity reaches the threshold. Nothing is changed; the pairs
    are written as Parquet: row (a record that repeats another, counted from 0 through all
    files), kept_row (the other), cluster, similarity, rule.

    examples:
      owt near-duplicates posts/*.jsonl.zst --text_field body --out pairs.parquet
      owt near-duplicates train.parquet test.parquet --threshold 0.7 --out pairs.parquet
    """
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="Parquet or JSON Lines: paths, folders, globs, URIs",
    )
    parser.add_argument(
        "--text_field", default="text", metavar="NAME", help="column or field of the text"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="where to write the pairs; without it, only the summary is shown",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: this machine's cores)"
    )
    add_flags(parser.add_argument_group("comparison"), Comparison)
    add_output_flags(parser)


def _near_duplicates(arguments: argparse.Namespace) -> int:
    configure_output(arguments)
    if arguments.out:
        _check_target(arguments.out, arguments.files)
    options = flags_given(Comparison, arguments)
    try:
        from_table(Comparison, {}, "", options)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    counted = _Counted(texts_of_files(arguments.files, arguments.text_field, "near_duplicates"))
    try:
        found = find_duplicates(iter(counted), arguments.workers, **options)
    except ValueError as error:
        raise UserError(str(error)) from error
    clusters = np.bincount(found["cluster"].to_numpy(), minlength=0) + 1
    exact = int(pc.sum(pc.equal(found["rule"], "exact")).as_py() or 0)
    share = len(found) / max(counted.rows, 1)
    print(
        f"{counted.rows:,} records: {len(found):,} repeat another one ({share:.1%}; {exact:,} "
        f"exact copies)"
    )
    print(
        f"{len(clusters):,} clusters"
        + (f", the largest of {clusters.max():,} records" if len(clusters) else "")
    )
    if arguments.out:
        folder, name = folder_of(arguments.out)
        sink = pa.BufferOutputStream()
        pq.write_table(found, sink, compression="zstd")
        folder.write(name, sink.getvalue().to_pybytes())
        print(f"{arguments.out}: row, kept_row, cluster, similarity, rule")
    return 0


def _check_target(out: str, files: Sequence[str]) -> None:
    """Raise UsageError if `out`, which is replaced, is one of the files or not a regular file."""
    folder_of(out)
    if "://" not in out and os.path.lexists(out):
        if os.path.islink(out) or not os.path.isfile(out):
            raise UsageError(f"--out {out} is not a regular file: name another one")
        if any(
            os.path.exists(file) and os.path.samefile(out, file)
            for file in expand_globs(tuple(files), "files")
        ):
            raise UsageError(f"--out {out} is one of the files to read: name another one")


class _Counted:
    """Texts in arrays, counted as they pass."""

    def __init__(self, arrays: Iterator[pa.Array]):
        self._arrays, self.rows = arrays, 0

    def __iter__(self) -> Iterator[pa.Array]:
        for array in self._arrays:
            self.rows += len(array)
            yield array


main = Command("owt near-duplicates", _flags, _near_duplicates)
