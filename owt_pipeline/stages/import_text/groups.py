"""The files of a run in groups.

A group is one part, which is the unit of work and of resuming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from owt_pipeline.formats.files import format_of

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun

_GROUPS_NAME = "groups.json"
_MAX_GROUP_BYTES = 64 << 20
_MAX_GROUP_FILES = 1000


class SourceFile(msgspec.Struct, frozen=True, array_like=True):
    """A file to import: its path, its name in messages, its format, and its generation."""

    path: str
    name: str
    kind: str
    generation: int


def write_groups(run: StageRun) -> None:
    """Group the files of the generations that are made, and write the groups for the workers.

    A group has files of one generation.
    """
    groups: list[list[SourceFile]] = []
    size = 0
    for number, generation in enumerate(run.root.generations):
        # Published shards keep their documents. Their files are not read again.
        if generation.first < run.plan.num_settled:
            continue
        for source in generation.links:
            path = source["uri"]
            kind = run.options.format
            if kind == "auto":
                kind = format_of(path)
            size += source["bytes"]
            has_room = bool(groups) and size <= _MAX_GROUP_BYTES and _fits(groups[-1], number)
            if not has_room:
                groups.append([])
                size = source["bytes"]
            groups[-1].append(SourceFile(path, source["name"], kind, number))
    run.work.write(_GROUPS_NAME, msgspec.json.encode(groups))


def _fits(group: Sequence[SourceFile], generation: int) -> bool:
    """Return whether a group takes another file of a generation, apart from its size."""
    return group[0].generation == generation and len(group) < _MAX_GROUP_FILES


def read_groups(run: StageRun) -> list[list[SourceFile]]:
    """Return the groups that `write_groups` wrote."""
    return msgspec.json.decode(run.work.read(_GROUPS_NAME), type=list[list[SourceFile]])
