"""Running a stage: what it has to do, its parts, and the manifest that makes its output finished.

A stage reads datasets of the working directory and writes one. While it works, `ledger/DATASET/.work/FINGERPRINT/`
holds `plan.json` (what is being made) and a record for each finished shard; the manifest comes last, and `.work` goes.
So a rerun skips finished stages, and an interrupted stage goes on at the shard where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec
import pyarrow as pa

from owt_pipeline.engine import progress
from owt_pipeline.engine.batches import Outcome
from owt_pipeline.engine.commit import ShardWriter, publish, record_name
from owt_pipeline.engine.dataset import DatasetReader, is_discarded, read_manifest, require_manifest
from owt_pipeline.engine.errors import LedgerError, UserError
from owt_pipeline.engine.lease import RENEW_SECONDS, Job, name_job, renew
from owt_pipeline.engine.pipeline import beam_spreads, run_pipeline
from owt_pipeline.engine.plan import (
    INTERRUPTED,
    Output,
    Plan,
    finished_parts,
    look_at,
    make_plan,
    prepare,
    with_shards,
)
from owt_pipeline.engine.storage import Storage
from owt_pipeline.engine.without_pandas import keep_pandas_out
from owt_pipeline.engine.workers import map_batches, start_server, work_together, write_in_processes
from schemas import DATASETS
from schemas.manifest import Counts, Manifest, ManifestError, ShardFile, ShardRecord, ledger_of

logger = logging.getLogger("owt")

RUN_LOG = "run-log.jsonl"
"""What ran when and for how long: the one file of a run that differs from run to run."""


@dataclass(frozen=True)
class Runtime:
    """How a stage runs, as opposed to what it makes: nothing here shapes a byte of the output."""

    workdir: Storage
    workers: int = 1
    beam_flags: tuple[str, ...] = ()
    owner: str = ""  # of the lease that is held on the working directory; empty: none


@dataclass(frozen=True)
class Stage:
    """A stage as its module declares it.

    Attributes:
      name: the stage's name, `owt NAME`.
      output: the dataset it writes.
      inputs: the datasets it reads; the first one gives the number of shards.
      options: its frozen dataclass of options.
      version: raised whenever the code would write other bytes from the same input.
      run: does the work.
      help: one paragraph for `--help`.
      sources: the files outside the working directory that the output depends on.
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
    """

    name: str
    output: str
    inputs: tuple[str, ...]
    options: type
    version: int
    run: Callable[[StageRun], None]
    help: str
    sources: Callable[[Any], list[dict[str, Any]]] = lambda options: []
    num_shards: Callable[[Any], int] | None = None
    optional_inputs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    shard_local: bool = False
    irreplaceable: Callable[[Any], bool] = lambda options: False
    lists: tuple[str, ...] = ()
    listed: Callable[[Storage, Mapping[str, DatasetReader], int], Any] = lambda workdir, inputs, shard: None
    preload: Callable[[Any, Mapping[str, DatasetReader], int], Sequence[str]] = lambda options, inputs, workers: ()
    positional: str = ""
    example: str = ""


@dataclass
class StageRun:
    """What `Stage.run` is given, and where it leaves what the manifest should say besides the shards.

    Attributes:
      stage: the stage.
      options: its options.
      runtime: where and how it runs.
      inputs: a reader for each dataset of `stage.inputs`, and of `stage.optional_inputs` where it is there.
      num_shards: shards of the output.
      work: the folder for intermediate steps; it goes when the stage is done.
      properties: to be set by the stage, for the manifest.
      counts: to be set by a stage whose ledger is not that of its shards (dedupe's decisions).
      stats: further counts of the stage, apart from those of its shards.
    """

    stage: Stage
    options: Any
    runtime: Runtime
    inputs: Mapping[str, DatasetReader]
    num_shards: int
    work: Storage
    properties: dict[str, Any] = field(default_factory=dict)
    counts: Counts | None = None
    stats: dict[str, int] = field(default_factory=dict)
    assets: list[ShardFile] = field(default_factory=list)

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
        self.runtime.workdir.write(path, content)
        self.assets.append(ShardFile(path, "asset", -1, 0, len(content), digest))
        return path

    def map_batches(
        self,
        fn: Callable[[pa.RecordBatch], Outcome],
        *,
        rows: int = 256,
        columns: list[str] | None = None,
        **outputs: pa.Schema,
    ) -> list[ShardRecord]:
        """Write shard k of the output from shard k of the first input, batch by batch, by `fn`.

        `fn` runs in worker processes, so it is a function of a module or a `functools.partial` of one.
        `columns` are those it needs, where it does not need all. `outputs` are the schemas of named outputs;
        without any, the dataset's own.
        """
        source = self.inputs[self.stage.inputs[0]]
        work = partial(_map_shard, fn=fn, source=source, rows=rows, columns=columns, workers=self.runtime.workers)
        return self.write_shards(work, rows=source.rows_of_shards(), outputs=outputs or None, spread="batches")

    def write_shards(
        self,
        work: Callable[[int, ShardWriter], None],
        *,
        rows: Sequence[int] | int | None = None,
        outputs: Mapping[str, pa.Schema] | None = None,
        together: int = 1,
        spread: Literal["", "shards", "batches"] = "",
    ) -> list[ShardRecord]:
        """Write every shard of the output that is not finished, by `work(shard, writer)`.

        Args:
          work: a picklable function.
          rows: rows to be read, for the progress: of all shards, or of each.
          outputs: schemas of named outputs; without them, the dataset's own.
          together: how many shards are written at once in this process; for work that waits.
          spread: what worker processes share: `shards`, of which each writes some, those of most rows first; or also a
            shard's `batches`, where `work` maps them (`workers.map_batches`) and shards are few: `rows` are of each.
        """
        dataset = DATASETS[self.stage.output]
        write = partial(
            _write_shard,
            work,
            folder=self.runtime.workdir,
            records=self.work / "shards",
            outputs=outputs or {"": dataset.schema},
            dataset=dataset.name,
            file_format=dataset.format,
        )
        keys = range(self.num_shards)
        return self._for_each(self.stage.name, keys, self.work / "shards", write, rows, together, spread)

    def write_step(
        self,
        name: str,
        keys: Sequence[int],
        work: Callable[[int, ShardWriter], None],
        schema: pa.Schema,
        *,
        rows: Sequence[int] | int | None = None,
        file_format: str = "parquet",
        named_by_content: bool = True,
        spread: Literal["", "shards", "batches"] = "",
    ) -> list[ShardRecord]:
        """Write an intermediate step below `self.work / name`, one file a key, by `work(key, writer)`.

        Each key is a unit of resume, as a shard is; `rows` and `spread` are those of `write_shards`. The files are at
        `(self.work / name).open(record.files[0].path)`, and there until the stage is done. Steps that find each
        other's files by their keys are not `named_by_content`; what they write follows from their input alone.
        """
        folder, records = self.work / name, self.work / name / "records"
        write = partial(
            _write_shard,
            work,
            folder=folder,
            records=records,
            outputs={"": schema},
            dataset="",
            file_format=file_format,
            named_by_content=named_by_content,
        )
        if folder.is_local:
            _drop_damaged(folder, records)
        return self._for_each(f"{self.stage.name} ({name})", keys, records, write, rows, 1, spread)

    def pipeline(self, build: Callable[[Any], None]) -> None:
        """Run a Beam pipeline on the run's runner; the lease names its job, where it is one."""
        run_pipeline(build, self.runtime.beam_flags, self._name_job if self.runtime.owner else None)

    def _name_job(self, job: Job | None) -> None:
        name_job(self.runtime.workdir, self.runtime.owner, job)

    def _for_each(
        self,
        title: str,
        keys: Sequence[int],
        records: Storage,
        write: Callable[[int], None],
        rows: Sequence[int] | int | None,
        together: int = 1,
        spread: str = "",
    ) -> list[ShardRecord]:
        finished = set(records.names())
        pending = [key for key in keys if record_name(key) not in finished]
        if pending:
            of_each = {key: rows[key] if isinstance(rows, Sequence) else 1 for key in pending}
            total = sum(of_each.values()) if isinstance(rows, Sequence) else rows
            if len(pending) < len(keys):
                logger.info("%s: %d of %d parts are finished; going on", title, len(keys) - len(pending), len(keys))
                total = total if isinstance(rows, Sequence) else None
            with progress.step(title, shards=len(pending), rows=total):
                if beam_spreads(self.runtime.beam_flags):
                    renewing = partial(_renewing, write, self.runtime.workdir, self.runtime.owner)
                    self.pipeline(partial(_each_key, pending, renewing, together))
                elif spread and self.runtime.workers > 1:
                    write_in_processes(write, of_each, self.runtime.workers, divisible=spread == "batches")
                else:
                    work_together(pending, write, together)
        return read_records(records, keys)


def run_stage(stage: Stage, options: Any, runtime: Runtime) -> tuple[Manifest, bool]:
    """Run `stage` unless its output is finished; returns its manifest and whether it ran.

    Raises UserError for what the user can mend, LedgerError where the stage's sum does not hold.
    """
    keep_pandas_out()
    workdir = runtime.workdir
    inputs = open_inputs(stage, workdir)
    plan = make_plan(stage, options, inputs, workdir)
    output = look_at(workdir, stage.output)
    if output.manifest is not None and output.is_finished(plan):
        output.tidy()  # after a run that was killed between its manifest and this line, or had other options
        return output.manifest, False
    _check_replaceable(stage, options, plan, output, workdir)
    inputs = _at_hand(stage, inputs, workdir)
    plan = with_shards(plan, stage, options, inputs, workdir)
    kept, why = finished_parts(workdir, stage.output, plan, output, stage.lists)
    if why and why != INTERRUPTED:
        again = f"{plan.num_shards - len(kept)} of {plan.num_shards} shards run" if kept else "running"
        logger.info("%s: %s; %s again", stage.name, why, again)
    workdir.remove_dead_spools()
    work = prepare(workdir, stage.output, plan, kept)
    run = StageRun(stage, options, runtime, inputs, plan.num_shards, work)
    logger.debug("%s: %s", stage.name, options)
    started = time.time()
    if runtime.workers > 1:
        start_server(stage.preload(options, inputs, runtime.workers))
    stage.run(run)
    manifest = _publish(run, plan)
    workdir.remove_dead_spools()
    _log_run(runtime, manifest, started, plan.num_shards - len(kept))
    return manifest, True


def open_inputs(stage: Stage, workdir: Storage) -> dict[str, DatasetReader]:
    """A reader for each dataset the stage reads; raises UserError where a required one is missing."""
    inputs = {name: DatasetReader(workdir, require_manifest(workdir, name)) for name in stage.inputs}
    for name in stage.optional_inputs:
        if (found := read_manifest(workdir, name)) is not None:
            inputs[name] = DatasetReader(workdir, found)
    return inputs


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


def _publish(run: StageRun, plan: Plan) -> Manifest:
    """The manifest of what was written, from the shards' records."""
    records = read_records(run.work / "shards", range(run.num_shards)) if run.num_shards else []
    stats = dict(run.stats)
    for record in records:
        for name, count in record.stats.items():
            stats[name] = stats.get(name, 0) + count
    counts = run.counts or sum((record.counts for record in records), Counts())
    if not counts.balanced:
        raise LedgerError(f"{run.stage.name}: the ledger does not balance: {counts}")
    if plan.made_from:
        records = [msgspec.structs.replace(record, made_from=plan.made_from[record.shard]) for record in records]
    return publish(
        run.runtime.workdir,
        records,
        run.assets,
        partial(renew, run.runtime.workdir, run.runtime.owner) if run.runtime.owner else lambda: None,
        dataset=run.stage.output,
        stage=run.stage.name,
        stage_version=run.stage.version,
        fingerprint=plan.fingerprint,
        num_shards=run.num_shards,
        counts=counts,
        options=plan.options,
        inputs=plan.inputs,
        sources=plan.sources,
        stats=dict(sorted(stats.items())),
        properties=run.properties,
        versions=plan.versions,
    )


def read_records(records: Storage, keys: Sequence[int]) -> list[ShardRecord]:
    """The records of these parts; raises LedgerError where one was not written."""
    found = []
    for key in keys:
        try:
            found.append(ShardRecord.from_json(records.read(record_name(key)), records.path(record_name(key))))
        except FileNotFoundError:
            raise LedgerError(f"{records.path(record_name(key))} was not written") from None
        except ManifestError as error:
            raise UserError(f"{error}: run the same command again") from error
    return found


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


def _log_run(runtime: Runtime, manifest: Manifest, started: float, written: int) -> None:
    """Append the stage's times to the run's log (locally: a bucket's objects cannot be appended to)."""
    if not runtime.workdir.is_local:
        return
    entry = {
        "stage": manifest.stage,
        "fingerprint": manifest.fingerprint,
        "started": round(started, 3),
        "seconds": round(time.time() - started, 3),
        "workers": runtime.workers,
        "shards": manifest.num_shards,
        "shards_written": written,
        "entered": manifest.counts.entered,
        "left": manifest.counts.left,
        "bytes": manifest.total_bytes,
    }
    with open(os.path.join(runtime.workdir.uri, RUN_LOG), "a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")


def _each_key(keys: Sequence[int], work: Callable[[int], None], together: int, pipeline: Any) -> None:
    from owt_pipeline.engine.keys import ForEachKey

    _ = pipeline | ForEachKey(keys, work, together)


def _renewing(work: Callable[[int], None], workdir: Storage, owner: str, key: int) -> None:
    work(key)
    if owner:
        renew(workdir, owner, every=RENEW_SECONDS)


def _write_shard(
    work: Callable[[int, ShardWriter], None],
    key: int,
    *,
    folder: Storage,
    records: Storage,
    outputs: Mapping[str, pa.Schema],
    dataset: str,
    file_format: str,
    named_by_content: bool = True,
) -> None:
    """One attempt at a part; nothing, where an earlier attempt has finished it."""
    if records.exists(record_name(key)):
        progress.shard_done()
        return
    with ShardWriter(
        folder, records, key, outputs, dataset=dataset, file_format=file_format, named_by_content=named_by_content
    ) as writer:
        work(key, writer)


def _map_shard(
    shard: int,
    writer: ShardWriter,
    *,
    fn: Callable[[pa.RecordBatch], Outcome],
    source: DatasetReader,
    rows: int,
    columns: list[str] | None,
    workers: int,
) -> None:
    for batch, outcome in map_batches(fn, source.batches(shard, rows=rows, columns=columns), workers):
        writer.add(batch.num_rows, outcome)
