"""`owt run --dry_run`: what would run, and why. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from owt_pipeline.command_line import aligned
from owt_pipeline.engine.generations import begin
from owt_pipeline.engine.plan import StagePlan, look
from owt_pipeline.engine.runner import without_imported
from owt_pipeline.engine.stage import Runtime, Stage


@dataclass(frozen=True)
class Step:
    """What would happen to one stage.

    Attributes:
      stage: its name.
      verdict: `finished`, `runs`, or `continues` after an interruption.
      shards: how many of its shards would be made.
      of: how many it has.
      rows: rows that enter these shards; None if they are made from shards that are yet to be made.
      why: what differs, if it runs.
    """

    stage: str
    verdict: str
    shards: int
    of: int
    rows: int | None
    why: str = ""


def steps(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Step]:
    """What would happen to each stage, in order; raises UserError where `owt run` would, before it writes anything."""
    root, _ = begin(stages, runtime, write=False)
    stages = without_imported(stages, runtime.workdir, root)
    plans = look(stages, runtime.workdir, root)
    return [_step(plan, plans[:number]) for number, plan in enumerate(plans)]


def _step(plan: StagePlan, before: Sequence[StagePlan]) -> Step:
    if plan.finished:
        return Step(plan.stage.name, "finished", 0, len(plan.keys), 0)
    inputs = [other for other in before if other.stage.output in plan.stage.inputs]
    why = plan.why or next((f"{other.stage.output}/ changes" for other in inputs if other.make), "")
    rows: int | None = None
    if len(inputs) == 1 and plan.stage.reads == "shard":
        known = [inputs[0].rows[shard] for shard in plan.make]
        if all(row is not None and row.shard not in inputs[0].make for row in known):
            rows = sum(file.rows for row in known if row for file in row.files if file.kind == "data")
    verdict = "continues" if "continuing" in plan.why else "runs"
    return Step(plan.stage.name, verdict, len(plan.make), len(plan.keys), rows, why)


def table(found: Sequence[Step]) -> str:
    """The steps as text."""
    cells = [("stage", "", "shards", "rows", "why")]
    for step in found:
        shards = f"{step.shards} of {step.of}" if step.shards else str(step.of)
        rows = "?" if step.rows is None else f"{step.rows:,}" if step.rows else ""
        cells.append((step.stage, step.verdict, shards, rows, step.why))
    return "\n".join(aligned(cells, left=(0, 1, 4)))
