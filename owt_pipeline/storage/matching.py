"""The files that match a path, a folder or a glob, on a local disk or in a bucket."""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
from collections.abc import Collection, Iterable

from owt_pipeline.errors import UserError
from owt_pipeline.storage.disk import check_utf8
from owt_pipeline.storage.folder import Storage

logger = logging.getLogger("owt")


def expand_globs(patterns: tuple[str, ...], what: str) -> list[str]:
    """Return the files that match paths, folders and globs (local or in a bucket), each once.

    Hidden files are left out, as by `matching_files`. The files are in the order of
    `sorted_by_name`. Raises UserError, which begins with `what`, for the first pattern that matches
    no file.
    """
    paths: list[str] = []
    for pattern in map(os.path.expanduser, patterns):
        matches, _ = matching_files(pattern)
        if not matches:
            raise UserError(f"{what}: no file matches {pattern!r}")
        paths += matches
    return sorted_by_name(each_once(paths, what))


def matching_files(pattern: str, known: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Return the files that match a path, folder or glob, local or in a bucket; and hidden ones.

    A folder stands for all files in it and below. Names that begin with `_` or `.` are hidden
    unless the pattern has them, as for Spark and Arrow. A hidden folder is returned as a whole.
    Files of `known` that match count even if they are missing. Raises UserError for a path that is
    not UTF-8.
    """
    matches = _bucket_matches(pattern) if "://" in pattern else _local_matches(pattern)
    visible: list[str] = []
    hidden: set[str] = set()
    for path in matches:
        hidden_part = _hidden_part(path, pattern)
        if hidden_part is None:
            check_utf8(path)
            visible.append(path)
        else:
            hidden.add(hidden_part)
    known_matches = {uri for uri in known if _is_match(uri, pattern)}
    return visible + sorted(known_matches.difference(visible)), sorted(hidden)


def sorted_by_name(paths: Iterable[str]) -> list[str]:
    """Return paths by the name of the file, then by its folder.

    So a run's bytes do not depend on where its inputs are.
    """
    return sorted(paths, key=lambda uri: (uri.rpartition("/")[2], uri))


def _is_match(uri: str, pattern: str) -> bool:
    """Return whether a pattern names a file or a folder above it, or matches it as a glob."""
    if uri == pattern or uri.startswith(f"{pattern.rstrip('/')}/"):
        return True
    return fnmatch.fnmatchcase(uri, pattern)


def each_once(paths: Iterable[str], what: str) -> list[str]:
    """Return the paths, and log and leave out other spellings of a path (`./x` after `x`)."""
    path_by_place: dict[str, str] = {}
    for path in paths:
        place = path if "://" in path else os.path.abspath(path)
        first_path = path_by_place.setdefault(place, path)
        if first_path != path:
            logger.warning("%s: %s is the same as %s, and is read once", what, path, first_path)
    return list(path_by_place.values())


def _hidden_part(path: str, pattern: str) -> str | None:
    """Return `path` up to the first hidden name that `pattern` leaves open; None without one.

    A hidden name begins with `_` or `.`, and the pattern has no name that begins so.
    """
    pattern_names = pattern.split("/")
    names = path.split("/")
    num_same = 0
    for name, pattern_name in zip(names, pattern_names, strict=False):
        if name != pattern_name:
            break
        num_same += 1
    hidden_starts = {"_", "."}
    hidden_starts -= {name[:1] for name in pattern_names[num_same:]}
    for number, name in enumerate(names[num_same:], start=num_same):
        if name[:1] in hidden_starts:
            is_file = number == len(names) - 1
            return "/".join(names[: number + 1]) + ("" if is_file else "/")
    return None


def _local_matches(pattern: str) -> list[str]:
    if os.path.isfile(pattern):
        return [pattern]
    is_folder = os.path.isdir(pattern)
    if is_folder:
        pattern = f"{glob.escape(pattern)}/**"
    paths = glob.glob(pattern, recursive=True, include_hidden=is_folder)
    # A link whose target is missing stands for a lost file, which its reader reports.
    return [path for path in paths if os.path.isfile(path) or not os.path.exists(path)]


def _bucket_matches(pattern: str) -> list[str]:
    # Only objects that begin as the pattern does are listed.
    start = pattern.split("*", 1)[0]
    folder = Storage(start.rpartition("/")[0] if start.count("/") > 2 else start)
    prefix = start[len(folder.uri) + 1 :]
    paths = [folder.path(entry.name) for entry in folder.list(prefix)]
    return [path for path in paths if _is_match(path, pattern)]
