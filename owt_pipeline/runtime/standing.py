"""What of an output stands when what it is made from has changed.

A stage that makes shard k from shard k of its inputs alone keeps the shards whose part of the inputs is as it was.
So taking one document out of a corpus, or one page, rewrites the shards it is in, and no others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from owt_pipeline.runtime.shards import DatasetReader, ShardRecord, shard_name
from owt_pipeline.runtime.storage import Storage
from schemas import Manifest
from schemas.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from owt_pipeline.runtime.stage import Stage

logger = logging.getLogger("owt")


def made_from(stage: Stage, inputs: Mapping[str, DatasetReader], workdir: Storage, num_shards: int) -> list[str]:
    """For each shard, a digest of all that it is made from beside the options; none where shards are not apart."""
    if not stage.shard_local:
        return []
    lists = [name for name in stage.lists if workdir.exists(name)]
    files_of: list[dict[str, list[list[str]]]] = [{} for _ in range(num_shards)]
    for name, reader in inputs.items():
        for file in reader.manifest.files:
            if 0 <= file.shard < num_shards and file.kind != "rejects":  # what was rejected is not read
                files_of[file.shard].setdefault(name, []).append([file.path, file.sha256])
    digests = []
    for shard, files in enumerate(files_of):
        listed = (stage.listed(workdir, inputs, shard) if lists else None) or None  # names nothing: as without lists
        digests.append(hashlib.sha256(json.dumps([files, listed], sort_keys=True).encode()).hexdigest())
    return digests


def prepare(
    folder: Storage, work: Storage, plan: Mapping[str, Any], manifest: Manifest | None, lists: Sequence[str] = ()
) -> None:
    """Make the folder ready for `plan`: keep what stands, remove the rest, and say what differs.

    A process killed in here leaves either the old output or the new plan with what stands.
    """
    previous = recorded_plan(folder, None)
    if previous is not None and previous["fingerprint"] == plan["fingerprint"]:
        folder.delete(MANIFEST_NAME)
        return
    standing = recorded_plan(folder, manifest)
    kept: list[ShardRecord] = []
    if standing is not None:
        records = _records_of(manifest) if manifest is not None else _records_in(work)
        stand = shards_that_stand(standing, plan, [record.shard for record in records], lists)
        kept = [record for record in records if record.shard in stand]
        again = f"{len(plan['made_from']) - len(kept)} of {len(plan['made_from'])} shards run" if kept else "running"
        logger.info("%s: %s; %s again", plan["stage"], difference(standing, plan), again)
    if not kept:
        folder.delete(MANIFEST_NAME)  # first: without it the dataset is gone, whatever is left of it
        folder.delete_all()
        work.write("plan.json", json.dumps(plan).encode())
        return
    names = {f"shards/{shard_name(record.shard)}.json": record for record in kept}
    for name in work.names():
        if name != "plan.json" and name not in names:
            work.delete(name)
    for name, record in names.items():
        work.write(name, record.to_json())
    work.write("plan.json", json.dumps(plan).encode())
    folder.delete(MANIFEST_NAME)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why an output does not stand: the first of what its bytes follow from that differs."""
    if old["stage"] != new["stage"]:
        return f"the output was written by {old['stage']}"
    if old["stage_version"] != new["stage_version"]:
        return f"the stage's code is of version {new['stage_version']}, was {old['stage_version']}"
    for name, value in new["options"].items():
        if old["options"].get(name) != value:
            return f"{name} is {value!r}, was {old['options'].get(name)!r}"
    for name, digest in new["inputs"].items():
        if old["inputs"].get(name) != digest:
            return f"{name}/ has changed"
    for name in old["inputs"]:
        if name not in new["inputs"]:
            return f"{name}/ is gone"
    names = sorted(
        {
            str(source.get("name") or source.get("kind"))
            for one, other in ((old["sources"], new["sources"]), (new["sources"], old["sources"]))
            for source in one
            if source not in other
        }
    )
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"the source files have changed: {shown or 'their order'}"


def recorded_plan(folder: Storage, manifest: Manifest | None) -> dict[str, Any] | None:
    """What the output in `folder` was made from, or what was being made when it was broken off; None for neither."""
    if manifest is not None:
        return {**dataclasses.asdict(manifest), "made_from": [shard.made_from for shard in manifest.shards]}
    if folder.exists(".work/plan.json"):
        plan: dict[str, Any] = json.loads(folder.read(".work/plan.json"))
        return plan
    return None


def shards_that_stand(
    old: Mapping[str, Any], new: Mapping[str, Any], shards: Iterable[int], lists: Sequence[str]
) -> set[int]:
    """Those of the old output's `shards` that the new plan would make again as they are."""

    def beside(plan: Mapping[str, Any]) -> list[Any]:
        sources = [source for source in plan["sources"] if source.get("name") not in lists]
        return [plan["stage"], plan["stage_version"], plan["options"], sources, plan.get("versions")]

    was, becomes = old.get("made_from") or [], new["made_from"]
    if len(was) != len(becomes) or beside(old) != beside(new):
        return set()
    return {shard for shard in shards if was[shard] == becomes[shard]}


def _records_of(manifest: Manifest) -> list[ShardRecord]:
    return [
        ShardRecord(part.shard, part.counts, [f for f in manifest.files if f.shard == part.shard], part.stats)
        for part in manifest.shards
    ]


def _records_in(work: Storage) -> list[ShardRecord]:
    records = work / "shards"
    return [ShardRecord.from_json(records.read(name)) for name in records.names()]
