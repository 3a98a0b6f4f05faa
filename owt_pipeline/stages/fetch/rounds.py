"""Rounds: how often a shard's failed or lost URLs were asked for again.

The root manifest counts the rounds of each shard, which are part of its key. So the shard is made again, and an
interrupted round continues with or without the flag that has begun it. What the sources answered otherwise stays in
segments, and is not asked for again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.fetch.segments import FOLDER
from owt_pipeline.stages.fetch.stage import ONLINE
from schemas import Reason
from schemas.reasons import TEMPORARY

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import Runtime, StageRun
    from owt_pipeline.stages.fetch.stage import Options
    from owt_pipeline.storage.folder import Storage
    from schemas.manifest import Root, ShardRecord

logger = logging.getLogger("owt")


def raise_rounds(options: Options, root: Root, runtime: Runtime) -> Root:
    """The root with another round for each shard of finished `pages/` with temporary failures, or with lost segments,
    if the options ask for it. A round that was begun counts as asked for, so a repeated call has no effect."""
    manifest = root.datasets.get("pages")
    if not (options.retry_failed or options.refetch) or manifest is None:
        return root
    failed, lost = {}, set[str]()
    for record in DatasetReader(runtime.workdir, manifest).table_of_files.records:
        shard = str(record.shard)
        if record.stats.get("round", 0) != root.rounds.get(shard, 0):
            continue
        count = sum(count for reason, count in record.counts.rejected.items() if Reason.of(reason) in TEMPORARY)
        if count and options.retry_failed:
            failed[shard] = count
        if (options.refetch or shard in failed) and (missing := _lost(runtime.workdir, record, ONLINE)):
            if not options.refetch:
                raise _error(runtime.workdir, missing, record.shard)
            lost.add(shard)
    if options.retry_failed:
        logger.info("fetch: --retry_failed: %s URLs of %d shards failed temporarily and are requested again",
                    f"{sum(failed.values()):,}", len(failed))  # fmt: skip
    rounds = root.rounds | {shard: root.rounds.get(shard, 0) + 1 for shard in {*failed, *lost}}
    return msgspec.structs.replace(root, rounds=rounds)


def check_nothing_lost(run: StageRun, shard: int, source: str) -> None:
    """Raise UserError if segments of a source are lost that a finished shard was made from in this round."""
    table = DatasetReader(run.workdir, run.before).table_of_files if run.before is not None else None
    for record in table.records if table is not None else ():
        is_current = record.stats.get("round", 0) == run.root.rounds.get(str(shard), 0)
        if record.shard == shard and is_current:
            prefix = f"{source}-{run.properties['digests'][source]}"
            if missing := _lost(run.workdir, record, (prefix,)):
                raise _error(run.workdir, missing, shard)


def _lost(workdir: Storage, record: ShardRecord, prefixes: tuple[str, ...]) -> dict[str, str]:
    """What is wrong with a shard's segments whose names begin with one of `prefixes`, by path."""
    files = [file for file in record.files if file.kind == FOLDER]
    return lost_files(workdir, [file for file in files if file.path.rpartition("/")[2].startswith(prefixes)])


def _error(workdir: Storage, missing: dict[str, str], shard: int) -> UserError:
    path, problem = next(iter(missing.items()))
    return UserError(
        f"{workdir.path(path)} {problem}, one of {len(missing)} files of shard {shard} that something has to be made "
        "from, and that came from the web: restore it from a backup, or fetch its pages as they are now with --refetch"
    )
