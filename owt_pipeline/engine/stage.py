"""Stages: what each declares, and how its output becomes finished. No Beam: `graph.py` makes transforms of this.

A stage reads datasets of the working directory and writes one, in three phases, each of which may run on another
machine:

    plan      what has to be made: nothing where the output is finished, else the parts that are missing
    work      step by step, each step's parts anywhere and in any order; the last step's parts are the output's shards
    publish   the manifest, from the shards' records

While it works, `ledger/DATASET/.work/FINGERPRINT/` holds `plan.json` (what is being made), `prepared.json` (what the
plan found out), and each step's records; the manifest comes last, and `.work` goes. So a rerun skips finished stages,
and an interrupted stage goes on with the parts that have no record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec
import pyarrow as pa

from owt_pipeline.engine.batches import Outcome
from owt_pipeline.engine.commit import ShardWriter, publish, record_name
from owt_pipeline.engine.dataset import DatasetReader, is_discarded, read_manifest, require_manifest
from owt_pipeline.engine.errors import LedgerError, UserError
from owt_pipeline.engine.exchange import Slice
from owt_pipeline.engine.lease import renew
from owt_pipeline.engine.plan import (
    INTERRUPTED,
    PLAN_NAME,
    Output,
    Plan,
    finished_parts,
    look_at,
    make_plan,
    prepare,
    read_plan,
    with_shards,
)
from owt_pipeline.engine.storage import Storage
from owt_pipeline.engine.without_pandas import keep_pandas_out
from owt_pipeline.engine.workers import map_batches, start_server
from schemas import DATASETS
from schemas.manifest import Counts, Manifest, ManifestError, ShardFile, ShardRecord, ledger_of

logger = logging.getLogger("owt")

RUN_LOG = "run-log.jsonl"
"""What ran when and for how long: the one file of a run that differs from run to run."""

SHARDS = "shards"
"""Name of the last step of every stage that writes rows."""

PREPARED_NAME = "prepared.json"
_STOPPED_NAME = "stopped"
_REQUESTS_TOGETHER = 16  # each waits for a bucket


@dataclass(frozen=True)
class Runtime:
    """How a stage runs, as opposed to what it makes: nothing here shapes a byte of the output.

    Attributes:
      workdir: the working directory.
      workers: processes of the local pool; on a cluster, one part at a time is worked on in each of its processes.
      beam_flags: Beam's flags; none for the local runner.
      owner: of the lease that is held on the working directory; empty: none.
      on_cluster: whether parts run where the runner places them, and not in the pool of this process.
    """

    workdir: Storage
    workers: int = 1
    beam_flags: tuple[str, ...] = ()
    owner: str = ""
    on_cluster: bool = False


def _nothing(*_: Any) -> Any:
    return None


def _no_sources(options: Any) -> list[dict[str, Any]]:
    return []


def _no_modules(*_: Any) -> Sequence[str]:
    return ()


def _shards(run: StageRun) -> Iterable[int]:
    return range(run.num_shards)


def _replaceable(options: Any) -> bool:
    return False


@dataclass(frozen=True)
class Step:
    """One round of a stage's work: parts, each made by one call.

    The first step's parts are `keys`. Those of another step are the keys that rows were sent to by the step before
    (`ShardWriter.send`), and `keys` too. The last step's parts are the shards of the output; only a stage whose output
    has none, since all of it is assets (the report), ends with another step.

    Attributes:
      work: `work(run, key, slices, writer)`: makes part `key` of what was sent to it. Called again, it writes the same.
      name: of the step's folder; the last step's is `shards`.
      keys: parts that exist even if nothing is sent to them; all shards by default.
      rows: rows that each of `keys` reads, for the progress and so that the largest go first; what was sent otherwise.
      schema: of the rows the part itself writes (`writer.write`), if any; the dataset's own for the last step.
      outputs: schemas of named outputs of the last step (`train`, `val`) in place of the dataset's own.
      spread: what the local pool's processes share: `shards`, of which each makes some; or also a shard's `batches`
        where shards are few (`run.map_batches`). Without it parts are made in the run's own process, one after the
        other, and spread their work themselves.
      together: how many parts are made at once without `spread`, in threads: for work that waits.
    """

    work: Callable[[StageRun, int, Sequence[Slice], ShardWriter], None]
    name: str = SHARDS
    keys: Callable[[StageRun], Iterable[int]] = _shards
    rows: Callable[[StageRun], Mapping[int, int] | Sequence[int] | None] = _nothing
    schema: pa.Schema | None = None
    outputs: Callable[[StageRun], Mapping[str, pa.Schema] | None] = _nothing
    spread: Literal["", "shards", "batches"] = ""
    together: int = 1


@dataclass(frozen=True)
class Stage:
    """A stage as its room declares it.

    Attributes:
      name: the stage's name, `owt NAME`.
      output: the dataset it writes.
      inputs: the datasets it reads; the first one gives the number of shards.
      options: its frozen dataclass of options.
      version: raised whenever the code would write other bytes from the same input.
      steps: its work.
      help: one paragraph for `--help`.
      sources: the files outside the working directory that the output depends on.
      prepare: called where the stage has to run, before any part: raises UserError for options that cannot be, sets
        `run.properties`, writes assets.
      finish: `finish(run, records)`, called with the records of all shards before the manifest is written: sets
        `run.counts`, adds to `run.stats`, `run.properties` and the assets.
      num_shards: shards of the output, where it is not that of the first input.
      optional_inputs: datasets it reads where they are there.
      libraries: distributions whose version shapes the bytes, for the manifest.
      shard_local: shard k of the output is made from shard k of the inputs alone: where an input has changed, the
        shards whose part of it has not are kept.
      irreplaceable: whether the output, once lost, cannot be made again: it is of the web as it was. What is lost of
        it is an error, unless the options ask for it.
      lists: files of the working directory that shape the output where they are there.
      listed: what those lists say of one shard, as JSON: `listed(workdir, inputs, shard)`.
      preload: modules that all worker processes will need, costly to import: `preload(options, inputs, workers)`.
      positional: the option that takes the arguments without a flag, if one does.
      example: a command line for `--help`.
      module: where the stage is declared as STAGE, so that other processes find it by name.
    """

    name: str
    output: str
    inputs: tuple[str, ...]
    options: type
    version: int
    steps: tuple[Step, ...]
    help: str
    sources: Callable[[Any], list[dict[str, Any]]] = _no_sources
    prepare: Callable[[StageRun], None] = _nothing
    finish: Callable[[StageRun, Sequence[ShardRecord]], None] = _nothing
    num_shards: Callable[[Any], int] | None = None
    optional_inputs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    shard_local: bool = False
    irreplaceable: Callable[[Any], bool] = _replaceable
    lists: tuple[str, ...] = ()
    listed: Callable[[Storage, Mapping[str, DatasetReader], int], Any] = _nothing
    preload: Callable[[Any, Mapping[str, DatasetReader], int], Sequence[str]] = _no_modules
    positional: str = ""
    example: str = ""
    module: str = ""

    def __reduce__(self) -> Any:
        if self.module:
            return _stage_of, (self.module,)
        return Stage, tuple(getattr(self, part.name) for part in dataclasses.fields(self))


def _stage_of(module: str) -> Stage:
    found: Stage = importlib.import_module(module).STAGE
    return found


class Prepared(msgspec.Struct, frozen=True):
    """What a stage found out before its first part: kept with the plan, for the processes that work on it.

    Attributes:
      properties: for the manifest.
      assets: files written already.
      started: seconds since 1970.
      kept: shards that need not be made again.
    """

    properties: dict[str, Any]
    assets: list[ShardFile]
    started: float
    kept: int


@dataclass
class StageRun:
    """A stage at work: what its functions are given, in whichever process they run.

    Attributes:
      stage: the stage.
      options: its options.
      runtime: where and how it runs.
      inputs: a reader for each dataset of `stage.inputs`, and of `stage.optional_inputs` where it is there.
      plan: what is being made.
      work: the folder for intermediate steps; it goes when the stage is done.
      properties: for the manifest: set by `prepare` or `finish`.
      assets: files of the complete dataset that were written.
      started: when the stage began, in seconds since 1970.
      kept: shards that need not be made again.
      counts: set by `finish` in a stage whose ledger is not that of its shards (dedupe's decisions).
      stats: further counts of the stage, apart from those of its shards.
    """

    stage: Stage
    options: Any
    runtime: Runtime
    inputs: Mapping[str, DatasetReader]
    plan: Plan
    work: Storage
    properties: dict[str, Any] = field(default_factory=dict)
    assets: list[ShardFile] = field(default_factory=list)
    started: float = 0.0
    kept: int = 0
    counts: Counts | None = None
    stats: dict[str, int] = field(default_factory=dict)

    @property
    def workdir(self) -> Storage:
        return self.runtime.workdir

    @property
    def num_shards(self) -> int:
        """Shards of the output."""
        return self.plan.num_shards

    @property
    def name(self) -> str:
        """Name of the folder of the plan's work."""
        return self.work.uri.rpartition("/")[2]

    def stop(self) -> None:
        """Keep parts that have not begun from beginning: what one of them found stops the stage."""
        self.work.create(_STOPPED_NAME, b"")

    def is_stopped(self) -> bool:
        return self.work.exists(_STOPPED_NAME)

    def records(self, step: str) -> Storage:
        """The folder of a step's records."""
        return self.work / SHARDS if step == SHARDS else self.work / step / "records"

    def read_records(self, step: str) -> list[ShardRecord]:
        """The records of all parts of a finished step, by key."""
        records = self.records(step)
        with ThreadPoolExecutor(_REQUESTS_TOGETHER) as threads:
            return list(threads.map(partial(read_record, records), records.names()))

    def write_asset(self, name: str, content: bytes, *, named_by_content: bool = False) -> str:
        """Write a file of the complete dataset, such as a tokenizer's; returns its path in the working directory.

        It lies with the manifest, so that the dataset's own folder holds rows alone; the report, which has none, is
        its assets.
        """
        digest = hashlib.sha256(content).hexdigest()
        if named_by_content:
            stem, dot, suffix = name.rpartition(".")
            name = f"{stem}-{digest[:8]}{dot}{suffix}"
        path = f"{ledger_of(self.stage.output) if self.stage.output in DATASETS else self.stage.output}/{name}"
        self.workdir.write(path, content)
        self.assets.append(ShardFile(path, "asset", -1, 0, len(content), digest))
        return path

    def map_batches(
        self,
        shard: int,
        writer: ShardWriter,
        fn: Callable[[pa.RecordBatch], Outcome],
        *,
        rows: int = 256,
        columns: list[str] | None = None,
    ) -> None:
        """Write shard k of the output from shard k of the first input, batch by batch, by `fn`.

        `fn` runs in worker processes, so it is a function of a module or a `functools.partial` of one.
        `columns` are those it needs, where it does not need all.
        """
        batches = self.inputs[self.stage.inputs[0]].batches(shard, rows=rows, columns=columns)
        for batch, outcome in map_batches(fn, batches, self.runtime.workers):
            writer.add(batch.num_rows, outcome)


def rows_of_input(run: StageRun) -> list[int]:
    """Rows of each shard of the first input: `Step.rows` of a stage that reads it shard by shard."""
    return run.inputs[run.stage.inputs[0]].rows_of_shards()


def plan_stage(stage: Stage, options: Any, runtime: Runtime) -> Manifest | StageRun:
    """What has to be done: the manifest where the output is finished, else the stage ready to work.

    Raises UserError for what the user can mend.
    """
    workdir = runtime.workdir
    found = _look(stage, options, workdir)
    if isinstance(found, Manifest):
        return found
    plan, inputs, output = found
    _check_replaceable(stage, options, plan, output, workdir)
    inputs = _at_hand(stage, inputs, workdir)
    plan = with_shards(plan, stage, options, inputs, workdir)
    kept, why = finished_parts(workdir, stage.output, plan, output, stage.lists)
    if why == INTERRUPTED:
        if kept:
            logger.info("%s: %d of %d shards are finished; going on", stage.name, len(kept), plan.num_shards)
    elif why:
        again = f"{plan.num_shards - len(kept)} of {plan.num_shards} shards run" if kept else "running"
        logger.info("%s: %s; %s again", stage.name, why, again)
    workdir.remove_dead_spools()
    work = prepare(workdir, stage.output, plan, kept)
    work.delete(_STOPPED_NAME)
    run = StageRun(stage, options, runtime, inputs, plan, work, started=time.time(), kept=len(kept))
    for step in stage.steps:
        if workdir.is_local and step.name != SHARDS:
            _drop_damaged(run.work, run.records(step.name))
    logger.debug("%s: %s", stage.name, options)
    if runtime.workers > 1:
        start_server(stage.preload(options, inputs, runtime.workers))
    stage.prepare(run)
    prepared = Prepared(run.properties, run.assets, run.started, run.kept)
    run.work.write(PREPARED_NAME, msgspec.json.encode(prepared))
    return run


def finished_output(stage: Stage, options: Any, workdir: Storage) -> Manifest | None:
    """The manifest of the stage's output where that is finished and what the options would make; None otherwise.

    Raises UserError where an input is missing or a source cannot be read.
    """
    found = _look(stage, options, workdir)
    return found if isinstance(found, Manifest) else None


def _look(stage: Stage, options: Any, workdir: Storage) -> Manifest | tuple[Plan, dict[str, DatasetReader], Output]:
    keep_pandas_out()
    inputs = open_inputs(stage, workdir)
    plan = make_plan(stage, options, inputs, workdir)
    output = look_at(workdir, stage.output)
    if output.manifest is None or not output.is_finished(plan):
        return plan, inputs, output
    output.tidy()  # after a run that was killed between its manifest and this line, or had other options
    return output.manifest


_opened: tuple[Any, StageRun] | None = None  # the one this process works on: read once, not once a part


def open_run(stage: Stage, options: Any, runtime: Runtime, work: str) -> StageRun:
    """The stage at work in the folder named `work`, in a process that works on its parts or publishes it."""
    global _opened
    key = (stage.name, options, runtime.workdir.uri, runtime.workers, runtime.owner, work)
    if _opened is None or _opened[0] != key:
        _opened = (key, _open_run(stage, options, runtime, work))
    return _opened[1]


def _open_run(stage: Stage, options: Any, runtime: Runtime, name: str) -> StageRun:
    keep_pandas_out()
    work = runtime.workdir / ledger_of(stage.output) / ".work" / name
    plan = read_plan(work)
    if plan is None:
        raise LedgerError(f"{work.path(PLAN_NAME)} is missing or damaged while {stage.name} runs")
    prepared = msgspec.json.decode(work.read(PREPARED_NAME), type=Prepared)
    inputs = {}
    for dataset, digest in plan.inputs.items():
        manifest = require_manifest(runtime.workdir, dataset)
        if manifest.digest != digest:
            raise UserError(f"{runtime.workdir}/{dataset} has changed while {stage.name} reads it: run again")
        if dataset in stage.inputs or not is_discarded(runtime.workdir, dataset):
            inputs[dataset] = DatasetReader(runtime.workdir, manifest)
    return StageRun(stage, options, runtime, inputs, plan, work, **msgspec.structs.asdict(prepared))


def publish_stage(run: StageRun) -> Manifest:
    """Write the manifest from the shards' records; raises LedgerError where one is missing or the sum does not hold."""
    by_shard = {record.shard: record for record in run.read_records(SHARDS)}
    records = [by_shard[shard] for shard in range(run.num_shards) if shard in by_shard]
    if len(records) < run.num_shards:
        missing = next(shard for shard in range(run.num_shards) if shard not in by_shard)
        raise LedgerError(f"{run.stage.name}: {run.records(SHARDS).path(record_name(missing))} was not written")
    run = dataclasses.replace(
        run, properties=dict(run.properties), assets=list(run.assets), stats=dict(run.stats), counts=None
    )
    run.stage.finish(run, records)
    stats = dict(run.stats)
    for record in records:
        for name, count in record.stats.items():
            stats[name] = stats.get(name, 0) + count
    counts = run.counts or sum((record.counts for record in records), Counts())
    if not counts.balanced:
        raise LedgerError(f"{run.stage.name}: the ledger does not balance: {counts}")
    if run.plan.made_from:
        records = [msgspec.structs.replace(record, made_from=run.plan.made_from[record.shard]) for record in records]
    manifest = publish(
        run.workdir,
        records,
        run.assets,
        partial(renew, run.workdir, run.runtime.owner) if run.runtime.owner else lambda: None,
        dataset=run.stage.output,
        stage=run.stage.name,
        stage_version=run.stage.version,
        fingerprint=run.plan.fingerprint,
        num_shards=run.num_shards,
        counts=counts,
        options=run.plan.options,
        inputs=run.plan.inputs,
        sources=run.plan.sources,
        stats=dict(sorted(stats.items())),
        properties=run.properties,
        versions=run.plan.versions,
    )
    run.workdir.remove_dead_spools()
    _log_run(run, manifest)
    return manifest


def open_inputs(stage: Stage, workdir: Storage) -> dict[str, DatasetReader]:
    """A reader for each dataset the stage reads; raises UserError where a required one is missing."""
    inputs = {name: DatasetReader(workdir, require_manifest(workdir, name)) for name in stage.inputs}
    for name in stage.optional_inputs:
        if (found := read_manifest(workdir, name)) is not None:
            inputs[name] = DatasetReader(workdir, found)
    return inputs


def read_record(records: Storage, name: str) -> ShardRecord:
    """A part's record; raises FileNotFoundError where it is not finished, UserError where the record is damaged."""
    try:
        return ShardRecord.from_json(records.read(name), records.path(name))
    except ManifestError as error:
        raise UserError(f"{error}: run the same command again") from error


def _at_hand(stage: Stage, inputs: Mapping[str, DatasetReader], workdir: Storage) -> dict[str, DatasetReader]:
    """The inputs but for optional ones that were discarded; raises UserError for a required one that was."""
    found = dict(inputs)
    for name, reader in inputs.items():
        if is_discarded(workdir, name):
            if name in stage.inputs:
                raise UserError(
                    f"{stage.name} has to run and reads {name}/, which was discarded: `owt discard "
                    f"{reader.manifest.stage} --undo --workdir {workdir}` lets the next run make it again"
                )
            del found[name]
    return found


def _check_replaceable(stage: Stage, options: Any, plan: Plan, output: Output, workdir: Storage) -> None:
    """Raise UserError where part of the output is lost and could only be fetched as it is now."""
    if not stage.irreplaceable(options):
        return
    same = output.manifest is not None and output.manifest.fingerprint == plan.fingerprint
    if same and output.table is not None:
        shards = sorted({file.shard for file in output.table.files if file.path in output.problems})
        lost = f"shards {', '.join(map(str, shards[:10]))}{' ...' if len(shards) > 10 else ''} of {stage.output}/ are"
        first = next(f"{path} {problem}" for path, problem in sorted(output.problems.items()))
    elif output.is_lost:
        lost, first = f"the manifest of {stage.output}/ is", "its files are there, but nothing says which are complete"
    else:
        return
    raise UserError(
        f"{lost} missing or damaged ({first}), and came from the web: restore the files from a backup, or fetch them "
        f"again as they are now with --refetch, or go on without them (`owt discard {stage.name} --workdir {workdir}`)"
    )


def _drop_damaged(folder: Storage, records: Storage) -> None:
    """Drop the records of a step's parts whose files are not as they say: a step is not synced to the disk."""
    for name in records.names():
        try:
            files = ShardRecord.from_json(records.read(name), name).files
            holds = all(folder.size(f.path) == f.bytes and folder.sha256(f.path) == f.sha256 for f in files)
        except (ManifestError, FileNotFoundError):
            holds = False
        if not holds:
            records.delete(name)


def _log_run(run: StageRun, manifest: Manifest) -> None:
    """Append the stage's times to the run's log; on a cluster the launcher's log has them."""
    if run.runtime.on_cluster:
        return
    entry = {
        "stage": manifest.stage,
        "fingerprint": manifest.fingerprint,
        "started": round(run.started, 3),
        "seconds": round(time.time() - run.started, 3),
        "workers": run.runtime.workers,
        "shards": manifest.num_shards,
        "shards_written": manifest.num_shards - run.kept,
        "entered": manifest.counts.entered,
        "left": manifest.counts.left,
        "bytes": manifest.total_bytes,
    }
    append_to_log(run.workdir, entry)


def append_to_log(workdir: Storage, entry: Mapping[str, Any]) -> None:
    """Append a line to the run's log. Only the process that holds the lease does: in a bucket, it rewrites the log."""
    line = json.dumps(entry) + "\n"
    if workdir.is_local:
        with open(os.path.join(workdir.uri, RUN_LOG), "a", encoding="utf-8") as log:
            log.write(line)
    else:
        before = workdir.read_version(RUN_LOG)
        workdir.write(RUN_LOG, (before[0] if before else b"") + line.encode())
