"""Compare the sources that a run's settings name with the generations that its root has recorded.

The settings name the sources that the user wants. The root records which sources were added
together, and how many shards they fill. A new source becomes a generation of its own if that is
requested (`owt run RUN --add`). Settings that do not name a recorded source are an error, so that a
lost settings file cannot empty a run. Only a last generation from which nothing is published may be
left out: its sources were wrong, or the command that added it was interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from owt_pipeline.engine.sources import (
    PAGES_FLAG,
    content_of,
    find_new_pages_of,
    own_pages_of,
    with_pages,
)
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import UserError, command
from owt_pipeline.ledger.root import read_root, swap_root
from owt_pipeline.storage.folder import Storage
from schemas.manifest import PAGES, Generation, Root

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
            find_new_pages = partial(find_new_pages_of, stages, changed)
            changed = with_generations(
                changed, stage, options, runtime.workdir, find_new_pages, add=runtime.add
            )
        elif stage.flags:
            changed = with_pages(changed, stage, options, runtime)
        if write:
            changed = stage.update_root(options, changed, runtime)
    if not write or (changed == root and version is not None):
        return changed, version
    if root.generations:
        _warn_of_dropped(root.generations[-1], changed, runtime.workdir)
    return swap_root(runtime.workdir, changed, version, runtime.run)


def with_generations(
    root: Root,
    stage: Stage,
    options: Any,
    workdir: Storage,
    find_new_pages: Callable[[], Sequence[dict[str, Any]]] = list,
    *,
    add: bool = False,
) -> Root:
    """Return the root with the generations of the sources of `stage`, which has no inputs.

    The advice of errors names the files with pages that `find_new_pages` returns, too.

    Raises UserError for new sources unless they are to be added (`add`), and for recorded sources
    that the options do not name.
    """
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
    _check_named(stage, recorded, wished_by_name, root, workdir, find_new_pages, is_adding=add)
    updated = [
        _with_current_sources(generation, number, wished_by_name)
        for number, generation in enumerate(generations)
    ]
    new = _new_sources(stage, wished, recorded)
    if new and not add:
        names = ", ".join(str(source["name"]) for source in new[:_MAX_NAMES])
        more = ", ..." if len(new) > _MAX_NAMES else ""
        verb = "is" if len(new) == 1 else "are"
        advice = _advice_to_add(stage, workdir, new, find_new_pages())
        raise UserError(f"{stage.name}: {names}{more} {verb} new in {workdir}: {advice}")
    if new:
        num_shards = stage.shards_for(options, new)
        updated.append(Generation(stage.name, generations[-1].shard_numbers.stop, num_shards, new))
    return msgspec.structs.replace(root, generations=updated)


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
        source = wished_by_name[_name(recorded)]
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


def _advice_to_add(
    stage: Stage,
    workdir: Storage,
    new: Sequence[Mapping[str, Any]],
    new_pages: Sequence[Mapping[str, Any]],
) -> str:
    """Return the advice to add new sources: a complete command, or the flag to repeat it with."""
    pronoun = "it" if len(new) == 1 else "them"
    if stage.name == "import":
        uris = [str(source["uri"]) for source in new]
        words = ["owt", "import", str(workdir), *uris, "--add"]
        return f"run {command(*words)} to add {pronoun} as a generation"
    if not workdir.exists("settings.toml"):
        return f"repeat the command with --add to add {pronoun} as a generation"
    words = ["owt", "run", str(workdir), "--add", *_flags_of(stage, [*new, *new_pages])]
    return f"run {command(*words)} to add {pronoun} as a generation"


def _check_named(
    stage: Stage,
    recorded: Sequence[Mapping[str, Any]],
    wished_by_name: Mapping[tuple[Any, Any], Mapping[str, Any]],
    root: Root,
    workdir: Storage,
    find_new_pages: Callable[[], Sequence[Mapping[str, Any]]],
    *,
    is_adding: bool,
) -> None:
    """Raise UserError with a command that helps if the settings do not name a recorded source.

    Either the settings have lost a source, or a command has added it that was killed before it
    could write the source to the settings.
    """
    unnamed = [source for source in recorded if _name(source) not in wished_by_name]
    if not unnamed:
        return
    contents = {content_of(source) for source in recorded}
    new = [source for source in wished_by_name.values() if content_of(source) not in contents]
    number = 0
    while unnamed[0] not in root.generations[number].sources:
        number += 1
    problem = (
        f"the settings do not name {unnamed[0]['name']}, a source of generation {number} of "
        f"{workdir}"
    )
    pages = [*own_pages_of(root, unnamed), *find_new_pages()]
    if not workdir.exists("settings.toml") or (len(unnamed) == len(recorded) and not new):
        flags = ["--add"] if new else []
        restoring = _command_naming(stage, workdir, [*recorded, *new, *pages], *flags)
        raise UserError(
            f"{problem}: run {restoring}, with your other flags, to restore the settings"
        )
    # A command that fails leaves the settings as they are. So if the next one named only what this
    # one lacks, it would lack what this one names.
    sources = [*recorded, *new]
    if not is_adding:
        # The flags may have replaced the sources of the settings, which name more.
        sources = new or unnamed
    purpose = "to continue with all generations"
    if new:
        purpose = "to add the new sources and keep all generations"
    adding = _command_naming(stage, workdir, [*sources, *pages], "--add")
    raise UserError(f"{problem}: run {adding} {purpose}")


def _command_naming(
    stage: Stage, workdir: Storage, sources: Iterable[Mapping[str, Any]], *flags: str
) -> str:
    """Return the command that runs a stage with these sources, to be pasted."""
    if stage.name == "import":
        files = (str(source["uri"]) for source in sources)
        return command("owt", "import", str(workdir), *files, *flags)
    return command("owt", "run", str(workdir), *flags, *_flags_of(stage, sources))


def _flags_of(stage: Stage, sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the flags that name these sources, of a stage and of the pages."""
    words: list[str] = []
    named_uris: set[str] = set()
    for kind, flag in [*stage.flags.items(), (PAGES, PAGES_FLAG)]:
        uris = [str(source["uri"]) for source in sources if source["kind"] == kind]
        # `--warcs` names the files with the pages, too.
        uris = [uri for uri in uris if uri not in named_uris]
        named_uris.update(uris)
        if uris:
            words += [flag, *uris]
    return words


def _name(source: Mapping[str, Any]) -> tuple[Any, Any]:
    return source.get("kind"), source.get("name")
