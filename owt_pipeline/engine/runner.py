"""Running stages: find out which are finished, build the graph of the others, run it, and return the results.

The launcher looks at the stages in order and leaves finished ones out of the graph. If all are finished, Beam is not
even imported.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from typing import Any

from owt_pipeline import progress
from owt_pipeline.engine import parts, submission
from owt_pipeline.engine.phases import (
    Outcome,
    Result,
    append_to_log,
    failures,
    finished_output,
    forget_outcome,
    note_published,
    read_outcome,
    results_of,
    seconds,
)
from owt_pipeline.engine.stage import Runtime, Stage, Step, read_record, records_of
from owt_pipeline.engine.workers import WorkerError, close_shared_pool, importing, start_server
from owt_pipeline.errors import JobRuns, UsageError, UserError
from owt_pipeline.ledger.bases import dependents_of
from owt_pipeline.ledger.commit import record_name, work_of
from owt_pipeline.ledger.dataset import require_manifest
from owt_pipeline.ledger.plan import look_at, read_plan, usable_manifest
from owt_pipeline.storage.folder import Storage, at_once, in_thread
from owt_pipeline.storage.lease import name_job, out_of_sight
from schemas import DATASETS
from schemas.manifest import MANIFEST_NAME, Manifest, ledger_of
from schemas.settings import to_toml

logger = logging.getLogger("owt")

LOCAL_RUNNERS = {"", "FnApiRunner", "DirectRunner"}
WATCH_SECONDS = 2.0
"""Seconds between two looks at the progress of a job on a cluster."""


def run_stages(stages: Sequence[tuple[Stage, Any]], runtime: Runtime, *, check_later: bool = False) -> list[Result]:
    """Run stages with their options, in order, as one job; finished ones are skipped.

    With `check_later`, sources that a later stage cannot read are an error before the first stage runs.

    Raises UserError for errors that the user can fix, LedgerError if rows were lost or invented.
    """
    results: list[Result] = []
    for number, (stage, options) in enumerate(stages):
        manifest = finished_output(stage, options, runtime.workdir)
        if manifest is None or stage.again(options, runtime.workdir, manifest):
            for later, given in stages[number + 1 :] if check_later else ():
                later.sources(given)
            return results + _run_graph(stages[number:], runtime)
        results.append(Result(stage, manifest, None))
        results[-1].log()
    return results


def run_stage(stage: Stage, options: Any, runtime: Runtime) -> tuple[Manifest, bool]:
    """Run one stage unless its output is finished; returns its manifest and whether it ran."""
    (result,) = run_stages([(stage, options)], runtime)
    return result.manifest, result.seconds is not None


def without_imported(
    stages: Sequence[tuple[Stage, Any]], workdir: Storage, remember: bool = True
) -> Sequence[tuple[Stage, Any]]:
    """The stages that run: imported text takes the place of what collect, fetch and extract would make.

    Raises UserError if it is damaged, because none of these could make it again. Unless `remember`, nothing is written.
    """
    left = [planned for planned in stages if planned[0].name not in ("collect", "fetch", "extract")]
    manifest = usable_manifest(workdir, "documents")
    if len(left) == len(stages) or (manifest is not None and manifest.stage != "import"):
        return stages
    output = look_at(workdir, "documents", remember)
    if manifest is None and (workdir.exists(ledger_of("urls")) or not output.is_lost):
        return stages
    if manifest is None or output.problems:
        first = next((f"{name} {problem}" for name, problem in output.problems.items()), "its manifest")
        raise UserError(f"{workdir}: imported text is damaged ({first}): `owt import` of the same files makes it again")
    logger.info("%s has imported text: collect, fetch and extract are left out", workdir)
    return left


def check_dependents(stages: Sequence[tuple[Stage, Any]], workdir: Storage) -> None:
    """Raise UserError if other options or sources would replace what runs that build on this one have read."""
    if not (dependents := dependents_of(workdir)):
        return
    for stage, options in stages:
        manifest = usable_manifest(workdir, stage.output) if stage.output in DATASETS else None
        if manifest is None or manifest.stage != stage.name:
            continue
        now, was = stage.shaping(options, workdir), manifest.options
        restore = [f"{name} = {to_toml(was[name])}" for name in now if name in was and was[name] != now[name]]
        outside = [s for s in manifest.sources if s.get("kind") != "base" and s.get("name") not in stage.lists]
        if sorted(map(repr, outside)) != sorted(map(repr, stage.sources(options))):
            restore.append(f"the sources that it read: {', '.join(str(source.get('name')) for source in outside)}")
        if restore:
            raise UserError(
                f"{', '.join(map(str, dependents))} build on {workdir}, and {stage.name} would replace "
                f"{stage.output}/, which they need. Restore its settings ([{stage.name}] {'; '.join(restore)}), or "
                "give another --workdir; with --replace_base it is replaced, and those runs must then be made again"
            )


def runs_on_cluster(beam_flags: Sequence[str]) -> bool:
    """Whether these flags name a runner other than this machine's own."""
    if not beam_flags:
        return False  # without Beam, which takes half a second to import and may not be needed at all
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    return (PipelineOptions(list(beam_flags)).view_as(StandardOptions).runner or "") not in LOCAL_RUNNERS


def _run_graph(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Result]:
    failures.clear()
    seconds.clear()
    if runs_on_cluster(runtime.beam_flags):
        return _run_on_cluster(stages, runtime)
    try:
        job = in_thread(lambda: _run_locally(stages, runtime))
        while not job.done():  # so that this thread handles Ctrl-C and SIGTERM at once; the job's thread is abandoned
            wait([job], 0.1)
        job.result()
    except KeyboardInterrupt:
        close_shared_pool()
        raise
    except Exception:
        if failures:
            raise failures[0] from None
        raise
    return results_of(stages, runtime.workdir)


def _run_locally(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> None:
    """Run on the FnApiRunner: `DirectRunner` would choose one of three runners by the pipeline's shape."""
    if runtime.workers > 1:
        modules = [parts.__name__, *sorted({type(stage).__module__ for stage, _ in stages} - {"__main__"})]
        start_server(modules + [needed for stage, options in stages for needed in stage.preload(options)])
    with importing():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        from owt_pipeline.engine.graph import build

    class Options(PipelineOptions):
        """Caches views: Beam asks for them some hundred times while it builds a graph, and parses its flags each
        time."""

        def view_as(self, cls: Any) -> Any:
            if cls not in views:
                views[cls] = super().view_as(cls)
            return views[cls]

    views: dict[type, Any] = {}
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # its errors are raised once, by the caller
    options = Options(list(runtime.beam_flags))
    options.view_as(StandardOptions).runner = None
    pipeline = beam.Pipeline(FnApiRunner(), options=options)
    build(pipeline, stages, runtime)
    result = pipeline.run()
    result.wait_until_finish()
    _log_metrics(stages, runtime.workdir, result)


def _run_on_cluster(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> list[Result]:
    import apache_beam as beam

    from owt_pipeline.engine.graph import build

    workdir = runtime.workdir
    with submission.explaining():
        options = submission.options_for(runtime.beam_flags, workdir, stages)
        runtime = runtime.elsewhere([stage for stage, _ in stages], submission.place_of(options))
        watch = Watch(stages, workdir)
        later, detached = submission.submits_later(options), submission.is_detached(options)
        left = read_outcome(workdir) if detached and runtime.ended else None
        forget_outcome(workdir)
        if detached and runtime.ended:
            _raise_outcome(left)
            raise WorkerError(f"job {runtime.ended.id} has ended, and {stages[0][0].name} is not finished: see its log")
        pipeline = beam.Pipeline(options=options)
        named = [(stage, submission.with_absolute_paths(given)) for stage, given in stages]
        build(pipeline, named, replace(runtime, unattended=later))
    failed: Exception | None = None
    try:
        with submission.explaining():
            result = pipeline.run()
            job = submission.job_of(result, options)
            logger.info("job %s on %s %s", job.id, job.runner, submission.console(job, options))
            if runtime.owner:
                name_job(workdir, runtime.owner, job)
            if later:
                return []
            if detached:
                raise JobRuns(f"job {job.id} is at work on {workdir}; run the same command again for its outcome")
            with watch.following():
                result.wait_until_finish()
    except (submission.JobLost, JobRuns):
        raise
    except Exception as error:
        failed = error
    if runtime.owner:
        name_job(workdir, runtime.owner, None)
    outcome = read_outcome(workdir)
    # If the job succeeded, a failure that it stored was retried, or came from an attempt that was given up.
    if failed is not None or not (outcome and outcome.failure):
        _raise_outcome(outcome)
    if failed is not None:
        raise failed
    if outcome is None and not watch.is_published(stages[0][0]):
        raise out_of_sight(workdir)
    forget_outcome(workdir)
    _log_metrics(stages, runtime.workdir, result)
    watch.note_published()
    return results_of(stages, workdir)


def _raise_outcome(outcome: Outcome | None) -> None:
    """Raise the error for which a job stopped or failed, if it stored one."""
    if outcome is not None and outcome.failure:
        raise WorkerError(f"{outcome.message}\n{outcome.failure}") from None
    if outcome is not None and outcome.message:
        raise UsageError(outcome.message) if outcome.exit_code == UsageError.exit_code else UserError(outcome.message)


class Watch:
    """The progress of a job on a cluster, as seen in the working directory: published stages, and records of parts."""

    def __init__(self, stages: Sequence[tuple[Stage, Any]], workdir: Storage):
        self._stages, self._workdir = [stage for stage, _ in stages], workdir
        self._before = {stage.name: self._content(stage) for stage in self._stages}
        self._ended = threading.Event()
        self._since = time.monotonic()

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Show the job's progress while the block runs."""
        thread = threading.Thread(target=self._follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            with contextlib.suppress(OSError, UserError):
                self.note_published()  # includes stages published right before the job failed

    def is_published(self, stage: Stage) -> bool:
        """Whether a stage of this job has been published."""
        return self._content(stage) != self._before[stage.name]

    def _follow(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError, UserError):  # a bucket that does not answer delays the progress only
                self.note_published()
                for stage in self._stages:
                    if stage.name not in seconds and (found := self._parts(stage)):
                        self._show(stage, *found)
            self._ended.wait(WATCH_SECONDS)

    def _show(self, stage: Stage, folder: str, name: str) -> None:
        """Show the progress of one step, from its records, until the next one begins or the stage is published."""
        step = next(step for step in stage.steps if step.name == name)
        work = work_of(self._workdir, stage.output) / folder
        plan = read_plan(work)
        records = records_of(work, name)
        total = plan.num_shards if plan is not None and step.keys is Step.keys else 0
        seen: set[str] = set()

        def missing() -> str:
            few = 0 < total - len(seen) <= 3
            return f"waiting for {', '.join(str(k) for k in range(total) if record_name(k) not in seen)}" if few else ""

        with progress.step(parts.title(stage, step), shards=total):
            progress.doing(missing)
            while not self._ended.is_set():
                new = sorted(set(records.names()) - seen)
                for record in at_once(partial(read_record, records), new):
                    progress.advance(record.counts.entered)
                    progress.shard_done()
                seen.update(new)
                if self.is_published(stage) or self._parts(stage) != (folder, name):
                    return
                self._ended.wait(WATCH_SECONDS)

    def _parts(self, stage: Stage) -> tuple[str, str] | None:
        """The folder of the stage's work, and the last step that has begun; None if the stage is not at work."""
        names = work_of(self._workdir, stage.output).names()
        begun = {name.split("/")[1]: name.split("/")[0] for name in reversed(names) if name.count("/") >= 2}
        return next(((begun[step.name], step.name) for step in reversed(stage.steps) if step.name in begun), None)

    def note_published(self) -> None:
        """Log the stages that were published since the last call."""
        for stage in self._stages:
            if stage.name not in seconds and self.is_published(stage):
                taken, self._since = time.monotonic() - self._since, time.monotonic()
                note_published(stage, require_manifest(self._workdir, stage.output), taken)

    def _content(self, stage: Stage) -> tuple[bytes, str] | None:
        return self._workdir.read_version(f"{ledger_of(stage.output)}/{MANIFEST_NAME}")


def _log_metrics(stages: Sequence[tuple[Stage, Any]], workdir: Storage, result: Any) -> None:
    """Append the job's Beam counters to the run's log."""
    found: dict[str, Counter[str]] = {stage.name: Counter() for stage, _ in stages}
    metrics = result.metrics().query()  # one entry per transform that counts
    for counter in metrics["counters"]:
        if (name := counter.key.metric).namespace in found:
            found[name.namespace][name.name] += counter.result
    for distribution in metrics["distributions"]:
        if (name := distribution.key.metric).namespace in found:
            of_stage, value = found[name.namespace], distribution.result
            of_stage[f"{name.name}_count"] += value.count
            of_stage[f"{name.name}_sum"] += value.sum
            of_stage[f"{name.name}_max"] = max(of_stage[f"{name.name}_max"], value.max or 0)  # None: no part
    counts = {stage: dict(sorted(values.items())) for stage, values in found.items() if values}
    append_to_log(workdir, {"job": type(result).__name__, "metrics": counts})


def check_beam_flags(flags: Sequence[str], own: Sequence[str]) -> None:
    """Raise UsageError for a flag that is not in `own`, the stages' flags, and that Beam does not know: Beam would
    ignore it."""
    if not flags:
        return
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for cls in PipelineOptions.__subclasses__():
        cls._add_argparse_args(parser)  # type: ignore[arg-type]
    known = {name for action in parser._actions for name in action.option_strings}
    for flag in flags:
        name = flag.split("=", 1)[0]
        if name.startswith("-") and name not in known:
            # Beam has hundreds of flags, so one is always somewhat similar.
            near = difflib.get_close_matches(name, own, n=1) or difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            raise UsageError(f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else "; see --help"))
