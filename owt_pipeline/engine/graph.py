"""Stages as Beam transforms, and the one graph of a run.

A stage is a composite PTransform from the handle of one dataset to the handle of the next. Inside is one linear chain,
without side inputs and without a node that two others read (both hang on Flink's batch shuffle):

    Dataset | Barrier | Plan    -> (CONTROL, Running), and (key, Slice) for each part
            | Shuffle | Work      the first step -> (CONTROL, Running), and (key, Slice) for what each part sent; not
                                  shuffled on the local runner, whose pool distributes the parts
            | Group   | Work      each further step likewise; the last step's parts, the shards, send nothing
            | Gather  | Publish   waits for all shards -> Dataset

One control message passes through every step next to the parts. It carries the decision of `Plan`, creates parts that
nothing was sent to, and reaches `Publish` even if there are no parts. If the stage is finished, or an earlier one
stopped, it is the only message. The graph therefore depends on the stages and their options alone.

Each of these transforms can run any number of times, at any time and in any overlap. The barrier only saves work: when
a runner retries a plan, it does not also repeat the Publish before it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import apache_beam as beam
import apache_beam.pipeline
import msgspec
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from owt_pipeline.engine.generations import begin
from owt_pipeline.engine.outcome import Outcome, write_outcome
from owt_pipeline.engine.parts import Done, Work, do_locally
from owt_pipeline.engine.plan import plan_stage
from owt_pipeline.engine.publish import publish_plan
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.root import read_root
from owt_pipeline.ledger.sweep import sweep
from owt_pipeline.storage.lock import is_in_sight, out_of_sight, release, take
from schemas.manifest import Manifest

logger = logging.getLogger("owt")

CONTROL = -1
"""Key of the messages that are not parts."""

Stages: TypeAlias = Sequence[tuple[Stage, Any]]


class Dataset(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A handle of a finished dataset, passed from stage to stage: about 200 bytes.

    `uri` is the URI of its folder, or of the run's folder at the start of a run; `version` is that of the root manifest
    that this run wrote last; `digest` covers the dataset's files; `since` is when the run began, for a job that nobody
    waits for, by the clock of the storage.
    """

    uri: str
    version: str | None = None
    digest: str = ""
    shards: int = 0
    rows: int = 0
    since: float = 0.0


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """In place of a dataset: a user's mistake, which no retry can fix. Later stages pass it on.

    `message` is one line that says what to do; `exit_code` is the command's exit code.
    """

    message: str
    exit_code: int = 1


class Running(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A stage at work: `StageRun.name`, and the handle of the dataset before it."""

    plan: str
    before: Dataset


Message: TypeAlias = Slice | Running | Dataset | Stopped
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Message).decode
_Element: TypeAlias = tuple[int, bytes]


class Start(beam.PTransform):
    """The handle that a run begins with, that of its folder and of its root of this `version`. Without a process that
    waits for the job, takes the lock and records the run's generations here, so that building the graph writes
    nothing."""

    def __init__(self, runtime: Runtime, stages: Stages = (), version: str | None = None):
        super().__init__()
        self.runtime, self.stages, self.version = runtime, stages, version

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[Dataset]:
        with contextlib.suppress(OSError):  # used by other languages' transforms only; a killed run would leave it
            os.rmdir(begin.pipeline.local_tempdir)
        handle = begin | beam.Create([Dataset(self.runtime.workdir.uri, self.version)], reshuffle=False)
        if not self.runtime.unattended:
            return handle
        runtime = replace(self.runtime, beam_flags=())
        return handle | "_Begin" >> beam.ParDo(_Begin(runtime, self.stages)).with_output_types(Dataset)


class _Begin(beam.DoFn):
    def __init__(self, runtime: Runtime, stages: Stages):
        self.runtime, self.stages = runtime, stages

    def process(self, dataset: Dataset) -> Iterator[Dataset | Stopped]:
        def start() -> Dataset:
            workdir = self.runtime.workdir
            since = take(workdir, self.runtime.run, as_object=self.runtime.lock)
            return msgspec.structs.replace(dataset, version=begin(self.stages, self.runtime)[1], since=since)

        yield _stopping(self.runtime, "start", start)


class RunStage(beam.PTransform):
    """A stage, with its options, as a transform from the handle of the dataset before it to that of its output.

    `later` are the stages after it, which may read files of its output that are gone.
    """

    def __init__(self, stage: Stage, options: Any, runtime: Runtime, later: Stages = ()):
        super().__init__()
        self.stage, self.options, self.runtime = stage, options, replace(runtime, beam_flags=())
        self.later = later

    def default_label(self) -> str:
        return self.stage.name.capitalize()

    def expand(self, dataset: beam.PCollection[Dataset]) -> beam.PCollection[Dataset]:
        stage, options, runtime = self.stage, self.options, self.runtime
        if runtime.on_cluster:
            dataset |= "Barrier" >> beam.Reshuffle()
        parts = dataset | "Plan" >> beam.ParDo(_Plan(stage, options, runtime, self.later)).with_output_types(_Element)
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
            | "Publish" >> beam.ParDo(_Publish(stage, options, runtime)).with_output_types(Dataset)
        )


@contextlib.contextmanager
def plain_labels() -> Iterator[None]:
    """Give the graph the same labels in a notebook as elsewhere. Beam would prefix each with the cell's number, and for
    that import its interactive runner, which needs pandas before version 3."""
    original = apache_beam.pipeline.alter_label_if_ipython
    apache_beam.pipeline.alter_label_if_ipython = lambda *_: None
    try:
        yield
    finally:
        apache_beam.pipeline.alter_label_if_ipython = original


def build(
    pipeline: beam.Pipeline, stages: Stages, runtime: Runtime, version: str | None = None
) -> beam.PCollection[Dataset]:
    """The graph of some stages with their options, in order: one linear chain."""
    with plain_labels():
        dataset = pipeline | Start(runtime, stages, version)
        for number, (stage, options) in enumerate(stages):
            dataset |= RunStage(stage, options, runtime, stages[number + 1 :])
        return dataset | End(runtime)


class _OfStage(beam.DoFn):
    def __init__(self, stage: Stage, options: Any, runtime: Runtime, later: Stages = ()):
        self.stage, self.options, self.runtime, self.later = stage, options, runtime, later


class _Plan(_OfStage):
    """Dataset handle -> control message, and the parts of the first step."""

    def process(self, dataset: Dataset | Stopped) -> Iterator[_Element]:
        if isinstance(dataset, Stopped):
            yield CONTROL, _encode(dataset)
            return

        def plan() -> list[_Element]:
            if self.runtime.lock and not is_in_sight(self.runtime.workdir):
                raise out_of_sight(self.runtime.workdir)
            found = plan_stage(self.stage, self.options, self.runtime, self.later)
            if isinstance(found, Manifest):
                root, version = read_root(self.runtime.workdir)
                mine = version if root.run == self.runtime.run else dataset.version
                return [(CONTROL, _encode(_handle(self.runtime, found, dataset, mine)))]
            running = Running(found.name, dataset)
            parts = [(key, _encode(Slice(found.name))) for key in self.stage.steps[0].keys(found)]
            return [(CONTROL, _encode(running)), *parts]

        found = _stopping(self.runtime, f"{self.stage.name}, Plan", plan)
        yield from [(CONTROL, _encode(found))] if isinstance(found, Stopped) else found


class _Work(beam.DoFn):
    """Parts of one step -> handles of what they sent. On a cluster, each part is made when it arrives. On the local
    runner, all parts are in one bundle, and the local pool makes them."""

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
                if isinstance(message, Running) and not self.is_last:
                    work = replace(self.work, plan=message.plan)
                    made = self._stopping(partial(self._next_parts, work))
                    yield from [(CONTROL, _encode(made))] if isinstance(made, Stopped) else made
            return
        slices = [message for message in messages if isinstance(message, Slice)]
        if self.work.runtime.on_cluster:
            work = replace(self.work, plan=slices[0].work)
            made = self._stopping(lambda: self._elements(work.do(key, _sent(slices)), work.plan), f"part {key}")
            if isinstance(made, Stopped):
                work.stop()
                made = [(CONTROL, _encode(made))]
            yield from made
        else:
            self.waiting[key] = slices

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self.waiting:
            work = replace(self.work, plan=next(iter(self.waiting.values()))[0].work)
            parts = {key: _sent(slices) for key, slices in self.waiting.items()}

            def make() -> list[_Element]:
                made = do_locally(work, parts)
                return [element for _, done in made for element in self._elements(done, work.plan)]

            for element in self._stopping(make):
                yield GlobalWindows.windowed_value_at_end_of_window(element)
            self.waiting = {}

    def _stopping(self, call: Callable[[], list[_Element]], what: str = "") -> Any:
        return _stopping(
            self.work.runtime, ", ".join(filter(None, (self.work.stage.name, self.work.step.name, what))), call
        )

    def _next_parts(self, work: Work) -> list[_Element]:
        return [(key, _encode(Slice(work.plan))) for key in work.keys_after()]

    def _elements(self, done: Done, plan: str) -> list[_Element]:
        if done.seconds and done.record is not None:
            Metrics.distribution(self.work.stage.name, "part_milliseconds").update(int(done.seconds * 1000))
            Metrics.counter(self.work.stage.name, "bytes_written").inc(sum(file.bytes for file in done.record.files))
        return [(key, _encode(msgspec.structs.replace(slice, work=plan))) for key, slice in done.sent]


class _Publish(_OfStage):
    """Control message, once all shards have their records -> handle of the output."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Dataset | Stopped]:
        messages = [_decode(value) for value in element[1]]
        stopped = [message for message in messages if isinstance(message, Stopped)]
        passed = [message for message in messages if isinstance(message, Dataset)]
        if stopped or passed:
            yield (stopped or passed)[0]
            return
        running = next(message for message in messages if isinstance(message, Running))

        def publish() -> Dataset:
            about = (self.stage, self.options, self.runtime, running.plan)
            manifest, version = publish_plan(*about, running.before.version)
            # The ledger as Beam's counters, which runners show.
            counts = {"rows_in": manifest.counts.entered, "rows_out": manifest.counts.left}
            counts |= {f"rejected_{reason}": count for reason, count in manifest.counts.rejected.items()}
            for name, count in counts.items():
                Metrics.counter(self.stage.name, name).inc(count)
            return _handle(self.runtime, manifest, running.before, version)

        yield _stopping(self.runtime, f"{self.stage.name}, Publish", publish)


class End(beam.PTransform):
    """The end of a run: stores the outcome in its folder, where the launcher finds it."""

    def __init__(self, runtime: Runtime):
        super().__init__()
        self.runtime = replace(runtime, beam_flags=())

    def expand(self, dataset: beam.PCollection[Dataset]) -> beam.PCollection[Dataset]:
        return dataset | "_End" >> beam.Map(_end, self.runtime).with_output_types(Dataset)


def _end(dataset: Dataset | Stopped, runtime: Runtime) -> Dataset | Stopped:
    if runtime.unattended:
        if isinstance(dataset, Dataset):
            sweep(runtime.workdir, runtime.run, dataset.since)
        release(runtime.workdir, runtime.run)
    outcome = Outcome(dataset.message, dataset.exit_code) if isinstance(dataset, Stopped) else Outcome()
    if not runtime.unattended:
        write_outcome(runtime.workdir, outcome)
    if runtime.unattended and outcome.message:
        raise UserError(outcome.message)
    return dataset


def _stopping(runtime: Runtime, where: str, call: Callable[[], Any]) -> Any:
    """`call()`; on a cluster, Stopped for a user's mistake, so that no runner retries it. Any other error, and every
    one in this process, is stored for the launcher, which may see only the end of a traceback, and raised."""
    try:
        return call()
    except UserError as error:
        if runtime.on_cluster:
            return Stopped(str(error), error.exit_code)
        write_outcome(runtime.workdir, Outcome(str(error), error.exit_code))
        if runtime.unattended:
            release(runtime.workdir, runtime.run)
        raise
    except Exception as error:
        write_outcome(runtime.workdir, Outcome.of_failure(where, error, "".join(traceback.format_exception(error))))
        if runtime.unattended and not runtime.on_cluster:
            release(runtime.workdir, runtime.run)
        raise


def _sent(messages: Iterable[Slice]) -> list[Slice]:
    return [message for message in messages if message.length]


def _handle(runtime: Runtime, manifest: Manifest, before: Dataset, version: str | None) -> Dataset:
    rows = manifest.total("data").rows
    uri = runtime.workdir.path(manifest.dataset)
    return Dataset(uri, version, manifest.digest, manifest.num_shards, rows, before.since)
