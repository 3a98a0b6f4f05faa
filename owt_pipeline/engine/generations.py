"""Generations: what a run's settings name as sources, compared with the generations that its
root has recorded.

Settings are wishes, the root has the facts: which sources were added together, and how many shards
they fill. A new source is a generation of its own if that is asked for (`owt run RUN --add`).
Settings that no longer name a recorded source are an error, so that a lost settings file cannot
empty a run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import UserError, command
from owt_pipeline.ledger.root import read_root, swap_root
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Generation, Root

logger = logging.getLogger("owt")

_NOT_IN_KEY = ("uri", "stored", "seen")
"""Fields of a source that shape no bytes: where it lies, and when it was last hashed."""


def begin(
    stages: Sequence[tuple[Stage, Any]], runtime: Runtime, *, write: bool = True
) -> tuple[Root, str | None]:
    """The root manifest with the generations and retries that these stages ask for, and its
    version; unless `write`, nothing is written. A repeated call has no effect. The process must
    hold the lock.

    Raises UserError as `with_generations`.
    """
    root, version = read_root(runtime.workdir)
    changed = root
    for stage, options in stages:
        if not stage.inputs:
            changed = with_generations(changed, stage, options, runtime.workdir, add=runtime.add)
        if write:
            changed = stage.begin(options, changed, runtime)
    if not write or (changed == root and version is not None):
        return changed, version
    return swap_root(runtime.workdir, changed, version, runtime.run)


def with_generations(
    root: Root, stage: Stage, options: Any, workdir: Storage, *, add: bool = False
) -> Root:
    """The root with the generations that the sources of `stage`, which has no inputs, ask for.

    Raises UserError for new sources that nothing asks to add, and for recorded ones that the
    options lack.
    """
    generations = root.generations
    is_first = len(generations) <= 1 and not root.datasets
    recorded = [source for each in generations for source in each.sources]
    if is_first and stage.name == "import":
        # It adds recorded files to those that are named. A first import that failed has recorded
        # its files, and they are to be named otherwise now.
        recorded = []
    wished = stage.sources(options, recorded)
    if is_first:
        return _with(
            root, [Generation(stage.name, 0, stage.shards_for(options, wished), list(wished))]
        )
    if generations[0].stage != stage.name:
        other = "collected URLs" if stage.name == "import" else "imported text"
        raise UserError(
            f"{workdir} has {other}, which {stage.name} would replace: use another folder"
        )
    known = {_name(source): source for source in wished}
    contents = {_content(source) for each in generations for source in each.sources}
    _check_named(stage, generations, known, workdir, is_adding=add)
    kept = []
    for number, generation in enumerate(generations):
        sources = []
        for before in generation.sources:
            found = known.pop(_name(before))
            if set(found) == {"kind", "name", "uri"}:  # its content is known to the root alone
                found = before
            if _content(found) != _content(before):
                logger.info(
                    "%s: %s has changed since generation %d was made from it",
                    stage.name,
                    found["name"],
                    number,
                )
            sources.append(found)
        kept.append(msgspec.structs.replace(generation, sources=sources))
    new = []
    for source in known.values():
        if _content(source) in contents:
            logger.info(
                "%s: %s has the same content as a source of an earlier generation",
                stage.name,
                source["name"],
            )
        else:
            new.append(source)
    if new and not add:
        names = ", ".join(str(source["name"]) for source in new[:3]) + (
            ", ..." if len(new) > 3 else ""
        )
        raise UserError(
            f"{stage.name}: {names} {'is' if len(new) == 1 else 'are'} new in {workdir}: "
            + _advice_to_add(stage, workdir, new)
        )
    if new:
        first = generations[-1].first + generations[-1].shards
        kept.append(Generation(stage.name, first, stage.shards_for(options, new), new))
    return _with(root, kept)


def _advice_to_add(stage: Stage, workdir: Storage, new: Sequence[Mapping[str, Any]]) -> str:
    """Return what adds new sources: the complete command, if the run has settings of its own."""
    them = "it" if len(new) == 1 else "them"
    if stage.name == "import":
        words = ["owt", "import", str(workdir), *(str(each["uri"]) for each in new), "--add"]
        return f"run {command(*words)} to add {them} as a generation"
    if not workdir.exists("settings.toml"):
        return f"give --add, too, to add {them} as a generation"
    words = ["owt", "run", str(workdir), "--add", *_flags_of(stage, new)]
    return f"run {command(*words)} to add {them} as a generation"


def _check_named(
    stage: Stage,
    generations: Sequence[Generation],
    wished: Mapping[tuple[Any, Any], Mapping[str, Any]],
    workdir: Storage,
    *,
    is_adding: bool,
) -> None:
    """Raise UserError, which says what to do, if no wished source is that of a generation.

    Either the settings have lost a source, or an interrupted command has added it: a command writes
    its flags to the settings when it has succeeded.
    """
    recorded = [source for generation in generations for source in generation.sources]
    unnamed = [source for source in recorded if _name(source) not in wished]
    if not unnamed:
        return
    contents = {_content(source) for source in recorded}
    new = [source for source in wished.values() if _content(source) not in contents]
    number = next(
        number for number, generation in enumerate(generations) if unnamed[0] in generation.sources
    )
    problem = (
        f"the settings do not name {unnamed[0]['name']}, a source of generation {number} of "
        f"{workdir}"
    )
    if len(unnamed) == len(recorded) and not new:
        restoring = _naming(stage, workdir, recorded)
        raise UserError(f"{problem}: restore them, with your other settings, as {restoring} does")
    # Without --add, the flags may have replaced the sources of the settings, which name more.
    sources = [*unnamed, *new] if is_adding or not new else new
    purpose = "adds to all generations" if new else "goes on with all generations"
    raise UserError(f"{problem}: {_naming(stage, workdir, sources, '--add')} {purpose}")


def _naming(
    stage: Stage, workdir: Storage, sources: Iterable[Mapping[str, Any]], *flags: str
) -> str:
    """Return the command that runs a stage with these sources, to be pasted."""
    if stage.name == "import":
        files = (str(source["uri"]) for source in sources)
        return command("owt", "import", str(workdir), *files, *flags)
    return command("owt", "run", str(workdir), *flags, *_flags_of(stage, sources))


def _flags_of(stage: Stage, sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the flags that name sources of a stage, with these sources."""
    words: list[str] = []
    for kind, flag in stage.flags.items():
        uris = [str(each["uri"]) for each in sources if each["kind"] == kind]
        words += [flag, *uris] if uris else []
    return words


def _with(root: Root, generations: Sequence[Generation]) -> Root:
    return msgspec.structs.replace(root, generations=list(generations))


def _name(source: Mapping[str, Any]) -> tuple[Any, Any]:
    return source.get("kind"), source.get("name")


def _content(source: Mapping[str, Any]) -> str:
    return repr(
        sorted(
            (name, value)
            for name, value in source.items()
            if name != "name" and name not in _NOT_IN_KEY
        )
    )


def shaping_sources(sources: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sources without what shapes no bytes."""
    return [
        {name: value for name, value in each.items() if name not in _NOT_IN_KEY} for each in sources
    ]
