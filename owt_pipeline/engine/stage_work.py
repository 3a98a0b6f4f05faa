"""Prepare a stage to work: write its plan, and open the plan in every process that works on it."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from owt_pipeline.engine.keys import digest_of
from owt_pipeline.engine.plan import StagePlan, plan_stages, read_list
from owt_pipeline.engine.stage import Plan, Runtime, Stage, StageRun, work_of
from owt_pipeline.engine.workers import keep_pandas_out
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_root
from schemas.manifest import Manifest, Root

logger = logging.getLogger("owt")


def plan_stage(
    stage: Stage, options: Any, runtime: Runtime, later: Sequence[tuple[Stage, Any]] = ()
) -> Manifest | StageRun:
    """Return the manifest if the output is finished, otherwise the stage ready to work.

    `later` are the stages after it. Their shards may need lost files of its output. Raises
    UserError for errors that the user can fix.
    """
    runtime.check_versions()
    workdir = runtime.workdir
    root, _ = read_root(workdir)
    plan = plan_stages([(stage, options), *later], workdir, root)[0]
    if plan.finished and plan.published is not None:
        return plan.published
    why = plan.why
    if why:
        num_pending = len(plan.pending)
        num_shards = len(plan.keys)
        logger.info("%s: %s; running %d of %d shards", stage.name, why, num_pending, num_shards)
    workdir.remove_dead_spools()
    logger.debug("%s: %s", stage.name, options)
    return _set_up(plan, runtime, root)


def _set_up(plan: StagePlan, runtime: Runtime, root: Root) -> StageRun:
    """Write the plan's file, and return the stage ready to work."""
    stage = plan.stage
    workdir = runtime.workdir
    names = [*stage.inputs, *stage.optional_inputs]
    if read_list(workdir, root.datasets.get(stage.output)) is not None:
        names.append(stage.output)
    datasets = {name: root.datasets[name] for name in names if name in root.datasets}
    bare_plan = Plan(
        root=msgspec.structs.replace(plan.root, datasets=datasets),
        keys=plan.keys,
        parts={shard: plan.parts[shard] for shard in sorted(plan.pending)},
        pending=frozenset(plan.pending),
        patched=frozenset(plan.patched),
        lost=frozenset(plan.lost),
        num_settled=plan.num_settled,
        started=time.time(),
    )
    run = StageRun(stage, plan.options, runtime, bare_plan, f"{_name_of_work(plan)}/")
    summary = stage.set_up(run)
    for path, content in summary.contents.items():
        workdir.write(path, content)
    complete_plan = msgspec.structs.replace(
        bare_plan, properties=dict(summary.properties or {}), assets=summary.assets
    )
    encoded = msgspec.json.encode(complete_plan)
    digest = hashlib.sha256(encoded).hexdigest()[:8]
    run.work.write(f"plan-{digest}.json", encoded)
    return dataclasses.replace(run, plan=complete_plan, name=f"{run.name}{digest}")


def _name_of_work(plan: StagePlan) -> str:
    """Return the name of the folder of the intermediate steps.

    All attempts at the shards of the generations that are not published yet share it. It does not
    depend on which of these shards are finished, so an interrupted stage finds its steps again.
    """
    return digest_of([plan.keys, plan.num_settled])[:16]


# The run that this process works on, with its key. It is opened once, not once per part.
_opened: tuple[Any, StageRun] | None = None


def open_run(stage: Stage, options: Any, runtime: Runtime, name: str) -> StageRun:
    """Return the stage at work, in a process that makes its parts or publishes it.

    `name` is `StageRun.name`. Raises FileNotFoundError if the plan was swept away.
    """
    global _opened
    key = (stage.name, options, runtime.workdir.uri, runtime.workers, runtime.run, name)
    # Read once: another thread may replace it.
    opened = _opened
    if opened is None or opened[0] != key:
        opened = (key, _open_run(stage, options, runtime, name))
        _opened = opened
    return opened[1]


def _open_run(stage: Stage, options: Any, runtime: Runtime, name: str) -> StageRun:
    keep_pandas_out()
    runtime.check_versions()
    folder, _, digest = name.partition("/")
    work = work_of(runtime.workdir, stage) / folder
    plan = msgspec.json.decode(work.read(f"plan-{digest}.json"), type=Plan)
    return StageRun(stage, options, runtime, plan, name)


def is_published(run: StageRun) -> bool:
    """Return whether the output is published with the keys of this plan, and complete.

    Then an attempt at it is late.
    """
    root, _ = read_root(run.workdir)
    manifest = root.datasets.get(run.stage.output)
    if manifest is None or manifest.stage != run.stage.name:
        return False
    table = DatasetReader(run.workdir, manifest).table_of_files
    if [record.key for record in table.records] != run.plan.keys:
        return False
    made_again = [file for shard in run.plan.lost for file in table.records[shard].files]
    return not lost_files(run.workdir, made_again)
