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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import apache_beam as beam
import apache_beam.pipeline
import msgspec
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from owt_pipeline.engine.parts import Done, Work, do_locally
from owt_pipeline.engine.phases import Outcome, failures, plan_stage, publish_work, write_outcome
from owt_pipeline.engine.stage import Runtime, Stage
from owt_pipeline.errors import Superseded, UserError
from owt_pipeline.ledger.bases import end_revision, pin
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.storage.lease import is_in_sight, keeping, release, take
from schemas.manifest import Manifest

logger = logging.getLogger("owt")

CONTROL = -1
"""Key of the messages that are not parts."""


class Dataset(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A handle of a finished dataset, passed from stage to stage: about 200 bytes.

    `uri` is the URI of its folder, or of the working directory at the start of a run; `digest` covers its files.
    """

    uri: str
    digest: str = ""
    shards: int = 0
    rows: int = 0


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """In place of a dataset: a user's mistake, which no retry can fix. Later stages pass it on.

    `message` is one line that says what to do; `exit_code` is the command's exit code.
    """

    message: str
    exit_code: int = 1


class Running(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A stage at work: `StageRun.name`, and the version of the manifest that it will replace."""

    work: str
    replaces: str | None = None


Message: TypeAlias = Slice | Running | Dataset | Stopped
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Message).decode
_Element: TypeAlias = tuple[int, bytes]


class Start(beam.PTransform):
    """The handle that a run begins with, that of its working directory. A graph with its own lease takes the lease and
    pins the run's bases here, so that building the graph writes nothing."""

    def __init__(self, runtime: Runtime, bases: Sequence[str] = (), stages: Sequence[tuple[Stage, Any]] = ()):
        super().__init__()
        self.runtime, self.bases, self.stages = runtime, bases, stages

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[Dataset]:
        with contextlib.suppress(OSError):  # used by other languages' transforms only; a killed run would leave it
            os.rmdir(begin.pipeline.local_tempdir)
        handle = begin | beam.Create([Dataset(self.runtime.workdir.uri)], reshuffle=False)
        if not self.runtime.own_lease:
            return handle
        runtime = replace(self.runtime, beam_flags=())
        return handle | "_Begin" >> beam.ParDo(_Begin(runtime, self.bases, self.stages)).with_output_types(Dataset)


class _Begin(beam.DoFn):
    def __init__(self, runtime: Runtime, bases: Sequence[str], stages: Sequence[tuple[Stage, Any]]):
        self.runtime, self.bases, self.stages = runtime, bases, stages

    def process(self, dataset: Dataset) -> Iterator[Dataset | Stopped]:
        with _stopping(self.runtime, "start", "Begin") as stopped:
            take(self.runtime.workdir, self.runtime.owner)
            pin(self.runtime.workdir, self.bases, self.stages)
        yield stopped[0] if stopped else dataset


class RunStage(beam.PTransform):
    """A stage, with its options, as a transform from the handle of the dataset before it to that of its output."""

    def __init__(self, stage: Stage, options: Any, runtime: Runtime):
        super().__init__()
        self.stage, self.options, self.runtime = stage, options, replace(runtime, beam_flags=())

    def default_label(self) -> str:
        return self.stage.name.capitalize()

    def expand(self, dataset: beam.PCollection[Dataset]) -> beam.PCollection[Dataset]:
        stage, options, runtime = self.stage, self.options, self.runtime
        if runtime.on_cluster:
            dataset |= "Barrier" >> beam.Reshuffle()
        parts = dataset | "Plan" >> beam.ParDo(_Plan(stage, options, runtime)).with_output_types(_Element)
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
    pipeline: beam.Pipeline, stages: Sequence[tuple[Stage, Any]], runtime: Runtime, bases: Sequence[str] = ()
) -> beam.PCollection[Dataset]:
    """The graph of some stages with their options, in order: one linear chain."""
    with plain_labels():
        dataset = pipeline | Start(runtime, bases, stages)
        for stage, options in stages:
            dataset |= RunStage(stage, options, runtime)
        return dataset | End(runtime)


class _OfStage(beam.DoFn):
    def __init__(self, stage: Stage, options: Any, runtime: Runtime):
        self.stage, self.options, self.runtime = stage, options, runtime


class _Plan(_OfStage):
    """Dataset handle -> control message, and the parts of the first step."""

    def process(self, dataset: Dataset | Stopped) -> Iterator[_Element]:
        if isinstance(dataset, Stopped):
            yield CONTROL, _encode(dataset)
            return
        with _stopping(self.runtime, self.stage.name, "Plan") as stopped:
            found = plan_stage(self.stage, self.options, self.runtime)
        if stopped:
            yield CONTROL, _encode(stopped[0])
        elif isinstance(found, Manifest):
            yield CONTROL, _encode(_handle(self.runtime, found))
        else:
            yield CONTROL, _encode(Running(found.name, found.replaces))
            for key in self.stage.steps[0].keys(found):
                yield key, _encode(Slice(found.name))


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
                    with _stopping(self.work.runtime, self.work.stage.name, self.work.step.name) as stopped:
                        for other in replace(self.work, folder=message.work).keys_after():
                            yield other, _encode(Slice(message.work))
                    for found in stopped:
                        yield CONTROL, _encode(found)
            return
        for message in messages:
            if isinstance(message, Slice) and message.ahead:
                yield key, _encode(msgspec.structs.replace(message, ahead=message.ahead - 1))
        messages = [message for message in messages if not (isinstance(message, Slice) and message.ahead)]
        if not messages:
            return
        if self.work.runtime.on_cluster:
            work = replace(self.work, folder=messages[0].work)
            with _stopping(work.runtime, work.stage.name, f"{work.step.name}, part {key}") as stopped:
                if not work.open().is_stopped():
                    yield from self._elements(work.do(key, _sent(messages)), work.folder)
            for found in stopped:
                work.open().stop()
                yield CONTROL, _encode(found)
        else:
            self.waiting[key] = messages

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self.waiting:
            work = replace(self.work, folder=next(iter(self.waiting.values()))[0].work)
            parts = {key: _sent(slices) for key, slices in self.waiting.items()}
            with _stopping(work.runtime, work.stage.name, work.step.name):
                for _, done in do_locally(work, parts):
                    for element in self._elements(done, work.folder):
                        yield GlobalWindows.windowed_value_at_end_of_window(element)
            self.waiting = {}

    def _elements(self, done: Done, folder: str) -> Iterator[_Element]:
        if done.seconds:
            Metrics.distribution(self.work.stage.name, "part_milliseconds").update(int(done.seconds * 1000))
            Metrics.counter(self.work.stage.name, "bytes_written").inc(sum(file.bytes for file in done.record.files))
        for key, slice in done.sent:
            yield key, _encode(msgspec.structs.replace(slice, work=folder))


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
        with _stopping(self.runtime, self.stage.name, "Publish") as stopped:
            manifest = publish_work(self.stage, self.options, self.runtime, running.work, running.replaces)
            # The ledger as Beam's counters, which runners show.
            counts = {"rows_in": manifest.counts.entered, "rows_out": manifest.counts.left}
            counts |= {f"rejected_{reason}": count for reason, count in manifest.counts.rejected.items()}
            for name, count in counts.items():
                Metrics.counter(self.stage.name, name).inc(count)
            yield _handle(self.runtime, manifest)
        if stopped:
            yield stopped[0]


class End(beam.PTransform):
    """The end of a run. On a cluster, stores the outcome in the working directory, where the launcher finds it."""

    def __init__(self, runtime: Runtime):
        super().__init__()
        self.runtime = runtime

    def expand(self, dataset: beam.PCollection[Dataset]) -> beam.PCollection[Dataset]:
        return dataset | "_End" >> beam.Map(_leave_outcome, self.runtime).with_output_types(Dataset)


def _leave_outcome(dataset: Dataset | Stopped, runtime: Runtime) -> Dataset | Stopped:
    if runtime.own_lease:
        if isinstance(dataset, Dataset):
            end_revision(runtime.workdir)
        release(runtime.workdir, runtime.owner)
    if runtime.on_cluster and (runtime.unattended or not runtime.owner or is_in_sight(runtime.workdir)):
        outcome = Outcome(dataset.message, dataset.exit_code) if isinstance(dataset, Stopped) else Outcome()
        if runtime.unattended or not runtime.owner:  # a template's job, a pipeline built in a notebook
            if outcome.message:
                raise UserError(outcome.message)
        else:
            write_outcome(runtime.workdir, outcome)
    return dataset


@contextlib.contextmanager
def _stopping(runtime: Runtime, stage: str, what: str) -> Iterator[list[Stopped]]:
    """Handle the block's errors. On a cluster, a user's mistake is added to the yielded list, so that no runner retries
    it; other errors are raised, and stored for the launcher, which may see only the end of a traceback. In this
    process, every error is raised, and kept in `failures` for the caller."""
    stopped: list[Stopped] = []
    kept = keeping(runtime.workdir, runtime.owner) if runtime.own_lease else contextlib.nullcontext()
    try:
        with kept:
            yield stopped
    except GeneratorExit:
        raise
    except Superseded:  # a late attempt: its output exists
        logger.debug("%s, %s: this attempt is late", stage, what)
    except BaseException as error:
        if not runtime.on_cluster:
            failures.append(error)
            raise
        if isinstance(error, UserError):
            stopped.append(Stopped(str(error), error.exit_code))
            return
        write_outcome(runtime.workdir, Outcome.of_failure(f"{stage}, {what}", error))
        raise


def _sent(messages: Iterable[Message]) -> list[Slice]:
    return [message for message in messages if isinstance(message, Slice) and message.length]


def _handle(runtime: Runtime, manifest: Manifest) -> Dataset:
    rows = manifest.total("data").rows
    return Dataset(runtime.workdir.path(manifest.dataset), manifest.digest, manifest.num_shards, rows)
