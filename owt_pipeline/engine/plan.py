"""Plans: which shards of which stages have to be made, found by their keys, as make finds
targets by their times.

Forward over the stages: a shard's key names everything that its bytes depend on, among them the
digests of the files that it reads, so it is known if the rows of its inputs are. With the key, a
shard is *missing* (nothing was made from it), *found*, or *gone* (it was made, and its files are no
longer there). Backward: make what is missing, and what is gone if it belongs to a final dataset or
if a shard to be made reads it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from owt_pipeline.engine.generations import shaping_sources
from owt_pipeline.engine.keys import (
    ShardContents,
    digest_of,
    shards_read_by,
    sources_of,
    with_generations_of,
)
from owt_pipeline.engine.stage import (
    FINAL,
    KEPT_FOR_GOOD,
    Plan,
    Runtime,
    Stage,
    StageRun,
    recorded_of,
    records_of,
    work_of,
)
from owt_pipeline.engine.workers import keep_pandas_out
from owt_pipeline.errors import NotFound, UserError, command
from owt_pipeline.ledger.commit import Place, lost_files
from owt_pipeline.ledger.dataset import DatasetReader, RecordsReader
from owt_pipeline.ledger.root import read_root
from owt_pipeline.storage.folder import Storage, at_once
from schemas import DATASETS
from schemas.manifest import FileTable, Manifest, Root, ShardRecord

logger = logging.getLogger("owt")


_KINDS = (*KEPT_FOR_GOOD, "data", "warc")


@dataclass
class StagePlan:
    """What is known of a stage's output, shard by shard, and what has to be made.

    Attributes:
      root: the root manifest with the generations that all inputs have. While a generation is half
        added, a stage that runs alone has fewer shards than the run.
      keys: the key of each shard; empty if it depends on a shard that is yet to be made.
      made_from: likewise, without what changes from outside.
      rows: the record of each shard that was made from this key; None if it is missing.
      gone: shards whose files are lost: those of the row, or those that only a takedown changes.
      make: the shards to make.
      why: why, in a few words.
      before: the published records, by shard.
      settled: number of shards of the first generations all of whose shards are published with
        these keys.
      published: the manifest if it has these rows; then nothing needs to be published unless
        something is made.
    """

    stage: Stage
    options: Any
    root: Root
    keys: list[str]
    made_from: list[str]
    rows: list[ShardRecord | None]
    before: Mapping[int, ShardRecord] = field(default_factory=dict)
    published: Manifest | None = None
    gone: set[int] = field(default_factory=set)
    make: set[int] = field(default_factory=set)
    why: str = ""
    settled: int = 0

    @property
    def finished(self) -> bool:
        """Whether the output is published and complete."""
        return self.published is not None and not self.make


def look(stages: Sequence[tuple[Stage, Any]], workdir: Storage, root: Root) -> list[StagePlan]:
    """The plan of each stage, in order; of the inputs that none of them makes, the published
    rows count.

    Raises UserError if an input is missing, or gone and not to be made again.
    """
    keep_pandas_out()
    plans: list[StagePlan] = []
    known: dict[str, StagePlan] = {}
    for stage, options in stages:
        plan = _forward(stage, options, workdir, root, known)
        plans.append(plan)
        known[stage.output] = plan
    needed: dict[str, set[int]] = {}
    if (
        len(plans) == 1 and not plans[0].stage.inputs
    ):  # which reads its sources again if that is all it is asked for
        needed[plans[0].stage.output] = set(range(len(plans[0].rows)))
    for plan in reversed(plans):
        _backward(plan, workdir, needed)
    for name in needed.keys() & root.datasets.keys() - known.keys():
        _check_there(DatasetReader(workdir, root.datasets[name]), needed[name])
    return plans


def _check_there(reader: DatasetReader, shards: Iterable[int]) -> None:
    """Raise UserError if files of these shards, which none of the stages makes, are gone."""
    lost = lost_files(
        reader.workdir, [file for shard in sorted(shards) for file in reader.files("data", shard)]
    )
    for path, problem in lost.items():
        # Not a run until its maker: to that, rows which nothing needs may be gone.
        raise UserError(f"{reader.workdir.path(path)} {problem}: {reader.remedy}")


def _forward(
    stage: Stage, options: Any, workdir: Storage, root: Root, known: Mapping[str, StagePlan]
) -> StagePlan:
    inputs: dict[str, Sequence[ShardRecord | None]] = {}
    for name in (*stage.inputs, *stage.optional_inputs):
        if name in known:
            inputs[name] = known[name].rows
        elif name in root.datasets:
            inputs[name] = DatasetReader(workdir, root.datasets[name]).table_of_files.records
        elif name in stage.inputs:
            raise NotFound(
                f"{workdir}/{name} is missing or not finished: run "
                f"{command('owt', 'run', workdir, '--until', DATASETS[name].stage)} first"
            )
    # By records: a published list may be lost, or out of date.
    readers = {
        name: RecordsReader(workdir, root.datasets[name], filter(None, records))
        for name, records in inputs.items()
        if name in root.datasets
    }
    root = with_generations_of(root, [inputs[name] for name in stage.inputs])
    num_shards = root.num_shards if stage.reads != "all" else 1
    outside = stage.outside(options, recorded_of(stage, root.datasets.get(stage.output)))
    contents = ShardContents(stage, options, root, outside, inputs)
    plan = StagePlan(
        stage, options, root, [""] * num_shards, [""] * num_shards, [None] * num_shards
    )
    for shard in range(num_shards):
        content = contents.of_shard(shard)
        if content is None:
            continue
        plan.made_from[shard] = digest_of(content)
        history = stage.of_shard(options, root, readers, shard)
        plan.keys[shard] = digest_of([*content, history]) if history else plan.made_from[shard]
    _find_rows(plan, workdir)
    return plan


def _find_rows(plan: StagePlan, workdir: Storage) -> None:
    """Find the shards that were made from their keys: in the published list, else by their
    records."""
    manifest = plan.root.datasets.get(plan.stage.output)
    if manifest is not None and manifest.stage != plan.stage.name:
        manifest = None
    table = _table(workdir, manifest)
    published = plan.before = {record.shard: record for record in table.records} if table else {}
    for shard, key in enumerate(plan.keys):
        row = published.get(shard)
        plan.rows[shard] = row if row is not None and key and row.key == key else None
    if len(published) == len(plan.keys) and None not in plan.rows:
        plan.published = manifest
        return
    if len(published) > len(plan.keys):
        raise UserError(
            f"{workdir} has {len(published)} shards of {plan.stage.output}/, but its settings ask "
            f"for {len(plan.keys)}"
        )
    records = records_of(workdir, plan.stage)
    names = set(records.names())
    places = [
        Place(records, shard, key)
        for shard, key in enumerate(plan.keys)
        if key and plan.rows[shard] is None
    ]
    found = at_once(Place.find, [place for place in places if place.name in names])
    for record, _ in found:
        if record is not None:
            plan.rows[record.shard] = record
    made = [row for row in plan.rows if row is not None]
    continued = any(
        row.shard not in published or published[row.shard].key != row.key for row in made
    )
    if continued and len(made) < len(plan.keys):
        plan.why = f"{len(made)} of {len(plan.keys)} shards are finished; continuing"
    elif manifest is not None and plan.keys[0]:
        plan.why = difference(manifest, plan)


def _table(workdir: Storage, manifest: Manifest | None) -> FileTable | None:
    """The list of files of a published dataset; None, with a warning, if it is damaged: records
    have the same rows."""
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


def _find_gone(
    plan: StagePlan, workdir: Storage, shards: set[int], kinds: Collection[str] = _KINDS
) -> dict[str, str]:
    """Add those of `shards` of which files of these kinds are lost to `plan.gone`.

    Returns what is wrong with each file, by path.
    """
    rows = [row for shard in sorted(shards) if (row := plan.rows[shard]) is not None]
    lost = lost_files(workdir, [file for row in rows for file in row.files if file.kind in kinds])
    plan.gone |= {row.shard for row in rows if any(file.path in lost for file in row.files)}
    return lost


def _backward(plan: StagePlan, workdir: Storage, needed: dict[str, set[int]]) -> None:
    """Choose the shards to make, and add those of its inputs that they read to `needed`."""
    stage, root = plan.stage, plan.root
    plan.make = {shard for shard, row in enumerate(plan.rows) if row is None}
    # Later generations of a stage that reads sources are made from its earlier shards.
    is_wanted = stage.output in FINAL or bool(plan.make and not stage.inputs)
    everything = set(range(len(plan.rows)))
    # Rows of records that are not published are looked at too: their files may be gone with what
    # made them.
    looked_at = (
        everything if is_wanted or plan.published is None else needed.get(stage.output, set())
    )
    # Rejects, and where pages lie, are never deleted to free the disk: without them, URLs are lost.
    lost = _find_gone(plan, workdir, everything, KEPT_FOR_GOOD)
    lost |= _find_gone(plan, workdir, looked_at)
    if (
        plan.gone and not stage.inputs and looked_at != everything
    ):  # it reads its earlier shards, too
        lost = _find_gone(plan, workdir, everything)
    assets = {}
    if plan.published is not None:
        assets = lost_files(workdir, DatasetReader(workdir, plan.published).table_of_files.assets)
    if plan.gone or assets:
        problems = lost | assets
        first = next(iter(sorted(problems.items())))
        plan.why = f"{first[0]} {first[1]}" + (
            f", and {len(problems) - 1} more files" if len(problems) > 1 else ""
        )
    plan.make |= plan.gone
    if assets:
        plan.published = None
    before = plan.before
    for generation in root.generations if stage.reads != "all" else ():
        keys = [
            before[shard].key
            for shard in generation.range
            if shard in before and shard not in plan.make
        ]
        if keys != [plan.keys[shard] for shard in generation.range]:
            break
        plan.settled += generation.shards
    for shard in plan.make:
        mine = before.get(shard)
        if stage.can_patch and mine is not None and mine.made_from == plan.made_from[shard]:
            if not lost_files(workdir, mine.files):
                continue
            # The workers must not make it from these files either.
            plan.gone.add(shard)
        for name in stage.inputs:  # optional ones are read if they are there
            needed.setdefault(name, set()).update(shards_read_by(stage, root, shard))


def difference(manifest: Manifest, plan: StagePlan) -> str:
    """Why an output is not what the plan makes: the first difference."""
    stage = plan.stage
    if manifest.stage_version != stage.version:
        return f"the stage's code is of version {stage.version}, was {manifest.stage_version}"
    now = stage.shaping(plan.options)
    for name in {**now, **manifest.options}:
        if manifest.options.get(name) != now.get(name):
            return f"{name} is {now.get(name)!r}, was {manifest.options.get(name)!r}"
    if manifest.num_shards != len(plan.keys):
        return f"{len(plan.keys) - manifest.num_shards} shards were added"
    sources = shaping_sources(
        [*stage.outside(plan.options, manifest.sources), *sources_of(stage, plan.root)]
    )
    before = shaping_sources(manifest.sources)
    names = sorted({str(s.get("name") or s.get("kind")) for s in sources if s not in before})
    if names:
        return f"{', '.join(names[:3])} {'has' if len(names) == 1 else 'have'} changed"
    changed = sum(row is None for row in plan.rows)
    return f"what {changed} of {len(plan.keys)} shards are made from has changed"


def plan_stage(
    stage: Stage, options: Any, runtime: Runtime, later: Sequence[tuple[Stage, Any]] = ()
) -> Manifest | StageRun:
    """The manifest if the output is finished, otherwise the stage ready to work.

    `later` are the stages after it, whose shards may need files that are gone. Raises UserError for
    errors that the user can fix.
    """
    runtime.check_versions()
    workdir = runtime.workdir
    root, _ = read_root(workdir)
    plan = look([(stage, options), *later], workdir, root)[0]
    if plan.finished and plan.published is not None:
        return plan.published
    if plan.why:
        logger.info(
            "%s: %s; %d of %d shards run", stage.name, plan.why, len(plan.make), len(plan.keys)
        )
    names = [*stage.inputs, *stage.optional_inputs]
    if _table(workdir, root.datasets.get(stage.output)) is not None:
        names.append(stage.output)
    datasets = {name: root.datasets[name] for name in names if name in root.datasets}
    planned = Plan(
        root=msgspec.structs.replace(plan.root, datasets=datasets),
        keys=plan.keys,
        made_from=plan.made_from,
        make=frozenset(plan.make),
        gone=frozenset(plan.gone),
        settled=plan.settled,
        started=time.time(),
    )
    run = StageRun(stage, options, runtime, planned, f"{_name_of_work(plan)}/")
    workdir.remove_dead_spools()
    logger.debug("%s: %s", stage.name, options)
    summary = stage.set_up(run)
    for path, content in summary.contents.items():
        workdir.write(path, content)
    planned = msgspec.structs.replace(
        planned, properties=dict(summary.properties or {}), assets=summary.assets
    )
    content = msgspec.json.encode(planned)
    digest = hashlib.sha256(content).hexdigest()[:8]
    run.work.write(f"plan-{digest}.json", content)
    return dataclasses.replace(run, plan=planned, name=f"{run.name}{digest}")


def _name_of_work(plan: StagePlan) -> str:
    """Intermediate steps are shared by all attempts at the shards of the generations that are
    not published yet. Which of these shards are finished does not count, so an interrupted stage
    finds its steps again."""
    return digest_of([plan.keys, plan.settled])[:16]


_opened: tuple[Any, StageRun] | None = (
    None  # the run this process works on: opened once, not once per part
)


def open_run(stage: Stage, options: Any, runtime: Runtime, name: str) -> StageRun:
    """The stage at work, in a process that makes its parts or publishes it; `name` is
    `StageRun.name`.

    Raises FileNotFoundError if the plan was swept away.
    """
    global _opened
    key = (stage.name, options, runtime.workdir.uri, runtime.workers, runtime.run, name)
    found = _opened  # another thread may replace it
    if found is None or found[0] != key:
        found = _opened = (key, _open_run(stage, options, runtime, name))
    return found[1]


def _open_run(stage: Stage, options: Any, runtime: Runtime, name: str) -> StageRun:
    keep_pandas_out()
    runtime.check_versions()
    folder, _, digest = name.partition("/")
    work = work_of(runtime.workdir, stage) / folder
    plan = msgspec.json.decode(work.read(f"plan-{digest}.json"), type=Plan)
    return StageRun(stage, options, runtime, plan, name)


def is_published(run: StageRun) -> bool:
    """Whether the output is published with the keys of this plan, and complete, so that an
    attempt at it is late."""
    root, _ = read_root(run.workdir)
    manifest = root.datasets.get(run.stage.output)
    if manifest is None or manifest.stage != run.stage.name:
        return False
    table = DatasetReader(run.workdir, manifest).table_of_files
    if [record.key for record in table.records] != run.plan.keys:
        return False
    return not lost_files(
        run.workdir, [file for shard in run.plan.gone for file in table.records[shard].files]
    )
