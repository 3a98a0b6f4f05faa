"""`owt migrate`: convert a working directory of schema version 1, losing nothing.

Version 1 kept a dataset's manifest, with all its files in it, and its rejects in the dataset's own folder, and named
shards by their number alone. Files keep their bytes: they are linked (in a bucket copied) to their new names, then the
new manifest is written, then the old names go. Killed at any moment, the command continues when run again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow.parquet as pq

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.engine.commit import WARC, publish, work_of
from owt_pipeline.engine.dataset import DatasetReader, read_manifest, reading
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.lease import hold
from owt_pipeline.engine.plan import PLAN_NAME, Plan, made_from
from owt_pipeline.engine.storage import Storage
from owt_pipeline.stages import load
from schemas import DATASETS
from schemas.manifest import MANIFEST_NAME, Counts, Manifest, ShardFile, ShardRecord, ledger_of, seal

_OLD_VERSION = 1


def migrate(workdir: Storage) -> list[str]:
    """Convert every dataset of a run; returns the names of those that were converted.

    Raises UserError for a manifest that is not of version 1, and for files that are missing.
    """
    converted = []
    digests: dict[str, tuple[str, str]] = {}  # of each dataset: its digest before and now
    for name in (*DATASETS, "report"):
        old, plan = _read(workdir / name, MANIFEST_NAME), _read(workdir / name / ".work", PLAN_NAME)
        if old is not None:
            manifest = _convert(workdir, name, old, digests)
            digests[name] = (old["digest"], manifest.digest)
            converted.append(name)
        elif plan is None and (found := read_manifest(workdir, name)) is not None:
            digests[name] = ("", found.digest)
        if plan is not None:
            _convert_work(workdir, name, plan, digests)
            converted.append(f"{name} (unfinished)")
        if old is not None or plan is not None:
            _remove_old(workdir, name, old)
    return converted


def _read(folder: Storage, name: str) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(folder.read(name))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{folder.path(name)} is damaged ({error}): restore it, or delete its folder") from error
    if (version := record.get("schema_version", _OLD_VERSION)) != _OLD_VERSION:
        raise UserError(f"{folder.path(name)} has schema version {version}: this command converts {_OLD_VERSION}")
    return record


def _convert(
    workdir: Storage, dataset: str, old: Mapping[str, Any], digests: Mapping[str, tuple[str, str]]
) -> Manifest:
    """Bring a finished dataset's files to their new names, and publish its manifest."""
    files = [_move(workdir, dataset, entry) for entry in old["files"]]
    of_shard: dict[int, list[ShardFile]] = {}
    for file in files:
        of_shard.setdefault(file.shard, []).append(file)
    inputs, lost = _inputs(old["inputs"], digests)
    stage = load(old["stage"])
    plan = Plan(old["stage"], old["stage_version"], old["options"], inputs, old["sources"], {}).fingerprint
    parts = {part["shard"]: part for part in old["shards"]}
    origins: list[str] = []
    if parts and stage.shard_local and not lost:
        readers = {name: DatasetReader.open(workdir, name) for name in inputs}
        origins = made_from(stage, readers, workdir, old["num_shards"])
    records = []
    for shard in range(old["num_shards"]):
        if shard not in of_shard:
            raise UserError(f"{workdir.path(dataset)}: its manifest names no file of shard {shard}; restore it")
        counts, stats = _sum_of(workdir, of_shard[shard], parts.get(shard), old)
        records.append(ShardRecord(shard, counts, of_shard[shard], stats, origins[shard] if origins else ""))
    properties = dict(old["properties"])
    if "tokenizer" in properties:
        tokenizer = next(file for file in of_shard[-1] if file.sha256 == properties["tokenizer"]["sha256"])
        properties["tokenizer"] = {**properties["tokenizer"], "file": tokenizer.path}
    return publish(
        workdir,
        records,
        of_shard.get(-1, []),
        dataset=dataset,
        stage=old["stage"],
        stage_version=old["stage_version"],
        fingerprint=plan,
        num_shards=old["num_shards"],
        counts=Counts(**old["counts"]),
        options=old["options"],
        inputs=inputs,
        sources=old["sources"],
        stats=old["stats"],
        properties=properties,
        versions=old["versions"],
    )


def _sum_of(
    workdir: Storage, files: Sequence[ShardFile], part: Mapping[str, Any] | None, old: Mapping[str, Any]
) -> tuple[Counts, dict[str, int]]:
    """A shard's sum and further counts, which version 1 kept only for stages that work shard by shard.

    Of the others, sums are counted in the files, and shard 0 is given the further counts of all.
    """
    if part is not None:
        return Counts(**part["counts"]), part["stats"]
    left = sum(file.rows for file in files if file.kind == "data")
    rejected = _counted(workdir, files, "rejects", "reason")
    stats: dict[str, int] = dict(old["stats"]) if files[0].shard == 0 else {}
    if old["stage"] == "dedupe":
        rules = _counted(workdir, files, "data", "rule")
        documents = sum(file.rows for file in DatasetReader.open(workdir, "clean").files("data", files[0].shard))
        stats |= {"exact": rules["exact"], "near": rules["near"], "stay": documents - rules.total()}
    return Counts(left + rejected.total(), left, dict(sorted(rejected.items()))), stats


def _counted(workdir: Storage, files: Sequence[ShardFile], kind: str, column: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for file in files:
        if file.kind == kind:
            with reading(workdir.path(file.path)), workdir.open(file.path) as source:
                found.update(pq.read_table(source, columns=[column])[column].to_pylist())
    return found


def _inputs(old: Mapping[str, str], digests: Mapping[str, tuple[str, str]]) -> tuple[dict[str, str], bool]:
    """The inputs' new digests, and whether one is not what it was when the dataset was made from it."""
    lost = any(name not in digests or digests[name][0] not in ("", digest) for name, digest in old.items())
    return {name: digest if lost else digests[name][1] for name, digest in old.items()}, lost


def _convert_work(
    workdir: Storage, dataset: str, old: Mapping[str, Any], digests: Mapping[str, tuple[str, str]]
) -> None:
    """Bring an interrupted stage's plan, records and intermediate files to their new places."""
    inputs, _ = _inputs(old["inputs"], digests)
    plan = Plan(old["stage"], old["stage_version"], old["options"], inputs, old["sources"], old["versions"])
    before = workdir / dataset / ".work"
    shards = len(old.get("made_from") or [])
    work = work_of(workdir, dataset) / plan.fingerprint[:16]
    for name in before.names():
        if name == PLAN_NAME:
            continue
        folder, _, file = name.rpartition("/")
        if folder == "shards":
            record = json.loads(before.read(name))
            files = [_move(workdir, dataset, entry) for entry in record["files"]]
            work.write(name, _record(record, files))
        elif folder.endswith("/records") and file.endswith(".json"):
            record = json.loads(before.read(name))
            work.write(name, _record(record, [ShardFile(**entry) for entry in record["files"]]))
        else:
            _link(workdir, f"{dataset}/.work/{name}", f"{ledger_of(dataset)}/.work/{plan.fingerprint[:16]}/{name}")
    work.write(PLAN_NAME, seal(msgspec.structs.replace(plan, num_shards=shards)))


def _record(old: Mapping[str, Any], files: list[ShardFile]) -> bytes:
    return ShardRecord(old["shard"], Counts(**old["counts"]), files, old["stats"]).to_json()


def _move(workdir: Storage, dataset: str, entry: Mapping[str, Any]) -> ShardFile:
    file = ShardFile(**entry)
    new = _new_path(dataset, file)
    _link(workdir, f"{dataset}/{file.path}", new)
    return msgspec.structs.replace(file, path=new)


def _new_path(dataset: str, file: ShardFile) -> str:
    folder, _, name = file.path.rpartition("/")
    if file.kind == "asset":
        if dataset not in DATASETS:
            return f"{dataset}/{file.path}"
        stem, _, suffix = name.rpartition(".")
        named = f"{stem}-{file.sha256[:8]}.{suffix}" if dataset == "tokens" else name
        return f"{ledger_of(dataset)}/{named}"
    stem, _, suffix = name.partition(".")
    places = {
        "data": "/".join(filter(None, (dataset, folder))),
        WARC: WARC,
        "rejects": f"{ledger_of(dataset)}/rejects",
        "sketches": f"{ledger_of(dataset)}/sketches",
    }
    return f"{places[file.kind]}/{stem}-{file.sha256[:8]}.{suffix}"


def _link(workdir: Storage, old: str, new: str) -> None:
    """Give a file a second name; raises UserError where it has neither."""
    if old == new or workdir.exists(new):
        return
    if not workdir.exists(old):
        raise UserError(
            f"{workdir.path(old)} is missing: restore it, or delete its dataset's folder, and migrate again"
        )
    if workdir.is_local:
        os.makedirs(os.path.dirname(workdir.path(new)), exist_ok=True)
        os.link(workdir.path(old), workdir.path(new))
        return
    with workdir.spool() as copy, workdir.open(old) as source:
        while chunk := source.read(8 << 20):
            copy.write(chunk)
        copy.publish(new)


def _remove_old(workdir: Storage, dataset: str, old: Mapping[str, Any] | None) -> None:
    """Remove the old names; the old manifest goes last, and says until then what is to be removed."""
    for entry in old["files"] if old is not None else ():
        if _new_path(dataset, ShardFile(**entry)) != f"{dataset}/{entry['path']}":
            workdir.delete(f"{dataset}/{entry['path']}")
    before = workdir / dataset / ".work"
    for name in before.names():
        if name.startswith("shards/"):
            for entry in json.loads(before.read(name))["files"]:
                workdir.delete(f"{dataset}/{entry['path']}")
    before.delete_all()
    workdir.delete(f"{dataset}/{MANIFEST_NAME}")
    if workdir.is_local and os.path.isdir(rejects := workdir.path(f"{dataset}/rejects")) and not os.listdir(rejects):
        os.rmdir(rejects)


def _flags(parser: CommandParser) -> None:
    """Convert a working directory that an earlier version wrote to this version's layout. Nothing is
    computed again and nothing is lost: files get new names, manifests are split in two.

    example:
      owt migrate --workdir runs/2013
    """
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")


def _run(arguments: argparse.Namespace) -> int:
    workdir = Storage(arguments.workdir)
    with hold(workdir):
        converted = migrate(workdir)
    print(f"converted: {', '.join(converted)}" if converted else f"{workdir} needs no conversion")
    return 0


main = Command("owt migrate", _flags, _run)
