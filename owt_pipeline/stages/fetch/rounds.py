"""Rounds of retries, and segments that are lost.

The root manifest counts the rounds of each shard: how often its failed or lost URLs were requested
again. The round is a part of the shard's key, so the shard is rebuilt, and an interrupted round
continues with or without the flag that has begun it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from owt_pipeline.errors import UserError, command
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.fetch.page_sources import ONLINE
from owt_pipeline.stages.fetch.segments import FOLDER
from owt_pipeline.storage.folder import Storage
from schemas import Reason
from schemas.manifest import Root, ShardRecord
from schemas.quantities import pluralize
from schemas.reasons import TEMPORARY

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import Runtime, StageRun
    from owt_pipeline.stages.fetch.options import Options

logger = logging.getLogger("owt")


def start_retry_rounds(options: Options, root: Root, runtime: Runtime) -> Root:
    """Return the root with a new round for each finished shard of pages/ that is to be retried.

    `--retry_failed` retries shards with temporary failures, `--refetch` those with lost segments.
    A shard whose last round is not finished yet stays in it, so a repeated call has no effect.
    """
    manifest = root.datasets.get("pages")
    if manifest is None or not (options.retry_failed or options.refetch):
        return root
    num_failed_by_shard: dict[str, int] = {}
    lost_shards: set[str] = set()
    for record in DatasetReader(runtime.workdir, manifest).table_of_files.records:
        shard = str(record.shard)
        if not _is_of_this_round(record, root):
            continue
        num_failed = _num_temporary_failures(record)
        is_retried = bool(num_failed) and options.retry_failed
        if is_retried:
            num_failed_by_shard[shard] = num_failed
        if not (options.refetch or is_retried):
            continue
        problem_by_path = _lost_segments(runtime.workdir, record, ONLINE)
        if problem_by_path and not options.refetch:
            raise _lost_error(runtime.workdir, problem_by_path, record.shard)
        if problem_by_path:
            lost_shards.add(shard)
    if options.retry_failed:
        logger.info(
            "fetch: retrying %s that failed temporarily, in %s",
            pluralize(sum(num_failed_by_shard.values()), "URL"),
            pluralize(len(num_failed_by_shard), "shard"),
        )
    rounds = dict(root.rounds)
    for shard in sorted({*num_failed_by_shard, *lost_shards}):
        rounds[shard] = rounds.get(shard, 0) + 1
    return msgspec.structs.replace(root, rounds=rounds)


def _is_of_this_round(record: ShardRecord, root: Root) -> bool:
    """Return whether a shard was made in its last round."""
    return record.stats.get("round", 0) == root.rounds.get(str(record.shard), 0)


def _num_temporary_failures(record: ShardRecord) -> int:
    num_by_reason = record.counts.rejected
    return sum(num for reason, num in num_by_reason.items() if Reason.of(reason) in TEMPORARY)


def order_of(run: StageRun, shard: int) -> tuple[str, ...]:
    """Return the sources to query for a shard, in order."""
    number = run.root.generation_number_of(shard)
    options: Options = run.stage.options_of_generation(run.options, run.root, number)
    return options.order


def segment_prefix(run: StageRun, shard: int, source: str) -> str:
    """Return the first part of the names of a shard's segments: the source and its digest."""
    digests = run.properties["digests"][run.root.generation_number_of(shard)]
    return f"{source}-{digests[source]}"


def check_nothing_lost(run: StageRun, shard: int, source: str) -> None:
    """Raise UserError if the finished shard was built from segments of `source` that are now lost.

    Only segments of the shard's current round count.
    """
    if run.published is None:
        return
    prefix = segment_prefix(run, shard, source)
    for record in DatasetReader(run.workdir, run.published).table_of_files.records:
        if record.shard != shard or not _is_of_this_round(record, run.root):
            continue
        if problem_by_path := _lost_segments(run.workdir, record, (prefix,)):
            raise _lost_error(run.workdir, problem_by_path, shard)


def _lost_segments(
    workdir: Storage, record: ShardRecord, prefixes: tuple[str, ...]
) -> dict[str, str]:
    """Return the problem of each damaged segment whose name begins with one of `prefixes`, by
    path."""
    segments = []
    for file in record.files:
        name = file.path.rpartition("/")[2]
        if file.kind == FOLDER and name.startswith(prefixes):
            segments.append(file)
    return lost_files(workdir, segments)


def _lost_error(workdir: Storage, problem_by_path: dict[str, str], shard: int) -> UserError:
    path, problem = next(iter(problem_by_path.items()))
    return UserError(
        f"{workdir.path(path)} {problem}, but a stage has to read it, and it came from the web "
        f"({pluralize(len(problem_by_path), 'such file')} in shard {shard}): restore it from a "
        f"backup, or run {command('owt', 'run', workdir, '--refetch')} to fetch its pages again, "
        "which may have changed"
    )
