"""Find the shards that have to be made, by their keys (as `make` does by file times).

1. Forward over the stages: compute the key of each shard. It names everything that the shard's
   bytes depend on, among them the digests of its input files. So the key is known only if the
   records of its inputs are known.
2. Look up each key. A shard is *missing* (it has no record), *found*, or *lost* (it has a record,
   but its files are missing).
3. Backward over the stages: make the missing shards. Make a lost one if its dataset is final or not
   published, if a shard that is going to be made reads it, or if it lost a file of
   KINDS_NEVER_DELETED. `_find_lost_shards` has the details.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from owt_pipeline.engine.keys import (
    Cause,
    KeyParts,
    Wanted,
    cause_of,
    describe_causes,
    first_difference,
    shards_read_by,
    sources_of,
    with_generations_of,
)
from owt_pipeline.engine.stage import (
    FINAL_DATASETS,
    KINDS_NEVER_DELETED,
    Stage,
    recorded_sources,
    records_of,
)
from owt_pipeline.engine.takedowns import in_force
from owt_pipeline.engine.workers import keep_pandas_out
from owt_pipeline.errors import NotFound, UserError, command
from owt_pipeline.ledger.commit import RecordPath, lost_files
from owt_pipeline.ledger.dataset import DatasetReader, RecordsReader
from owt_pipeline.storage.folder import Storage, at_once
from schemas import DATASETS
from schemas.manifest import FileTable, Manifest, Root, ShardRecord
from schemas.quantities import pluralize

logger = logging.getLogger("owt")

# Kinds whose loss is checked; files of other kinds may be missing.
_KINDS = (*KINDS_NEVER_DELETED, "data", "warc")


@dataclass
class StagePlan:
    """The key and the record of each shard of a stage's output, and the shards to make.

    Attributes:
      stage: the stage.
      options: its options.
      root: the root manifest with the generations that all inputs have. While a generation is half
        added, a stage that runs by itself has fewer shards than the run.
      keys: the key of each shard; empty if it depends on a shard that has to be made first.
      parts: the digests of the parts of each shard's key.
      records: the record of each shard that has this key; None if it is missing.
      published_records: the published records, by shard.
      published: the manifest if it has these records, and its assets are complete and up to date.
        Then nothing needs to be published unless something is made.
      lost: shards that have a record but miss files of it.
      pending: the shards to make.
      patched: the pending shards that are made from the published shards, without the inputs.
      causes: why each pending shard is made.
      problem_by_path: the problems of lost files.
      is_resumed: whether an interrupted stage has made some of the shards.
      num_settled: number of shards of the first generations. A generation counts if all its shards
        and all earlier shards are published with these keys.
    """

    stage: Stage
    options: Any
    root: Root
    keys: list[str]
    parts: list[dict[str, str]]
    records: list[ShardRecord | None]
    published_records: Mapping[int, ShardRecord] = field(default_factory=dict)
    published: Manifest | None = None
    lost: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)
    patched: set[int] = field(default_factory=set)
    causes: dict[int, Cause] = field(default_factory=dict)
    problem_by_path: dict[str, str] = field(default_factory=dict)
    is_resumed: bool = False
    num_settled: int = 0

    @property
    def finished(self) -> bool:
        """Whether the output is published and complete."""
        return self.published is not None and not self.pending

    @property
    def why(self) -> str:
        """Return why the shards are made, in a few words; "" for a first run."""
        why = describe_causes(self.causes, self.problem_by_path)
        if not self.is_resumed:
            return why
        num_found = sum(record is not None for record in self.records)
        resuming = f"resuming with {num_found} of {len(self.keys)} shards finished"
        return f"{resuming}: {why}" if why else resuming


def plan_stages(
    stages: Sequence[tuple[Stage, Any]], workdir: Storage, root: Root
) -> list[StagePlan]:
    """Return the plan of each stage, in order.

    If none of the stages makes an input, the published dataset is read. Raises UserError if an
    input is missing, if files of an input are missing that none of the stages rebuilds, or if a
    file of takedowns is missing or damaged.
    """
    keep_pandas_out()
    root = in_force(workdir, root)
    plans: list[StagePlan] = []
    plan_by_dataset: dict[str, StagePlan] = {}
    for stage, options in stages:
        plan = _plan_keys(stage, options, workdir, root, plan_by_dataset)
        _find_records(plan, workdir)
        plans.append(plan)
        plan_by_dataset[stage.output] = plan
    needed: dict[str, set[int]] = {}
    if len(plans) == 1 and not plans[0].stage.inputs:
        # A stage that reads sources and runs by itself rebuilds its lost shards. The remedy of an
        # import promises it (`DatasetReader.remedy`).
        needed[plans[0].stage.output] = set(range(len(plans[0].keys)))
    for plan in reversed(plans):
        _choose_shards(plan, workdir, needed)
    for name in needed.keys() & root.datasets.keys() - plan_by_dataset.keys():
        _check_complete(DatasetReader(workdir, root.datasets[name]), needed[name])
    return plans


def _check_complete(reader: DatasetReader, shards: Iterable[int]) -> None:
    """Raise UserError if files of these shards, which none of the stages makes, are missing."""
    files = [file for shard in sorted(shards) for file in reader.files("data", shard)]
    for path, problem in lost_files(reader.workdir, files).items():
        # The remedy is a complete run. A run with `--until` would not rebuild files that it does
        # not need.
        raise UserError(f"{reader.workdir.path(path)} {problem}: {reader.remedy}")


def _plan_keys(
    stage: Stage,
    options: Any,
    workdir: Storage,
    root: Root,
    plan_by_dataset: Mapping[str, StagePlan],
) -> StagePlan:
    """Return the plan of a stage with the keys of its shards."""
    inputs: dict[str, Sequence[ShardRecord | None]] = {}
    for name in (*stage.inputs, *stage.optional_inputs):
        if name in plan_by_dataset:
            inputs[name] = plan_by_dataset[name].records
        elif name in root.datasets:
            inputs[name] = DatasetReader(workdir, root.datasets[name]).table_of_files.records
        elif name in stage.inputs:
            raise NotFound(
                f"{workdir}/{name} is missing or not finished: run "
                f"{command('owt', 'run', workdir, '--until', DATASETS[name].stage)} first"
            )
    # The records are read, since a published list may be lost, or out of date.
    readers = {
        name: RecordsReader(workdir, root.datasets[name], filter(None, records))
        for name, records in inputs.items()
        if name in root.datasets
    }
    root = with_generations_of(root, [inputs[name] for name in stage.inputs])
    num_shards = root.num_shards if stage.reads != "all" else 1
    recorded = recorded_sources(stage, root.datasets.get(stage.output))
    external_inputs = stage.external_inputs(options, recorded)
    key_parts = KeyParts(stage, options, root, external_inputs, inputs)
    plan = StagePlan(
        stage, options, root, [""] * num_shards, [{}] * num_shards, [None] * num_shards
    )
    for shard in range(num_shards):
        history = stage.shard_history(options, root, readers, shard)
        parts = key_parts.of_shard(shard, history)
        if parts is None:
            plan.causes[shard] = Cause(key_parts.missing_input(shard))
            continue
        plan.parts[shard] = parts
        plan.keys[shard] = key_parts.key_of(shard, parts)
    return plan


def _find_records(plan: StagePlan, workdir: Storage) -> None:
    """Find the records of the plan's keys, in the published list or in their own files.

    Raises UserError if more shards are published than the plan has.
    """
    manifest = plan.root.datasets.get(plan.stage.output)
    if manifest is not None and manifest.stage != plan.stage.name:
        manifest = None
    table = read_list(workdir, manifest)
    if table is not None:
        plan.published_records = {record.shard: record for record in table.records}
    published = plan.published_records
    for shard, key in enumerate(plan.keys):
        record = published.get(shard)
        if record is not None and key and record.key == key:
            plan.records[shard] = record
    num_shards = len(plan.keys)
    if len(published) == num_shards and None not in plan.records:
        plan.published = manifest
        return
    if len(published) > num_shards:
        raise UserError(
            f"{workdir}/{plan.stage.output} has "
            f"{pluralize(len(published), 'published shard')}, but "
            f"the run has only {num_shards}"
        )
    _find_unpublished_records(plan, workdir)
    _find_causes(plan, manifest)


def _find_causes(plan: StagePlan, manifest: Manifest | None) -> None:
    """Compare the missing shards with the published ones."""
    if manifest is None or not plan.published_records:
        for shard, record in enumerate(plan.records):
            if record is None:
                plan.causes[shard] = Cause("new")
        return
    stage = plan.stage
    external_inputs = stage.external_inputs(plan.options, manifest.sources)
    sources = [*external_inputs, *sources_of(stage, plan.root)]
    wanted = Wanted(plan.root, stage.version, stage.key_options(plan.options), sources)
    for shard, record in enumerate(plan.records):
        before = plan.published_records.get(shard)
        if record is not None:
            continue
        if before is None:
            plan.causes[shard] = Cause("added")
        elif plan.keys[shard]:
            plan.causes[shard] = cause_of(plan.parts[shard], before, manifest, wanted)


def _find_unpublished_records(plan: StagePlan, workdir: Storage) -> None:
    """Add the records that are not in the published list, and note whether a stage is resumed."""
    records = records_of(workdir, plan.stage)
    # One listing finds which records exist: opening every record at each plan took 9,035 reads
    # for 64 shards.
    names = set(records.names())
    record_paths = []
    for shard, key in enumerate(plan.keys):
        record_path = RecordPath(records, shard, key)
        if key and plan.records[shard] is None and record_path.name in names:
            record_paths.append(record_path)
    num_unpublished = 0
    for record, _ in at_once(RecordPath.find, record_paths):
        if record is not None:
            plan.records[record.shard] = record
            num_unpublished += 1
    plan.is_resumed = num_unpublished > 0 and None in plan.records


def read_list(workdir: Storage, manifest: Manifest | None) -> FileTable | None:
    """Return the list of files of a published dataset.

    If the list is damaged, logs a warning and returns None. The records name the same files.
    """
    if manifest is None:
        return None
    try:
        return DatasetReader(workdir, manifest).table_of_files
    except UserError as error:
        _warn_once(str(error))
        return None


@functools.lru_cache(64)
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _find_lost(
    plan: StagePlan, workdir: Storage, shards: Collection[int], kinds: Collection[str] = _KINDS
) -> dict[str, str]:
    """Add the `shards` that miss files of these kinds, or have damaged ones, to `plan.lost`.

    A file is damaged if its size is wrong. Returns the problem of each such file, by path.
    """
    records = []
    for shard in sorted(shards):
        record = plan.records[shard]
        if record is not None:
            records.append(record)
    files = [file for record in records for file in record.files if file.kind in kinds]
    problem_by_path = lost_files(workdir, files)
    for record in records:
        for file in record.files:
            if file.path in problem_by_path:
                plan.lost.add(record.shard)
                plan.causes[record.shard] = Cause(
                    "lost", f"{file.path} {problem_by_path[file.path]}"
                )
    return problem_by_path


def _choose_shards(plan: StagePlan, workdir: Storage, needed: dict[str, set[int]]) -> None:
    """Choose the shards to make.

    `needed` has the shards of each dataset that pending shards of later stages read. The shards
    that this stage reads are added to it.
    """
    missing = {shard for shard, record in enumerate(plan.records) if record is None}
    problems = _find_lost_shards(plan, workdir, needed, has_missing=bool(missing))
    assets: dict[str, str] = {}
    if plan.published is not None:
        table = DatasetReader(workdir, plan.published).table_of_files
        assets = lost_files(workdir, table.assets)
    plan.problem_by_path = problems | assets
    plan.pending = missing | plan.lost
    if assets:
        plan.published = None
    plan.num_settled = _count_settled(plan)
    read_for = plan.pending
    if plan.published is None and not plan.pending and len(plan.stage.steps) > 1:
        # The stage repeats its earlier steps, since the summary of its manifest needs their counts.
        read_for = set(range(len(plan.records)))
    for shard in read_for:
        if shard in plan.pending and _can_patch(plan, workdir, shard):
            plan.patched.add(shard)
            continue
        # Optional inputs are read if they exist.
        for name in plan.stage.inputs:
            needed.setdefault(name, set()).update(shards_read_by(plan.stage, plan.root, shard))


def _find_lost_shards(
    plan: StagePlan, workdir: Storage, needed: Mapping[str, set[int]], *, has_missing: bool
) -> dict[str, str]:
    """Find the lost shards that have to be rebuilt, and return the problem of each file by path.

    Files that nothing needs may be missing: deleting them frees the disk.
    """
    output = plan.stage.output
    reads_sources = not plan.stage.inputs
    all_shards = set(range(len(plan.records)))
    # Later generations of a stage that reads sources are made from its earlier shards.
    is_wanted = output in FINAL_DATASETS or (has_missing and reads_sources)
    # Files of unpublished records are checked, too. They may have been deleted together with the
    # files of an interrupted run.
    checks_all = is_wanted or plan.published is None
    checked = all_shards if checks_all else needed.get(output, set())
    # Without its rejects and places, a run loses URLs.
    problems = _find_lost(plan, workdir, all_shards, KINDS_NEVER_DELETED)
    problems |= _find_lost(plan, workdir, checked)
    if plan.lost and reads_sources and checked != all_shards:
        # A stage that reads sources makes a shard from its earlier shards, too.
        problems = _find_lost(plan, workdir, all_shards)
    return problems


def _count_settled(plan: StagePlan) -> int:
    """Return the number of shards of the first generations that are published with their keys."""
    if plan.stage.reads == "all":
        return 0
    published = plan.published_records
    num_settled = 0
    for generation in plan.root.generations:
        for shard in generation.shard_numbers:
            record = published.get(shard)
            if record is None or shard in plan.pending or record.key != plan.keys[shard]:
                return num_settled
        num_settled += generation.shards
    return num_settled


def _can_patch(plan: StagePlan, workdir: Storage, shard: int) -> bool:
    """Return whether a shard can be made from the published shard, without the inputs."""
    record = plan.published_records.get(shard)
    if not plan.stage.patched_part or record is None:
        return False
    difference = first_difference(plan.parts[shard], record.parts)
    return difference in ("", plan.stage.patched_part) and not lost_files(workdir, record.files)
