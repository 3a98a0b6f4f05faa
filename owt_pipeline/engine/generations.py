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

_FLAG_BY_KIND = {
    "dump": "--dumps",
    "links": "--links",
    "warc": "--warcs",
    "subreddit": "--subreddits",
}

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
    kept = []
    for number, generation in enumerate(generations):
        sources = []
        for before in generation.sources:
            found = known.pop(_name(before), None)
            if found is None:
                contents_of_new = {_content(source) for source in known.values()} - contents
                new = [each for each in known.values() if _content(each) in contents_of_new]
                raise UserError(
                    f"the settings no longer name {before['name']}, which generation {number} of "
                    f"{workdir} was "
                    f"{'imported' if stage.name == 'import' else 'collected'} from: "
                    + _advice_for_unnamed(stage, workdir, root, new)
                )
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
    words = ["owt", "run", str(workdir), "--add", *_flags_of(new)]
    return f"run {command(*words)} to add {them} as a generation"


def _advice_for_unnamed(
    stage: Stage, workdir: Storage, root: Root, new: Sequence[Mapping[str, Any]]
) -> str:
    """Return what to do about settings that do not name a recorded source."""
    if new:
        return _advice_to_add(stage, workdir, new)
    recorded = [source for each in root.generations for source in each.sources]
    words = ["owt", "run", str(workdir), *_flags_of(recorded)]
    return f"restore them, with your other settings, as {command(*words)} does"


def _flags_of(sources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the flags that name sources of `collect`."""
    words: list[str] = []
    for kind, flag in _FLAG_BY_KIND.items():
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
