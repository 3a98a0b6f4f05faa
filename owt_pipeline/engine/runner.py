"""Run stages.

1. Plan all stages, to refuse an impossible request before anything is written.
2. Build the graph of the stages from the first unfinished one on, and run it.
3. Return the results.

If all stages are finished, Beam is not imported.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from owt_pipeline import progress
from owt_pipeline.engine import submission
from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.parts import Work, do_locally, plan_stage
from owt_pipeline.engine.plan import StagePlan, plan_stages
from owt_pipeline.engine.publish import append_to_log, end_run, publish, read_log
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.engine.submission import take_outcome
from owt_pipeline.engine.workers import close_shared_pool, importing, start_server
from owt_pipeline.errors import JobRuns, RunSuperseded, UsageError, UserError
from owt_pipeline.foreign_words import flag_answer
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.root import published_by_another, read_root, require_manifest
from owt_pipeline.storage.buckets import in_thread
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import InUse, check_free, hold, renew
from schemas.manifest import Manifest, Root
from schemas.values import nearest_words

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

logger = logging.getLogger("owt")

LOCAL_RUNNERS = {"", "FnApiRunner", "DirectRunner"}


@dataclass(frozen=True)
class Result:
    """The result of one stage.

    Attributes:
      stage: the stage.
      manifest: the manifest of its output.
      seconds: how long it took; None if its output was finished before.
    """

    stage: Stage
    manifest: Manifest
    seconds: float | None

    def log(self) -> None:
        """Log the counts and the time of the stage."""
        taken = "finished" if self.seconds is None else f"{self.seconds:.1f} s"
        logger.info("%s: %s (%s)", self.stage.name, self.manifest.counts, taken)


def run_stages(
    stages: Sequence[tuple[Stage, Any]],
    runtime: Runtime,
    begun: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Run stages with their options, in order, as one job, holding the lock of the run's folder.

    Finished stages are skipped. Calls `begun` when the run's sources are recorded, before the first
    stage starts. Raises UserError for errors that the user can fix. If the options are wrong, it is
    raised before anything is written. Raises WorkerError for a bug.
    """
    root, _ = read_root(runtime.workdir)
    stages = without_imported(stages, runtime.workdir, root)
    names = tuple(stage.name for stage, _ in stages)
    runtime = replace(runtime, run=runtime.run or uuid.uuid4().hex, stages=names)
    is_on_cluster = runs_on_cluster(runtime.beam_flags)
    if is_on_cluster:
        # Workers start in another folder, and read the sources as they are recorded here.
        stages = [
            (stage, submission.with_absolute_paths(stage_options))
            for stage, stage_options in stages
        ]
    _check_sources(stages, runtime)
    cluster = None
    if is_on_cluster:
        cluster = submission.options_for(runtime.beam_flags, runtime.workdir, stages)
        if submission.submits_later(cluster):
            _run_on_cluster(stages, runtime, None, cluster)
            return []
    is_detached = cluster is not None and submission.is_detached(cluster)
    with _holding(runtime, cluster, is_detached=is_detached) as since:
        root, version = record_generations(stages, runtime)
        plans = plan_stages(stages, runtime.workdir, root)
        progress.name_stages(names)
        begun()
        results = _finished_results(plans)
        for result in results:
            result.log()
        unfinished = stages[len(results) :]
        if not unfinished:
            end_run(runtime, since)
            return results
        if cluster is not None and is_detached:
            _run_on_cluster(unfinished, runtime, version, cluster)
            raise JobRuns(
                f"the job is running in {runtime.workdir}; run the same command again to see its "
                "outcome"
            )
        return results + _run_graph(unfinished, runtime, version, cluster)


def _check_sources(stages: Sequence[tuple[Stage, Any]], runtime: Runtime) -> None:
    """Raise the errors of the sources before anything is written.

    While another run is at work, it may have added sources that the settings do not name yet.
    Then InUse is raised.
    """
    try:
        record_generations(stages, runtime, write=False)
    except UserError:
        check_free(runtime.workdir)
        raise


def _finished_results(plans: Sequence[StagePlan]) -> list[Result]:
    """Return the results of the finished stages before the first unfinished one."""
    results = []
    for plan in plans:
        if not plan.finished or plan.published is None:
            break
        results.append(Result(plan.stage, plan.published, None))
    return results


@contextlib.contextmanager
def _holding(
    runtime: Runtime, cluster: PipelineOptions | None, *, is_detached: bool
) -> Iterator[float]:
    """Hold the run's lock, and yield since when it is held.

    A command that leaves its job raises the error of an earlier such job, or JobRuns while that job
    is at work.
    """
    with contextlib.ExitStack() as stack:
        lock = hold(runtime.workdir, runtime.run, as_object=cluster is not None)
        try:
            since = stack.enter_context(lock)
        except InUse as error:
            if is_detached:
                raise JobRuns(str(error)) from None
            raise
        if is_detached:
            outcome = take_outcome(runtime.workdir)
            if outcome is not None:
                raise outcome.error()
        yield since


def run_stage(stage: Stage, options: Any, runtime: Runtime) -> tuple[Manifest, bool]:
    """Run one stage unless its output is finished, and return its manifest and whether it ran."""
    (result,) = run_stages([(stage, options)], runtime)
    return result.manifest, result.seconds is not None


def without_imported(
    stages: Sequence[tuple[Stage, Any]], workdir: Storage, root: Root
) -> Sequence[tuple[Stage, Any]]:
    """Return the stages that run.

    Imported text replaces the output of collect, fetch and extract.
    """
    others = [
        (stage, options)
        for stage, options in stages
        if stage.name not in ("collect", "fetch", "extract")
    ]
    is_imported = "documents" in root.datasets and root.datasets["documents"].stage == "import"
    if len(others) == len(stages) or not is_imported:
        return stages
    logger.info("skipping collect, fetch and extract, since %s has imported text", workdir)
    return others


def runs_on_cluster(beam_flags: Sequence[str]) -> bool:
    """Return whether these flags name a runner that is not in LOCAL_RUNNERS."""
    if not beam_flags:
        # Importing Beam takes half a second, and a finished run does not need it.
        return False
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

    options = PipelineOptions(list(beam_flags)).view_as(StandardOptions)
    return (options.runner or "") not in LOCAL_RUNNERS


def _run_graph(
    stages: Sequence[tuple[Stage, Any]],
    runtime: Runtime,
    version: str | None,
    cluster: PipelineOptions | None,
) -> list[Result]:
    """Run the graph of some stages to its end, and return their results."""
    # An earlier job may have left an outcome.
    take_outcome(runtime.workdir)
    started = time.time()
    failure = _failure_of_job(stages, runtime, version, cluster)
    if failure is not None:
        outcome = take_outcome(runtime.workdir, runtime.run)
        raise failure if outcome is None else outcome.error()
    seconds_by_stage: dict[str, float] = {}
    for entry in read_log(runtime.workdir):
        if entry.get("started", 0) > started:
            seconds_by_stage[entry["stage"]] = entry["seconds"]
    results = []
    for stage, _ in stages:
        manifest = require_manifest(runtime.workdir, stage.output)
        result = Result(stage, manifest, seconds_by_stage.get(stage.name))
        # A stage of this process was logged when it was published.
        if cluster is not None or result.seconds is None:
            result.log()
        results.append(result)
    return results


def _failure_of_job(
    stages: Sequence[tuple[Stage, Any]],
    runtime: Runtime,
    version: str | None,
    cluster: PipelineOptions | None,
) -> Exception | None:
    """Run the graph of some stages to its end. Return its error, or None if it succeeded."""
    try:
        if cluster is not None:
            _run_on_cluster(stages, runtime, version, cluster)
            return _superseded_error(stages, runtime)
        job = in_thread(lambda: _run_locally(stages, runtime, version))
        # This thread waits in short turns, so that it handles Ctrl-C and SIGTERM at once. Then the
        # job's thread is abandoned.
        while not job.done():
            wait([job], 0.1)
        job.result()
        return None
    except KeyboardInterrupt:
        close_shared_pool()
        raise
    except Exception as error:
        is_ours = isinstance(error, UserError) or cluster is None
        return error if is_ours else submission.failure(error)


def _superseded_error(
    stages: Sequence[tuple[Stage, Any]], runtime: Runtime
) -> RunSuperseded | None:
    """Return the error of a job that has ended before its run was finished, or None."""
    workdir = runtime.workdir
    root, _ = read_root(workdir)
    if all(plan.finished for plan in plan_stages(stages, workdir, root)):
        return None
    try:
        renew(workdir, runtime.run, look=True)
    except RunSuperseded as error:
        return error
    return published_by_another(workdir)


def make_here(stage: Stage, options: Any, runtime: Runtime) -> Manifest:
    """Run a stage in this process and its pool, without a runner.

    It goes through the same phases and steps as the graph. Raises UserError for errors that the
    user can fix, LedgerError if rows were lost or invented.
    """
    run = plan_stage(stage, options, runtime)
    if isinstance(run, Manifest):
        return run
    slices_by_part: dict[int, list[Slice]] = {key: [] for key in stage.steps[0].keys(run)}
    for index, step in enumerate(stage.steps):
        if index:
            slices_by_part = {**{key: [] for key in step.keys(run)}, **slices_by_part}
        sent: dict[int, list[Slice]] = {}
        for _, done in do_locally(Work(stage, options, runtime, index, run.name), slices_by_part):
            for key, slice in done.sent:
                sent.setdefault(key, []).append(slice)
        slices_by_part = sent
    _, version = read_root(runtime.workdir)
    manifest, _ = publish(stage, options, runtime, run.name, version)
    return manifest


def _run_locally(
    stages: Sequence[tuple[Stage, Any]], runtime: Runtime, version: str | None
) -> None:
    """Run on the FnApiRunner.

    `DirectRunner` would choose one of three runners by the pipeline's shape.
    """
    if runtime.workers > 1:
        start_server(_preloaded(stages))
    with importing():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
        from apache_beam.runners.portability.fn_api_runner import FnApiRunner

        from owt_pipeline.engine.graph import build

    # The caller raises Beam's errors once.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    options = PipelineOptions(list(runtime.beam_flags))
    options.view_as(StandardOptions).runner = None
    pipeline = beam.Pipeline(FnApiRunner(), options=options)
    build(pipeline, stages, runtime, version)
    result = pipeline.run()
    result.wait_until_finish()
    _log_metrics(stages, runtime.workdir, result)


def _preloaded(stages: Sequence[tuple[Stage, Any]]) -> list[str]:
    """Return the modules and functions that the fork server loads for these stages."""
    # Workers do not import the script that this process runs.
    modules = {type(stage).__module__ for stage, _ in stages} - {"__main__"}
    preloaded = [Work.__module__, *sorted(modules)]
    for stage, options in stages:
        preloaded += stage.preload(options)
    return preloaded


def _run_on_cluster(
    stages: Sequence[tuple[Stage, Any]],
    runtime: Runtime,
    version: str | None,
    options: PipelineOptions,
) -> None:
    """Submit the graph, and wait for the job's end.

    Returns at once if a launcher submits the job later, or if the flags say not to wait for it.
    """
    import apache_beam as beam

    from owt_pipeline.engine.graph import build

    runner = str(options.get_all_options()["runner"])
    runtime = runtime.for_cluster([stage for stage, _ in stages], runner)
    pipeline = beam.Pipeline(options=options)
    build(pipeline, stages, runtime, version)
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
    counter_by_stage: dict[str, Counter[str]] = {stage.name: Counter() for stage, _ in stages}
    # Each counter has one entry per transform that counts.
    metrics = result.metrics().query()
    for counted in metrics["counters"]:
        metric = counted.key.metric
        if metric.namespace in counter_by_stage:
            counter_by_stage[metric.namespace][metric.name] += counted.result
    for distribution in metrics["distributions"]:
        metric = distribution.key.metric
        if metric.namespace not in counter_by_stage:
            continue
        counter = counter_by_stage[metric.namespace]
        values = distribution.result
        counter[f"{metric.name}_count"] += values.count
        counter[f"{metric.name}_sum"] += values.sum
        # There is no maximum if there was no part.
        largest = max(counter[f"{metric.name}_max"], values.max or 0)
        counter[f"{metric.name}_max"] = largest
    counts: dict[str, dict[str, int]] = {}
    for stage_name, counter in counter_by_stage.items():
        if counter:
            counts[stage_name] = dict(sorted(counter.items()))
    append_to_log(workdir, {"job": type(result).__name__, "metrics": counts})


def check_beam_flags(flags: Sequence[str], own: Sequence[str], help_command: str) -> None:
    """Raise UsageError for a flag that neither Beam nor `own`, the stages' flags, has.

    Beam would ignore it.
    """
    if not flags:
        return
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for cls in PipelineOptions.__subclasses__():
        cls._add_argparse_args(parser)  # type: ignore[arg-type]
    known = {name for action in parser._actions for name in action.option_strings}
    for flag in flags:
        name = flag.split("=", 1)[0]
        if not name.startswith("-") or name in known:
            continue
        answer = flag_answer(name, own)
        if answer:
            program = help_command.rpartition(" ")[0]
            raise UsageError(f"{name} is not a flag of {program}; {answer}")
        similar = nearest_words(name, own)
        if not similar:
            # Beam has hundreds of flags, so one is always somewhat similar.
            similar = nearest_words(name, known, cutoff=0.8)
        if similar:
            raise UsageError(f"unknown flag {name}; did you mean {similar[0]}?")
        raise UsageError(f"unknown flag {name}; see `{help_command}`")
