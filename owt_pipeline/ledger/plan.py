"""Plans: which of a stage's shards are finished, and which are missing, damaged, or made from other inputs.

A stage that makes shard k from shard k of its inputs alone keeps the shards whose part of the inputs is unchanged. So
removing one document from a corpus, or repairing one page, rewrites only the shards that contain it.

Also the versions of everything that shapes bytes, in the process that started a run and in its workers.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import logging
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import schemas
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import Listing, find_record, record_name, work_of
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest
from owt_pipeline.storage.folder import Storage, at_once
from schemas.datasets import SCHEMA_VERSION
from schemas.manifest import MANIFEST_NAME, FileTable, Manifest, ManifestError, ShardRecord, seal, unseal

logger = logging.getLogger("owt")

PLAN_NAME = "plan.json"
INTERRUPTED = "interrupted"
"""`Finished.why` of a stage that was started with the same plan and not finished."""
SKEW = "version_skew"
"""The property of a manifest that names further versions with which shards were made."""


class Plan(msgspec.Struct, frozen=True):
    """What is to be made: everything that determines its bytes.

    Attributes:
      stage_version: version of the stage's code.
      options: the options that shape bytes.
      inputs: digest of each input dataset, by name.
      sources: files from outside the working directory, and lists in it.
      versions: versions of the libraries that shape bytes.
      made_from: for each shard, a digest of everything it is made from but the options; empty if the stage does not
        work shard by shard.
    """

    stage: str
    stage_version: int
    options: dict[str, Any]
    inputs: dict[str, str]
    sources: list[dict[str, Any]]
    versions: dict[str, str]
    num_shards: int = 0
    made_from: list[str] = []
    schema_version: int = SCHEMA_VERSION

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what determines the output: plans with the same fingerprint make the same bytes."""
        names = ("stage", "stage_version", "options", "inputs", "sources")
        content = json.dumps({name: getattr(self, name) for name in names}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def apart_from(self, lists: Sequence[str]) -> list[Any]:
        """What it makes, and from what, apart from the working directory's `lists` and those of the bases."""
        sources = [s for s in self.sources if s.get("name") not in lists and s.get("kind") != "base"]
        return [self.stage, self.stage_version, self.options, self.inputs, self.num_shards, sources]

    @classmethod
    def of_manifest(cls, manifest: Manifest, made_from: list[str]) -> Plan:
        names = [name for name in cls.__struct_fields__ if name != "made_from"]
        return cls(made_from=made_from, **{name: getattr(manifest, name) for name in names})


def usable_manifest(workdir: Storage, dataset: str) -> Manifest | None:
    """The manifest of a dataset; None, with a warning, if it or its list of files is damaged."""
    try:
        manifest = read_manifest(workdir, dataset)
        if manifest is not None:
            _ = DatasetReader(workdir, manifest).table_of_files
        return manifest
    except UserError as error:
        logger.warning("%s", error)
        return None


@dataclass(frozen=True)
class Output:
    """The current state of a stage's output.

    Attributes:
      manifest: the manifest, if the dataset is finished and its list of files can be read.
      table: its list of files; empty without a manifest.
      problems: what is wrong with its damaged files, by path.
      listing: the listing of its folders.
    """

    manifest: Manifest | None
    table: FileTable
    problems: Mapping[str, str]
    listing: Listing

    @property
    def is_lost(self) -> bool:
        """Whether there are files of a finished dataset but no manifest that lists them."""
        names = [name for name in self.listing.entries if "/.work/" not in name]
        damaged = any(name.endswith(f"/{MANIFEST_NAME}") for name in names)
        # Without a manifest, files next to unfinished work belong to its finished shards.
        return self.manifest is None and (damaged or bool(names and not self.listing.unfinished_plans()))

    def is_of(self, plan: Plan) -> bool:
        """Whether the manifest is that of `plan`, even where files are missing."""
        return self.manifest is not None and self.manifest.fingerprint == plan.fingerprint

    def is_finished(self, plan: Plan) -> bool:
        """Whether every file of the output is what `plan` would make."""
        return self.is_of(plan) and not self.problems

    def tidy(self) -> None:
        """Remove files that the finished dataset's manifest does not name."""
        if self.manifest is not None:
            self.listing.tidy(self.manifest, self.table)


def look_at(workdir: Storage, dataset: str, remember: bool = True) -> Output:
    """The current state of a dataset: one listing, compared with the manifest; files that changed since are hashed.

    Unless `remember`, nothing is written, so the next call hashes the same files again.
    """
    manifest = usable_manifest(workdir, dataset)
    listing = Listing(workdir, dataset, remember)
    table = DatasetReader(workdir, manifest).table_of_files if manifest is not None else FileTable([])
    return Output(manifest, table, listing.problems(table.files), listing)


@dataclass(frozen=True)
class Finished:
    """What need not be made again for a plan.

    Attributes:
      kept: the records by shard, from the finished dataset and from unfinished work of this plan and others.
      damaged: versions, by name, of the plan's own records whose files are damaged.
      why: why the stage has to run.
      versions: those with which kept shards were made, where they are not the plan's.
    """

    kept: Mapping[int, ShardRecord]
    damaged: Mapping[str, str]
    why: str
    versions: Sequence[Mapping[str, str]] = ()


def finished_parts(workdir: Storage, dataset: str, plan: Plan, output: Output, lists: Sequence[str]) -> Finished:
    """What need not be made again for `plan`."""
    work = work_of(workdir, dataset)
    found: list[tuple[Plan, list[ShardRecord]]] = []
    own: dict[int, tuple[ShardRecord, str]] = {}
    if output.manifest is not None:
        records = output.table.records
        found.append((Plan.of_manifest(output.manifest, [record.made_from for record in records]), records))
    for name in output.listing.unfinished_plans():
        if (old := read_plan(work / name)) is not None:
            versions = read_records(work / name / "shards")
            found.append((old, [record for record, _ in versions]))
            if old.fingerprint == plan.fingerprint:
                own = {record.shard: (record, version) for record, version in versions}
    holding = [(old, records, _shards_that_hold(old, plan, lists)) for old, records in found]
    usable = [(each, old.versions) for old, records, shards in holding for each in records if each.shard in shards]
    # Files of an unfinished stage are in no manifest: on a local disk, where bytes can change, they are hashed.
    files = [file for record, _ in usable for file in record.files]
    damaged = output.listing.problems(files, hash_unknown=workdir.is_local)

    def holds(record: ShardRecord) -> bool:
        return not any(file.path in damaged for file in record.files)

    kept: dict[int, ShardRecord] = {}
    others = output.manifest.properties.get(SKEW, {}).get("workers", []) if output.manifest is not None else []
    for record, made_with in usable:
        if record.shard not in kept and holds(record):
            kept[record.shard] = msgspec.structs.replace(record, made_from="")
            others = [*others, made_with] if made_with not in (plan.versions, *others) else others
    lost = {record_name(shard): version for shard, (record, version) in own.items() if not holds(record)}
    return Finished(kept, lost, _why(plan, output, [old for old, _ in found]), others if kept else [])


def _why(plan: Plan, output: Output, found: Sequence[Plan]) -> str:
    if any(old.fingerprint == plan.fingerprint for old in found[1 if output.manifest is not None else 0 :]):
        return INTERRUPTED
    if output.is_of(plan):
        shown = [f"{path} {problem}" for path, problem in sorted(output.problems.items())]
        more = f" and {len(shown) - 3} more files" if len(shown) > 3 else ""
        return ", ".join(shown[:3]) + more
    return difference(found[0], plan) if found else ""


def prepare(workdir: Storage, dataset: str, plan: Plan, finished: Finished) -> Storage:
    """The folder of the plan's work, with a record for each finished part, without those this attempt found damaged.

    Records that other attempts have written since are not touched. A finished dataset remains complete until the new
    one is published.
    """
    work = work_of(workdir, dataset) / plan.fingerprint[:16]
    content, found = seal(plan), work.read_version(PLAN_NAME)
    if found is None or found[0] != content:
        work.swap(PLAN_NAME, content, found[1] if found else None)
    records = work / "shards"
    kept = {record_name(shard): record for shard, record in finished.kept.items()}

    def put(name: str) -> None:  # an empty record counts as none
        records.swap(name, kept[name].to_json() if name in kept else b"", finished.damaged.get(name))

    at_once(put, sorted(kept.keys() - set(records.names()) | finished.damaged.keys()))
    return work


def read_plan(work: Storage) -> Plan | None:
    """The plan whose unfinished work is in the folder `work`; None if it is missing or damaged."""
    try:
        plan = unseal(work.read(PLAN_NAME), Plan, PLAN_NAME)
    except (FileNotFoundError, ManifestError):
        return None
    return plan if plan.fingerprint.startswith(work.uri.rpartition("/")[2]) else None


def read_records(records: Storage) -> list[tuple[ShardRecord, str]]:
    """The records in a folder with their versions, without damaged ones, whose parts run again."""
    found = at_once(partial(find_record, records), records.names())
    return [(record, version) for record, version in found if record is not None and version is not None]


def recorded_plan(workdir: Storage, dataset: str) -> Plan | None:
    """The plan of the finished output, or of the interrupted work; None if there is neither, or the manifest is
    damaged."""
    manifest = usable_manifest(workdir, dataset)
    if manifest is not None:
        return Plan.of_manifest(manifest, [])
    work = work_of(workdir, dataset)
    folders = sorted({name.split("/")[0] for name in work.names()})
    return next((plan for name in folders if (plan := read_plan(work / name)) is not None), None)


def _shards_that_hold(old: Plan, new: Plan, lists: Sequence[str]) -> set[int]:
    """The shards of an old plan that the new one would make with the same bytes."""
    if old.fingerprint == new.fingerprint:
        return set(range(new.num_shards))

    def apart_from_inputs(plan: Plan) -> list[Any]:
        # For a stage that works shard by shard, `made_from` covers lists and bases.
        sources = [
            source for source in plan.sources if source.get("name") not in lists and source.get("kind") != "base"
        ]
        return [plan.stage, plan.stage_version, plan.options, sources, plan.versions]

    if len(old.made_from) != len(new.made_from) or apart_from_inputs(old) != apart_from_inputs(new):
        return set()
    return {shard for shard, digest in enumerate(new.made_from) if old.made_from[shard] == digest}


def difference(old: Plan, new: Plan) -> str:
    """Why an output is not what the new plan makes: the first difference between the plans."""
    if old.stage != new.stage:
        return f"the output was written by {old.stage}"
    if old.stage_version != new.stage_version:
        return f"the stage's code is of version {new.stage_version}, was {old.stage_version}"
    for name in {**new.options, **old.options}:
        if old.options.get(name) != (value := new.options.get(name)):
            if isinstance(value or old.options.get(name), dict):  # digests, which mean nothing to a reader
                return f"the {name.lstrip('_')} have changed"
            return f"{name} is {value!r}, was {old.options.get(name)!r}"
    for name, digest in new.inputs.items():
        if old.inputs.get(name) != digest:
            return f"{name}/ has changed"
    for name in old.inputs:
        if name not in new.inputs:
            return f"{name}/ is gone"
    names = sorted(
        {
            str(source.get("name") or source.get("kind"))
            for one, other in ((old.sources, new.sources), (new.sources, old.sources))
            for source in one
            if source not in other
        }
    )
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"the source files have changed: {shown or 'their order'}"


OURS = "owt-pipeline"
ALWAYS = ("pyarrow",)
"""Distributions that shape every dataset; a stage names its own (`Stage.libraries`)."""
MISSING = "not installed"
_SHAPING = (".py", ".sql", ".npz", ".txt", ".toml", ".md", ".html", ".css", ".js")  # kinds of files of this package


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """The versions of distributions in this process."""
    return {name: _version(name) for name in (*ALWAYS, *names)}


def versions_of_everything(names: Iterable[str]) -> dict[str, str]:
    """The versions of distributions, of Python, and of this code, with a digest, as two wheels may share a number."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, OURS: f"{_version(OURS)} ({code_digest()})", **dict(sorted(versions_of(names).items()))}


def version_skew(expected: Mapping[str, str], allowed: bool) -> dict[str, str]:
    """The versions of this process if they differ from those `expected`; empty if they do not.

    Raises UserError with both lists if they differ and that is not `allowed`.
    """
    found = versions_of_everything(name for name in expected if name not in ("python", OURS))
    if found == dict(expected):
        return {}
    if not allowed:
        raise UserError(
            f"a worker on {platform.node()} has other versions of what shapes bytes than the process that started the "
            f"run. There: {_listed(found, expected)}. Here: {_listed(expected, found)}. Install the same wheel and "
            "versions in both (constraints.txt), or give --allow_version_skew"
        )
    return found


def _listed(versions: Mapping[str, str], others: Mapping[str, str]) -> str:
    """The versions for a message, those that differ from `others` first."""
    names = sorted(versions, key=lambda name: (versions[name] == others.get(name), name))
    return ", ".join(f"{name} {versions[name]}" for name in names)


@functools.cache
def code_digest() -> str:
    """Eight hex digits of a digest of this package's code and of the queries, model, lists and templates it reads."""
    digest = hashlib.sha256()
    package = sys.modules["owt_pipeline"]
    for module in (package, schemas):
        root = Path(str(module.__file__)).parent
        for path in sorted(path for path in root.rglob("*") if path.suffix in _SHAPING):
            digest.update(f"{path.relative_to(root.parent).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


@functools.cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return MISSING
