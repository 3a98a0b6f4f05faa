"""`owt ls`: the datasets of a run, and what the next run has to do. `owt run --dry_run` prints the
same table for other settings."""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from owt_pipeline import config
from owt_pipeline.command_line import Command, CommandParser, aligned
from owt_pipeline.engine.generations import pages_of, record_generations
from owt_pipeline.engine.plan import StagePlan, plan_stages
from owt_pipeline.engine.publish import read_log
from owt_pipeline.engine.runner import without_imported
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_root, require_run
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import running
from schemas import DATASETS
from schemas.manifest import Manifest, Root, ledger_of
from schemas.quantities import format_bytes, format_duration, pluralize

logger = logging.getLogger("owt")

# Sources of a generation that are named.
_MAX_SOURCES = 4


@dataclass(frozen=True)
class Row:
    """One stage of a run.

    Attributes:
      stage: its name; `import` if text was imported.
      dataset: the dataset that it writes.
      state: `finished`, `interrupted`, `running`, or `-` for one that has not started.
      rows: rows that left it; None before it is finished, and for report.
      rejected: rows that it rejected.
      bytes: bytes of the dataset's files.
      shards: number of its shards; without a plan, of its finished shards.
      to_run: number of the shards that the next run makes; None if it has nothing to do, or without
        a plan.
      cause: why the next run makes them, as the plan describes it.
      gone: number of its missing files.
      finished: when it was finished, in ISO 8601; empty if unknown.
      seconds: seconds that it took.
    """

    stage: str
    dataset: str
    state: str
    rows: int | None = None
    rejected: int | None = None
    bytes: int = 0
    shards: int = 0
    to_run: int | None = None
    cause: str = ""
    gone: int = 0
    finished: str = ""
    seconds: float | None = None


def plan_run(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[StagePlan]:
    """Return the plan of each stage, in order.

    Raises UserError where `owt run` would, before it writes anything.
    """
    stages = without_imported(stages, runtime.workdir, read_root(runtime.workdir)[0])
    root, _ = record_generations(stages, runtime, write=False)
    return plan_stages(stages, runtime.workdir, root)


def rows_of(workdir: Storage, plans: Sequence[StagePlan] = ()) -> Iterator[Row]:
    """Yield the stages of a run, in order, with what their plans have to do."""
    root, _ = read_root(workdir)
    is_running = running(workdir) is not None
    # A stage may have run several times. The digest finds the run that wrote the manifest.
    logged = {}
    for entry in read_log(workdir):
        if "stage" in entry:
            logged[entry["stage"], entry.get("digest")] = entry
    plan_by_dataset = {plan.stage.output: plan for plan in plans}
    for dataset, stage in _datasets_of(root):
        manifest = root.datasets.get(dataset)
        if manifest is None:
            row = _unfinished(workdir, stage, dataset, is_running)
        else:
            row = _finished(workdir, manifest, logged.get((stage, manifest.digest), {}))
        plan = plan_by_dataset.get(dataset)
        if plan is not None:
            to_run = None if plan.finished else len(plan.pending)
            row = replace(row, shards=len(plan.keys), to_run=to_run, cause=plan.why)
        yield row


def _finished(workdir: Storage, manifest: Manifest, entry: Mapping[str, Any]) -> Row:
    """Return the row of a finished stage, whose line in the run's log is `entry`."""
    files = DatasetReader(workdir, manifest).table_of_files.files
    return Row(
        stage=manifest.stage,
        dataset=manifest.dataset,
        state="finished",
        rows=manifest.counts.left if manifest.dataset in DATASETS else None,
        rejected=sum(manifest.counts.rejected.values()),
        bytes=manifest.total_bytes,
        shards=manifest.num_shards,
        gone=len(lost_files(workdir, files)),
        finished=_as_iso(entry["started"] + entry["seconds"]) if entry else "",
        seconds=entry.get("seconds"),
    )


def _datasets_of(root: Root) -> list[tuple[str, str]]:
    """Return the datasets of a run, each with its stage, in order."""
    datasets = [(name, dataset.stage) for name, dataset in DATASETS.items()]
    datasets.append(("report", "report"))
    if not root.generations or root.generations[0].stage != "import":
        return datasets
    # `import` takes the place of the stages that make these.
    replaced = ("urls", "pages", "documents")
    remaining = [(name, stage) for name, stage in datasets if name not in replaced]
    return [("documents", "import"), *remaining]


def _unfinished(workdir: Storage, stage: str, dataset: str, is_running: bool) -> Row:
    """Return the row of a stage that has not finished, with the shards that it has made."""
    names = [entry.name for entry in (workdir / ledger_of(stage)).walk()]
    begun = [name for name in names if not name.startswith("files-")]
    state = "-"
    if begun:
        state = "running" if is_running else "interrupted"
    # Records of the last step, which writes the dataset, lie in `records/`. Records of earlier
    # steps lie one folder deeper.
    num_shards = sum("records/" in name and "/records/" not in name for name in begun)
    return Row(stage, dataset, state, shards=num_shards)


def table(rows: Iterable[Row]) -> str:
    """Return the rows as text."""
    cells = [("stage", "state", "to run", "writes", "rows", "rejected", "bytes", "")]
    for row in rows:
        to_run = "" if row.to_run is None else f"{row.to_run} of {row.shards}"
        num_rows = ""
        num_rejected = ""
        if row.rows is not None:
            num_rows = f"{row.rows:,}"
            num_rejected = f"{row.rejected:,}"
        size = format_bytes(row.bytes) if row.bytes else ""
        dataset = f"{row.dataset}/"
        note = _note(row)
        cells.append((row.stage, row.state, to_run, dataset, num_rows, num_rejected, size, note))
    return "\n".join(aligned(cells, left=(0, 1, 3, 7)))


def _note(row: Row) -> str:
    """Return when a stage finished and how long it took, or how many shards it has finished.

    What the next run has to do, and missing files, are added.
    """
    notes = []
    if row.state in ("running", "interrupted") and row.shards and row.to_run is None:
        notes.append(f"{pluralize(row.shards, 'shard')} so far")
    elif row.finished:
        notes.append(_local(row.finished))
        if row.seconds is not None:
            notes.append(format_duration(row.seconds))
    if row.gone:
        notes.append(f"{pluralize(row.gone, 'file')} missing")
    if row.cause:
        notes.append(row.cause)
    return ", ".join(notes)


def generations(root: Root) -> str:
    """Return the run's generations as text; empty for a single one."""
    if len(root.generations) < 2:
        return ""
    cells = [("generation", "shards", "sources")]
    for number, generation in enumerate(root.generations):
        last = generation.first + generation.shards - 1
        sources = [*generation.links, *pages_of([generation])]
        names = [str(source["name"]) for source in sources]
        shown = ", ".join(names[:_MAX_SOURCES])
        if len(names) > _MAX_SOURCES:
            shown += f" and {len(names) - _MAX_SOURCES} more"
        cells.append((str(number), f"{generation.first}-{last}", shown))
    return "\n\n" + "\n".join(aligned(cells, left=(0, 1, 2)))


def _ls_flags(parser: CommandParser) -> None:
    """List the stages of a run: what each has written, how much, and when it finished.

    examples:
      owt ls runs/2013
      owt ls gs://bucket/run --json | jq '.[].rows'
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: a list of objects, one per stage"
    )


def _list(arguments: argparse.Namespace) -> int:
    """Print the stages of a run, as a table or as JSON."""
    workdir = Storage(arguments.run)
    root = require_run(workdir)
    holder = running(workdir)
    path = config.settings_of(workdir)
    plans: list[StagePlan] = []
    # Only these settings are known. A run that is at work has its own plan.
    if path is not None and holder is None:
        try:
            stages = list(STAGES.values())
            options = config.options_of(stages, path, config.read_config(path), {})
            plans = plan_run(list(zip(stages, options, strict=True)), Runtime(workdir))
        except UserError as error:
            logger.warning("the next run stops: %s", error)
    rows = list(rows_of(workdir, plans))
    if arguments.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
        return 0
    print(table(rows) + generations(root))
    if holder is not None:
        print(f"\nin use by {holder}")
    return 0


def _as_iso(seconds: float) -> str:
    """Return a time, in seconds since 1970, in ISO 8601."""
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return time.isoformat(timespec="seconds")


def _local(iso_time: str) -> str:
    """Return a time in ISO 8601 as this machine's local time, to the minute."""
    return datetime.datetime.fromisoformat(iso_time).astimezone().strftime("%Y-%m-%d %H:%M")


main = Command("owt ls", _ls_flags, _list)
