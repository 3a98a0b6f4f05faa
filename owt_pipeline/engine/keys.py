"""Compute keys. A key is one digest of everything that a shard is built from.

It covers the shard's place in its generation, and these parts, of which records keep the digests:

    code        the stage and the version of its code
    options     the options that shape bytes
    external    digests of models, tokenizers, the user's code, evaluation sets
    sources     the sources of the shard's generation
    DATASET     the digests of the files of an input that the shard reads
    rounds, takedowns, limits: the shard's history (`Stage.shard_history`)

Paths, workers and versions of libraries are not part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from owt_pipeline.engine.generations import key_sources, pages_of
from owt_pipeline.engine.stage import Stage
from owt_pipeline.errors import command
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest, Root, ShardRecord
from schemas.quantities import pluralize


def with_generations_of(root: Root, inputs: Sequence[Sequence[ShardRecord | None]]) -> Root:
    """Return the root without the generations that some of a stage's inputs lack."""
    num_shards = min((len(records) for records in inputs), default=root.num_shards)
    complete = [
        generation for generation in root.generations if generation.shard_numbers.stop <= num_shards
    ]
    return msgspec.structs.replace(root, generations=complete)


class KeyParts:
    """The parts of the keys of a stage's shards."""

    def __init__(
        self,
        stage: Stage,
        options: Any,
        root: Root,
        external_inputs: Sequence[Mapping[str, Any]],
        inputs: Mapping[str, Sequence[ShardRecord | None]],
    ):
        """Describe the shards of a stage.

        Args:
          stage: the stage.
          options: its options.
          root: the root with the generations that all inputs have.
          external_inputs: the result of `Stage.external_inputs`.
          inputs: the records of each input's shards; None for a shard that has to be made first.
        """
        self._stage = stage
        self._root = root
        self._inputs = inputs
        self._options = options
        self._external_inputs = key_sources(external_inputs)
        self._parts_by_generation: dict[int, dict[str, str]] = {}
        # Every shard of a generation reads the same files, so one digest of them keeps keys cheap.
        self._digests_by_end: dict[int, dict[str, str] | None] = {}

    def of_shard(self, shard: int, history: Mapping[str, Any]) -> dict[str, str] | None:
        """Return the digest of each part of a shard's key, by the part's name.

        `history` is the result of `Stage.shard_history`. Returns None if an input has to be made
        first.
        """
        number = 0
        if self._stage.reads != "all":
            number = self._root.generation_number_of(shard)
        # First, since this also checks the options: a mistake is found before earlier stages run.
        if number not in self._parts_by_generation:
            self._parts_by_generation[number] = self._parts_of_generation(number)
        digests = self._input_digests(shard)
        if digests is None:
            return None
        parts = {**self._parts_by_generation[number], **digests}
        for part, value in history.items():
            if value:
                parts[part] = digest_of(value)
        return parts

    def key_of(self, shard: int, parts: Mapping[str, str]) -> str:
        """Return the key of a shard, from its parts and its place."""
        place: list[int] = []
        if self._stage.reads != "all":
            number = self._root.generation_number_of(shard)
            generation = self._root.generations[number]
            # Without the place, two empty shards would have the same key, and so the same record.
            place = [number, generation.shards, shard - generation.first]
        return digest_of([place, parts])

    def missing_input(self, shard: int) -> str:
        """Return the first input of which a shard reads a part that has to be made first."""
        for name, records in sorted(self._inputs.items()):
            for read_shard in shards_read_by(self._stage, self._root, shard):
                if read_shard >= len(records) or records[read_shard] is None:
                    return name
        return ""

    def _parts_of_generation(self, number: int) -> dict[str, str]:
        """Return the parts that all shards of a generation have in common."""
        stage = self._stage
        options = stage.options_of_generation(self._options, self._root, number)
        parts = {
            "code": digest_of([stage.name, stage.version]),
            "options": digest_of(stage.key_options(options)),
        }
        if self._external_inputs:
            parts["external"] = digest_of(self._external_inputs)
        if not stage.inputs:
            generations = self._root.generations[: number + 1]
            parts["sources"] = digest_of([key_sources(each.links) for each in generations])
        elif stage.flags:
            page_sets = self._root.generations[number].page_sets
            parts["sources"] = digest_of([key_sources(pages) for pages in page_sets])
        return parts

    def _input_digests(self, shard: int) -> dict[str, str] | None:
        """Return the digest of the files of each input that a shard reads."""
        shards = shards_read_by(self._stage, self._root, shard)
        if self._stage.reads == "shard":
            return self._digests_of(shards)
        if shards.stop not in self._digests_by_end:
            self._digests_by_end[shards.stop] = self._digests_of(shards)
        return self._digests_by_end[shards.stop]

    def _digests_of(self, shards: Sequence[int]) -> dict[str, str] | None:
        """Return the digest of some shards of each input; None if one of them is missing."""
        digest_by_input: dict[str, str] = {}
        for name, records in sorted(self._inputs.items()):
            # Optional inputs of a stage that reads everything may have more or fewer shards.
            has_other_shards = self._stage.reads == "all" and name not in self._stage.inputs
            digests: list[list[str]] = []
            for shard in range(len(records)) if has_other_shards else shards:
                record = records[shard] if shard < len(records) else None
                if record is None:
                    return None
                files = [file for file in record.files if file.kind in self._stage.kinds]
                digests.append(sorted(file.sha256 for file in files))
            digest_by_input[name] = digest_of(digests)
        return digest_by_input


def shards_read_by(stage: Stage, root: Root, shard: int) -> range:
    """Return the shards of the inputs that a shard is built from."""
    if stage.reads == "shard":
        return range(shard, shard + 1)
    if stage.reads == "earlier":
        return range(root.generations[root.generation_number_of(shard)].shard_numbers.stop)
    return range(root.num_shards)


def digest_of(content: Any) -> str:
    """Return the hex SHA-256 of the content as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sources_of(stage: Stage, root: Root) -> list[dict[str, Any]]:
    """Return the generations' sources that a stage reads, with the fields that shape bytes."""
    if stage.inputs and not stage.flags:
        return []
    sources: dict[str, dict[str, Any]] = {}
    for generation in root.generations:
        read = pages_of([generation]) if stage.inputs else generation.links
        # Generations may share files with pages.
        for source in key_sources(read):
            sources.setdefault(digest_of(source), source)
    return list(sources.values())


# The parts in the order in which they are compared. Other parts are inputs: they come before the
# shard's history, because a changed input has often more to say than a takedown.
_FIRST_PARTS = ("code", "options", "external", "sources")
_LAST_PARTS = ("rounds", "takedowns", "limits")

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
        if self.part in ("takedowns", "limits"):
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


def rebuild_advice(cause: Cause, dataset: str, workdir: Storage) -> str:
    """Return that a cause makes a published dataset outdated, and the command that rebuilds it."""
    return f"{cause} since {dataset}/ was built: run {command('owt', 'run', workdir)} to rebuild it"


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
