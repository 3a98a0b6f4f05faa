"""The phases of a stage: plan it, open it in any process that works for it, publish its output. Also the result of a
run: kept in this process for its caller, and on a cluster in the working directory."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import socket
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from owt_pipeline.engine.stage import SHARDS, Runtime, Stage, StageRun, make_plan, with_shards
from owt_pipeline.engine.workers import keep_pandas_out
from owt_pipeline.errors import LedgerError, Superseded, UserError, explain_os_error
from owt_pipeline.ledger.bases import open_chain
from owt_pipeline.ledger.commit import publish, record_name, version_of_manifest, work_of
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest, require_manifest
from owt_pipeline.ledger.plan import (
    INTERRUPTED,
    SKEW,
    Output,
    Plan,
    finished_parts,
    look_at,
    prepare,
    read_plan,
    read_records,
)
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lease import LeaseLost, is_held, is_in_sight, out_of_sight, renew
from schemas.manifest import Counts, Manifest, ShardFile

logger = logging.getLogger("owt")

RUN_LOG = "run-log.jsonl"
"""What ran when and for how long: the one file of a run that differs from run to run."""

_OUTCOME_NAME = ".outcome"
_SKEW = "skew"  # folder of the versions of workers that have, or had, others than the run

failures: list[BaseException] = []
"""Errors raised in this process, before Beam wrapped them."""

seconds: dict[str, float] = {}
"""Seconds each stage took, by stage name, for stages published by this process."""


class Prepared(msgspec.Struct, frozen=True):
    """The result of one attempt at planning, stored with the plan under a digest of its content, for the processes that
    work on the parts this attempt emits. The fields are those of `StageRun`."""

    properties: dict[str, Any]
    assets: list[ShardFile]
    started: float
    kept: int
    replaces: str | None


def plan_stage(stage: Stage, options: Any, runtime: Runtime) -> Manifest | StageRun:
    """The manifest if the output is finished, otherwise the stage ready to work.

    Raises UserError for errors that the user can fix.
    """
    if runtime.owner and runtime.on_cluster and not is_in_sight(runtime.workdir):
        raise out_of_sight(runtime.workdir)
    runtime.skew()
    while True:
        seen = version_of_manifest(runtime.workdir, stage.output)
        try:
            return _plan_stage(stage, options, runtime, seen)
        except Exception:  # of any type: another attempt that publishes removes the files that this one uses
            if version_of_manifest(runtime.workdir, stage.output) == seen:
                raise


def _plan_stage(stage: Stage, options: Any, runtime: Runtime, replaces: str | None) -> Manifest | StageRun:
    workdir = runtime.workdir
    found = _look(stage, options, workdir, runtime.owner)
    if isinstance(found, Manifest):
        return found
    plan, inputs, output = found
    check_replaceable(stage, options, plan, output)
    plan = with_shards(plan, stage, options, inputs, workdir)
    finished = finished_parts(workdir, stage.output, plan, output, stage.lists)
    kept, why = finished.kept, finished.why
    if why == INTERRUPTED:
        if kept:
            logger.info("%s: %d of %d shards are finished; continuing", stage.name, len(kept), plan.num_shards)
    elif why:
        again = f"{plan.num_shards - len(kept)} of {plan.num_shards} shards run" if kept else "running"
        logger.info("%s: %s; %s again", stage.name, why, again)
    workdir.remove_dead_spools()
    work = prepare(workdir, stage.output, plan, finished)
    for versions in finished.versions:
        _note_skew(work, versions)
    bases = open_chain(workdir) if stage.bases else ()
    for base in bases:
        stage.fits(options, base)
    run = StageRun(stage, options, runtime, inputs, plan, work, started=time.time(), kept=len(kept), bases=bases)
    for step in stage.steps:
        if workdir.is_local and step.name != SHARDS:
            _drop_damaged(run.work, run.records(step.name))
    logger.debug("%s: %s", stage.name, options)
    stage.prepare(run)
    content = msgspec.json.encode(Prepared(run.properties, run.assets, run.started, run.kept, replaces))
    attempt = hashlib.sha256(content).hexdigest()[:8]
    run.work.write(_prepared_name(attempt), content)
    return dataclasses.replace(run, attempt=attempt, replaces=replaces)


def _prepared_name(attempt: str) -> str:
    return f"prepared-{attempt}.json"


def finished_output(stage: Stage, options: Any, workdir: Storage) -> Manifest | None:
    """The manifest of the stage's output if it is finished and is what these options would make; None otherwise.

    Raises UserError if an input is missing or a source cannot be read.
    """
    found = _look(stage, options, workdir, "")
    return found if isinstance(found, Manifest) else None


def _look(
    stage: Stage, options: Any, workdir: Storage, owner: str
) -> Manifest | tuple[Plan, dict[str, DatasetReader], Output]:
    keep_pandas_out()
    inputs = {name: DatasetReader(workdir, require_manifest(workdir, name)) for name in stage.inputs}
    for name in stage.optional_inputs:
        if (manifest := read_manifest(workdir, name)) is not None:
            inputs[name] = DatasetReader(workdir, manifest)
    output = look_at(workdir, stage.output)
    plan = make_plan(stage, options, inputs, workdir)
    if output.manifest is None or not output.is_finished(plan):
        return plan, inputs, output
    if is_held(workdir, owner):
        output.tidy()  # a run that was killed after it wrote its manifest, or had other options, left files
    return output.manifest


_opened: tuple[Any, StageRun] | None = None  # the run this process works on: opened once, not once per part


def open_run(stage: Stage, options: Any, runtime: Runtime, work: str) -> StageRun:
    """The stage at work, in a process that makes its parts or publishes it; `work` is `StageRun.name`.

    Raises Superseded if the work is gone, because the output was published.
    """
    global _opened
    key = (stage.name, options, runtime.workdir.uri, runtime.workers, runtime.owner, work)
    found = _opened  # another thread may replace it
    if found is None or found[0] != key:
        found = _opened = (key, _open_run(stage, options, runtime, work))
    return found[1]


def _open_run(stage: Stage, options: Any, runtime: Runtime, name: str) -> StageRun:
    keep_pandas_out()
    skew = runtime.skew()
    folder, _, attempt = name.partition("/")
    work = work_of(runtime.workdir, stage.output) / folder
    plan, found = read_plan(work), work.read_version(_prepared_name(attempt))
    if plan is None or found is None:
        raise Superseded(f"{work} is gone")
    if skew:
        _note_skew(work, skew)
    prepared = msgspec.json.decode(found[0], type=Prepared)
    inputs = {}
    for dataset, digest in plan.inputs.items():
        manifest = require_manifest(runtime.workdir, dataset)
        if manifest.digest != digest:
            raise UserError(f"{runtime.workdir}/{dataset} has changed while {stage.name} reads it: run again")
        inputs[dataset] = DatasetReader(runtime.workdir, manifest)
    bases = open_chain(runtime.workdir) if stage.bases else ()
    about = msgspec.structs.asdict(prepared)
    return StageRun(stage, options, runtime, inputs, plan, work, bases=bases, attempt=attempt, **about)


@contextlib.contextmanager
def superseding(run: StageRun) -> Iterator[None]:
    """Turn any error of a late attempt into Superseded: files that it reads may have been removed."""
    try:
        yield
    except Superseded:
        raise
    except Exception as error:
        if run.is_superseded():
            raise Superseded(f"{run.workdir}/{run.stage.output} was published") from error
        raise


def publish_work(stage: Stage, options: Any, runtime: Runtime, work: str, replaces: str | None) -> Manifest:
    """Publish the stage at work in `work`; returns its manifest, even if another attempt has published it first.

    `replaces` is the version of the manifest that the attempt's plan saw. Raises LeaseLost if another run has published
    something else, LedgerError if the work is gone although nobody has published it, and whatever `publish_stage`
    raises.
    """
    try:
        return publish_stage(open_run(stage, options, runtime, work))
    except Exception as error:  # of any type: another attempt that publishes removes the files that this one reads
        is_late = isinstance(error, Superseded)  # on S3, equal manifests have the same version
        is_new = version_of_manifest(runtime.workdir, stage.output) != replaces
        output = look_at(runtime.workdir, stage.output) if is_new or is_late else None
        if output is None or output.manifest is None or not (is_new or not output.problems):
            if is_late:  # Superseded would end this attempt without an error
                raise LedgerError(f"{stage.name} cannot be published: {error}, or damaged") from error
            raise
        if not output.manifest.fingerprint.startswith(work.partition("/")[0]):
            raise LeaseLost(f"{runtime.workdir}/{stage.output} was published by another run; this one stops") from error
        if is_held(runtime.workdir, runtime.owner):
            output.tidy()  # the first attempt may have ended before it did
        return output.manifest


def publish_stage(run: StageRun) -> Manifest:
    """Write the manifest from the shards' records; raises LedgerError if one is missing or the sums are wrong,
    Superseded if the output was published since the stage was planned."""
    if run.is_superseded():
        raise Superseded(f"{run.workdir}/{run.stage.output} was published")
    by_shard = {record.shard: record for record in run.read_records(SHARDS)}
    records = [by_shard[shard] for shard in range(run.num_shards) if shard in by_shard]
    if len(records) < run.num_shards:
        missing = next(shard for shard in range(run.num_shards) if shard not in by_shard)
        raise LedgerError(f"{run.stage.name}: {run.records(SHARDS).path(record_name(missing))} was not written")
    run = dataclasses.replace(
        run, properties=dict(run.properties), assets=list(run.assets), stats=dict(run.stats), counts=None, contents={}
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
        run.contents,
        run.replaces,
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
        properties=run.properties | _skew_of(run),
        versions=run.plan.versions,
    )
    taken = time.time() - run.started
    where = run.runtime.place or {"host": socket.gethostname(), "workers": run.runtime.workers}
    written = run.num_shards - run.kept
    noted = run.stage.noted(run.options)
    append_to_log(run.workdir, log_entry(manifest, run.started, taken, **where, shards_written=written, options=noted))
    if run.runtime.on_cluster:
        Result(run.stage, manifest, taken).log()
    else:
        note_published(run.stage, manifest, taken)
    run.workdir.remove_dead_spools()
    return manifest


def _note_skew(work: Storage, versions: Mapping[str, str]) -> None:
    """Note that shards were made with other versions than the run's."""
    content = msgspec.json.encode(versions)
    work.create(f"{_SKEW}/{hashlib.sha256(content).hexdigest()[:8]}.json", content)


def _skew_of(run: StageRun) -> dict[str, Any]:
    """For the manifest: the versions of the run, and those of workers, now or earlier, that had others; empty if none
    had."""
    folder = run.work / _SKEW
    others = [msgspec.json.decode(folder.read(name)) for name in folder.names()]
    return {SKEW: {"run": dict(run.runtime.versions or run.plan.versions), "workers": others}} if others else {}


def check_replaceable(stage: Stage, options: Any, plan: Plan, output: Output) -> None:
    """Raise UserError if part of the output is lost and the web may no longer have it."""
    if not stage.irreplaceable(options):
        return
    if output.is_of(plan):
        shards = sorted({file.shard for file in output.table.files if file.path in output.problems})
        lost = f"shards {', '.join(map(str, shards[:10]))}{' ...' if len(shards) > 10 else ''} of {stage.output}/ are"
        first = next(f"{path} {problem}" for path, problem in sorted(output.problems.items()))
    elif output.is_lost:
        lost, first = f"the manifest of {stage.output}/ is", "its files are there, but nothing says which are complete"
    else:
        return
    raise UserError(
        f"{lost} missing or damaged ({first}), and came from the web: restore the files from a backup, or fetch them "
        "again as they are now with --refetch"
    )


def _drop_damaged(folder: Storage, records: Storage) -> None:
    """Empty the records of a step's parts whose files are damaged: an intermediate step is not synced to the disk."""
    for record, version in read_records(records):
        try:
            holds = all(folder.size(f.path) == f.bytes and folder.sha256(f.path) == f.sha256 for f in record.files)
        except FileNotFoundError:
            holds = False
        if not holds:
            records.swap(record_name(record.shard), b"", version)


def log_entry(manifest: Manifest, started: float, seconds: float, **where: Any) -> dict[str, Any]:
    """The entry of the run's log for a published stage; `where` is `host` and `workers`."""
    return {
        "stage": manifest.stage,
        "fingerprint": manifest.fingerprint,
        "started": round(started, 3),
        "seconds": round(seconds, 3),
        **where,
        "shards": manifest.num_shards,
        "entered": manifest.counts.entered,
        "left": manifest.counts.left,
        "bytes": manifest.total_bytes,
    }


def append_to_log(workdir: Storage, entry: Mapping[str, Any]) -> None:
    """Add a line to the run's log."""
    line = f"{json.dumps(entry)}\n".encode()
    workdir.change(RUN_LOG, lambda log: None if log and line in log else (log or b"") + line)


def read_log(workdir: Storage) -> list[dict]:
    """The entries of a run's log, without lines that cannot be read."""
    found = workdir.read_version(RUN_LOG)
    entries = []
    for line in found[0].decode(errors="replace").splitlines() if found else ():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue  # a line that a crash cut off
    return entries


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a run on a cluster, stored in the working directory.

    Attributes:
      message: why it stopped or failed; empty if it did not.
      exit_code: the command's exit code.
      failure: the traceback, if the error is not the user's.
    """

    message: str = ""
    exit_code: int = 0
    failure: str = ""

    @classmethod
    def of_failure(cls, where: str, error: BaseException) -> Outcome:
        what = explain_os_error(error) if isinstance(error, OSError) else str(error) or type(error).__name__
        return cls(f"{where}: {what}", 1, "".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class Result:
    """The result of one stage: its manifest, and the seconds it took; None if its output was finished before."""

    stage: Stage
    manifest: Manifest
    seconds: float | None

    def log(self) -> None:
        taken = "finished" if self.seconds is None else f"{self.seconds:.1f} s"
        logger.info("%s: %s (%s)", self.stage.name, self.manifest.counts, taken)


def note_published(stage: Stage, manifest: Manifest, taken: float) -> None:
    """Remember for `results_of` that this process published a stage's output, and log it."""
    seconds[stage.name] = taken
    Result(stage, manifest, taken).log()


def results_of(stages: Sequence[tuple[Stage, Any]], workdir: Storage) -> list[Result]:
    """The result of each stage, once the job has ended; logs those that were finished before."""
    results = []
    for stage, _ in stages:
        results.append(Result(stage, require_manifest(workdir, stage.output), seconds.get(stage.name)))
        if results[-1].seconds is None:
            results[-1].log()
    return results


def write_outcome(workdir: Storage, outcome: Outcome) -> None:
    """Store the outcome for the launcher. If that fails, the launcher shows the runner's own message."""
    with contextlib.suppress(OSError, UserError):
        workdir.write(_OUTCOME_NAME, msgspec.json.encode(outcome))


def read_outcome(workdir: Storage) -> Outcome | None:
    """The outcome that the job stored; None if there is none, or none that can be read."""
    try:
        return msgspec.json.decode(workdir.read(_OUTCOME_NAME), type=Outcome)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def forget_outcome(workdir: Storage) -> None:
    """Remove the outcome that a job stored."""
    workdir.delete(_OUTCOME_NAME)
