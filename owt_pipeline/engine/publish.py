"""Publish a stage's output once its shards are made, end a run, and keep its log."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from owt_pipeline.engine.keys import sources_of
from owt_pipeline.engine.parts import is_published, open_run
from owt_pipeline.engine.stage import SHARDS, Runtime, Stage, StageRun, Summary, recorded_sources
from owt_pipeline.errors import LedgerError, UserError
from owt_pipeline.ledger.commit import lost_files, publish_dataset
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_own_root
from owt_pipeline.ledger.sweep import sweep
from owt_pipeline.storage.folder import Storage, at_once
from owt_pipeline.storage.lock import is_held, release
from schemas.datasets import LEDGER
from schemas.manifest import Counts, Manifest, ShardRecord, ledger_of

logger = logging.getLogger("owt")

RUN_LOG = "run-log.jsonl"
"""Name of the log that records when and for how long stages ran.

No other file of a run differs between equal runs.
"""

# Files of these kinds depend on how often pages were fetched, so a rebuilt shard may have other
# files of these kinds.
_KINDS_OF_LOCATIONS = ("places", "warc")


def publish(
    stage: Stage, options: Any, runtime: Runtime, plan: str, version: str | None
) -> tuple[Manifest, str | None]:
    """Publish the output of a stage whose shards are all made.

    If this run has published the output before, nothing is written.

    Args:
      stage: the stage.
      options: its options.
      runtime: how and where it runs.
      plan: `StageRun.name`.
      version: version of the root that this run has written last.

    Returns the output's manifest and the version of the root. Raises RunSuperseded if another run
    has published, LedgerError if a record is missing or the sums are wrong, and UserError if a file
    of a record has disappeared since it was written.
    """
    # Read first: a run that was superseded may find that the other one has swept its plan.
    root, current = read_own_root(runtime.workdir, version, runtime.run)
    try:
        run = open_run(stage, options, runtime, plan)
    except FileNotFoundError:  # a late attempt, whose plan was swept away
        if root.run != runtime.run or stage.output not in root.datasets:
            raise
        return root.datasets[stage.output], current
    if current != version and is_published(run):
        return root.datasets[stage.output], current
    records = _records_of_shards(run)
    _check_files(run, records)
    summary = run.stage.finish(run, records)
    manifest, written = _publish_summary(run, records, summary, version)
    entry = _log_entry(run, manifest)
    append_to_log(run.workdir, entry)
    logger.info("%s: %s (%.1f s)", manifest.stage, manifest.counts, entry["seconds"])
    return manifest, written


def _check_files(run: StageRun, records: Sequence[ShardRecord]) -> None:
    """Raise UserError if a file that this stage has made is missing or short."""
    files = [file for shard in sorted(run.plan.pending) for file in records[shard].files]
    for path, problem in lost_files(run.workdir, files).items():
        raise UserError(
            f"another process changed or removed a file while the stage ran: "
            f"{run.workdir.path(path)} {problem}: run the same command again"
        )


def _publish_summary(
    run: StageRun,
    records: Sequence[ShardRecord],
    summary: Summary,
    version: str | None,
) -> tuple[Manifest, str]:
    """Publish the records with the stage's summary; return the manifest and the root's version."""
    assets = [file for file in run.plan.assets if file.path not in summary.contents]
    assets += summary.assets
    stats = Counter(summary.stats)
    for record in records:
        stats.update(record.stats)
    counts = summary.counts or sum((record.counts for record in records), Counts())
    if not counts.balanced:
        raise LedgerError(f"{run.stage.name}: the ledger does not balance: {counts}")
    recorded = recorded_sources(run.stage, run.published)
    external_inputs = run.stage.external_inputs(run.options, recorded)
    properties = dict(run.properties if summary.properties is None else summary.properties)
    return publish_dataset(
        run.workdir,
        records,
        assets,
        summary.contents,
        run=run.runtime.run,
        version=version,
        dataset=run.stage.output,
        stage=run.stage.name,
        stage_version=run.stage.version,
        num_shards=run.num_shards,
        counts=counts,
        options=run.stage.key_options(run.options),
        inputs={
            name: reader.table_of_files.digest_of(run.stage.kinds)
            for name, reader in run.inputs.items()
        },
        sources=[*external_inputs, *sources_of(run.stage, run.root)],
        stats=dict(sorted(stats.items())),
        properties=properties,
    )


def _log_entry(run: StageRun, manifest: Manifest) -> dict[str, Any]:
    """Return the line of the run's log for a stage that has just been published."""
    return {
        "stage": manifest.stage,
        "digest": manifest.digest,
        "started": round(run.plan.started, 3),
        "seconds": round(time.time() - run.plan.started, 3),
        "host": run.runtime.host or socket.gethostname(),
        "workers": run.runtime.workers,
        "shards": manifest.num_shards,
        "shards_written": len(run.plan.pending),
        "entered": manifest.counts.entered,
        "left": manifest.counts.left,
        "bytes": manifest.total_bytes,
    }


def _records_of_shards(run: StageRun) -> list[ShardRecord]:
    """Return the record of each shard: the published record, or the record of the shard's key.

    Raises LedgerError if a record is missing. Raises UserError if a rebuilt shard has other bytes
    than the lost shard had.
    """
    published: dict[int, ShardRecord] = {}
    if run.published is not None:
        for record in DatasetReader(run.workdir, run.published).table_of_files.records:
            if record.key == run.plan.keys[record.shard]:
                published[record.shard] = record

    def find(shard: int) -> ShardRecord:
        published_record = published.get(shard)
        if published_record is not None and shard not in run.plan.pending:
            return published_record
        path = run.record_path(SHARDS, shard)
        record, _ = path.find()
        if record is None:
            raise LedgerError(f"{run.stage.name}: {path.records.path(path.name)} was not written")
        # A stage with optional inputs reads only the inputs that still exist.
        if published_record is not None and not run.stage.optional_inputs:
            _check_same_bytes(run, published_record, record)
        return record

    return at_once(find, range(run.num_shards))


def _check_same_bytes(run: StageRun, before: ShardRecord, now: ShardRecord) -> None:
    """Raise UserError if a rebuilt shard has other bytes than the lost shard had.

    Later datasets were built from the bytes of the lost shard.
    """
    if _digests(before) == _digests(now):
        return
    assert run.published is not None
    records = run.workdir.path(f"{ledger_of(run.stage.name)}/records")
    file_list = run.workdir.path(run.published.files.path)
    raise UserError(
        f"shard {before.shard} of {run.stage.output}/ was missing, and the rebuilt shard has other "
        f"bytes. It was first built with {_list_versions(before)}, and now with "
        f"{_list_versions(now)}: use the first versions, or delete {records} and {file_list} to "
        "make the dataset, and the datasets after it, with the present ones: run the same command "
        "again"
    )


def _digests(record: ShardRecord) -> dict[str, str]:
    """Return the digest of each file that has the same bytes whenever it is made, by path."""
    return {file.path: file.sha256 for file in record.files if file.kind not in _KINDS_OF_LOCATIONS}


def _list_versions(record: ShardRecord) -> str:
    return ", ".join(f"{name} {version}" for name, version in record.versions.items())


def end_run(runtime: Runtime, since: float) -> None:
    """Remove the files that nothing needs from the run's folder, and release the lock.

    Without the lock, nothing is done: an earlier attempt at the end has released it, or another run
    has it. `since` is when the run took the lock, in seconds since 1970 by the storage's clock.
    """
    workdir = runtime.workdir
    if runtime.lock and not is_held(workdir, runtime.run):
        return
    sweep(workdir, runtime.run, since, runtime.stages)
    workdir.remove_dead_spools()
    workdir.tidy(LEDGER)
    release(workdir, runtime.run)


def append_to_log(workdir: Storage, entry: Mapping[str, Any]) -> None:
    """Add a line to the run's log, unless it has the same line."""
    line = f"{json.dumps(entry)}\n".encode()
    while True:
        log, version = workdir.read_version(RUN_LOG) or (b"", None)
        if line in log or workdir.swap(RUN_LOG, log + line, version) is not None:
            return


def read_log(workdir: Storage) -> list[dict[str, Any]]:
    """Return the entries of a run's log, without lines that cannot be read."""
    versioned = workdir.read_version(RUN_LOG)
    if versioned is None:
        return []
    entries = []
    for line in versioned[0].decode(errors="replace").split("\n"):
        # A crash may have cut a line off.
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return entries
