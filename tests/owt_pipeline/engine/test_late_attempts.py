"""Attempts at planning, working and publishing that come twice or late: nothing is lost, nothing is replaced."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.engine import phases
from owt_pipeline.engine.parts import Work
from owt_pipeline.engine.phases import open_run, plan_stage, publish_work
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.errors import LedgerError, Superseded
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader, Outcome, empty, read_manifest
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lease import LeaseLost
from schemas import DATASETS, option
from schemas.manifest import Manifest
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket

PARTS = 8
MADE: list[int] = []


@dataclasses.dataclass(frozen=True)
class Options:
    text: str = option("a", "text of each row")


def write_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    MADE.append(shard)
    rows = [{"url_id": shard, "url": f"http://h/{shard}", "text": run.options.text, "subreddits": []}]
    schema = DATASETS["documents"].schema
    writer.add(1, Outcome(empty(schema).from_pylist(rows, schema)))


class Noting(Stage):
    name, output, options, version = "extract", "documents", Options, 1
    steps = (Step(write_shard),)

    def num_shards(self, options: Options) -> int:
        return PARTS

    def finish(self, run: StageRun, records: Sequence[Any]) -> None:
        run.write_asset("notes.txt", run.options.text.encode())


STAGE = Noting()


@pytest.fixture(scope="module", params=["disk", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gs", "s3"))])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "disk":
        yield str(tmp_path_factory.mktemp("late"))
    else:
        with {"gs": gcs_bucket, "s3": s3_bucket}[request.param]() as uri:
            yield uri


@pytest.fixture
def workdir(place: str, request: pytest.FixtureRequest) -> Storage:
    MADE.clear()
    return Storage(f"{place}/{request.node.name.partition('[')[0]}")


def plan(workdir: Storage, text: str = "a") -> StageRun:
    found = plan_stage(STAGE, Options(text), Runtime(workdir))
    assert isinstance(found, StageRun)
    return found


def work(run: StageRun, parts: Sequence[int] = range(PARTS)) -> None:
    for part in parts:
        Work(STAGE, run.options, run.runtime, 0, run.name).do(part, [])


def publish(run: StageRun) -> Manifest:
    return publish_work(STAGE, run.options, run.runtime, run.name, run.replaces)


def check(workdir: Storage, manifest: Manifest, text: str = "a") -> None:
    """The dataset is complete, and nothing else is there."""
    reader = DatasetReader.open(workdir, "documents")
    assert reader.manifest == manifest
    assert reader.table(columns=["text"])["text"].to_pylist() == [text] * PARTS
    assert workdir.read("ledger/documents/notes.txt") == text.encode()
    named = {file.path for file in reader.table_of_files.files}
    ours = {manifest.files.path, "ledger/documents/manifest.json", "ledger/documents/.listing", "run-log.jsonl"}
    assert set(workdir.names()) == named | ours
    assert {path: workdir.sha256(path) for path in named} == {f.path: f.sha256 for f in reader.table_of_files.files}


def publish_in_process(run: StageRun, found: Any) -> None:
    found.put(publish(run).digest)


def test_publishing_twice_finds_the_manifest_that_this_work_has_produced(workdir: Storage) -> None:
    run = plan(workdir)
    work(run)
    first = publish(run)
    assert publish(run) == first
    phases._opened = None  # what another process has not read
    assert publish(run) == first
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    process = context.Process(target=publish_in_process, args=(run, found))
    process.start()
    assert found.get(timeout=60) == first.digest
    process.join()
    check(workdir, first)


def test_a_publish_that_died_before_it_tidied_is_completed(workdir: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    run = plan(workdir)
    work(run)
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr("owt_pipeline.ledger.commit.Listing.tidy", lambda *_: (_ for _ in ()).throw(MemoryError))
        patched.setattr(phases, "look_at", lambda *_: (_ for _ in ()).throw(MemoryError))  # it is dead
        publish(run)
    workdir.write("run-log.jsonl", b"")
    check(workdir, publish(run))


def test_late_work_ends_quietly_and_makes_nothing(workdir: Storage) -> None:
    run = plan(workdir)
    work(run)
    manifest = publish(run)
    MADE.clear()
    for _ in range(2):
        with pytest.raises(Superseded):
            work(run, [3])
        phases._opened = None
    assert MADE == []
    check(workdir, manifest)


def test_a_late_plan_deletes_no_finished_part(workdir: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempt A stalls before it prepares; B plans and finishes everything; A wakes up."""
    prepare, runs = phases.prepare, []

    def stalled(*arguments: Any) -> Storage:
        monkeypatch.setattr(phases, "prepare", prepare)
        runs.append(plan(workdir))
        work(runs[0])
        return prepare(*arguments)

    monkeypatch.setattr(phases, "prepare", stalled)
    late = plan(workdir)
    assert len(late.records("shards").names()) == PARTS
    MADE.clear()
    work(late)
    assert MADE == [], "every part is finished"
    manifest = publish(late)
    assert publish(runs[0]) == manifest
    check(workdir, manifest)


def test_a_damaged_record_is_made_again_and_a_late_plan_leaves_the_new_one(workdir: Storage) -> None:
    run = plan(workdir)
    work(run)
    records = run.records("shards")
    version = records.read_version("part-00002.json")[1]
    workdir.delete(next(name for name in workdir.names() if name.startswith("documents/part-00002-")))
    records.write("part-00005.json", b"{")
    MADE.clear()
    again = plan(workdir)
    work(again)
    assert MADE == [2, 5]
    assert records.swap("part-00002.json", b"", version) is None or not workdir.is_local
    work(again)
    check(workdir, publish(again))


def test_a_late_publish_leaves_the_manifest_of_a_newer_run(workdir: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run 1 stalls right before it writes its manifest, run 2 takes over and publishes, run 1 wakes up."""
    first = plan(workdir)
    work(first)
    swap, manifests = Storage.swap, []

    def stalled(storage: Storage, name: str, *arguments: Any, **others: Any) -> str | None:
        if name.endswith("manifest.json") and not manifests:
            manifests.append(None)
            second = plan(workdir, "b")
            work(second)
            manifests.append(publish(second))
        return swap(storage, name, *arguments, **others)

    monkeypatch.setattr(Storage, "swap", stalled)
    with pytest.raises(LeaseLost, match="was published by another run; this one stops"):
        publish(first)
    assert read_manifest(workdir, "documents") == manifests[1]
    next_run = plan_stage(STAGE, Options("b"), Runtime(workdir))
    if not isinstance(next_run, Manifest):  # the asset of run 1 was replaced by run 2 or not at all
        work(next_run)
        manifests[1] = publish(next_run)
    check(workdir, manifests[1], "b")


def test_a_late_publish_replaces_no_asset_of_a_newer_run(workdir: Storage) -> None:
    first = plan(workdir)
    work(first)
    opened = open_run(STAGE, first.options, first.runtime, first.name)
    second = plan(workdir, "b")
    work(second)
    manifest = publish(second)
    phases._opened = None
    with pytest.raises((LeaseLost, Superseded)):
        publish(opened)
    check(workdir, manifest, "b")


def test_a_plan_that_wakes_up_after_its_stage_was_published_leads_to_the_same_manifest(
    workdir: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, manifests = phases.prepare, []

    def stalled(*arguments: Any) -> Storage:
        monkeypatch.setattr(phases, "prepare", prepare)
        run = plan(workdir)
        work(run)
        manifests.append(publish(run))
        return prepare(*arguments)

    monkeypatch.setattr(phases, "prepare", stalled)
    late = plan(workdir)
    MADE.clear()
    with pytest.raises(Superseded):
        work(late)
    assert MADE == []
    assert publish(late) == manifests[0]
    check(workdir, manifests[0])


def test_a_plan_whose_work_another_attempt_publishes_and_removes_plans_again(
    workdir: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, manifests = phases.prepare, []

    def interrupted(*arguments: Any) -> Storage:
        monkeypatch.setattr(phases, "prepare", prepare)
        run = plan(workdir)
        work(run)
        manifests.append(publish(run))
        raise FileNotFoundError("plan.json's folder is removed while it is written")

    monkeypatch.setattr(phases, "prepare", interrupted)
    assert plan_stage(STAGE, Options(), Runtime(workdir)) == manifests[0]
    check(workdir, manifests[0])


def test_late_work_is_quiet_where_a_late_plan_has_left_its_plan(workdir: Storage) -> None:
    run = plan(workdir)
    work(run)
    content = run.work.read("plan.json")
    publish(run)
    run.work.write("plan.json", content)
    phases._opened = None
    with pytest.raises(Superseded):
        work(run, [3])


def test_work_that_is_gone_and_was_not_published_is_an_error(workdir: Storage) -> None:
    run = plan(workdir)
    work(run)
    run.work.delete_all()
    phases._opened = None
    with pytest.raises(LedgerError, match=r"extract cannot be published: .* is gone, or damaged"):
        publish(run)


def test_threads_of_one_process_that_open_different_work_each_get_their_own(
    workdir: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, wrong = [plan(workdir, text) for text in "ab"], []
    opened = {run.name: run for run in runs}
    monkeypatch.setattr(phases, "_open_run", lambda stage, options, runtime, name: opened[name])

    def open_often(run: StageRun) -> None:
        for _ in range(20_000):
            wrong.extend([run.name] * (open_run(STAGE, run.options, run.runtime, run.name) is not run))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=open_often, args=(run,)) for run in runs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    phases._opened = None
    assert wrong == []


def test_the_log_has_one_line_for_a_stage_that_was_published_twice(tmp_path: Path) -> None:
    run = plan(Storage(str(tmp_path)))
    work(run)
    for _ in range(2):
        publish(run)
    assert (tmp_path / "run-log.jsonl").read_text().count('"extract"') == 1
