"""The graph of stages: steps that send rows to each other, in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from owt_pipeline.engine import graph, submission
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.engine.submission import JobOutcome, keep_outcome
from owt_pipeline.errors import JobRuns, RunSuperseded, UsageError, UserError, WorkerError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice, gather
from owt_pipeline.ledger.root import change_root, read_manifest, read_root
from owt_pipeline.storage import lock
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, option
from tests.owt_pipeline.making import add_rows
from tests.owt_pipeline.repeating import RepeatingRunner
from tests.owt_pipeline.runs import snapshot

pytestmark = pytest.mark.beam

NUMBER = pa.schema([("number", pa.int64())])
DOCUMENTS = DATASETS["documents"].schema
SHARDS = 4


@dataclass(frozen=True)
class Options:
    parts: int = option(3, "parts of the first step", minimum=0)
    up_to: int = option(100, "numbers of each part", minimum=0)
    fault: str = option("", "what is raised at shard 1", shapes_bytes=False)


def parts_of(run: StageRun) -> range:
    return range(run.options.parts)


def send_numbers(run: StageRun, part: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    for number in range(part, run.options.up_to, run.options.parts):
        # Nothing goes to the last shard, which has to come out all the same.
        writer.send(number % (SHARDS - 1), pa.record_batch([pa.array([number])], NUMBER))


def write_numbers(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    numbers = sorted(gather(run.work, slices, NUMBER)["number"].to_pylist())
    add_rows(writer, "documents", [{"url_id": number} for number in numbers])


class Numbers(Stage):
    """Make documents."""

    name = "extract"
    output = "documents"
    options = Options
    version = 1
    steps = (Step(send_numbers, "numbers", keys=parts_of), Step(write_numbers))

    def shards_for(self, options: Options, sources: Any) -> int:
        return SHARDS


STAGE = Numbers()


@pytest.mark.parametrize("parts", [0, 1, 5])
def test_rows_reach_their_part_with_any_number_of_workers(tmp_path: Path, parts: int) -> None:
    written = []
    for workers in (1, 2):
        workdir = Storage(str(tmp_path / str(workers)))
        manifest, ran = run_stage(STAGE, Options(parts), Runtime(workdir, workers))
        assert ran
        assert manifest.num_shards == SHARDS
        reader = DatasetReader(workdir, manifest)
        ids_of_shards = [reader.table(shard)["url_id"].to_pylist() for shard in range(SHARDS)]
        expected = range(100) if parts else range(0)
        assert ids_of_shards == [
            [n for n in expected if n % (SHARDS - 1) == shard] for shard in range(SHARDS)
        ]
        written.append(snapshot(tmp_path / str(workers)))
    assert written[0] == written[1]


class ElsewhereRunner(FnApiRunner):
    """A runner that is not the local one, so that parts run one at a time, as they do on a
    cluster."""


def test_a_run_in_a_relative_path_begins_and_ends_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beam's copy of the folder has an absolute path; the lock is the same."""
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "./run", "../" + tmp_path.name + "/run"):
        manifest, _ = run_stage(STAGE, Options(5), Runtime(Storage(folder), 1))
        assert manifest.counts.left == 100
        # Other tests of this process may hold the locks of their own runs.
        assert [folder for folder, _ in lock._flocked if str(tmp_path) in folder] == []
        assert lock.running(Storage(folder)) is None


REPEATING = (f"--runner={RepeatingRunner.__module__}.{RepeatingRunner.__name__}",)
ELSEWHERE = (f"--runner={ElsewhereRunner.__module__}.{ElsewhereRunner.__name__}",)


def fail_at_shard_one(
    run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter
) -> None:
    if shard == 1 and run.options.fault:
        faults = {"UsageError": UsageError, "UserError": UserError, "KeyError": KeyError}
        raise faults[run.options.fault]("no such dump")
    write_numbers(run, shard, slices, writer)


class Failing(Numbers):
    steps = (Numbers.steps[0], Step(fail_at_shard_one))


FAILING = Failing()


@pytest.mark.parametrize("flags", [(), ELSEWHERE])
@pytest.mark.parametrize("fault", [UsageError, UserError])
def test_a_mistake_found_in_a_worker_is_one_line_on_every_runner(
    tmp_path: Path, flags: tuple[str, ...], fault: type[UserError]
) -> None:
    workdir = Storage(str(tmp_path))
    with pytest.raises(UserError, match=r"^no such dump$") as caught:
        run_stage(FAILING, Options(fault=fault.__name__), Runtime(workdir, 2, flags))
    assert caught.value.exit_code == fault.exit_code
    assert read_manifest(workdir, "documents") is None
    # Once repaired, the run continues with the finished parts.
    assert run_stage(FAILING, Options(), Runtime(workdir, 1, flags))[1]
    run_stage(STAGE, Options(), Runtime(Storage(str(tmp_path / "other"))))
    assert (
        DatasetReader.open(workdir, "documents")
        .table()
        .equals(DatasetReader.open(Storage(str(tmp_path / "other")), "documents").table())
    )


def test_a_bug_s_traceback_reaches_the_user_with_stage_and_part(tmp_path: Path) -> None:
    runtime = Runtime(Storage(str(tmp_path)), beam_flags=ELSEWHERE)
    with pytest.raises(
        WorkerError, match=r"(?s)extract, shards, part 1: 'no such dump'.*in fail_at_shard_one"
    ):
        run_stage(FAILING, Options(fault="KeyError"), runtime)


class LateRunner(ElsewhereRunner):
    """After the job's end, an attempt that the runner had given up notes that it failed."""

    workdir: Storage
    error: Exception

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> Any:
        result = super().run_pipeline(pipeline, options)
        result.wait_until_finish()
        keep_outcome(
            Runtime(LateRunner.workdir, on_cluster=True),
            JobOutcome.of("extract, shards, part 1", LateRunner.error),
        )
        return result


@pytest.mark.parametrize("error", [RuntimeError("too late"), UserError("too late")])
def test_a_failure_noted_after_the_job_succeeded_is_ignored(
    tmp_path: Path, error: Exception
) -> None:
    LateRunner.workdir = Storage(str(tmp_path))
    LateRunner.error = error
    runtime = Runtime(
        Storage(str(tmp_path)),
        beam_flags=(f"--runner={LateRunner.__module__}.{LateRunner.__name__}",),
    )
    assert run_stage(STAGE, Options(5), runtime)[0].counts.left == 100


class LeftRunner(ElsewhereRunner):
    """The job goes on without its launcher, which does not learn how it ends."""

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> Any:
        with contextlib.suppress(Exception):
            super().run_pipeline(pipeline, options)


FLAGS_OF_LEFT_RUNNER = (f"--runner={LeftRunner.__module__}.{LeftRunner.__name__}",)


def test_a_job_left_by_its_launcher_keeps_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "is_detached", lambda _: True)
    runtime = Runtime(Storage(str(tmp_path)), beam_flags=FLAGS_OF_LEFT_RUNNER)
    for error in (JobRuns, UserError, JobRuns):
        with pytest.raises(
            error, match="no such dump" if error is UserError else "run the same command again"
        ):
            run_stage(FAILING, Options(fault="UserError"), runtime)
    with pytest.raises(UserError, match="no such dump"):
        run_stage(FAILING, Options(), runtime)
    lock.take(runtime.workdir, "another", as_object=True)
    with pytest.raises(JobRuns, match="is in use by"):
        run_stage(FAILING, Options(), runtime)
    lock.release(runtime.workdir, "another")
    with pytest.raises(JobRuns):
        run_stage(FAILING, Options(), runtime)
    assert not (tmp_path / lock.OBJECT).exists(), "the job's end has released it"
    manifest, ran = run_stage(FAILING, Options(), runtime)
    assert (manifest.counts.left, ran) == (100, False)


def seize(workdir: Storage) -> None:
    """Take the lock over for another run, while the launcher renews it."""
    other_holder = msgspec.json.encode(lock.Holder("another", "owt run"))
    while workdir.swap(lock.OBJECT, other_holder, lock._read(workdir)[1]) is None:
        pass


def take_over(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Let shard 1 meet another run, which leaves an outcome of its own."""
    if shard == 1 and run.options.fault:
        run.workdir.write(".outcome", b"another's")
        if run.options.fault == "publishes":
            change_root(
                run.workdir,
                lambda root: msgspec.structs.replace(root, rounds={"0": 1}),
                "another",
            )
        else:
            seize(run.workdir)
        if run.options.fault == "ends":
            run.workdir.delete(lock.OBJECT)
    write_numbers(run, shard, slices, writer)


class Replaced(Numbers):
    steps = (Numbers.steps[0], Step(take_over))


@pytest.mark.parametrize("event", ["publishes", "begins", "ends"])
def test_a_job_whose_run_was_replaced_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """No attempt fails, since a runner may repeat it without end. The launcher reports the end."""
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.0)
    runtime = Runtime(Storage(str(tmp_path)), beam_flags=REPEATING)
    problem = "another run has published in" if event == "publishes" else "was taken over by"
    with pytest.raises(RunSuperseded, match=problem):
        run_stage(Replaced(), Options(5, fault=event), runtime)
    assert RepeatingRunner.counts["bundles"] > 4
    root, _ = read_root(runtime.workdir)
    assert root.datasets == {}
    assert (root.run == "another") == (event == "publishes")
    assert (tmp_path / ".outcome").read_bytes() == b"another's"
    assert (tmp_path / lock.OBJECT).exists() == (event == "begins")


def take_over_and_send(
    run: StageRun, part: int, slices: Sequence[Slice], writer: ShardWriter
) -> None:
    seize(run.workdir)
    send_numbers(run, part, slices, writer)


class ReplacedEarly(Numbers):
    steps = (Step(take_over_and_send, "numbers", keys=parts_of), Numbers.steps[1])


def test_no_shard_is_made_from_unsent_parts_of_a_lost_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run would take its record for the record of a complete shard."""
    read = lock._read

    def read_once(workdir: Storage) -> Any:
        holder_and_version = read(workdir)
        # A process that has looked a moment ago does not renew the lock.
        if holder_and_version[0] is not None and holder_and_version[0].run == "another":
            monkeypatch.setattr(lock, "RENEW_SECONDS", 60.0)
        return holder_and_version

    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(lock, "_read", read_once)
    monkeypatch.setattr(lock, "_renewing", lambda *_: contextlib.nullcontext())
    runtime = Runtime(Storage(str(tmp_path)), beam_flags=ELSEWHERE)
    with pytest.raises(RunSuperseded):
        run_stage(ReplacedEarly(), Options(5), runtime)
    assert 0 < len(list(tmp_path.glob("ledger/extract/work/*/numbers/records/*.json"))) < 5
    assert not list(tmp_path.glob("ledger/extract/records/*.json"))


@pytest.mark.parametrize("flags", [(), ELSEWHERE])
def test_the_runner_s_counters_are_the_manifest_s(tmp_path: Path, flags: tuple[str, ...]) -> None:
    manifest, _ = run_stage(STAGE, Options(5), Runtime(Storage(str(tmp_path)), 2, flags))
    entry = json.loads((tmp_path / "run-log.jsonl").read_text().splitlines()[-1])
    counters = entry["metrics"]["extract"]
    assert (
        (counters["rows_in"], counters["rows_out"])
        == (manifest.counts.entered, manifest.counts.left)
        == (100, 100)
    )
    assert counters["part_milliseconds_count"] == 5 + SHARDS
    written = sum(
        file.bytes
        for file in DatasetReader.open(Storage(str(tmp_path)), "documents").table_of_files.files
    )
    # The bytes that were sent to the next step count, too.
    assert counters["bytes_written"] > written


def test_elements_are_small_however_many_rows_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    encode = graph._encode
    monkeypatch.setattr(
        graph, "_encode", lambda message: sizes.append(len(encoded := encode(message))) or encoded
    )
    run_stage(STAGE, Options(5, up_to=20_000), Runtime(Storage(str(tmp_path))))
    assert len(sizes) > 5 * (SHARDS - 1)
    assert max(sizes) < 1000
