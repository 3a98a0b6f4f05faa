"""`owt near-duplicates`: find the records of some files that repeat another record."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.command_line import Command, CommandParser, add_output_flags, configure_output
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.formats.copies import COPIED_FORMATS, copy_without
from owt_pipeline.formats.files import find_files, format_of, known_format, texts_of_option
from owt_pipeline.formats.records import names_below_common_folder, texts_of_files
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
    copies of the files without the records that repeat another.

    examples:
      owt near-duplicates posts/*.jsonl.zst --text_field body --out pairs.parquet
      owt near-duplicates train.parquet test.parquet --out pairs.parquet
      owt near-duplicates posts/*.jsonl.zst --text_field body --unique posts-unique
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
        metavar="FOLDER",
        help="folder for a copy of each file without the records that repeat another",
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
    if arguments.out:
        _check_target("--out", arguments.out, files)
        if known_format(arguments.out) not in (None, "parquet"):
            raise UsageError(f"--out {arguments.out}: the pairs are Parquet: name it .parquet")
    copies: dict[str, str] = {}
    if arguments.unique:
        copies = _copies_of(files, arguments.unique)
    if arguments.out and os.path.abspath(arguments.out) in map(os.path.abspath, copies.values()):
        raise UsageError(
            f"--out {arguments.out} would replace a file that --unique writes: name another one"
        )
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
    if copies:
        _write_copies(copies, pairs["row"].to_numpy(), texts.num_rows)
        num_kept = texts.num_rows - len(pairs)
        num_files = pluralize(len(copies), "file")
        print(f"{arguments.unique}: {pluralize(num_kept, 'record')} in {num_files}")
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


def _check_target(option: str, target: str, files: Sequence[str]) -> None:
    """Raise UsageError if `target`, which is replaced, is one of the files or not a regular
    file."""
    folder_of(target)
    if target in files:
        raise UsageError(f"{option} {target} is one of the files to read: name another one")
    # Only an existing local file can have other names, such as links.
    if "://" in target or not os.path.lexists(target):
        return
    if os.path.islink(target) or not os.path.isfile(target):
        raise UsageError(f"{option} {target} is not a regular file: name another one")
    if any(os.path.exists(file) and os.path.samefile(target, file) for file in files):
        raise UsageError(f"{option} {target} is one of the files to read: name another one")


def _copies_of(files: Sequence[str], folder: str) -> dict[str, str]:
    """Return where the copy of each file is written, in the order in which the files are read.

    Raises UsageError for a file of another format, and if a copy would replace an input.
    """
    for file in files:
        if format_of(file) not in COPIED_FORMATS:
            raise UsageError(
                f"--unique writes JSON Lines and Parquet, not the format of {file}: leave the "
                "option out; --out writes which records to drop"
            )
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"--unique {folder} is not a folder: name another one")
    names = names_below_common_folder(files)
    copies = {file: f"{folder.rstrip('/')}/{names[file]}" for file in files}
    for copy in copies.values():
        _check_target("--unique", copy, files)
    return copies


def _write_copies(copies: Mapping[str, str], removed: np.ndarray, num_rows: int) -> None:
    """Write the copies without the `removed` rows, which are counted through all files."""
    first = 0
    for file, copy in copies.items():
        folder, name = folder_of(copy)
        start = np.searchsorted(removed, first)
        first += copy_without(file, removed[start:] - first, folder, name)
    if first != num_rows:
        raise UserError(
            f"the files changed meanwhile: they had {pluralize(num_rows, 'record')} when they were "
            f"compared and {first:,} when they were copied: run the command again while no program "
            "changes them"
        )


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
