"""The life of a stage: does its output stand, what is left to do, and what it comes to.

A stage reads datasets of the working directory and writes one. While it is at work, the dataset's folder holds
`.work/plan.json` (what is being made) and a record for each shard that is whole; the manifest comes last and
`.work` goes. So a rerun knows what stands, and a broken-off stage goes on at the shard where it stopped.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from owt_pipeline.runtime import progress
from owt_pipeline.runtime.batches import Outcome
from owt_pipeline.runtime.errors import LedgerError, UserError
from owt_pipeline.runtime.lease import RENEW_SECONDS, Job, name_job, renew
from owt_pipeline.runtime.pipeline import beam_spreads, run_pipeline
from owt_pipeline.runtime.shards import DatasetReader, ShardRecord, ShardWriter, shard_name, step_stands
from owt_pipeline.runtime.standing import made_from, prepare
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.runtime.without_pandas import keep_pandas_out
from owt_pipeline.runtime.workers import map_batches, start_server, work_together, write_in_processes
from schemas import DATASETS, Counts, Manifest, ManifestError, ShardFile, ShardSum
from schemas.manifest import MANIFEST_NAME
from schemas.settings import shaping_options

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
        shards whose part of it has not still stand.
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
    lists: tuple[str, ...] = ()
    listed: Callable[[Storage, Mapping[str, DatasetReader], int], Any] = lambda workdir, inputs, shard: None
    preload: Callable[[Any, Mapping[str, DatasetReader], int], Sequence[str]] = lambda options, inputs, workers: ()
    positional: str = ""
    example: str = ""


@dataclass
class StageRun:
    """What `Stage.run` is given, and where it leaves what the manifest should say beside the shards.

    Attributes:
      stage: the stage.
      options: its options.
      runtime: where and how it runs.
      inputs: a reader for each dataset of `stage.inputs`, and of `stage.optional_inputs` where it is there.
      num_shards: shards of the output.
      folder: the output's folder.
      work: the folder for intermediate steps; it goes when the stage is done.
      properties: to be set by the stage, for the manifest.
      counts: to be set by a stage whose ledger is not that of its shards (dedupe's decisions).
      stats: further counts of the whole stage, beside those of its shards.
    """

    stage: Stage
    options: Any
    runtime: Runtime
    inputs: Mapping[str, DatasetReader]
    num_shards: int
    folder: Storage
    work: Storage
    properties: dict[str, Any] = field(default_factory=dict)
    counts: Counts | None = None
    stats: dict[str, int] = field(default_factory=dict)
    assets: list[ShardFile] = field(default_factory=list)

    def write_asset(self, name: str, content: bytes) -> None:
        """Write a file of the whole dataset, such as a tokenizer's; it is listed in the manifest."""
        self.folder.write(name, content)
        digest = hashlib.sha256(content).hexdigest()
        self.assets.append(ShardFile(name, "asset", -1, 0, len(content), digest))

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
        """Write every shard of the output that is not whole yet, by `work(shard, writer)`.

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
            folder=self.folder,
            records=self.work / "shards",
            outputs=outputs or {"": dataset.schema},
            file_format=dataset.format,
            rejects=True,
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
        spread: Literal["", "shards", "batches"] = "",
    ) -> list[ShardRecord]:
        """Write an intermediate step below `self.work / name`, one file a key, by `work(key, writer)`.

        Each key is a unit of resume, as a shard is; `rows` and `spread` are those of `write_shards`. The files are at
        `(self.work / name).open(record.files[0].path)`, and there until the stage is done.
        """
        write = partial(
            _write_shard,
            work,
            folder=self.work / name,
            records=self.work / name / "records",
            outputs={"": schema},
            file_format=file_format,
            rejects=False,
        )
        folder, records = self.work / name, self.work / name / "records"
        stands = partial(step_stands, folder, records)
        return self._for_each(f"{self.stage.name} ({name})", keys, records, write, rows, 1, spread, stands)

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
        stands: Callable[[int], bool] | None = None,
    ) -> list[ShardRecord]:
        whole = set(records.names())
        pending = [key for key in keys if f"{shard_name(key)}.json" not in whole or (stands and not stands(key))]
        if pending:
            of_each = {key: rows[key] if isinstance(rows, Sequence) else 1 for key in pending}
            total = sum(of_each.values()) if isinstance(rows, Sequence) else rows
            if len(pending) < len(keys):
                logger.info("%s: %d of %d are whole already; going on", title, len(keys) - len(pending), len(keys))
                total = total if isinstance(rows, Sequence) else None
            with progress.step(title, shards=len(pending), rows=total):
                if beam_spreads(self.runtime.beam_flags):
                    renewing = partial(_renewing, write, self.runtime.workdir, self.runtime.owner)
                    self.pipeline(partial(_each_key, pending, renewing, together))
                elif spread and self.runtime.workers > 1:
                    write_in_processes(write, of_each, self.runtime.workers, divisible=spread == "batches")
                else:
                    work_together(pending, write, together)
        return [ShardRecord.from_json(records.read(f"{shard_name(key)}.json")) for key in keys]


def run_stage(stage: Stage, options: Any, runtime: Runtime) -> tuple[Manifest, bool]:
    """Run `stage` unless its output stands; returns its manifest and whether it ran.

    Raises UserError for what the user can mend, LedgerError where the stage's sum does not hold.
    """
    keep_pandas_out()
    folder = runtime.workdir / stage.output
    inputs = open_inputs(stage, runtime.workdir)
    plan = make_plan(stage, options, inputs, runtime.workdir)
    manifest = read_manifest(folder)
    if manifest is not None and manifest.fingerprint == plan["fingerprint"]:
        (folder / ".work").delete_all()  # a run killed between its manifest and this line left it
        return manifest, False
    work = folder / ".work"
    num_shards = stage.num_shards(options) if stage.num_shards else inputs[stage.inputs[0]].num_shards
    plan["made_from"] = made_from(stage, inputs, runtime.workdir, num_shards)
    prepare(folder, work, plan, manifest, stage.lists)
    folder.remove_dead_spools()
    whole = len((work / "shards").names())
    run = StageRun(
        stage=stage,
        options=options,
        runtime=runtime,
        inputs=inputs,
        num_shards=num_shards,
        folder=folder,
        work=work,
    )
    logger.debug("%s: %s", stage.name, options)
    started = time.time()
    if runtime.workers > 1:
        start_server(stage.preload(options, inputs, runtime.workers))
    stage.run(run)
    records = [ShardRecord.from_json((work / "shards").read(name)) for name in (work / "shards").names()]
    manifest = _manifest(run, plan, records)
    if runtime.owner:
        renew(runtime.workdir, runtime.owner)  # raises where another run has taken over
    folder.write(MANIFEST_NAME, manifest.to_json().encode())
    work.delete_all()
    folder.remove_dead_spools()
    _log_run(runtime, manifest, started, len(records) - whole)
    return manifest, True


def open_inputs(stage: Stage, workdir: Storage) -> dict[str, DatasetReader]:
    """A reader for each dataset the stage reads; raises UserError where a required one is missing."""
    inputs = {name: DatasetReader(workdir / name, require_manifest(workdir, name)) for name in stage.inputs}
    for name in stage.optional_inputs:
        if (found := read_manifest(workdir / name)) is not None:
            inputs[name] = DatasetReader(workdir / name, found)
    return inputs


def make_plan(stage: Stage, options: Any, inputs: Mapping[str, DatasetReader], workdir: Storage) -> dict[str, Any]:
    """What is to be made, and its fingerprint."""
    plan: dict[str, Any] = {
        "stage": stage.name,
        "stage_version": stage.version,
        "options": shaping_options(options),
        "inputs": {name: reader.manifest.digest for name, reader in inputs.items()},
        "sources": stage.sources(options)
        + [
            {"name": name, "bytes": workdir.size(name), "sha256": workdir.sha256(name)}
            for name in stage.lists
            if workdir.exists(name)
        ],
    }
    text = json.dumps(plan, sort_keys=True)
    plan["fingerprint"] = hashlib.sha256(text.encode()).hexdigest()
    plan["versions"] = {name: importlib.metadata.version(name) for name in ("pyarrow", *stage.libraries)}
    return plan


def read_manifest(folder: Storage) -> Manifest | None:
    """The manifest in `folder`, or None where there is none; raises UserError for a damaged one."""
    if not folder.exists(MANIFEST_NAME):
        return None
    try:
        return Manifest.from_json(folder.read(MANIFEST_NAME), folder.path(MANIFEST_NAME))
    except ManifestError as error:
        raise UserError(str(error)) from error


def require_manifest(workdir: Storage, dataset: str) -> Manifest:
    """The manifest of `dataset`; raises UserError that names the stage to run where there is none."""
    manifest = read_manifest(workdir / dataset)
    if manifest is None:
        stage = DATASETS[dataset].stage
        raise UserError(f"{workdir}/{dataset} is not there, or not whole: run `owt {stage} --workdir {workdir}` first")
    return manifest


def _manifest(run: StageRun, plan: dict[str, Any], records: Sequence[ShardRecord]) -> Manifest:
    shards = {record.shard for record in records}
    if shards != set(range(run.num_shards)):
        raise LedgerError(f"{run.stage.name}: {len(shards)} of {run.num_shards} shards were written")
    stats = dict(run.stats)
    for record in records:
        for name, count in record.stats.items():
            stats[name] = stats.get(name, 0) + count
    counts = run.counts or sum((record.counts for record in records), Counts())
    if not counts.balanced:
        raise LedgerError(f"{run.stage.name}: the ledger does not balance: {counts}")
    return Manifest(
        dataset=run.stage.output,
        stage=run.stage.name,
        stage_version=run.stage.version,
        fingerprint=plan["fingerprint"],
        num_shards=run.num_shards,
        counts=counts,
        options=plan["options"],
        inputs=plan["inputs"],
        sources=plan["sources"],
        stats=dict(sorted(stats.items())),
        properties=run.properties,
        files=sorted([*run.assets, *(file for record in records for file in record.files)], key=lambda file: file.path),
        shards=[
            ShardSum(record.shard, digest, record.counts, record.stats)
            for record, digest in zip(sorted(records, key=lambda r: r.shard), plan["made_from"], strict=False)
        ],
        versions=plan["versions"],
    )


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
        "bytes": sum(file.bytes for file in manifest.files),
    }
    with open(os.path.join(runtime.workdir.uri, RUN_LOG), "a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")


def _each_key(keys: Sequence[int], work: Callable[[int], None], together: int, pipeline: Any) -> None:
    from owt_pipeline.runtime.keys import ForEachKey

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
    file_format: str,
    rejects: bool,
) -> None:
    with ShardWriter(folder, records, key, outputs, file_format=file_format, rejects=rejects) as writer:
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
