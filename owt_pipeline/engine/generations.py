"""Compare the sources that a run's settings name with the generations that its root has recorded.

The settings name the sources that the user wants. The root records which sources were added
together, and how many shards they fill. A new source becomes a generation of its own if that is
requested (`owt run RUN --add`). A recorded source need not be named again. Settings that name none
of them are an error, also if they name new sources, because they have lost the other options, too.
Only a last generation from which nothing is published may be left out: its sources were wrong, or
the command that added it was interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import UserError, command
from owt_pipeline.ledger.root import read_root, swap_root
from owt_pipeline.storage.folder import Storage, is_gone
from schemas.manifest import Generation, Root

logger = logging.getLogger("owt")

# A message names at most this many sources.
_MAX_NAMES = 3


def record_generations(
    stages: Sequence[tuple[Stage, Any]], runtime: Runtime, *, write: bool = True
) -> tuple[Root, str | None]:
    """Record the generations and retries that these stages request, in the root manifest.

    A repeated call has no effect. The process must hold the lock. Without `write`, nothing is
    written. Returns the root and its version. Raises UserError as `with_generations`.
    """
    root, version = read_root(runtime.workdir)
    changed = root
    for stage, options in stages:
        if not stage.inputs:
            changed = with_generations(changed, stage, options, runtime)
        elif stage.flags:
            changed = with_pages(changed, stage, options, runtime)
        if write:
            changed = stage.update_root(options, changed, runtime)
    if not write or (changed == root and version is not None):
        return changed, version
    if root.generations:
        _warn_of_dropped(root.generations[-1], changed, runtime.workdir)
    return swap_root(runtime.workdir, changed, version, runtime.run)


def with_generations(root: Root, stage: Stage, options: Any, runtime: Runtime) -> Root:
    """Return the root with the generations of the sources of `stage`, which has no inputs.

    Raises UserError for new sources unless they are to be added, and if the options name no
    recorded source.
    """
    workdir = runtime.workdir
    generations = root.generations
    recorded = [source for generation in generations for source in generation.links]
    is_first = len(generations) <= 1 and not root.datasets
    if is_first and stage.name == "import":
        # `sources` of an import adds the recorded files to the named ones. A first import that
        # failed has recorded its files, but only the files that are named now count.
        recorded = []
    wished = stage.sources(options, recorded)
    # Without a source, an interrupted first run has lost its settings.
    if is_first and (wished or not recorded):
        num_shards = stage.shards_for(options, wished)
        first = Generation(stage.name, 0, num_shards, list(wished))
        return msgspec.structs.replace(root, generations=[first])
    if generations[0].stage != stage.name:
        other = "collected URLs" if stage.name == "import" else "imported text"
        raise UserError(
            f"{workdir} contains {other}, which {stage.name} would replace: use another folder"
        )
    wished_by_name = {_name(source): source for source in wished}
    generations = _without_dropped(root, wished_by_name)
    recorded = [source for generation in generations for source in generation.links]
    new = _new_sources(stage, wished, recorded)
    _check_wished(stage, runtime, recorded, wished_by_name, new)
    updated = [
        _with_current_sources(generation, number, wished_by_name)
        for number, generation in enumerate(generations)
    ]
    if new:
        num_shards = stage.shards_for(options, new)
        updated.append(Generation(stage.name, generations[-1].shard_numbers.stop, num_shards, new))
    return msgspec.structs.replace(root, generations=updated)


def _check_wished(
    stage: Stage,
    runtime: Runtime,
    recorded: Sequence[Mapping[str, Any]],
    wished_by_name: Mapping[tuple[Any, Any], Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
) -> None:
    """Raise UserError for new sources that are not to be added, and for lost settings."""
    if new and not runtime.add:
        names = ", ".join(str(source["name"]) for source in new[:_MAX_NAMES])
        more = ", ..." if len(new) > _MAX_NAMES else ""
        verb, pronoun = ("is", "it") if len(new) == 1 else ("are", "them")
        raise UserError(
            f"{stage.name}: {names}{more} {verb} new in {runtime.workdir}: repeat the command with "
            f"--add to add {pronoun} as a generation"
        )
    if not recorded or any(_name(source) in wished_by_name for source in recorded):
        return
    # Other options that are lost would get their defaults, and rebuild the corpus with them.
    words = ["owt", "run", runtime.workdir, *(["--add"] if new else [])]
    words += _flags_of(stage, [*recorded, *new])
    raise UserError(
        f"the settings name no earlier source of {runtime.workdir}: run {command(*words)}, with "
        "your other flags, to restore the settings"
    )


def is_last_generation_published(root: Root) -> bool:
    """Return whether a dataset has shards of the last generation."""
    if not root.generations:
        return False
    start = root.generations[-1].shard_numbers.start
    return any(manifest.num_shards > start for manifest in root.datasets.values())


def _without_dropped(
    root: Root, wished_by_name: Mapping[tuple[Any, Any], Mapping[str, Any]]
) -> list[Generation]:
    """Return the generations, without the last one if it was added by mistake.

    Then nothing is published from it, and the settings name none of its sources.
    """
    last = root.generations[-1]
    is_named = any(_name(source) in wished_by_name for source in last.links)
    if len(root.generations) == 1 or is_named or is_last_generation_published(root):
        return root.generations
    return root.generations[:-1]


def _warn_of_dropped(last: Generation, changed: Root, workdir: Storage) -> None:
    """Log a warning if the root is changed to one without its last generation."""
    kept_names: set[tuple[Any, Any]] = set()
    for generation in changed.generations:
        kept_names.update(map(_name, generation.links))
    is_kept = any(_name(source) in kept_names for source in last.links)
    # A first run may begin again with other sources.
    is_first = last.shard_numbers.start == 0
    if is_kept or is_first:
        return
    names = ", ".join(str(source["name"]) for source in last.links[:_MAX_NAMES])
    logger.warning(
        "the settings do not name %s, which a command has added to %s without success: the "
        "generation is left out",
        names,
        workdir,
    )


def _with_current_sources(
    generation: Generation, number: int, wished_by_name: Mapping[tuple[Any, Any], dict[str, Any]]
) -> Generation:
    """Return a generation with its sources as they are now, and log each changed source."""
    sources = []
    for recorded in generation.links:
        source = wished_by_name.get(_name(recorded), recorded)
        if set(source) == {"kind", "name", "uri"}:
            # Only the root knows its content, such as what Reddit's API returned.
            source = recorded
        if content_of(source) != content_of(recorded):
            logger.info(
                "%s: %s has changed since generation %d was built from it",
                generation.stage,
                source["name"],
                number,
            )
        sources.append(source)
    return msgspec.structs.replace(generation, sources=[*sources, *generation.pages])


def _new_sources(
    stage: Stage, wished: Iterable[dict[str, Any]], recorded: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the sources whose name and content are both new to all generations."""
    names = {_name(source) for source in recorded}
    contents = {content_of(source) for source in recorded}
    new = []
    for source in wished:
        if _name(source) in names:
            continue
        if content_of(source) in contents:
            logger.info(
                "%s: %s has the same content as a source of an earlier generation",
                stage.name,
                source["name"],
            )
            continue
        new.append(source)
    return new


def _flags_of(stage: Stage, sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the flags that name these sources of a stage."""
    words: list[str] = []
    for kind, flag in stage.flags.items():
        uris = [str(source["uri"]) for source in sources if source["kind"] == kind]
        if uris:
            words += [flag, *uris]
    return words


def _name(source: Mapping[str, Any]) -> tuple[Any, Any]:
    return source.get("kind"), source.get("name")


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
    more, changes nothing. Files that `--add` adds without new links become a later set of each
    published generation. Raises UserError for such files without `--add`, and for an unfetched
    generation whose files are all missing.
    """
    recorded = pages_of(root.generations)
    wished = list(stage.sources(options, recorded))
    published = root.datasets.get(stage.output)
    num_published = 0 if published is None else published.num_shards
    ends = [generation.shard_numbers.stop for generation in root.generations]
    num_settled = sum(end <= num_published for end in ends)
    settled = root.generations[:num_settled]
    growing = root.generations[num_settled:]
    new = _new_pages(wished, pages_of(settled))
    # A new file at the path of a missing one is an edit, unless it comes with new links.
    edited = [] if growing else new
    contents = {content_of(source) for source in published.sources} if published else set()
    generations = [
        _with_present_pages(generation, wished, edited, contents) for generation in settled
    ]
    taken = identities_of(pages_of(generations))
    new = [source for source in new if identity_of(source) not in taken]
    if new and not growing:
        generations = _with_later_pages(generations, new, runtime)
    earlier = list({identity_of(source): source for source in recorded}.values())
    for generation in growing:
        pages = new
        if generation is not growing[-1]:
            recorded_identities = identities_of(generation.pages)
            pages = [source for source in new if identity_of(source) in recorded_identities]
        taken = identities_of(pages)
        new = [source for source in new if identity_of(source) not in taken]
        # Options that name no files with pages, such as lost settings, leave the recorded ones.
        pages = pages or _existing_pages(wished or earlier)
        generations.append(_with_page_sets(generation, [pages]))
    return msgspec.structs.replace(root, generations=generations)


def pages_of(generations: Iterable[Generation]) -> list[dict[str, Any]]:
    """Return the sources of pages of all sets of some generations."""
    sources: list[dict[str, Any]] = []
    for generation in generations:
        sources += chain.from_iterable(generation.page_sets)
    return sources


def _with_page_sets(
    generation: Generation, page_sets: Iterable[Iterable[dict[str, Any]]]
) -> Generation:
    """Return a generation with other sources of pages, each set in its order."""
    # The order must not depend on folders, so that a file that moves keeps its place.
    pages, *later = [
        sorted(pages, key=lambda source: (*identity_of(source), source["uri"]))
        for pages in page_sets
    ]
    return msgspec.structs.replace(generation, sources=[*generation.links, *pages], later=later)


def _with_present_pages(
    generation: Generation,
    wished: Iterable[dict[str, Any]],
    edited: Iterable[dict[str, Any]],
    published_contents: Collection[str],
) -> Generation:
    """Return a published generation with the files of pages that were moved or edited.

    A later set that is not published and that the options do not name any more is left out, because
    it was added by mistake.
    """
    source_by_identity = {identity_of(source): source for source in wished}
    source_by_uri = {source["uri"]: source for source in edited}
    page_sets = []
    for number, pages in enumerate(generation.page_sets):
        contents = {content_of(source) for source in pages}
        is_wished = not source_by_identity.keys().isdisjoint(identities_of(pages))
        if number and not is_wished and contents.isdisjoint(published_contents):
            continue
        current = []
        for source in pages:
            at_path = source_by_uri.get(source["uri"], source)
            current.append(source_by_identity.get(identity_of(source), at_path))
        page_sets.append(current)
    return _with_page_sets(generation, page_sets)


def _new_pages(
    wished: Iterable[dict[str, Any]], settled: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the wished sources that published pages were not read from.

    A copy of a file under another name is not new, unless it replaces another file.
    """
    identities = identities_of(settled)
    contents = {content_of(source) for source in settled}
    uris = {source["uri"] for source in settled}
    new = []
    for source in wished:
        is_copy = content_of(source) in contents and source["uri"] not in uris
        if identity_of(source) not in identities and not is_copy:
            new.append(source)
    return new


def _with_later_pages(
    generations: Iterable[Generation], new: Sequence[dict[str, Any]], runtime: Runtime
) -> list[Generation]:
    """Return published generations with another set of pages; raise UserError without `--add`."""
    if not runtime.add:
        raise UserError(
            f"fetch: {new[0]['name']} is new in {runtime.workdir}, whose links have their pages: "
            "repeat the command with --add to look there for URLs that have no page"
        )
    return [_with_page_sets(generation, [*generation.page_sets, new]) for generation in generations]


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
