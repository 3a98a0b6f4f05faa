"""`owt run --dry_run`: the plan of a run, stage by stage, without running it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from owt_pipeline.command_line import aligned
from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.plan import StagePlan, plan_stages
from owt_pipeline.engine.runner import without_imported
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.ledger.root import read_root


@dataclass(frozen=True)
class Step:
    """The plan for one stage, as `--dry_run` prints it.

    Attributes:
      stage: its name.
      verdict: `finished`, `runs`, or `continues` after an interruption.
      num_pending: number of its shards that would be built.
      num_shards: number of all its shards.
      num_rows: rows that enter the pending shards; None if an earlier stage has to build them.
      cause: why the stage runs; "" if it does not run.
    """

    stage: str
    verdict: str
    num_pending: int
    num_shards: int
    num_rows: int | None
    cause: str = ""


def dry_run(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Step]:
    """Return the plan for each stage, in order.

    Raises UserError where `owt run` would, before it writes anything.
    """
    stages = without_imported(stages, runtime.workdir, read_root(runtime.workdir)[0])
    root, _ = record_generations(stages, runtime, write=False)
    plans = plan_stages(stages, runtime.workdir, root)
    return [_step(plan, plans[:number]) for number, plan in enumerate(plans)]


def _step(plan: StagePlan, earlier_plans: Sequence[StagePlan]) -> Step:
    """Return the step of a plan; the plans of the stages before it show how many rows enter."""
    stage = plan.stage
    if plan.finished:
        return Step(stage.name, "finished", num_pending=0, num_shards=len(plan.keys), num_rows=0)
    input_plans = [earlier for earlier in earlier_plans if earlier.stage.output in stage.inputs]
    is_new = any(cause.part == "new" for cause in plan.causes.values())
    num_rows = None
    # Here the rows that enter a shard are the rows of the input's shard with the same number.
    if len(input_plans) == 1 and stage.reads == "shard":
        num_rows = _num_rows_of(input_plans[0], plan.pending)
    return Step(
        stage.name,
        "continues" if plan.is_resumed else "runs",
        num_pending=len(plan.pending),
        num_shards=len(plan.keys),
        num_rows=num_rows,
        cause=plan.why or ("not built yet" if is_new else ""),
    )


def _num_rows_of(plan: StagePlan, shards: Iterable[int]) -> int | None:
    """Return the rows of a stage's shards; None if one of the shards is pending."""
    num_rows = 0
    for shard in shards:
        record = plan.records[shard]
        if record is None or record.shard in plan.pending:
            return None
        num_rows += sum(file.rows for file in record.files if file.kind == "data")
    return num_rows


def dry_run_table(steps: Sequence[Step]) -> str:
    """Return the steps as text."""
    cells = [("stage", "", "shards", "rows", "why")]
    for step in steps:
        shards = str(step.num_shards)
        if step.num_pending:
            shards = f"{step.num_pending} of {step.num_shards}"
        rows = ""
        if step.num_rows is None:
            rows = "?"
        elif step.num_rows:
            rows = f"{step.num_rows:,}"
        cells.append((step.stage, step.verdict, shards, rows, step.cause))
    return "\n".join(aligned(cells, left=(0, 1, 4)))
