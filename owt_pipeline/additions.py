"""What installed packages add to the pipeline, by entry points.

group                    an entry point names
owt_pipeline.sources     a class of a kind of source, a subclass of `SourceKind`
owt_pipeline.archives    a class of a kind of archive file, a subclass of `ArchiveKind`
owt_pipeline.filters     a function from a text to a number, for `signals`
owt_pipeline.extractors  a factory of an extractor, for `--extractor`

Packages are searched when a group is first needed. Each process finds the same additions, in the
order of their names.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from owt_pipeline.errors import UserError

SOURCES = "owt_pipeline.sources"
ARCHIVES = "owt_pipeline.archives"
FILTERS = "owt_pipeline.filters"
EXTRACTORS = "owt_pipeline.extractors"


@dataclass(frozen=True)
class Addition:
    """An entry point of a package.

    Attributes:
      target: `module:attribute`.
      package: name and version of the package. It is part of keys, so that another version shapes
        the files anew.
    """

    target: str
    package: str


@functools.cache
def additions_to(group: str) -> Mapping[str, Addition]:
    """Return the entry points of a group by name; raise UserError if two packages share a name."""
    from importlib.metadata import entry_points

    addition_by_name: dict[str, Addition] = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else ""
        if point.name in addition_by_name:
            other = addition_by_name[point.name].package
            raise UserError(
                f"{other} and {package} both add {point.name} to {group}; uninstall one"
            )
        addition_by_name[point.name] = Addition(point.value, package)
    return addition_by_name


@functools.cache
def added_kinds(group: str) -> Mapping[Any, str]:
    """Return an instance of each class that packages add to a group, with its package.

    Raises UserError for a class that cannot be loaded.
    """
    from importlib.metadata import EntryPoint

    package_by_kind: dict[Any, str] = {}
    for name, addition in additions_to(group).items():
        try:
            kind = EntryPoint(name, addition.target, group).load()()
        except Exception as error:
            # A package may raise anything.
            raise UserError(
                f"{addition.package} adds {name} to {group}, which cannot be loaded "
                f"({type(error).__name__}: {error}); install another version of the package, or "
                "uninstall it"
            ) from error
        package_by_kind[kind] = addition.package
    return package_by_kind


def package_of(group: str, kind: Any) -> dict[str, str]:
    """Return the package that adds a kind, as a field of a source; empty for a built-in kind."""
    package = added_kinds(group).get(kind)
    return {"package": package} if package else {}
