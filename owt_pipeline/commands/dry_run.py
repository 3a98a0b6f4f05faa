"""`owt run --dry_run`: what would run, and why, on how many rows where that is known. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from owt_pipeline.command_line import aligned
from owt_pipeline.engine.phases import check_replaceable
from owt_pipeline.engine.stage import Runtime, Stage, make_plan, with_shards
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.plan import INTERRUPTED, Output, Plan, finished_parts, look_at, usable_manifest
from owt_pipeline.storage.folder import Storage
from schemas import Reason
from schemas.manifest import Manifest
from schemas.reasons import TEMPORARY

FINISHED = "finished"


@dataclass(frozen=True)
class Verdict:
    """What would happen to one stage.

    Attributes:
      stage: its name.
      what: `finished`, `runs`, `continues`, or `may run`: its input is made anew and may come out the same.
      why: what differs, if it runs.
      rows: rows that enter; None if the input is not made yet.
    """

    stage: str
    what: str
    why: str = ""
    rows: int | None = None


def verdicts(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Verdict]:
    """What would happen to each stage, in order.

    Raises UserError if a source cannot be read, or pages of the web are lost.
    """
    made: dict[str, Manifest | None] = {}  # the datasets that the stages read; None for one that is made anew
    imported = usable_manifest(runtime.workdir, "documents")
    if imported is not None and imported.stage == "import":
        made["documents"] = imported
        stages = [planned for planned in stages if planned[0].name not in ("collect", "fetch", "extract")]
    found = []
    for stage, options in stages:
        verdict, made[stage.output] = _verdict(stage, options, runtime, made)
        found.append(verdict)
    return found


def table(found: Sequence[Verdict]) -> str:
    """The verdicts as a table."""
    rows = [("stage", "", "rows in", "why")]
    rows += [(each.stage, each.what, "" if each.rows is None else f"{each.rows:,}", each.why) for each in found]
    lines = aligned(rows, left=(0, 1, 3))
    return "\n".join([*lines, "nothing to do"] if all(each.what == FINISHED for each in found) else lines)


def _verdict(
    stage: Stage, options: Any, runtime: Runtime, made: dict[str, Manifest | None]
) -> tuple[Verdict, Manifest | None]:
    output = look_at(runtime.workdir, stage.output, remember=False)
    reads = {name: made[name] for name in (*stage.inputs, *stage.optional_inputs) if name in made}
    anew = [f"{name}/" for name, manifest in reads.items() if manifest is None]
    if anew:
        stage.sources(options)  # raises for a source that cannot be read
        what = "may run" if output.manifest is not None else "runs"
        return Verdict(stage.name, what, f"{', '.join(anew)} made anew"), None
    readers = {name: DatasetReader(runtime.workdir, manifest) for name, manifest in reads.items() if manifest}
    rows = readers[stage.inputs[0]].rows() if stage.inputs else None
    plan = make_plan(stage, options, readers, runtime.workdir)
    if output.manifest is not None and output.is_finished(plan):
        if stage.name == "fetch" and options.retry_failed and (failed := _temporary_failures(output.manifest)):
            return Verdict(stage.name, "runs", f"--retry_failed: {failed:,} URLs are asked for again", failed), None
        return Verdict(stage.name, FINISHED), output.manifest
    check_replaceable(stage, options, plan, output)
    plan = with_shards(plan, stage, options, readers, runtime.workdir)
    return Verdict(stage.name, *_why(stage, plan, output, runtime.workdir), rows), None


def _why(stage: Stage, plan: Plan, output: Output, workdir: Storage) -> tuple[str, str]:
    """(what would happen, why) to a stage whose inputs are finished."""
    finished = finished_parts(workdir, stage.output, plan, output, stage.lists)
    kept, why = finished.kept, finished.why
    if not why:
        return "runs", "not made yet"
    if why == INTERRUPTED:
        return "continues", f"{len(kept)} of {plan.num_shards} shards are finished"
    return "runs", f"{why}; {plan.num_shards - len(kept)} of {plan.num_shards} shards" if kept else why


def _temporary_failures(manifest: Manifest) -> int:
    return sum(count for reason, count in manifest.counts.rejected.items() if Reason.of(reason) in TEMPORARY)
