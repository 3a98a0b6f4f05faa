"""The files that an option names: one function for all options that take files.

A file that is named itself is taken. In a folder, and of the files that match a glob, only the data
that the option takes are taken, and one warning names the others. The kind of a file is known by
its first bytes. A file of another kind is an error that names the option or command that takes it,
unless it is left out.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from owt_pipeline.errors import UserError
from owt_pipeline.formats.file_kinds import TEXT, TEXTUAL, describe_kind, kind_of, read_start
from owt_pipeline.storage.folder import open_source
from owt_pipeline.storage.matching import each_once, matching_files, sorted_by_name

logger = logging.getLogger("owt")

COMPRESSED = ("gz", "zst", "xz", "bz2")

_EXTENSIONS = {
    "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl",
    "parquet": "parquet",
    "csv": "csv", "tsv": "csv",
    "txt": "text", "text": "text", "md": "text",
    # wiki.train.raw and wiki.train.tokens, as WikiText is published
    "raw": "text", "tokens": "text",
}  # fmt: skip
FORMATS = tuple(dict.fromkeys(_EXTENSIONS.values()))

# Files that people have next to their data: the card and licence of a dataset, what Hugging Face's
# libraries write about it, and Common Crawl's lists of paths. Hidden files such as `_SUCCESS` and
# `.gitattributes` are left out by `matching_files`.
_NEVER_DATA = re.compile(
    r"(?:readme|licen[cs]e).*|.*_infos?\.json|.*\.paths(?:\.gz)?", re.IGNORECASE
)

_MAX_FILES_SHOWN = 5


@dataclass(frozen=True)
class AcceptedFiles:
    """The files that an option takes.

    Attributes:
      option: the option or command, for messages.
      noun: what such files are called in messages.
      kinds: kinds of content, as `kind_of` returns them.
      is_promised: returns whether the name of a file promises such content. A file of another kind
        is then an error, since it is a damaged or failed download.
      takes_texts: whether files with the extension of plain text are taken, whatever they have. In
        a folder with other data, they describe the data.
      takes_all: whether all files are taken but those that are never data.
      is_added: returns whether a package's kind takes a file with this name and these first bytes.
    """

    option: str
    noun: str
    kinds: Collection[str]
    is_promised: Callable[[str], bool]
    takes_texts: bool = False
    takes_all: bool = False
    is_added: Callable[[str, bytes], bool] = field(default=lambda name, start: False)


def texts_of_option(option: str, *, takes_all: bool = False) -> AcceptedFiles:
    """Return the files of an option or command that takes your own texts."""
    return AcceptedFiles(
        option,
        "tables or texts",
        kinds=("parquet", "json"),
        is_promised=lambda name: known_format(name) in ("jsonl", "parquet", "csv"),
        takes_texts=True,
        takes_all=takes_all,
    )


def known_format(path: str) -> str | None:
    """Return one of FORMATS by the file's extension; None if it is unknown."""
    return _EXTENSIONS.get(extension_of(path))


def extension_of(path: str) -> str:
    """Return the extension in lower case, without the ending of a compressed file; "" if none."""
    parts = path.rpartition("/")[2].lower().split(".")
    if parts[-1] in COMPRESSED:
        parts.pop()
    return parts[-1] if len(parts) > 1 else ""


def format_of(path: str) -> str:
    """Return how a file of texts is read, one of FORMATS: by its content, or else its extension.

    Raises UserError for an unknown extension.
    """
    named_format = known_format(path)
    with open_source(path) as file:
        start = read_start(file)
    kind = kind_of(start)
    if kind == "parquet":
        return "parquet"
    if kind == "json":
        return "jsonl"
    if named_format is None:
        names = ", ".join(f".{name}" for name in _EXTENSIONS)
        description = describe_kind(start, path)
        raise UserError(
            f"{path}: unknown extension; use one of {names} (`owt import` also takes --format)"
            + (f". It is {description}" if description else "")
        )
    return named_format


def find_files(
    patterns: Iterable[str],
    accepted: AcceptedFiles,
    *,
    known: Collection[str] = (),
    checks_kinds: bool = True,
) -> list[str]:
    """Return the files of an option, each once, in the order of `sorted_by_name`.

    Args:
      patterns: files, folders and globs, local or in a bucket.
      accepted: the files that the option takes.
      known: files that were read before. They are taken even if they are missing.
      checks_kinds: whether a file of another kind is an error. Otherwise its reader finds out.

    Raises UserError for a pattern without files, and for a file of another kind.
    """
    paths: list[str] = []
    left_out: list[str] = []
    for pattern in map(os.path.expanduser, patterns):
        matches, hidden = matching_files(pattern, known)
        taken = matches
        if matches != [pattern]:
            taken = _data_files(matches, accepted, known, checks_kinds)
        elif checks_kinds and not accepted.takes_all and pattern not in known:
            _check_kind(pattern, start_of(pattern), accepted)
        skipped = [*sorted(set(matches).difference(taken)), *hidden]
        if not taken:
            raise UserError(_message_without_files(pattern, accepted, skipped))
        paths += taken
        left_out += skipped
    distinct_paths = each_once(paths, accepted.option)
    others = sorted(set(left_out).difference(distinct_paths))
    if others:
        _warn_left_out(accepted.option, accepted.noun, tuple(others))
    return sorted_by_name(distinct_paths)


def _data_files(
    paths: Sequence[str], accepted: AcceptedFiles, known: Collection[str], checks_kinds: bool
) -> list[str]:
    """Return the files of a folder or glob that the option takes."""
    taken: list[str] = []
    texts: list[str] = []
    for path in paths:
        name = path.rpartition("/")[2]
        if path in known:
            taken.append(path)
            continue
        if _NEVER_DATA.fullmatch(name):
            continue
        if accepted.takes_all:
            taken.append(path)
            continue
        start = start_of(path)
        kind = kind_of(start)
        if kind in accepted.kinds or accepted.is_added(name, start):
            taken.append(path)
        elif accepted.takes_texts and known_format(name) == "text" and kind in TEXTUAL:
            texts.append(path)
        elif accepted.is_promised(name):
            if checks_kinds:
                _check_kind(path, start, accepted)
            taken.append(path)
    return taken or texts


def _check_kind(path: str, start: bytes, accepted: AcceptedFiles) -> None:
    """Raise UserError for a file of a kind that the option does not take."""
    name = path.rpartition("/")[2]
    kind = kind_of(start)
    if kind in accepted.kinds or kind == TEXT or accepted.is_added(name, start):
        return
    # A text may begin as a web page does, and so may a table as a table of links.
    could_be_text = known_format(name) if kind != "html" else known_format(name) == "text"
    if accepted.takes_texts and kind in TEXTUAL and could_be_text:
        return
    raise UserError(
        f"{path}: {accepted.option} takes {accepted.noun}, but this is {describe_kind(start, path)}"
    )


def start_of(path: str) -> bytes:
    """Return the first bytes of a file, decompressed; none of a file that cannot be read.

    The reader of the file reports why it cannot be read.
    """
    try:
        with open_source(path) as file:
            return read_start(file)
    except (OSError, UserError):
        return b""


def _message_without_files(pattern: str, accepted: AcceptedFiles, skipped: Sequence[str]) -> str:
    if not skipped:
        return f"{accepted.option}: no file matches {pattern!r}"
    return (
        f"{accepted.option}: no file of {pattern!r} is one of {accepted.noun}; skipped "
        f"{_shown(skipped)}; name a file itself to read it"
    )


@functools.lru_cache(maxsize=64)  # a command lists its files several times
def _warn_left_out(option: str, noun: str, paths: tuple[str, ...]) -> None:
    logger.warning(
        "%s: skipped what is not %s; name a file itself to read it: %s", option, noun, _shown(paths)
    )


def _shown(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_MAX_FILES_SHOWN])
    num_others = len(paths) - _MAX_FILES_SHOWN
    if num_others > 0:
        shown += f" and {num_others:,} more"
    return shown
