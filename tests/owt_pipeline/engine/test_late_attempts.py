"""Attempts at planning, working and publishing that come twice or late: nothing is lost, nothing
is replaced."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from owt_pipeline.engine import parts
from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.parts import Work, open_run, plan_stage
from owt_pipeline.engine.publish import publish
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step, Summary
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
# In seconds since 1970: every file is older.
LATER = 1e11
MADE_PARTS: list[int] = []


@dataclasses.dataclass(frozen=True)
class Options:
    text: str = option("a", "text of each row")


def write_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    MADE_PARTS.append(shard)
    add_rows(writer, "documents", [{"url_id": shard, "text": run.options.text}])


class Noting(Stage):
    name = "extract"
    output = "documents"
    options = Options
    version = 1
    steps = (Step(write_shard),)

    def shards_for(self, options: Options, sources: Any) -> int:
        return PARTS

    def finish(self, run: StageRun, records: Sequence[Any]) -> Summary:
        return Summary(contents={run.asset_path("notes.txt"): run.options.text.encode()})


STAGE = Noting()


pytestmark = [pytest.mark.beam, pytest.mark.parametrize("place", PLACES[:2], indirect=True)]


@pytest.fixture
def workdir(place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Return an empty folder whose lock nobody holds: the ledger is right without it."""
    monkeypatch.setattr(Runtime, "lock", False)
    MADE_PARTS.clear()
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
    run = plan_stage(STAGE, Options(text), runtime)
    assert isinstance(run, StageRun)
    return Attempt(run, version)


def check(workdir: Storage, manifest: Manifest, text: str = "a") -> None:
    """Check that the dataset is complete, and that a sweep leaves nothing else."""
    reader = DatasetReader.open(workdir, "documents")
    assert reader.manifest == manifest
    assert reader.table(columns=["text"])["text"].to_pylist() == [text] * PARTS
    assert workdir.read("ledger/documents/notes.txt") == text.encode()
    sweep(workdir, "checking", LATER, {"extract"})
    named = {file.path for file in reader.table_of_files.files}
    records = {name for name in workdir.names() if name.startswith("ledger/extract/records/")}
    assert len(records) == PARTS
    ledger_files = {
        manifest.files.path,
        "ledger/manifest.json",
        "ledger/manifest.json.copy",
        "run-log.jsonl",
    }
    assert set(workdir.names()) == named | records | ledger_files
    assert {path: workdir.sha256(path) for path in named} == {
        f.path: f.sha256 for f in reader.table_of_files.files
    }


def forget(attempt_one: Attempt) -> None:
    """Forget the plan that this process has read, as another process does not know it."""
    parts._opened = None


def work_late(attempt_one: Attempt) -> None:
    """Do a part that is published already."""
    attempt_one.work([3])


def publish_late(attempt_one: Attempt) -> None:
    """Publish once more, which returns the published manifest."""
    assert attempt_one.publish() == read_manifest(attempt_one.run.workdir, "documents")


def plan_late(attempt_one: Attempt) -> None:
    """Plan once more, which returns the published manifest."""
    plan = plan_stage(STAGE, Options(), attempt_one.run.runtime)
    assert plan == read_manifest(attempt_one.run.workdir, "documents")


def sweep_up(attempt_one: Attempt) -> None:
    """Sweep the run, which removes its plan."""
    sweep(attempt_one.run.workdir, "one", LATER, {"extract"})


LATE_EVENTS: dict[str, list[Callable[[Attempt], None]]] = {
    "publish": [publish_late],
    "publish in another process": [forget, publish_late],
    "work": [work_late],
    "work in another process": [forget, work_late],
    "work after a sweep": [sweep_up, forget, work_late],
    "plan": [plan_late],
    "plan after a sweep": [sweep_up, plan_late],
}


@pytest.mark.parametrize("events", LATE_EVENTS.values(), ids=LATE_EVENTS)
def test_late_attempts_change_nothing_that_is_published(
    workdir: Storage, events: list[Callable[[Attempt], None]]
) -> None:
    attempt_one = attempt(workdir)
    attempt_one.work()
    manifest = attempt_one.publish()
    MADE_PARTS.clear()
    for event in events:
        event(attempt_one)
    assert MADE_PARTS == []
    assert workdir.read("run-log.jsonl").count(b'"extract"') == 1
    check(workdir, manifest)


def test_a_late_plan_finds_the_finished_parts(workdir: Storage) -> None:
    """Attempt A stalls before it writes its plan; B plans and makes everything; A wakes up."""
    late = attempt(workdir)
    other = attempt(workdir)
    other.work()
    MADE_PARTS.clear()
    late.work()
    assert MADE_PARTS == [], "every part is finished"
    manifest = late.publish()
    assert other.publish() == manifest
    check(workdir, manifest)


def test_a_damaged_record_and_a_lost_file_are_rebuilt(workdir: Storage) -> None:
    attempt_one = attempt(workdir)
    attempt_one.work()
    workdir.delete(
        next(name for name in workdir.names() if name.startswith("documents/part-00002-"))
    )
    place = attempt_one.run.record_path("shards", 5)
    place.records.write(place.name, b"{")
    MADE_PARTS.clear()
    attempt(workdir).work()
    assert MADE_PARTS == [2, 5]
    attempt_one.work()
    assert MADE_PARTS == [2, 5]
    check(workdir, attempt(workdir).publish())


def test_a_late_publish_leaves_the_root_of_a_newer_run(
    workdir: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run 1 stalls right before it writes the root, run 2 takes over and publishes, run 1 wakes
    up."""
    first = attempt(workdir)
    first.work()
    swap = Storage.swap
    manifests: list[Manifest | None] = []

    def stalled(storage: Storage, name: str, *arguments: Any, **options: Any) -> str | None:
        if name == "ledger/manifest.json" and not manifests:
            manifests.append(None)
            second = attempt(workdir, "b", "two")
            second.work()
            manifests.append(second.publish())
            # Run 1 has written this file just before.
            storage.write("ledger/documents/notes.txt", b"b")
        return swap(storage, name, *arguments, **options)

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
        parts._opened = None
        with pytest.raises(RunSuperseded):
            first.publish()
    check(workdir, manifest, text)


def test_a_record_that_is_missing_is_an_error(workdir: Storage) -> None:
    attempt_one = attempt(workdir)
    attempt_one.work(range(PARTS - 1))
    with pytest.raises(LedgerError, match=r"extract: .*00007-[0-9a-f]{16}\.json was not written"):
        attempt_one.publish()
    assert read_manifest(workdir, "documents") is None


def test_two_runs_in_each_others_sweep_lose_nothing(workdir: Storage) -> None:
    """Each run publishes its own text while the other one sweeps; the last to publish has all
    its files."""
    for number in range(5):
        one = attempt(workdir, f"a{number}", f"one{number}")
        two = attempt(workdir, f"b{number}", f"two{number}")
        one.work()
        two.work(range(PARTS // 2))
        published = one.publish()
        # A run that is older than all files may remove none.
        sweep(workdir, f"one{number}", 0.0, {"extract"})
        two.work()
        with pytest.raises(RunSuperseded):
            two.publish()
        reader = DatasetReader.open(workdir, "documents")
        assert reader.manifest == published
        assert reader.table(columns=["text"])["text"].to_pylist() == [f"a{number}"] * PARTS


def test_a_swept_root_has_a_new_version(workdir: Storage) -> None:
    attempt_one = attempt(workdir)
    attempt_one.work()
    attempt_one.publish()
    other = attempt(workdir, "b", "two")
    other.work([0])
    version_before = read_root(workdir)[1]
    sweep(workdir, "one", LATER, {"extract"})
    assert read_root(workdir)[1] != version_before, (
        "so that no run publishes with files that were swept"
    )


def test_threads_that_open_different_work_get_their_own(
    workdir: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [attempt(workdir, text).run for text in "ab"]
    wrong: list[str] = []
    opened = {run.name: run for run in runs}
    monkeypatch.setattr(parts, "_open_run", lambda stage, options, runtime, name: opened[name])

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
    parts._opened = None
    assert wrong == []
