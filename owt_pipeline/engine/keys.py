"""Compute keys. A key is one digest of everything that a shard is built from.

It covers the shard's place in its generation, and these parts, of which records keep the digests:

    code        the stage and the version of its code
    options     the options that shape bytes
    external    digests of models, tokenizers, the user's code, evaluation sets
    sources     the sources of the shard's generation
    DATASET     the digests of the files of an input that the shard reads
    rounds, takedowns, takedowns or limits: the shard's history (`Stage.history`)

Paths, workers and versions of libraries are not part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from owt_pipeline.engine.sources import key_sources
from owt_pipeline.engine.stage import Stage
from schemas.manifest import Root, ShardRecord


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

    def of_shard(self, shard: int, history: Any) -> dict[str, str] | None:
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
        if history:
            parts[self._stage.history] = digest_of(history)
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
            parts["sources"] = digest_of(key_sources(self._root.generations[number].pages))
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
        read = generation.pages if stage.inputs else generation.links
        # Generations may share files with pages.
        for source in key_sources(read):
            sources.setdefault(digest_of(source), source)
    return list(sources.values())
