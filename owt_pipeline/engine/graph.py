"""Stages as Beam transforms, and the one graph of a run.

A stage is a composite PTransform from the handle of one dataset to the handle of the next. Inside
is one linear chain, without side inputs and without a node that two others read (both hang on
Flink's batch shuffle):

    Handle | Barrier | Plan      -> (CONTROL, Handle), and (key, Slice) for each part
           | Shuffle | Work      the first step -> (CONTROL, Handle), and (key, Slice) for what each
                                 part sent; not shuffled on the local runner, whose pool
                                 distributes the parts
           | Group   | Work      each further step likewise; the last step's parts send nothing
           | Gather  | Publish   waits for all shards -> Handle

One control message passes through every step next to the parts. It carries the decision of `Plan`,
creates parts that nothing was sent to, and reaches `Publish` even if there are no parts. If the
stage is finished, it is the only message. The graph therefore depends on the stages and their
options alone.

Each of these transforms can run any number of times, at any time and in any overlap. The barrier
only saves work: when a runner retries a plan, it does not also repeat the Publish before it.

A job on a cluster whose run has been replaced by another one ends by itself: raised, that would be
tried again, perhaps without end. Instead the handle says so, parts make nothing, and every later
transform passes the handle on. A launcher sees afterwards that the run is not finished.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeAlias

import apache_beam as beam
import apache_beam.pipeline
import msgspec
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from owt_pipeline.engine.lifecycle import end_run, start_run
from owt_pipeline.engine.outcome import JobOutcome, keep_outcome, write_outcome
from owt_pipeline.engine.parts import Done, Work, do_locally
from owt_pipeline.engine.plan import plan_stage
from owt_pipeline.engine.publish import publish
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import LostRun, UserError
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.root import read_own_root
from owt_pipeline.storage.lock import release, renew
from schemas.manifest import Manifest

logger = logging.getLogger("owt")

CONTROL = -1
"""Key of the messages that are not parts."""

Stages: TypeAlias = Sequence[tuple[Stage, Any]]


class Handle(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A handle of a finished dataset, passed from stage to stage.

    `uri` is the URI of its folder, or of the run's folder at the start of a run; `version` is that
    of the root manifest that this run wrote last; `since` is when the run began, by the clock of
    the storage. Within a stage at work, it is the dataset before, and `plan` is `StageRun.name`.
    `is_lost` if another run has taken this one's place.
    """

    uri: str
    version: str | None = None
    since: float = 0.0
    plan: str = ""
    is_lost: bool = False


Message: TypeAlias = Slice | Handle
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Message).decode
_Element: TypeAlias = tuple[int, bytes]


class Start(beam.PTransform):
    """The handle that a run begins with, that of its folder, once the lock is taken and the
    generations are recorded.

    `owt run` has done both before it builds the graph, and gives the `version` of its root. In a
    job that nobody waits for they are done here, so that building the graph writes nothing.
    """

    def __init__(self, runtime: Runtime, stages: Stages = (), version: str | None = None):
        super().__init__()
        self.runtime, self.stages, self.version = runtime, stages, version

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[Handle]:
        with contextlib.suppress(
            OSError
        ):  # used by other languages' transforms only; a killed run would leave it
            os.rmdir(begin.pipeline.local_tempdir)
        handle = begin | beam.Create(
            [Handle(self.runtime.workdir.uri, self.version)], reshuffle=False
        )
        return handle | "_Begin" >> beam.Map(_begin, self.runtime, self.stages).with_output_types(
            Handle
        )


def _begin(handle: Handle, runtime: Runtime, stages: Stages) -> Handle:
    with _reported(runtime, "start"):
        version, since = start_run(stages, runtime, handle.version)
        return msgspec.structs.replace(handle, version=version, since=since)
    return _lost(handle)


class RunStage(beam.PTransform):
    """A stage, with its options, as a transform from the handle of the dataset before it to that
    of its output.

    `later` are the stages after it, which may read files of its output that are gone.
    """

    def __init__(self, stage: Stage, options: Any, runtime: Runtime, later: Stages = ()):
        super().__init__()
        self.stage, self.options, self.runtime = stage, options, runtime
        self.later = later

    def default_label(self) -> str:
        return self.stage.name.capitalize()

    def expand(self, handle: beam.PCollection[Handle]) -> beam.PCollection[Handle]:
        stage, options, runtime = self.stage, self.options, self.runtime
        if runtime.on_cluster:
            handle |= "Barrier" >> beam.Reshuffle()
        plan = beam.FlatMap(_plan, stage, options, runtime, self.later).with_output_types(_Element)
        parts = handle | "Plan" >> plan
        if runtime.on_cluster:
            parts |= "Shuffle" >> beam.Reshuffle()
        for index, step in enumerate(stage.steps):
            work = Work(stage, options, runtime, index, "")
            name = step.name.replace("_", " ").title().replace(" ", "")
            if index:
                parts |= f"Group{name}" >> beam.GroupByKey()
            parts |= f"Work{name}" >> beam.ParDo(_Work(work)).with_output_types(_Element)
        return (
            parts
            | "Gather" >> beam.GroupByKey()
            | "Publish" >> beam.Map(_publish, stage, options, runtime).with_output_types(Handle)
        )


@contextlib.contextmanager
def plain_labels() -> Iterator[None]:
    """Give the graph the same labels in a notebook as elsewhere. Beam would prefix each with the
    cell's number, and for that import its interactive runner, which needs pandas before version
    3."""
    original = apache_beam.pipeline.alter_label_if_ipython
    apache_beam.pipeline.alter_label_if_ipython = lambda *_: None
    try:
        yield
    finally:
        apache_beam.pipeline.alter_label_if_ipython = original


def build(
    pipeline: beam.Pipeline, stages: Stages, runtime: Runtime, version: str | None = None
) -> beam.PCollection[Handle]:
    """The graph of some stages with their options, in order: one linear chain."""
    runtime = replace(runtime, beam_flags=())  # which may contain secrets
    with plain_labels():
        handle = pipeline | Start(runtime, stages, version)
        for number, (stage, options) in enumerate(stages):
            handle |= RunStage(stage, options, runtime, stages[number + 1 :])
        return handle | End(runtime)


def _plan(
    handle: Handle, stage: Stage, options: Any, runtime: Runtime, later: Stages
) -> list[_Element]:
    """Handle handle -> control message, and the parts of the first step."""
    if handle.is_lost:
        return [(CONTROL, _encode(handle))]
    with _reported(runtime, f"{stage.name}, Plan"):
        _, version = read_own_root(runtime.workdir, handle.version, runtime.run)
        found = plan_stage(stage, options, runtime, later)
        if isinstance(found, Manifest):
            return [(CONTROL, _encode(_handle(runtime, found, handle, version)))]
        running = msgspec.structs.replace(handle, plan=found.name)
        return [(CONTROL, _encode(running)), *_parts(stage.steps[0].keys(found), found.name)]
    return [(CONTROL, _encode(_lost(handle)))]


class _Work(beam.DoFn):
    """Parts of one step -> handles of what they sent. On a cluster, each part is made when it
    arrives. On the local runner, all parts are in one bundle, and the local pool makes them."""

    def __init__(self, work: Work):
        self.work = work
        self.is_last = work.index == len(work.stage.steps) - 1

    def start_bundle(self) -> None:
        self.waiting: dict[int, list[Slice]] = {}

    def process(self, element: tuple[int, bytes | Iterable[bytes]]) -> Iterator[_Element]:
        key, values = element
        messages = [_decode(value) for value in ([values] if isinstance(values, bytes) else values)]
        if key == CONTROL:
            for message in messages:
                yield CONTROL, _encode(message)
                if message.plan and not self.is_last:
                    with self._reported():
                        after = replace(self.work, plan=message.plan).keys_after()
                    yield from _parts(after, message.plan)
        elif self.work.runtime.on_cluster:
            work = replace(self.work, plan=messages[0].work)
            with self._reported(f"part {key}"):
                yield from self._elements(work.do(key, _sent(messages)), work.plan)
                return
            yield CONTROL, _encode(_lost(Handle(work.runtime.workdir.uri)))
        else:
            self.waiting[key] = messages

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self.waiting:
            work = replace(self.work, plan=next(iter(self.waiting.values()))[0].work)
            with self._reported():
                made = list(
                    do_locally(work, {key: _sent(slices) for key, slices in self.waiting.items()})
                )
            for _, done in made:
                for element in self._elements(done, work.plan):
                    yield GlobalWindows.windowed_value_at_end_of_window(element)
            self.waiting = {}

    def _reported(self, *part: str) -> AbstractContextManager[None]:
        return _reported(
            self.work.runtime, ", ".join((self.work.stage.name, self.work.step.name, *part))
        )

    def _elements(self, done: Done, plan: str) -> list[_Element]:
        if done.seconds and done.record is not None:
            Metrics.distribution(self.work.stage.name, "part_milliseconds").update(
                int(done.seconds * 1000)
            )
            Metrics.counter(self.work.stage.name, "bytes_written").inc(
                sum(file.bytes for file in done.record.files)
            )
        return [
            (key, _encode(msgspec.structs.replace(slice, work=plan))) for key, slice in done.sent
        ]


def _publish(
    element: tuple[int, Iterable[bytes]], stage: Stage, options: Any, runtime: Runtime
) -> Handle:
    """Control message, once all shards have their records -> handle of the output."""
    before: Handle = max(
        (_decode(value) for value in element[1]), key=lambda message: message.is_lost
    )
    if not before.plan:
        return before
    with _reported(runtime, f"{stage.name}, Publish"):
        if runtime.lock:
            renew(runtime.workdir, runtime.run, look=True)
        manifest, version = publish(stage, options, runtime, before.plan, before.version)
        # The ledger as Beam's counters, which runners show.
        counts = {"rows_in": manifest.counts.entered, "rows_out": manifest.counts.left}
        counts |= {
            f"rejected_{reason}": count for reason, count in manifest.counts.rejected.items()
        }
        for name, count in counts.items():
            Metrics.counter(stage.name, name).inc(count)
        return _handle(runtime, manifest, before, version)
    return _lost(before)


class End(beam.PTransform):
    """The end of a run: sweeps its folder and releases the lock."""

    def __init__(self, runtime: Runtime):
        super().__init__()
        self.runtime = runtime

    def expand(self, handle: beam.PCollection[Handle]) -> beam.PCollection[Handle]:
        return handle | "_End" >> beam.Map(_end, self.runtime).with_output_types(Handle)


def _end(handle: Handle, runtime: Runtime) -> Handle:
    if handle.is_lost:
        return handle
    with _reported(runtime, "end"):
        end_run(runtime, handle.since)
        return handle
    return _lost(handle)


@contextlib.contextmanager
def _reported(runtime: Runtime, where: str) -> Iterator[None]:
    """Store an error of the block for the launcher, which may see only the end of a traceback,
    release the lock, and raise it.

    On a cluster the lock is kept after any error but a user's mistake, since the runner tries
    again. There, LostRun is only logged: the folder is another run's, and so is its outcome.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, LostRun) and runtime.on_cluster:
            logger.error("%s", error)
            return
        outcome = JobOutcome.of(where, error, runtime.run)
        if runtime.on_cluster:
            write_outcome(runtime.workdir, outcome)
        else:
            keep_outcome(outcome)
        if isinstance(error, UserError) or not runtime.on_cluster:
            release(runtime.workdir, runtime.run)
        raise


def _parts(keys: Iterable[int], plan: str) -> list[_Element]:
    """Parts that exist even if nothing is sent to them."""
    return [(key, _encode(Slice(plan))) for key in keys]


def _sent(messages: Iterable[Slice]) -> list[Slice]:
    return [message for message in messages if message.length]


def _lost(handle: Handle) -> Handle:
    """The handle of a run whose place another one has taken."""
    return msgspec.structs.replace(handle, plan="", is_lost=True)


def _handle(runtime: Runtime, manifest: Manifest, before: Handle, version: str | None) -> Handle:
    return Handle(runtime.workdir.path(manifest.dataset), version, before.since)
