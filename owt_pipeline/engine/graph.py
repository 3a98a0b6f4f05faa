"""Turn stages into Beam transforms, and a run into one graph.

A stage is a composite PTransform from the handle of one dataset to the handle of the next. It
contains one linear chain, without side inputs and without a node that two others read. Both hang
on Flink's batch shuffle.

    Handle | Barrier | Plan      -> (CONTROL, Handle), and (key, Slice) for each part
           | Shuffle | Work      the first step -> (CONTROL, Handle), and (key, Slice) for the rows
                                 that each part sent
           | Group   | Work      each further step in the same way; the last step's parts send
                                 nothing
           | Gather  | Publish   waits for all shards -> Handle

`Shuffle` is left out on the local runner, because its pool distributes the parts.

One control message passes through every step next to the parts. It carries the decision of `Plan`,
creates parts that nothing was sent to, and reaches `Publish` even if there are no parts. If the
stage is finished, it is the only message. So the graph depends only on the stages and their
options.

Each of these transforms can run any number of times, at any time and in any overlap. The barrier
only saves work: when a runner retries a plan, it does not also repeat the Publish before it.

A job on a cluster whose run was superseded by another one ends by itself. If it raised an error,
the runner would try again, perhaps without end. Instead the handle records it, and parts make
nothing. Every later transform passes the handle on. A launcher sees afterwards that the run is not
finished.
"""

from __future__ import annotations

import contextlib
import logging
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

from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.parts import Done, Work, do_locally, plan_stage
from owt_pipeline.engine.publish import end_run, publish
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.engine.submission import JobOutcome, keep_outcome
from owt_pipeline.errors import RunSuperseded, UserError
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.root import read_own_root
from owt_pipeline.storage.lock import release, renew, take
from schemas.manifest import Manifest

logger = logging.getLogger("owt")

CONTROL = -1
"""Key of the messages that are not parts."""

Stages: TypeAlias = Sequence[tuple[Stage, Any]]


class Handle(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A handle of a finished dataset, passed from stage to stage.

    Within a stage at work, it is the handle of the dataset before.

    Attributes:
      uri: URI of the dataset's folder, or of the run's folder at the start of a run.
      version: version of the root manifest that this run has written last.
      since: when the run began, in seconds since 1970 by the clock of the storage.
      plan: within a stage at work, `StageRun.name`; else empty.
      is_superseded: whether another run has taken this one's place.
    """

    uri: str
    version: str | None = None
    since: float = 0.0
    plan: str = ""
    is_superseded: bool = False


Message: TypeAlias = Slice | Handle
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Message).decode
_Element: TypeAlias = tuple[int, bytes]


def start(
    pipeline: beam.Pipeline, runtime: Runtime, stages: Stages = (), version: str | None = None
) -> beam.PCollection[Handle]:
    """Begin a run: take its lock, record its generations, and return the handle of its folder.

    `owt run` has done both before it builds the graph, and passes the `version` of the root. A job
    that nobody waits for does both here, so that building the graph writes nothing. Repeated by the
    same run, both have no effect.
    """
    handle = Handle(runtime.workdir.uri, version)
    begin = beam.Map(_begin, runtime, stages).with_output_types(Handle)
    return pipeline | beam.Create([handle], reshuffle=False) | "Start" >> begin


def _begin(handle: Handle, runtime: Runtime, stages: Stages) -> Handle:
    with _reported(runtime, "start"):
        since = take(runtime.workdir, runtime.run, as_object=runtime.on_cluster)
        version = handle.version
        if version is None:
            _, version = record_generations(stages, runtime)
        return msgspec.structs.replace(handle, version=version, since=since)
    return _superseded(handle)


class RunStage(beam.PTransform):
    """Run a stage: from the handle of the dataset before it to the handle of its output.

    `later` are the stages after it, which may read files of its output that are lost.
    """

    def __init__(self, stage: Stage, options: Any, runtime: Runtime, later: Stages = ()):
        super().__init__()
        self.stage = stage
        self.options = options
        self.runtime = runtime
        self.later = later

    def default_label(self) -> str:
        return self.stage.name.capitalize()

    def expand(self, handle: beam.PCollection[Handle]) -> beam.PCollection[Handle]:
        stage = self.stage
        options = self.options
        runtime = self.runtime
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
        publish_output = beam.Map(_publish, stage, options, runtime).with_output_types(Handle)
        return parts | "Gather" >> beam.GroupByKey() | "Publish" >> publish_output


@contextlib.contextmanager
def plain_labels() -> Iterator[None]:
    """Give the graph the same labels in a notebook as elsewhere.

    Beam would prefix each label with the cell's number. For that, it would import its interactive
    runner, which needs a pandas older than version 3.
    """
    original = apache_beam.pipeline.alter_label_if_ipython
    apache_beam.pipeline.alter_label_if_ipython = lambda *_: None
    try:
        yield
    finally:
        apache_beam.pipeline.alter_label_if_ipython = original


def build(
    pipeline: beam.Pipeline, stages: Stages, runtime: Runtime, version: str | None = None
) -> beam.PCollection[Handle]:
    """Build the graph of some stages with their options, in order: one linear chain."""
    # Beam's flags may contain secrets, and a graph is shown in a runner's user interface.
    runtime = replace(runtime, beam_flags=())
    with plain_labels():
        handle = start(pipeline, runtime, stages, version)
        for number, (stage, options) in enumerate(stages):
            handle |= RunStage(stage, options, runtime, stages[number + 1 :])
        return handle | "End" >> beam.Map(_end, runtime).with_output_types(Handle)


def _plan(
    handle: Handle, stage: Stage, options: Any, runtime: Runtime, later: Stages
) -> list[_Element]:
    """Return the control message, and the parts of the first step."""
    if handle.is_superseded:
        return [(CONTROL, _encode(handle))]
    with _reported(runtime, f"{stage.name}, Plan"):
        _, version = read_own_root(runtime.workdir, handle.version, runtime.run)
        planned = plan_stage(stage, options, runtime, later)
        if isinstance(planned, Manifest):
            return [(CONTROL, _encode(_handle(runtime, planned, handle, version)))]
        at_work = msgspec.structs.replace(handle, plan=planned.name)
        keys = stage.steps[0].keys(planned)
        return [(CONTROL, _encode(at_work)), *_parts(keys, planned.name)]
    return [(CONTROL, _encode(_superseded(handle)))]


class _Work(beam.DoFn):
    """Make the parts of one step, and emit a slice for each group of rows that they sent.

    On a cluster, each part is made when it arrives. On the local runner, all parts are in one
    bundle, and the local pool makes them when the bundle ends.
    """

    def __init__(self, work: Work):
        self.work = work
        self.is_last = work.index == len(work.stage.steps) - 1

    def start_bundle(self) -> None:
        self.waiting: dict[int, list[Slice]] = {}

    def process(self, element: tuple[int, bytes | Iterable[bytes]]) -> Iterator[_Element]:
        key, encoded = element
        # The elements of a step that follows a shuffle are grouped by their key.
        if isinstance(encoded, bytes):
            encoded = [encoded]
        messages = [_decode(message) for message in encoded]
        if key == CONTROL:
            yield from self._pass_control(messages)
        elif self.work.runtime.on_cluster:
            yield from self._make_part(key, messages)
        else:
            self.waiting[key] = messages

    def _pass_control(self, handles: Sequence[Handle]) -> Iterator[_Element]:
        """Pass control messages on, and create the next step's parts that nothing is sent to."""
        for handle in handles:
            yield CONTROL, _encode(handle)
            if not handle.plan or self.is_last:
                continue
            with self._reported():
                keys = replace(self.work, plan=handle.plan).keys_after()
            yield from _parts(keys, handle.plan)

    def _make_part(self, key: int, slices: Sequence[Slice]) -> Iterator[_Element]:
        """Make a part in this process."""
        work = replace(self.work, plan=slices[0].work)
        with self._reported(f"part {key}"):
            yield from self._elements(work.do(key, _sent(slices)), work.plan)
            return
        yield CONTROL, _encode(_superseded(Handle(work.runtime.workdir.uri)))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if not self.waiting:
            return
        first_slices = next(iter(self.waiting.values()))
        work = replace(self.work, plan=first_slices[0].work)
        parts = {key: _sent(slices) for key, slices in self.waiting.items()}
        with self._reported():
            finished = list(do_locally(work, parts))
        for _, done in finished:
            for element in self._elements(done, work.plan):
                yield GlobalWindows.windowed_value_at_end_of_window(element)
        self.waiting = {}

    def _reported(self, *part: str) -> AbstractContextManager[None]:
        place = ", ".join((self.work.stage.name, self.work.step.name, *part))
        return _reported(self.work.runtime, place)

    def _elements(self, done: Done, plan: str) -> list[_Element]:
        """Return the slices that a part sent as elements, and count the part in Beam's metrics."""
        if done.seconds and done.record is not None:
            stage_name = self.work.stage.name
            milliseconds = int(done.seconds * 1000)
            num_bytes = sum(file.bytes for file in done.record.files)
            Metrics.distribution(stage_name, "part_milliseconds").update(milliseconds)
            Metrics.counter(stage_name, "bytes_written").inc(num_bytes)
        elements = []
        for key, slice in done.sent:
            elements.append((key, _encode(msgspec.structs.replace(slice, work=plan))))
        return elements


def _publish(
    element: tuple[int, Iterable[bytes]], stage: Stage, options: Any, runtime: Runtime
) -> Handle:
    """Publish the output once all shards have their records, and return its handle."""
    _, encoded = element
    handles = [_decode(message) for message in encoded]
    # A part that found its run superseded has added a handle with `is_superseded`.
    before: Handle = max(handles, key=lambda handle: handle.is_superseded)
    if not before.plan:
        return before
    with _reported(runtime, f"{stage.name}, Publish"):
        if runtime.lock:
            renew(runtime.workdir, runtime.run, look=True)
        manifest, version = publish(stage, options, runtime, before.plan, before.version)
        _count_rows(manifest)
        return _handle(runtime, manifest, before, version)
    return _superseded(before)


def _count_rows(manifest: Manifest) -> None:
    """Add the ledger of a stage to Beam's counters, which runners show."""
    Metrics.counter(manifest.stage, "rows_in").inc(manifest.counts.entered)
    Metrics.counter(manifest.stage, "rows_out").inc(manifest.counts.left)
    for reason, count in manifest.counts.rejected.items():
        Metrics.counter(manifest.stage, f"rejected_{reason}").inc(count)


def _end(handle: Handle, runtime: Runtime) -> Handle:
    """Sweep the run's folder and release the lock."""
    if handle.is_superseded:
        return handle
    with _reported(runtime, "end"):
        end_run(runtime, handle.since)
        return handle
    return _superseded(handle)


@contextlib.contextmanager
def _reported(runtime: Runtime, place: str) -> Iterator[None]:
    """Store an error of the block for the launcher, release the lock, and raise the error.

    The launcher may see only the end of a traceback. `place` names the stage and part.

    On a cluster, the lock is released only after a user's mistake: the runner tries again after any
    other error. There, RunSuperseded is only logged: the folder belongs to another run, and so does
    its outcome.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RunSuperseded) and runtime.on_cluster:
            logger.error("%s", error)
            return
        keep_outcome(runtime, JobOutcome.of(place, error, runtime.run))
        if isinstance(error, UserError) or not runtime.on_cluster:
            release(runtime.workdir, runtime.run)
        raise


def _parts(keys: Iterable[int], plan: str) -> list[_Element]:
    """Return the elements of parts that exist even if nothing is sent to them."""
    return [(key, _encode(Slice(plan))) for key in keys]


def _sent(slices: Iterable[Slice]) -> list[Slice]:
    """Return the slices that have rows."""
    return [slice for slice in slices if slice.length]


def _superseded(handle: Handle) -> Handle:
    """Return the handle of a run whose place another one has taken."""
    return msgspec.structs.replace(handle, plan="", is_superseded=True)


def _handle(runtime: Runtime, manifest: Manifest, before: Handle, version: str | None) -> Handle:
    return Handle(runtime.workdir.path(manifest.dataset), version, before.since)
