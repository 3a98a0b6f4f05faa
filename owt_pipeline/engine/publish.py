"""Publishing a stage's output once its shards are made, and the run's log."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Mapping
from typing import Any

from owt_pipeline.engine.keys import sources_of
from owt_pipeline.engine.plan import is_published, open_run
from owt_pipeline.engine.stage import SHARDS, Runtime, Stage, StageRun, recorded_of
from owt_pipeline.errors import LedgerError, UserError
from owt_pipeline.ledger.commit import lost_files, publish_dataset
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_own_root
from owt_pipeline.storage.folder import Storage, at_once
from schemas.manifest import Counts, Manifest, ShardRecord, ledger_of

logger = logging.getLogger("owt")

RUN_LOG = "run-log.jsonl"
"""What ran when and for how long: the one file of a run that differs from run to run."""


_WHERE = ("places", "warc")
"""Kinds of files that say where pages lie, which depends on how often they were fetched."""


def publish(
    stage: Stage, options: Any, runtime: Runtime, plan: str, version: str | None
) -> tuple[Manifest, str | None]:
    """Publish the output of a stage all of whose shards are made; returns its manifest, and the
    version of the root.

    `plan` is `StageRun.name`; `version` is that of the root that this run wrote last. If this run
    has published the output before, returns that. Raises LostRun if another run has published,
    LedgerError if a record is missing or the sums are wrong, UserError if a file of a record has
    disappeared since it was written.
    """
    root, current = read_own_root(
        runtime.workdir, version, runtime.run
    )  # before what another run may have swept
    try:
        run = open_run(stage, options, runtime, plan)
    except FileNotFoundError:  # a late attempt, whose plan was swept away
        if root.run != runtime.run or stage.output not in root.datasets:
            raise
        return root.datasets[stage.output], current
    if current != version and is_published(run):
        return root.datasets[stage.output], current
    records = _records(run)
    made = [file for shard in sorted(run.plan.make) for file in records[shard].files]
    if lost := lost_files(run.workdir, made):
        name, problem = next(iter(lost.items()))
        raise UserError(
            f"{run.workdir.path(name)} {problem}, since the stage wrote it: run the same command "
            f"again"
        )
    summary = run.stage.finish(run, records)
    assets = [file for file in run.plan.assets if file.path not in summary.contents]
    assets += summary.assets
    stats = dict(summary.stats)
    for record in records:
        for name, count in record.stats.items():
            stats[name] = stats.get(name, 0) + count
    counts = summary.counts or sum((record.counts for record in records), Counts())
    if not counts.balanced:
        raise LedgerError(f"{run.stage.name}: the ledger does not balance: {counts}")
    manifest, written = publish_dataset(
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
        options=run.stage.shaping(run.options),
        inputs={
            name: reader.table_of_files.digest_of(run.stage.kinds)
            for name, reader in run.inputs.items()
        },
        sources=[
            *run.stage.outside(run.options, recorded_of(run.stage, run.before)),
            *sources_of(run.stage, run.root),
        ],
        stats=dict(sorted(stats.items())),
        properties=dict(run.properties if summary.properties is None else summary.properties),
    )
    entry = {
        "stage": manifest.stage,
        "digest": manifest.digest,
        "started": round(run.plan.started, 3),
        "seconds": round(time.time() - run.plan.started, 3),
        "host": run.runtime.host or socket.gethostname(),
        "workers": run.runtime.workers,
        "shards": manifest.num_shards,
        "shards_written": len(run.plan.make),
        "entered": counts.entered,
        "left": counts.left,
        "bytes": manifest.total_bytes,
    }
    append_to_log(run.workdir, entry)
    logger.info("%s: %s (%.1f s)", manifest.stage, counts, entry["seconds"])
    return manifest, written


def _records(run: StageRun) -> list[ShardRecord]:
    """The record of each shard: the published one, or that of its key; the same bytes as before
    if it was gone."""
    before: dict[int, ShardRecord] = {}
    if run.before is not None:
        table = DatasetReader(run.workdir, run.before).table_of_files
        before = {
            record.shard: record
            for record in table.records
            if record.key == run.plan.keys[record.shard]
        }

    def find(shard: int) -> ShardRecord:
        was = before.get(shard)
        if was is not None and shard not in run.plan.make:
            return was
        place = run.place(SHARDS, shard)
        record, _ = place.find()
        if record is None:
            raise LedgerError(f"{run.stage.name}: {place.records.path(place.name)} was not written")
        if (
            was is not None and not run.stage.optional_inputs
        ):  # with these, it is made from what is left of them
            _check_same(run, was, record)
        return record

    return at_once(find, range(run.num_shards))


def _check_same(run: StageRun, was: ShardRecord, now: ShardRecord) -> None:
    """Raise UserError if a shard that was gone has other bytes than before: its datasets were
    made from those."""
    before, again = (
        {file.path: file.sha256 for file in record.files if file.kind not in _WHERE}
        for record in (was, now)
    )
    if before == again:
        return
    assert run.before is not None
    records = run.workdir.path(f"{ledger_of(run.stage.name)}/records")
    raise UserError(
        f"shard {was.shard} of {run.stage.output}/ was gone, and has other bytes now that it was "
        f"made again. Made with {_named(was.versions)}; now {_named(now.versions)}: use those "
        f"versions, or delete {records} and {run.workdir.path(run.before.files.path)} to make the "
        "dataset, and those after it, anew with the same command"
    )


def _named(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def append_to_log(workdir: Storage, entry: Mapping[str, Any]) -> None:
    """Add a line to the run's log."""
    line = f"{json.dumps(entry)}\n".encode()
    while True:
        log, version = workdir.read_version(RUN_LOG) or (b"", None)
        if line in log or workdir.swap(RUN_LOG, log + line, version) is not None:
            return


def read_log(workdir: Storage) -> list[dict[str, Any]]:
    """The entries of a run's log, without lines that cannot be read."""
    found = workdir.read_version(RUN_LOG)
    entries = []
    for line in found[0].decode(errors="replace").split("\n") if found else ():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue  # a line that a crash cut off
    return entries
