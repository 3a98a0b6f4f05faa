"""Compute keys. A key is one digest of everything that a shard is built from.

A key names the stage, the version of its code, its options, the shard's place in its generation,
the external inputs, and the digests of the files that the shard reads. Paths, workers and versions
of libraries are not part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
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


class KeyContents:
    """The contents of the keys of a stage's shards, without the shards' history."""

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
        self._options_by_generation: dict[int, dict[str, Any]] = {}
        # Every shard of a generation reads the same files, so one digest of them keeps keys cheap.
        self._digest_by_end: dict[int, str | None] = {}

    def of_shard(self, shard: int) -> list[Any] | None:
        """Return the content of the key of a shard; None if an input has to be made first."""
        digests = self._input_digests(shard)
        if digests is None:
            return None
        number = 0
        position: list[int] = []
        if self._stage.reads != "all":
            number = self._root.generation_number_of(shard)
            generation = self._root.generations[number]
            # Without the position, two empty shards would have the same key, so the same record.
            position = [number, generation.shards, shard - generation.first]
        stage = self._stage
        content = [stage.name, stage.version, self._key_options(number), self._external_inputs]
        content += [position, digests]
        if not position:
            return content
        if not self._stage.inputs:
            generations = self._root.generations[: number + 1]
            content.append([key_sources(generation.links) for generation in generations])
        elif self._stage.flags:
            content.append(key_sources(generation.pages))
        return content

    def _key_options(self, number: int) -> dict[str, Any]:
        """Return the options in the keys of a generation's shards."""
        if number not in self._options_by_generation:
            options = self._stage.options_of_generation(self._options, self._root, number)
            self._options_by_generation[number] = self._stage.key_options(options)
        return self._options_by_generation[number]

    def _input_digests(self, shard: int) -> list[Any] | str | None:
        """Return the digests of the files that a shard reads, or one digest of them all."""
        if self._stage.reads == "shard":
            return self._digests_of([shard])
        end = shards_read_by(self._stage, self._root, shard).stop
        if end not in self._digest_by_end:
            digests = self._digests_of(range(end))
            self._digest_by_end[end] = None if digests is None else digest_of(digests)
        return self._digest_by_end[end]

    def _digests_of(self, shards: Iterable[int]) -> list[Any] | None:
        """Return the digests of the files of some shards of each input; None if one is missing."""
        digests: list[Any] = []
        for name, records in sorted(self._inputs.items()):
            # Optional inputs of a stage that reads everything may have more or fewer shards.
            has_other_shards = self._stage.reads == "all" and name not in self._stage.inputs
            for shard in range(len(records)) if has_other_shards else shards:
                if shard >= len(records):
                    return None
                record = records[shard]
                if record is None:
                    return None
                files = [file for file in record.files if file.kind in self._stage.kinds]
                digests.append([name, *sorted(file.sha256 for file in files)])
        return digests


def shards_read_by(stage: Stage, root: Root, shard: int) -> range:
    """Return the shards of the inputs that a shard is built from."""
    if stage.reads == "shard":
        return range(shard, shard + 1)
    if stage.reads == "earlier":
        return range(root.generations[root.generation_number_of(shard)].shard_numbers.stop)
    return range(root.num_shards)


DESCRIBED = "described"
"""The property of a manifest with the digest of what its assets tell about other datasets."""


def digest_of_described(stage: Stage, root: Root) -> str | None:
    """Return the digest of `Stage.described`; None if the assets tell about no other dataset."""
    described = stage.described(root)
    return None if described is None else digest_of(described)


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
