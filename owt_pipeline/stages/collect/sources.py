"""Lists the sources that a run's options name, and reads their rows.

Dumps are read in blocks of lines, tables and WARC files in batches of URLs.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from owt_pipeline.additions import SOURCES, added_kinds, package_of
from owt_pipeline.errors import UserError
from owt_pipeline.formats.files import find_files, start_of
from owt_pipeline.formats.lines import Block
from owt_pipeline.stages.collect.dumps import BLOCKS, Dump
from owt_pipeline.stages.collect.kind import Source, SourceKind
from owt_pipeline.stages.collect.links import LinkTable
from owt_pipeline.stages.collect.reddit import Subreddit
from owt_pipeline.stages.collect.rules import Rules
from owt_pipeline.stages.collect.submissions import read_block, rows_of
from owt_pipeline.stages.collect.warcs import Warc
from owt_pipeline.storage.folder import Storage, find_recorded, is_gone
from schemas.manifest import ledger_of

if TYPE_CHECKING:
    from owt_pipeline.stages.collect.options import Options

KINDS: tuple[SourceKind, ...] = (Dump(), LinkTable(), Warc(), Subreddit())
"""The built-in kinds, in the order in which a generation lists its sources."""


@functools.cache
def kinds() -> tuple[SourceKind, ...]:
    """Return all kinds: a kind that a package adds comes before the built-in kind of its option.

    Raises UserError for a kind of a package that could not be told from a built-in one, or whose
    option does not exist.
    """
    built_in_names = {kind.name for kind in KINDS}
    options = [kind.option for kind in KINDS if kind.accepted is not None]
    for kind, package in added_kinds(SOURCES).items():
        if kind.name in built_in_names or kind.option not in options:
            raise UserError(
                f"{package}: the kind of source {kind.name!r} of --{kind.option}: expected another "
                f"name than {', '.join(sorted(built_in_names))}, and an option of "
                f"{', '.join(options)}"
            )
    ordered: list[SourceKind] = []
    for built_in in KINDS:
        ordered += [kind for kind in added_kinds(SOURCES) if kind.option == built_in.option]
        ordered.append(built_in)
    return tuple(ordered)


def kind_named(name: str) -> SourceKind:
    """Return the kind with a name of the ledger."""
    return next(kind for kind in kinds() if kind.name == name)


def list_sources(options: Options, recorded: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the fields that identify each source, in the order of kinds and names.

    A file that is `recorded` keeps its name, and may be missing.
    """
    uris_by_kind: dict[str, list[str]] = {}
    for option in dict.fromkeys(kind.option for kind in kinds()):
        uris_by_kind |= _uris_by_kind(option, options, recorded)
    sources: list[dict[str, Any]] = []
    for kind in kinds():
        recorded_by_uri = {
            source["uri"]: source for source in recorded if source["kind"] == kind.name
        }
        uris = uris_by_kind.get(kind.name, [])
        for uri, name in kind.names_of(uris, recorded_by_uri).items():
            # A source that is stored in the run has no file that could be missing.
            if uri in recorded_by_uri and not kind.is_stored and is_gone(uri):
                sources.append(dict(recorded_by_uri[uri]))
                continue
            earlier_source = find_recorded(recorded_by_uri.values(), uri, name)
            description = kind.describe(uri, name, earlier_source)
            package = package_of(SOURCES, kind)
            sources.append({"kind": kind.name, **package, **description})
    return sources


def _uris_by_kind(
    option: str, options: Options, recorded: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the sources of each kind that an option names, as paths, URIs or names."""
    *added, own_kind = [kind for kind in kinds() if kind.option == option]
    patterns = getattr(options, option)
    if own_kind.is_stored or own_kind.accepted is None:
        return {own_kind.name: list(patterns)}
    names_of_kinds = {kind.name for kind in (*added, own_kind)}
    kind_by_uri = {
        source["uri"]: source["kind"] for source in recorded if source["kind"] in names_of_kinds
    }

    def added_kind_of(name: str, start: bytes) -> SourceKind | None:
        return next((kind for kind in added if kind.matches(name, start)), None)

    def is_added(name: str, start: bytes) -> bool:
        is_added_below = own_kind.accepted is not None and own_kind.accepted.is_added(name, start)
        return is_added_below or added_kind_of(name, start) is not None

    uris_by_kind: dict[str, list[str]] = {}
    accepted = replace(own_kind.accepted, is_added=is_added)
    checks_kinds = not options.allow_damaged
    for uri in find_files(patterns, accepted, known=kind_by_uri, checks_kinds=checks_kinds):
        name = kind_by_uri.get(uri)
        if name is None:
            kind = added_kind_of(uri.rpartition("/")[2], start_of(uri)) if added else None
            name = (kind or own_kind).name
        uris_by_kind.setdefault(name, []).append(uri)
    return uris_by_kind


def store_source(
    source: Mapping[str, Any], generation: int, options: Options, workdir: Storage
) -> dict[str, Any]:
    """Store a source of a kind that `is_stored` in the ledger; return it with its digest.

    A source that an interrupted run stored is not requested again. Sources of other kinds are
    returned as they are.
    """
    kind = kind_named(source["kind"])
    if not kind.is_stored or "stored" in source:
        return dict(source)
    limit = options.praw_limit or "all"
    path = f"{ledger_of('collect')}/reddit/{generation}-{source['uri']}-{limit}.jsonl"
    if not workdir.exists(path):
        workdir.write(path, kind.store(source["uri"], options))
    content = workdir.read(path)
    digest = hashlib.sha256(content).hexdigest()
    return {**source, "bytes": len(content), "sha256": digest, "stored": path}


def rows_of_batch(batch: pa.RecordBatch, source: Source, rules: Rules) -> pa.RecordBatch:
    """Return the rows of a batch, of schema ROWS.

    The batch is of schema SUBMISSIONS, or of schema BLOCKS with one block.
    """
    if batch.schema.names == BLOCKS.names:
        data = batch["data"][0].as_py()
        first_line = batch["first_line"][0].as_py()
        batch = read_block(Block(data, first_line), rules)
    return rows_of(batch, source.number, source.name, rules)
