"""`owt near-duplicates`: find the records of some files that repeat another record."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.command_line import Command, CommandParser, add_output_flags, configure_output
from owt_pipeline.commands.unique_rows import write_unique
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.formats.files import find_files, known_format, texts_of_option
from owt_pipeline.formats.records import texts_of_files
from owt_pipeline.library import find_duplicates
from owt_pipeline.stages.dedupe.options import Comparison
from owt_pipeline.storage.folder import folder_of
from schemas import SettingsError
from schemas.quantities import pluralize
from schemas.settings import add_flags, flags_given, from_table


def _flags(parser: CommandParser) -> None:
    """Find the records of Parquet or JSON Lines files that repeat another record: exact copies, and
    near-duplicates whose exact similarity reaches the threshold. Your files are not changed. --out
    writes a row for each record that repeats another: row (its number, counted from 0 through all
    files), kept_row (the number of the other record), cluster, similarity and rule. --unique writes
    a Parquet file of the records that do not repeat another.

    examples:
      owt near-duplicates posts/*.jsonl.zst --text_field body --out pairs.parquet
      owt near-duplicates train.parquet test.parquet --out pairs.parquet
      owt near-duplicates posts/*.jsonl.zst --text_field body --unique posts.parquet
    """
    parser.add_argument(
        "files",
        nargs="+",
        type=os.path.expanduser,
        metavar="FILE",
        help="Parquet or JSON Lines files: paths, folders, globs or URIs",
    )
    parser.add_argument(
        "--text_field",
        default="text",
        metavar="NAME",
        help="column or field of the text (default: text)",
    )
    parser.add_argument(
        "--out",
        type=os.path.expanduser,
        metavar="FILE",
        help="Parquet file for the pairs (default: only print a summary)",
    )
    parser.add_argument(
        "--unique",
        type=os.path.expanduser,
        metavar="FILE",
        help="Parquet file for the records that do not repeat another",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: this machine's cores)"
    )
    add_flags(parser.add_argument_group("comparison"), Comparison)
    add_output_flags(parser)


def _near_duplicates(arguments: argparse.Namespace) -> int:
    """Find the pairs; print a summary, and write what the flags ask for."""
    configure_output(arguments)
    # A wrong target is reported before the search, which reads all files.
    files = find_files(arguments.files, texts_of_option("near-duplicates"))
    taken = list(files)
    for option, target in (("--out", arguments.out), ("--unique", arguments.unique)):
        if target:
            _check_target(option, target, taken)
            taken.append(target)
    options = flags_given(Comparison, arguments)
    try:
        from_table(Comparison, {}, "", options)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    texts = _CountedTexts(texts_of_files(files, arguments.text_field, "near-duplicates"))
    try:
        pairs = find_duplicates(iter(texts), arguments.workers, **options)
    except ValueError as error:
        raise UserError(str(error)) from error
    _print_summary(pairs, texts.num_rows)
    if arguments.out:
        _write_pairs(pairs, arguments.out)
        print(f"{arguments.out}: row, kept_row, cluster, similarity, rule")
    if arguments.unique:
        removed = pairs["row"].to_numpy()
        write_unique(files, removed, arguments.unique, texts.num_rows)
        print(f"{arguments.unique}: {pluralize(texts.num_rows - len(pairs), 'record')}")
    return 0


def _print_summary(pairs: pa.Table, num_rows: int) -> None:
    """Print how many records repeat another one, and in how many clusters."""
    num_exact = int(pc.sum(pc.equal(pairs["rule"], "exact")).as_py() or 0)
    share = len(pairs) / max(num_rows, 1)
    copies = pluralize(num_exact, "exact copy")
    print(
        f"{pluralize(num_rows, 'record')}: {len(pairs):,} repeat another one ({share:.1%}; "
        f"{copies})"
    )
    # Each pair is a record that repeats the one which its cluster keeps. The kept one has no pair.
    sizes = np.bincount(pairs["cluster"].to_numpy(), minlength=0) + 1
    largest = ""
    if len(sizes):
        largest = f", the largest of {pluralize(int(sizes.max()), 'record')}"
    print(f"{pluralize(len(sizes), 'cluster')}{largest}")


def _write_pairs(pairs: pa.Table, path: str) -> None:
    """Write the pairs as Parquet to a path, local or in a bucket."""
    sink = pa.BufferOutputStream()
    pq.write_table(pairs, sink, compression="zstd")
    folder, name = folder_of(path)
    folder.write(name, sink.getvalue().to_pybytes())
    # A killed command may have left an unfinished copy of the file behind.
    folder.remove_dead_spools()


def _check_target(option: str, target: str, taken: Sequence[str]) -> None:
    """Raise UsageError unless the target can be a new or replaced Parquet file.

    `taken` are the files to read, and other targets.
    """
    folder_of(target)
    is_taken = os.path.abspath(target) in map(os.path.abspath, taken)
    # Only an existing local file can have other names, such as links.
    if "://" not in target and os.path.lexists(target):
        if os.path.islink(target) or not os.path.isfile(target):
            raise UsageError(f"{option} {target} is not a regular file: name another one")
        existing = filter(os.path.exists, taken)
        is_taken = is_taken or any(os.path.samefile(target, file) for file in existing)
    if is_taken:
        raise UsageError(
            f"{option} {target} is a file to read, or another target: name another one"
        )
    if known_format(target) not in (None, "parquet"):
        raise UsageError(f"{option} {target}: the file is Parquet: name it .parquet")


class _CountedTexts:
    """Texts in arrays, counted as they pass.

    Attributes:
      num_rows: texts that have passed.
    """

    def __init__(self, arrays: Iterator[pa.Array]) -> None:
        self.num_rows = 0
        self._arrays = arrays

    def __iter__(self) -> Iterator[pa.Array]:
        for array in self._arrays:
            self.num_rows += len(array)
            yield array


main = Command("owt near-duplicates", _flags, _near_duplicates)
