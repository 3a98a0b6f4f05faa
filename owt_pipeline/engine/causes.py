"""Why a plan makes shards, as data: the part of a shard's key that differs from the published one.

A record keeps the digest of each part of its key. So a cause is read from a plan, and no command
guesses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from owt_pipeline.engine.sources import key_sources
from schemas.manifest import Manifest, Root, ShardRecord
from schemas.quantities import pluralize

# The parts in the order in which they are compared. Other parts are inputs: they come before the
# shard's history, because a changed input has often more to say than a takedown.
_FIRST_PARTS = ("code", "options", "external", "sources")
_LAST_PARTS = ("rounds", "takedowns", "takedowns or limits")

# A message names at most this many sources and causes.
_MAX_NAMES = 3


@dataclass(frozen=True)
class Cause:
    """Why a shard is made.

    Attributes:
      part: the part of its key that differs (keys.py); `new` if its dataset is not published;
        `added` if its dataset is published without it; `lost` if its files are missing or damaged.
      subject: what differs in the part: an option, the names of sources, or a file's problem.
      was: the value of the published shard, or the first digits of its digest.
      now: the value that is wanted; "" if an earlier stage has to make the input first.
    """

    part: str
    subject: str = ""
    was: str = ""
    now: str = ""

    def __str__(self) -> str:
        if self.part in ("new", "added"):
            return ""
        if self.part == "lost":
            return self.subject
        if self.part == "code":
            return f"version {self.now} of the stage replaces version {self.was}"
        if self.part == "options":
            return f"{self.subject} is now {self.now} (was {self.was})"
        if self.part in ("external", "sources"):
            return f"{self.subject} changed"
        if self.part == "rounds":
            return f"failed or lost pages are requested again (round {self.now}, was {self.was})"
        if self.part.startswith("takedowns"):
            return f"{self.part} changed"
        return f"{self.part}/ {'changed' if self.now else 'changes'}"


@dataclass(frozen=True)
class Wanted:
    """What a stage is planned with, to be compared with its published output.

    Attributes:
      root: the root with the generations, rounds and takedowns.
      version: version of the stage's code.
      options: the options that shape bytes.
      sources: all sources and external inputs.
    """

    root: Root
    version: int
    options: Mapping[str, Any]
    sources: Sequence[Mapping[str, Any]]


def cause_of(
    parts: Mapping[str, str], before: ShardRecord, published: Manifest, wanted: Wanted
) -> Cause:
    """Return why a shard with the key parts `parts` is made in place of the published one."""
    part = first_difference(parts, before.parts)
    was = before.parts.get(part, "")[:8]
    now = parts.get(part, "none")[:8]
    if part == "code":
        return Cause(part, was=str(published.stage_version), now=str(wanted.version))
    if part == "options":
        for name in {**wanted.options, **published.options}:
            values = (published.options.get(name), wanted.options.get(name))
            if values[0] != values[1]:
                return Cause(part, name, *map(repr, values))
        return Cause(part, "the default of an option", was, now)
    if part in ("external", "sources"):
        return Cause(part, _changed_names(published.sources, wanted.sources), was, now)
    if part == "rounds":
        round_now = wanted.root.rounds.get(str(before.shard), 0)
        return Cause(part, was=str(before.stats.get("round", 0)), now=str(round_now))
    return Cause(part, was=was, now=now)


def first_difference(parts: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return the first part that differs; "" if only the shard's place does."""
    inputs = sorted({*parts, *others}.difference(_FIRST_PARTS, _LAST_PARTS))
    for part in (*_FIRST_PARTS, *inputs, *_LAST_PARTS):
        if parts.get(part) != others.get(part):
            return part
    return ""


def _changed_names(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> str:
    """Return the names of the sources that only one of two lists has."""
    lists = key_sources(before), key_sources(now)
    changed = [source for source in lists[1] if source not in lists[0]]
    changed = changed or [source for source in lists[0] if source not in lists[1]]
    names = sorted({str(source.get("name") or source.get("kind")) for source in changed})
    if len(names) > _MAX_NAMES:
        return f"{', '.join(names[:_MAX_NAMES])}, ..."
    return ", ".join(names) or "the order of sources"


def describe_causes(causes: Mapping[int, Cause], problem_by_path: Mapping[str, str]) -> str:
    """Return the causes of some shards in a few words; "" for a first run.

    `problem_by_path` are the files that are lost.
    """
    texts: list[str] = []
    if problem_by_path:
        path, problem = min(problem_by_path.items())
        texts.append(f"{path} {problem}")
        if len(problem_by_path) > 1:
            num_others = len(problem_by_path) - 1
            texts[0] += f" (and {pluralize(num_others, 'more file')})"
    num_added = sum(cause.part == "added" for cause in causes.values())
    if num_added:
        texts.append(f"{pluralize(num_added, 'shard')} added")
    num_by_text = Counter(str(cause) for cause in causes.values() if cause.part != "lost")
    num_by_text.pop("", None)
    for text, num_shards in num_by_text.most_common(_MAX_NAMES):
        is_only = num_shards == len(causes) and not texts
        texts.append(text if is_only else f"{text} ({pluralize(num_shards, 'shard')})")
    return ", ".join(texts)
