"""Identify sources, and record the sources of pages of each generation.

A generation has the files with pages that were given with it. Once its pages are published, it
keeps these files, whether they were moved or deleted, and whatever the settings name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import UserError
from owt_pipeline.storage.folder import is_gone
from schemas.manifest import Generation, Root

PAGES_FLAG = "--pages_from"
"""The flag that names sources of pages."""

# Fields of a source that shape no bytes: where it is, and when it was last hashed.
_NOT_IN_KEY = ("uri", "stored", "seen")


def content_of(source: Mapping[str, Any]) -> str:
    """Return the fields that identify a source's content, in one order."""
    fields = []
    for name, field in sorted(source.items()):
        if name != "name" and name not in _NOT_IN_KEY:
            fields.append((name, field))
    return repr(fields)


def key_sources(sources: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return sources with only the fields that are part of keys."""
    shortened = []
    for source in sources:
        shortened.append({name: source[name] for name in source if name not in _NOT_IN_KEY})
    return shortened


def with_pages(root: Root, stage: Stage, options: Any, runtime: Runtime) -> Root:
    """Return the root in which each generation has its sources of pages.

    A generation has the files that were given with it, else all that exist. Once its pages are
    published, it keeps them: a file that was moved or deleted, or that the settings do not name any
    more, changes nothing. Raises UserError for new files without new links, unless `--add` requests
    them, and for an unfetched generation whose files are all missing.
    """
    recorded = [source for generation in root.generations for source in generation.pages]
    wished = list(stage.sources(options, recorded))
    published = root.datasets.get(stage.output)
    num_published = 0 if published is None else published.num_shards
    settled: list[Generation] = []
    growing: list[Generation] = []
    for generation in root.generations:
        is_settled = generation.shard_numbers.stop <= num_published
        (settled if is_settled else growing).append(generation)
    settled_pages = [_with_places(generation.pages, wished) for generation in settled]
    new = _new_pages(wished, chain.from_iterable(settled_pages))
    if new and not growing:
        settled_pages = _with_new_pages(settled_pages, new, wished, runtime)
    pages_by_generation = list(settled_pages)
    for generation in growing:
        pages = new
        if generation is not growing[-1]:
            recorded_identities = identities_of(generation.pages)
            pages = [source for source in new if identity_of(source) in recorded_identities]
        pages_by_generation.append(pages or _existing_pages(wished))
        taken = identities_of(pages)
        new = [source for source in new if identity_of(source) not in taken]
    generations = []
    for generation, pages in zip(root.generations, pages_by_generation, strict=True):
        # The order must not depend on folders, so that a file that moves keeps its place.
        ordered = sorted(pages, key=lambda source: (*identity_of(source), source["uri"]))
        sources = [*generation.links, *ordered]
        generations.append(msgspec.structs.replace(generation, sources=sources))
    return msgspec.structs.replace(root, generations=generations)


def _with_places(
    pages: Sequence[dict[str, Any]], wished: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the recorded sources of pages, with the present URIs of files that were moved."""
    wished_by_identity = {identity_of(source): source for source in wished}
    return [wished_by_identity.get(identity_of(source), source) for source in pages]


def _new_pages(
    wished: Iterable[dict[str, Any]], settled: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the wished sources that published pages were not read from.

    A copy of a file under another name is not new, unless it replaces another file.
    """
    recorded = list(settled)
    identities = identities_of(recorded)
    contents = {content_of(source) for source in recorded}
    uris = {source["uri"] for source in recorded}
    new = []
    for source in wished:
        is_copy = content_of(source) in contents and source["uri"] not in uris
        if identity_of(source) not in identities and not is_copy:
            new.append(source)
    return new


def _with_new_pages(
    pages_of_generations: Sequence[Sequence[dict[str, Any]]],
    new: Sequence[dict[str, Any]],
    wished: Iterable[dict[str, Any]],
    runtime: Runtime,
) -> list[list[dict[str, Any]]]:
    """Return the sources of pages of published generations, with edited files and added ones.

    A new file at the path of a missing one is an edit. Other new files are added to the generations
    that take pages from files; to all of them if none does. Raises UserError as `_check_joining`.
    """
    present = identities_of(wished)
    new_by_uri = {source["uri"]: source for source in new}
    edited_uris: set[str] = set()
    updated: list[list[dict[str, Any]]] = []
    for pages in pages_of_generations:
        current = []
        for source in pages:
            if identity_of(source) not in present and source["uri"] in new_by_uri:
                edited_uris.add(source["uri"])
                source = new_by_uri[source["uri"]]
            current.append(source)
        updated.append(current)
    joining = [source for source in new if source["uri"] not in edited_uris]
    if not joining:
        return updated
    if not any(updated):
        return [list(joining) for _ in updated]
    _check_joining(chain.from_iterable(updated), joining, runtime)
    return [[*pages, *joining] if pages else [] for pages in updated]


def _check_joining(
    recorded: Iterable[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], runtime: Runtime
) -> None:
    """Raise UserError unless the pages of all generations may be read again, with new files."""
    if not runtime.add:
        raise UserError(
            f"fetch: {new[0]['name']} is new in {runtime.workdir}, whose links have their pages: "
            "repeat the command with --add to read the pages of all generations again"
        )
    for source in recorded:
        if is_gone(source["uri"]):
            raise UserError(
                f"fetch: {new[0]['name']} cannot be added to the pages of all generations, since "
                f"{source['uri']} is missing: restore it, or add the file together with new links"
            )


def _existing_pages(wished: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sources whose files exist; raise UserError if there are some, but none exists."""
    existing = [source for source in wished if not is_gone(source["uri"])]
    if wished and not existing:
        raise UserError(
            f"fetch: {wished[0]['uri']} is missing, and new links need pages: give WARC files "
            f"with their pages as {PAGES_FLAG}"
        )
    return existing


def identity_of(source: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the content of a source, wherever it is."""
    return source["name"], content_of(source)


def identities_of(sources: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    return {identity_of(source) for source in sources}


def own_pages_of(root: Root, links: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sources of pages that came with one of these sources of links."""
    links = list(links)
    earlier: set[tuple[str, str]] = set()
    own_pages: list[dict[str, Any]] = []
    for generation in root.generations:
        is_concerned = any(source in links for source in generation.links)
        for source in generation.pages:
            if is_concerned and identity_of(source) not in earlier:
                own_pages.append(source)
        earlier |= identities_of(generation.pages)
    return own_pages


def find_new_pages_of(stages: Iterable[tuple[Stage, Any]], root: Root) -> list[dict[str, Any]]:
    """Return the sources of pages that these options name and no generation has."""
    recorded = [source for generation in root.generations for source in generation.pages]
    identities = identities_of(recorded)
    new: list[dict[str, Any]] = []
    for stage, options in stages:
        if stage.inputs and stage.flags:
            wished = stage.sources(options, recorded)
            new += [source for source in wished if identity_of(source) not in identities]
    return new
