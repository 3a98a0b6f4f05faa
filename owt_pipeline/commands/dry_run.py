"""`owt run --dry_run`: what would run, why, on how much, for how long. Nothing is written."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from owt_pipeline.command_line import aligned
from owt_pipeline.commands import estimate
from owt_pipeline.commands.estimate import (
    ARCHIVE_BYTES_PER_SECOND,
    BYTES_PER_SUBMISSION,
    FOREST_SECONDS,
    SHIPPED,
    SHIPPED_RATES,
    START_SECONDS,
    Work,
    duration,
    forecast,
    rate_of,
    size,
)
from owt_pipeline.engine.phases import check_replaceable, read_log
from owt_pipeline.engine.stage import Runtime, Stage, make_plan, with_shards
from owt_pipeline.engine.submission import Prices, machines_of
from owt_pipeline.errors import UserError
from owt_pipeline.formats.captures import Capture, captures
from owt_pipeline.formats.urls import BadURL, canonicalize, url_id
from owt_pipeline.ledger.bases import Base
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.plan import (
    INTERRUPTED,
    Output,
    Plan,
    finished_parts,
    look_at,
    usable_manifest,
)
from owt_pipeline.stages.collect.sample import Sample
from owt_pipeline.storage.folder import Storage, expand_globs, open_source
from schemas import Reason
from schemas.manifest import Manifest
from schemas.reasons import TEMPORARY

FINISHED = "finished"
_ARCHIVE_SECONDS = 2.0


@dataclass(frozen=True)
class Asked:
    """What fetch would ask of a source.

    Attributes:
      source: its name.
      files: archive files, or files of an index, that are read.
      bytes: bytes read from those files.
      urls: URLs that it is asked for: those that no earlier source is expected to have.
      requests: to an archive on the web.
      seconds: duration of these at the configured rate; for the web, of the requests to the largest host.
    """

    source: str
    files: int = 0
    bytes: float = 0
    urls: float = 0
    requests: float = 0
    seconds: float = 0

    def __str__(self) -> str:
        files = f"{self.files:,} file{'s' if self.files != 1 else ''}, {size(self.bytes)}, " if self.files else ""
        rate = f", ~{self.requests:,.0f} requests" if self.requests else ""
        of_host = " for the largest host" if self.source == "live" else ""
        rate += f", ~{duration(self.seconds)}{of_host}" if self.seconds else ""
        return f"{self.source} ({files}~{self.urls:,.0f} URLs{rate})"


@dataclass(frozen=True)
class Step:
    """What would happen to one stage.

    Attributes:
      stage: its name.
      verdict: `finished`, `runs`, `continues`, or `may run`: its input is made anew and may come out the same.
      why: what differs, if it runs.
      rows: rows that enter, known or estimated.
      bytes: bytes that are read.
      core_seconds: seconds of one core.
      parts: the shards that run.
      longest: seconds of the longest part, if known: a dump is one part.
      seconds: seconds on the run's workers.
      disk: bytes that are written.
      measured: where the rates are from.
      asked: for fetch, what is asked of each source, in order.
    """

    stage: str
    verdict: str
    why: str = ""
    rows: float = 0
    bytes: float = 0
    core_seconds: float = 0
    parts: int = 0
    longest: float = 0
    seconds: float = 0
    disk: float = 0
    measured: str = ""
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True)
class _Expected:
    """A dataset as it will be: its manifest if it is finished, otherwise its expected size and sample."""

    rows: float
    bytes: float
    shards: int
    manifest: Manifest | None = None
    sample: Sample | None = None


def steps(stages: Sequence[tuple[Stage, Any]], runtime: Runtime, bases: Sequence[Base] = ()) -> list[Step]:
    """What would happen to each stage, in order; rates measured in `bases` are used if the run has none.

    Raises UserError if a source cannot be read, or pages of the web are lost.
    """
    workdir = runtime.workdir
    log = [entry for folder in (*(base.workdir for base in bases), workdir) for entry in read_log(folder)]
    expected: dict[str, _Expected] = {}
    imported = usable_manifest(workdir, "documents")
    if imported is not None and imported.stage == "import":
        expected["documents"] = _of_manifest(imported)
        stages = [planned for planned in stages if planned[0].name not in ("collect", "fetch", "extract")]
    found = []
    for stage, options in stages:
        step, expected[stage.output] = _step(stage, options, runtime, expected, log, bases)
        found.append(step)
    return found


def table(found: Sequence[Step], runtime: Runtime) -> str:
    """The steps as a table, with totals."""
    rows = [("stage", "", "rows in", "read", "time", "written", "why")]
    for step in found:
        if step.verdict == FINISHED:
            rows.append((step.stage, FINISHED, "", "", "", "", ""))
        else:
            figures = (f"~{step.rows:,.0f}", size(step.bytes), f"~{duration(step.seconds)}", f"~{size(step.disk)}")
            rows.append((step.stage, step.verdict, *figures, step.why))
    lines = aligned(rows, left=(0, 1, 6))
    running = [step for step in found if step.verdict != FINISHED]
    if not running:
        return "\n".join([*lines, "nothing to do"])
    lines += [f"{step.stage} asks {', then '.join(map(str, step.asked))}" for step in running if step.asked]
    seconds, disk = sum(step.seconds for step in running), sum(step.disk for step in running)
    own = [step.stage for step in running if step.measured != SHIPPED_RATES]
    origin = f"; {', '.join(own)} as measured in this run, the rest" if own else "; all"
    lines.append(
        f"in all about {duration(seconds)} ({duration(seconds / 2)} to {duration(2 * seconds)}) with {runtime.workers} "
        f"workers, {size(disk)} written"
        f"{origin} by {SHIPPED_RATES}"
    )
    lines.append("URLs can differ from the estimate by a third, documents and times by a factor of two")
    folder = os.path.abspath(runtime.workdir.uri)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if runtime.workdir.is_local and (free := shutil.disk_usage(folder).free) < disk:
        lines.append(f"warning: only {size(free)} free in {runtime.workdir}, less than will be written")
    return "\n".join(lines)


def on_cluster(found: Sequence[Step], runtime: Runtime, prices: Prices) -> str:
    """What the steps take on the workers that the flags of Dataflow ask for; "" for another runner."""
    if not runtime.beam_flags:
        return ""  # without importing Beam
    from apache_beam.options.pipeline_options import PipelineOptions

    machines = machines_of(PipelineOptions(list(runtime.beam_flags)))
    running = [step for step in found if step.verdict != FINISHED]
    if machines is None or not running:
        return ""
    works = []
    for step in running:
        alone = step.rows * FOREST_SECONDS if step.stage == "dedupe" else 0.0
        works.append(Work(step.stage, step.parts, step.core_seconds, alone=alone, longest=step.longest))
    return f"\non Dataflow, by list prices:\n{estimate.table(forecast(works, machines, prices), machines)}"


def _step(
    stage: Stage,
    options: Any,
    runtime: Runtime,
    expected: dict[str, _Expected],
    log: list[dict],
    bases: Sequence[Base],
) -> tuple[Step, _Expected]:
    output = look_at(runtime.workdir, stage.output, remember=False)
    manifest = output.manifest
    reads = [name for name in (*stage.inputs, *stage.optional_inputs) if name in expected]
    anew = [name for name in reads if expected[name].manifest is None]
    live = stage.name == "fetch" and options.order != ("archive",)  # servers limit it, not this machine
    rate, share = rate_of(stage.name, log, live=live), 1.0
    if reads:
        rows, read, longest = expected[stage.inputs[0]].rows, sum(expected[name].bytes for name in reads), 0.0
    else:  # one worker reads a source
        sizes = [source.get("bytes", 0) for source in stage.sources(options)]
        read = sum(sizes)
        rows, longest = read / BYTES_PER_SUBMISSION, max(sizes, default=0) / BYTES_PER_SUBMISSION
    if anew:
        stage.sources(options)  # raises for a source that cannot be read
        verdict = "may run" if manifest is not None else "runs"
        why = f"{', '.join(f'{name}/' for name in anew)} made anew"
    else:
        readers = {}
        for name in reads:
            if (found := expected[name].manifest) is not None:
                readers[name] = DatasetReader(runtime.workdir, found)
        plan = make_plan(stage, options, readers, runtime.workdir)
        if manifest is not None and output.is_finished(plan):
            if stage.name == "fetch" and options.retry_failed and (failed := _temporary_failures(manifest)):
                again = Step(stage.name, "runs", f"--retry_failed: {failed:,} URLs are asked for again", rows=failed)
                return again, replace(_of_manifest(manifest), manifest=None)
            return Step(stage.name, FINISHED), _of_manifest(manifest)
        check_replaceable(stage, options, plan, output)
        plan = with_shards(plan, stage, options, readers, runtime.workdir)
        verdict, why, share = _verdict(stage, plan, output, runtime.workdir)
    sampled: Sample | None = stage.sample(options, runtime.workdir, bases)
    if sampled is not None:
        rows = max(sampled.submissions, 1)
        longest = rows * longest / (read / BYTES_PER_SUBMISSION or 1)
        rate = replace(rate, kept=sampled.urls / rows)
    if stage.name == "fetch" and options.order == ("archive",) and (of := expected["urls"].sample) is not None:
        rate = replace(rate, kept=_share_in(stage.sources(options), options.pages_from, of.ids))
    asked: tuple[Asked, ...] = ()
    if stage.name == "fetch":
        measured = (manifest, *(usable_manifest(base.workdir, stage.output) for base in reversed(bases)))
        shares = shares_of_sources(measured)
        busiest = expected["urls"].sample.busiest if expected["urls"].sample else 0.0
        asked = asked_of_sources(options, rows * share, stage.sources(options), shares, busiest)
    read += sum(source.bytes for source in asked)
    sought = rate.kept if asked and not live else 1  # in WARC files, looking for the others costs next to nothing
    core_seconds = START_SECONDS + rows * share * sought / rate.rows_per_second
    if not live:
        core_seconds += sum(source.bytes for source in asked) / ARCHIVE_BYTES_PER_SECOND
    disk = rows * share * rate.kept * rate.bytes_per_row
    workers = 1 if live else runtime.workers
    shards = stage.num_shards(options) or max(expected[name].shards for name in reads)
    step = Step(
        stage=stage.name,
        verdict=verdict,
        why=why,
        rows=rows * share,
        bytes=read * share,
        core_seconds=core_seconds,
        parts=max(round(shards * share), 1),
        longest=longest / rate.rows_per_second,
        seconds=_overlapping(core_seconds / workers, asked),
        disk=disk,
        measured=rate.measured,
        asked=asked,
    )
    left = rows * rate.kept
    # Of dedupe, a decision for each that goes; export then leaves these out.
    rows = rows - left if stage.name == "dedupe" else left
    return step, _Expected(rows, left * rate.bytes_per_row, shards, sample=sampled)


def shares_of_sources(fetched: Iterable[Manifest | None]) -> dict[str, float]:
    """The share of URLs that each source had of those it was asked for, from the first manifest of pages/ that used
    the source."""
    shares: dict[str, float] = {}
    for manifest in filter(None, fetched):
        left = manifest.counts.entered
        for name in manifest.options.get("sources", ()):
            found = manifest.stats.get(f"from_{name}", 0)
            if left:
                shares.setdefault(name, found / left)
            left -= found
    return shares


def _overlapping(seconds: float, asked: Sequence[Asked]) -> float:
    """The time of a stage with that much work: hosts are asked at the same time, archives one after the other."""
    hosts = max((source.seconds for source in asked if source.source == "live"), default=0.0)
    return max(seconds, hosts) + sum(source.seconds for source in asked if source.source != "live")


def asked_of_sources(
    options: Any, urls: float, files: Sequence[Mapping[str, Any]], shares: Mapping[str, float], busiest: float = 0.0
) -> tuple[Asked, ...]:
    """What fetch would ask of each source; one without a measured share of the URLs gets the web's.

    `busiest` is the share of the URLs on the largest host, whose delays limit fetching from the web.
    """
    found = []
    for name in options.order:
        kept = shares.get(name, SHIPPED["fetch from the web"].kept)
        if name == "archive":
            asked = Asked(name, len(files), sum(file["bytes"] for file in files), urls)
        elif options.in_bulk and name == "commoncrawl":
            asked = _of_index(options, urls, kept)
        elif name == "commoncrawl":  # index and data are asked at the same time
            most = options.cdx_collections if options.cdx_index.endswith(".json") else 1
            lookups = urls * (kept * min(estimate.LOOKUPS_OF_FOUND, most) + (1 - kept) * (most + 1))
            seconds = max(lookups, urls * kept) * options.cdx_delay
            asked = Asked(name, urls=urls, requests=lookups + urls * kept, seconds=seconds)
        elif name == "wayback":  # a lookup and the capture, or a second lookup with any parameters for tracking
            asked = Asked(name, urls=urls, requests=2 * urls, seconds=2 * urls * options.wayback_delay)
        else:
            asked = Asked(name, urls=urls, seconds=urls * busiest * options.host_delay)
        found.append(asked)
        urls *= 1 - kept
    return tuple(found)


def _share_in(files: Sequence[Mapping[str, Any]], patterns: tuple[str, ...], ids: np.ndarray) -> float:
    """The share of these ids that have a page in WARC files, estimated by reading them for two seconds."""
    found: set[int] = set()
    read, started = 0.0, time.process_time()
    for uri, described in zip(expand_globs(patterns, "--pages_from"), files, strict=True):
        with open_source(uri) as file:
            for capture in captures(file, described["bytes"], copy=lambda record: 0):
                if isinstance(capture, Capture) and capture.status < 400:
                    with contextlib.suppress(BadURL):
                        found.add(url_id(canonicalize(capture.url)[0]))
                if time.process_time() - started > _ARCHIVE_SECONDS:
                    read += file.tell()
                    break
            else:
                read += described["bytes"]
        if time.process_time() - started > _ARCHIVE_SECONDS:
            break
    matches = np.isin(ids, np.fromiter(found, np.uint64, len(found))).sum()
    share = read / max(sum(file["bytes"] for file in files), 1)
    return float(min(matches / max(len(ids), 1) / max(share, 1e-9), 1.0))


def _of_index(options: Any, urls: float, kept: float) -> Asked:
    """What is asked of Common Crawl in bulk: its columnar index, and a record for each URL that has one."""
    from owt_pipeline.stages.fetch.cc_index import is_http
    from owt_pipeline.stages.fetch.cc_records import index_reads

    of, records = f"commoncrawl: {', '.join(options.cc_crawls)} of {options.cc_index}", urls * kept
    try:
        index = index_reads(options, urls)
    except UserError as error:
        if not is_http(options.cc_index):
            raise
        return Asked(f"{of}, size unknown ({error})", urls=urls)
    delays = [is_http(options.cc_index) * index.requests, is_http(options.cc_data or options.cc_index) * records]
    return Asked(of, index.files, index.bytes, urls, index.requests + records, sum(delays) * options.cc_delay)


def _verdict(stage: Stage, plan: Plan, output: Output, workdir: Storage) -> tuple[str, str, float]:
    """(verdict, why, share of the shards that run) of a stage whose inputs are finished."""
    finished = finished_parts(workdir, stage.output, plan, output, stage.lists)
    kept, why = finished.kept, finished.why
    if not why:
        return "runs", "not made yet", 1.0
    share = 1 - len(kept) / max(plan.num_shards, 1)
    if why == INTERRUPTED:
        return "continues", f"{len(kept)} of {plan.num_shards} shards are finished", share
    if kept:
        return "runs", f"{why}; {plan.num_shards - len(kept)} of {plan.num_shards} shards", share
    return "runs", why, 1.0


def _temporary_failures(manifest: Manifest) -> int:
    return sum(count for reason, count in manifest.counts.rejected.items() if Reason.of(reason) in TEMPORARY)


def _of_manifest(manifest: Manifest) -> _Expected:
    return _Expected(manifest.total("data").rows, manifest.total_bytes, manifest.num_shards, manifest)
