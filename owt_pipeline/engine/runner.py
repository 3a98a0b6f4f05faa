"""Running stages: find out what has to be made, build the graph of the stages from there on, run
it, and return the results. If nothing has to be made, Beam is not even imported."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from owt_pipeline import progress
from owt_pipeline.engine import parts, submission
from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.lifecycle import end_run
from owt_pipeline.engine.outcome import take_kept_outcome, take_outcome
from owt_pipeline.engine.plan import plan_stages
from owt_pipeline.engine.publish import append_to_log, read_log
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.engine.workers import close_shared_pool, importing, start_server
from owt_pipeline.errors import JobRuns, RunSuperseded, UsageError, UserError
from owt_pipeline.ledger.root import published_by_another, read_root, require_manifest
from owt_pipeline.storage.buckets import in_thread
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import InUse, hold, renew
from schemas.manifest import Manifest, Root

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

logger = logging.getLogger("owt")

LOCAL_RUNNERS = {"", "FnApiRunner", "DirectRunner"}


@dataclass(frozen=True)
class Result:
    """The result of one stage: its manifest, and the seconds it took; None if its output was
    finished before."""

    stage: Stage
    manifest: Manifest
    seconds: float | None

    def log(self) -> None:
        taken = "finished" if self.seconds is None else f"{self.seconds:.1f} s"
        logger.info("%s: %s (%s)", self.stage.name, self.manifest.counts, taken)


def run_stages(
    stages: Sequence[tuple[Stage, Any]],
    runtime: Runtime,
    begun: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Run stages with their options, in order, as one job, holding the lock of the run's folder.
    What is finished is skipped.

    Calls `begun` when the run's sources are recorded, before the first stage starts. Raises
    UserError for errors that the user can fix, before anything is written if they are in the
    options; WorkerError for a bug.
    """
    runtime = replace(runtime, run=runtime.run or uuid.uuid4().hex)
    stages = without_imported(stages, runtime.workdir, read_root(runtime.workdir)[0])
    record_generations(stages, runtime, write=False)  # raises before anything is written
    cluster = None
    if runs_on_cluster(runtime.beam_flags):
        cluster = submission.options_for(runtime.beam_flags, runtime.workdir, stages)
        if submission.submits_later(cluster):
            _run_on_cluster(stages, runtime, None, cluster)
            return []
    detached = cluster is not None and submission.is_detached(cluster)
    with _holding(runtime, cluster, detached=detached) as since:
        root, version = record_generations(stages, runtime)
        plans = plan_stages(stages, runtime.workdir, root)
        progress.name_stages([stage.name for stage, _ in stages])
        begun()
        first = next((number for number, plan in enumerate(plans) if not plan.finished), None)
        results = [
            Result(plan.stage, plan.published, None)
            for plan in plans[:first]
            if plan.published is not None
        ]
        for result in results:
            result.log()
        if first is not None and cluster is not None and detached:
            _run_on_cluster(stages[first:], runtime, version, cluster)
            raise JobRuns(
                f"the job works on {runtime.workdir}; run the same command again for its outcome"
            )
        if first is not None:
            results += _run_graph(stages[first:], runtime, version, cluster)
        else:
            end_run(runtime, since)
    return results


@contextlib.contextmanager
def _holding(
    runtime: Runtime, cluster: PipelineOptions | None, *, detached: bool
) -> Iterator[float]:
    """Hold the run's lock. For a command that leaves its job, raises what an earlier one's job
    has failed with, and JobRuns while that is at work."""
    with contextlib.ExitStack() as stack:
        try:
            since = stack.enter_context(
                hold(runtime.workdir, runtime.run, as_object=cluster is not None)
            )
        except InUse as error:
            raise JobRuns(str(error)) if detached else error from None
        if detached and (outcome := take_outcome(runtime.workdir)) is not None:
            raise outcome.error()
        yield since


def run_stage(stage: Stage, options: Any, runtime: Runtime) -> tuple[Manifest, bool]:
    """Run one stage unless its output is finished; returns its manifest and whether it ran."""
    (result,) = run_stages([(stage, options)], runtime)
    return result.manifest, result.seconds is not None


def without_imported(
    stages: Sequence[tuple[Stage, Any]], workdir: Storage, root: Root
) -> Sequence[tuple[Stage, Any]]:
    """The stages that run: imported text takes the place of what collect, fetch and extract
    would make."""
    left = [planned for planned in stages if planned[0].name not in ("collect", "fetch", "extract")]
    is_imported = "documents" in root.datasets and root.datasets["documents"].stage == "import"
    if len(left) == len(stages) or not is_imported:
        return stages
    logger.info("%s has imported text: collect, fetch and extract are left out", workdir)
    return left


def runs_on_cluster(beam_flags: Sequence[str]) -> bool:
    """Whether these flags name a runner other than this machine's own."""
    if not beam_flags:
        return (
            False  # without Beam, which takes half a second to import and may not be needed at all
        )
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    return (
        PipelineOptions(list(beam_flags)).view_as(StandardOptions).runner or ""
    ) not in LOCAL_RUNNERS


def _run_graph(
    stages: Sequence[tuple[Stage, Any]],
    runtime: Runtime,
    version: str | None,
    cluster: PipelineOptions | None,
) -> list[Result]:
    take_outcome(runtime.workdir)
    started = time.time()
    failed: Exception | None = None
    try:
        if cluster is not None:
            _run_on_cluster(stages, runtime, version, cluster)
        else:
            job = in_thread(lambda: _run_locally(stages, runtime, version))
            while (
                not job.done()
            ):  # so that this thread handles Ctrl-C and SIGTERM at once; the job's is abandoned
                wait([job], 0.1)
            job.result()
    except KeyboardInterrupt:
        close_shared_pool()
        raise
    except Exception as error:
        is_own = isinstance(error, UserError) or cluster is None
        failed = error if is_own else submission.failure(error)
    if failed is None and cluster is not None:
        failed = _how_it_was_lost(stages, runtime)
    if failed is not None:
        outcome = take_kept_outcome(runtime.run) or take_outcome(runtime.workdir, runtime.run)
        raise outcome.error() if outcome is not None else failed
    seconds = {
        entry["stage"]: entry["seconds"]
        for entry in read_log(runtime.workdir)
        if entry.get("started", 0) > started
    }
    results = []
    for stage, _ in stages:
        result = Result(
            stage, require_manifest(runtime.workdir, stage.output), seconds.get(stage.name)
        )
        if (
            cluster is not None or result.seconds is None
        ):  # here, each stage is logged when it is published
            result.log()
        results.append(result)
    return results


def _how_it_was_lost(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> RunSuperseded | None:
    """Return how the run of a job that has ended by itself was lost; None if it is finished."""
    workdir = runtime.workdir
    if all(plan.finished for plan in plan_stages(stages, workdir, read_root(workdir)[0])):
        return None
    try:
        renew(workdir, runtime.run, look=True)
    except RunSuperseded as error:
        return error
    return published_by_another(workdir)


def _run_locally(
    stages: Sequence[tuple[Stage, Any]], runtime: Runtime, version: str | None
) -> None:
    """Run on the FnApiRunner: `DirectRunner` would choose one of three runners by the pipeline's
    shape."""
    if runtime.workers > 1:
        modules = [
            parts.__name__,
            *sorted({type(stage).__module__ for stage, _ in stages} - {"__main__"}),
        ]
        start_server(
            modules + [needed for stage, options in stages for needed in stage.preload(options)]
        )
    with importing():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        from owt_pipeline.engine.graph import build

    class Options(PipelineOptions):
        """Caches views: Beam asks for them some hundred times while it builds a graph, and
        parses its flags each time."""

        def view_as(self, cls: Any) -> Any:
            if cls not in views:
                views[cls] = super().view_as(cls)
            return views[cls]

    views: dict[type, Any] = {}
    logging.getLogger("apache_beam").setLevel(
        logging.CRITICAL
    )  # its errors are raised once, by the caller
    options = Options(list(runtime.beam_flags))
    options.view_as(StandardOptions).runner = None
    pipeline = beam.Pipeline(FnApiRunner(), options=options)
    build(pipeline, stages, runtime, version)
    result = pipeline.run()
    result.wait_until_finish()
    _log_metrics(stages, runtime.workdir, result)


def _run_on_cluster(
    stages: Sequence[tuple[Stage, Any]],
    runtime: Runtime,
    version: str | None,
    options: PipelineOptions,
) -> None:
    import apache_beam as beam

    from owt_pipeline.engine.graph import build

    runner = str(options.get_all_options()["runner"])
    runtime = runtime.for_cluster([stage for stage, _ in stages], runner)
    pipeline = beam.Pipeline(options=options)
    build(
        pipeline,
        [(stage, submission.with_absolute_paths(given)) for stage, given in stages],
        runtime,
        version,
    )
    result = pipeline.run()
    if submission.submits_later(options):
        return
    logger.info("job %s on %s", submission.job_of(result), runner)
    if submission.is_detached(options):
        return
    result.wait_until_finish()
    _log_metrics(stages, runtime.workdir, result)


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
            of_stage[f"{name.name}_max"] = max(
                of_stage[f"{name.name}_max"], value.max or 0
            )  # None: no part
    counts = {stage: dict(sorted(values.items())) for stage, values in found.items() if values}
    append_to_log(workdir, {"job": type(result).__name__, "metrics": counts})


def check_beam_flags(flags: Sequence[str], own: Sequence[str], help_command: str) -> None:
    """Raise UsageError for a flag that is not in `own`, the stages' flags, and that Beam does
    not know: Beam would ignore it."""
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
            near = difflib.get_close_matches(name, own, n=1) or difflib.get_close_matches(
                name, known, n=1, cutoff=0.8
            )
            raise UsageError(
                f"unknown flag {name}"
                + (f"; did you mean {near[0]}?" if near else f"; see `{help_command}`")
            )
