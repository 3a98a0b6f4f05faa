"""Keys: what a shard is made from, as one digest.

A key names stage, version of its code, options, generation, index and everything from outside, and
the digests of the files that the shard reads; not paths, workers or versions of libraries.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from owt_pipeline.engine.generations import shaping_sources
from owt_pipeline.engine.stage import Stage
from schemas.manifest import Root, ShardRecord


def with_generations_of(root: Root, inputs: Sequence[Sequence[ShardRecord | None]]) -> Root:
    """Return the root without the generations that some of a stage's inputs lack."""
    num_shards = min((len(records) for records in inputs), default=root.num_shards)
    complete = [each for each in root.generations if each.range.stop <= num_shards]
    return msgspec.structs.replace(root, generations=complete)


class ShardContents:
    """What each shard of a stage is made from, without what changes from outside afterwards."""

    def __init__(
        self,
        stage: Stage,
        options: Any,
        root: Root,
        outside: Sequence[Mapping[str, Any]],
        inputs: Mapping[str, Sequence[ShardRecord | None]],
    ):
        """Describe the shards of a stage.

        Args:
          root: the generations that all inputs have.
          outside: what `Stage.outside` returned.
          inputs: the records of the inputs' shards; None for a shard that is yet to be made.
        """
        self._stage, self._root, self._inputs = stage, root, inputs
        self._of_stage = [
            stage.name,
            stage.version,
            stage.shaping(options),
            shaping_sources(outside),
        ]
        # Every shard of a generation reads the same files: one digest of all keeps keys cheap.
        self._digest_by_end: dict[int, str | None] = {}

    def of_shard(self, shard: int) -> list[Any] | None:
        """Return what enters the key of a shard; None if an input has to be made first."""
        digests = self._read_by(shard)
        if digests is None:
            return None
        if self._stage.reads == "all":
            return [*self._of_stage, [], digests]
        number = self._root.generation_of(shard)
        generation = self._root.generations[number]
        position = [number, generation.shards, shard - generation.first]
        content = [*self._of_stage, position, digests]
        if not self._stage.inputs:
            upto = self._root.generations[: number + 1]
            content.append([shaping_sources(each.sources) for each in upto])
        return content

    def _read_by(self, shard: int) -> list[Any] | str | None:
        if self._stage.reads == "shard":
            return self._digests([shard])
        end = shards_read_by(self._stage, self._root, shard).stop
        if end not in self._digest_by_end:
            digests = self._digests(range(end))
            self._digest_by_end[end] = digest_of(digests) if digests is not None else None
        return self._digest_by_end[end]

    def _digests(self, shards: Iterable[int]) -> list[Any] | None:
        digests: list[Any] = []
        for name, records in sorted(self._inputs.items()):
            # Optional inputs of a stage that reads everything may have more or fewer shards.
            is_complete = self._stage.reads != "all" or name in self._stage.inputs
            for shard in shards if is_complete else range(len(records)):
                record = records[shard] if shard < len(records) else None
                if record is None:
                    return None
                read = (file.sha256 for file in record.files if file.kind in self._stage.kinds)
                digests.append([name, *sorted(read)])
        return digests


def shards_read_by(stage: Stage, root: Root, shard: int) -> range:
    """Return the shards of its inputs that a shard is made from."""
    if stage.reads == "shard":
        return range(shard, shard + 1)
    if stage.reads == "earlier":
        return range(root.generations[root.generation_of(shard)].range.stop)
    return range(root.num_shards)


def digest_of(content: Any) -> str:
    """Return the hex SHA-256 of something as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sources_of(stage: Stage, root: Root) -> list[dict[str, Any]]:
    """Return the sources of a stage without inputs, without what shapes no bytes."""
    if stage.inputs:
        return []
    return [source for each in root.generations for source in shaping_sources(each.sources)]
