"""Attempts at planning, working and publishing that come twice or late: nothing is lost, nothing
is replaced."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from owt_pipeline.engine import stage_work
from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.parts import Work
from owt_pipeline.engine.publish import publish
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step, Summary
from owt_pipeline.engine.stage_work import open_run, plan_stage
from owt_pipeline.errors import LedgerError, RunSuperseded
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.ledger.root import read_manifest, read_root
from owt_pipeline.ledger.sweep import sweep
from owt_pipeline.storage.folder import Storage
from schemas import option
from schemas.manifest import Manifest
from tests.owt_pipeline.conftest import PLACES
from tests.owt_pipeline.making import add_rows

PARTS = 8
LATER = 1e11  # seconds since 1970: every file is older
MADE: list[int] = []


@dataclasses.dataclass(frozen=True)
class Options:
    text: str = option("a", "text of each row")


def write_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    MADE.append(shard)
    add_rows(writer, "documents", [{"url_id": shard, "text": run.options.text}])


class Noting(Stage):
    name, output, options, version = "extract", "documents", Options, 1
    steps = (Step(write_shard),)

    def shards_for(self, options: Options, sources: Any) -> int:
        return PARTS

    def finish(self, run: StageRun, records: Sequence[Any]) -> Summary:
        return Summary(contents={run.asset_path("notes.txt"): run.options.text.encode()})


STAGE = Noting()


pytestmark = pytest.mark.parametrize("place", PLACES[:2], indirect=True)


@pytest.fixture
def workdir(place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Nobody holds the lock of a bucket here: the ledger is right without it."""
    monkeypatch.setattr(Runtime, "lock", False)
    MADE.clear()
    return Storage(f"{place}/{request.node.name.translate({91: 45, 93: 45})}")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A plan of a run, and the version of the root that the run had written last."""

    run: StageRun
    version: str | None

    def work(self, parts: Sequence[int] = range(PARTS)) -> None:
        for part in parts:
            Work(STAGE, self.run.options, self.run.runtime, 0, self.run.name).do(part, [])

    def publish(self) -> Manifest:
        return publish(STAGE, self.run.options, self.run.runtime, self.run.name, self.version)[0]


def attempt(workdir: Storage, text: str = "a", name: str = "one") -> Attempt:
    """Plan the stage for the run `name`."""
    runtime = Runtime(workdir, run=name)
    _, version = record_generations([(STAGE, Options(text))], runtime)
    found = plan_stage(STAGE, Options(text), runtime)
    assert isinstance(found, StageRun)
    return Attempt(found, version)


def check(workdir: Storage, manifest: Manifest, text: str = "a") -> None:
    """The dataset is complete; once swept, nothing else is there."""
    reader = DatasetReader.open(workdir, "documents")
    assert reader.manifest == manifest
    assert reader.table(columns=["text"])["text"].to_pylist() == [text] * PARTS
    assert workdir.read("ledger/documents/notes.txt") == text.encode()
    sweep(workdir, "checking", LATER)
    named = {file.path for file in reader.table_of_files.files}
    records = {name for name in workdir.names() if name.startswith("ledger/extract/records/")}
    assert len(records) == PARTS
    others = {
        manifest.files.path,
        "ledger/manifest.json",
        "ledger/manifest.json.copy",
        "run-log.jsonl",
    }
    assert set(workdir.names()) == named | records | others
    assert {path: workdir.sha256(path) for path in named} == {
        f.path: f.sha256 for f in reader.table_of_files.files
    }


def test_publishing_twice_finds_what_this_run_has_published(workdir: Storage) -> None:
    made = attempt(workdir)
    made.work()
    first = made.publish()
    assert made.publish() == first
    stage_work._opened = None  # what another process has not read
    assert made.publish() == first
    assert workdir.read("run-log.jsonl").count(b'"extract"') == 1
    check(workdir, first)


def test_late_work_makes_nothing(workdir: Storage) -> None:
    made = attempt(workdir)
    made.work()
    manifest = made.publish()
    MADE.clear()
    made.work([3])
    stage_work._opened = None
    made.work([3])
    sweep(workdir, "one", LATER)
    stage_work._opened = None
    made.work([3])
    assert MADE == []
    check(workdir, manifest)


def test_a_late_plan_finds_the_finished_parts(workdir: Storage) -> None:
    """Attempt A stalls before it writes its plan; B plans and makes everything; A wakes up."""
    late, other = attempt(workdir), attempt(workdir)
    other.work()
    MADE.clear()
    late.work()
    assert MADE == [], "every part is finished"
    manifest = late.publish()
    assert other.publish() == manifest
    check(workdir, manifest)


def test_a_damaged_record_and_a_lost_file_are_made_again(workdir: Storage) -> None:
    made = attempt(workdir)
    made.work()
    workdir.delete(
        next(name for name in workdir.names() if name.startswith("documents/part-00002-"))
    )
    place = made.run.record_path("shards", 5)
    place.records.write(place.name, b"{")
    MADE.clear()
    attempt(workdir).work()
    assert MADE == [2, 5]
    made.work()
    assert MADE == [2, 5]
    check(workdir, attempt(workdir).publish())


def test_a_late_publish_leaves_the_root_of_a_newer_run(
    workdir: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run 1 stalls right before it writes the root, run 2 takes over and publishes, run 1 wakes
    up."""
    first = attempt(workdir)
    first.work()
    swap, manifests = Storage.swap, []

    def stalled(storage: Storage, name: str, *arguments: Any, **others: Any) -> str | None:
        if name == "ledger/manifest.json" and not manifests:
            manifests.append(None)
            second = attempt(workdir, "b", "two")
            second.work()
            manifests.append(second.publish())
            storage.write("ledger/documents/notes.txt", b"b")  # which run 1 had just written
        return swap(storage, name, *arguments, **others)

    monkeypatch.setattr(Storage, "swap", stalled)
    with pytest.raises(RunSuperseded, match=r"another run has published in .*; this one stops"):
        first.publish()
    assert read_manifest(workdir, "documents") == manifests[1]
    check(workdir, manifests[1], "b")


@pytest.mark.parametrize("text", ["a", "b"])
def test_a_run_that_lost_replaces_nothing_and_no_asset(workdir: Storage, text: str) -> None:
    """Also if the other one has published the same."""
    first = attempt(workdir)
    first.work()
    second = attempt(workdir, text, "two")
    second.work()
    manifest = second.publish()
    for _ in range(2):
        stage_work._opened = None
        with pytest.raises(RunSuperseded):
            first.publish()
    check(workdir, manifest, text)


def test_a_plan_after_the_publish_is_the_manifest(workdir: Storage) -> None:
    made = attempt(workdir)
    made.work()
    manifest = made.publish()
    assert plan_stage(STAGE, Options(), made.run.runtime) == manifest
    sweep(workdir, "one", LATER)
    assert plan_stage(STAGE, Options(), made.run.runtime) == manifest
    check(workdir, manifest)


def test_a_record_that_is_missing_is_an_error(workdir: Storage) -> None:
    made = attempt(workdir)
    made.work(range(PARTS - 1))
    with pytest.raises(LedgerError, match=r"extract: .*00007-[0-9a-f]{16}\.json was not written"):
        made.publish()
    assert read_manifest(workdir, "documents") is None


def test_two_runs_in_each_others_sweep_lose_nothing(workdir: Storage) -> None:
    """Each run publishes its own text while the other one sweeps; the last to publish has all
    its files."""
    for number in range(5):
        one, two = (
            attempt(workdir, f"a{number}", f"one{number}"),
            attempt(workdir, f"b{number}", f"two{number}"),
        )
        one.work()
        two.work(range(PARTS // 2))
        published = one.publish()
        sweep(workdir, f"one{number}", 0.0)  # what a run that is older than all files may remove
        two.work()
        with pytest.raises(RunSuperseded):
            two.publish()
        reader = DatasetReader.open(workdir, "documents")
        assert reader.manifest == published
        assert reader.table(columns=["text"])["text"].to_pylist() == [f"a{number}"] * PARTS


def test_a_swept_root_has_a_new_version(workdir: Storage) -> None:
    made = attempt(workdir)
    made.work()
    made.publish()
    other = attempt(workdir, "b", "two")
    other.work([0])
    before = read_root(workdir)[1]
    sweep(workdir, "one", LATER)
    assert read_root(workdir)[1] != before, "so that no run publishes with files that were swept"


def test_threads_that_open_different_work_get_their_own(
    workdir: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, wrong = [attempt(workdir, text).run for text in "ab"], []
    opened = {run.name: run for run in runs}
    monkeypatch.setattr(stage_work, "_open_run", lambda stage, options, runtime, name: opened[name])

    def open_often(run: StageRun) -> None:
        for _ in range(20_000):
            wrong.extend(
                [run.name] * (open_run(STAGE, run.options, run.runtime, run.name) is not run)
            )

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=open_often, args=(run,)) for run in runs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    stage_work._opened = None
    assert wrong == []
