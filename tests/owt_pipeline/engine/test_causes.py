"""A plan tells why it makes each shard: the part of the key that differs, with both values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.engine.generations import record_generations
from owt_pipeline.engine.keys import Cause, describe_causes, first_difference
from owt_pipeline.engine.plan import StagePlan, plan_stages
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Root
from schemas.settings import from_table
from tests.owt_pipeline.random_inputs import url_of, write_inputs
from tests.owt_pipeline.runs import ask_owt, copy_of, root_of, shard_file

OPTIONS = ("--num_shards", 2, "--languages", "all", "--min_tokens", 20, "--workers", 1)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of dump A."""
    folder = tmp_path_factory.mktemp("causes")
    write_inputs(folder)
    sources = ("--dumps", folder / "RS_A.gz", "--pages_from", folder / "pages.warc.gz")
    ask_owt("run", folder / "run", *sources, *OPTIONS)
    return folder / "run"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return copy_of(finished_run, tmp_path / "run")


def plan_of(run: Path, name: str, root: Root | None = None, **options: Any) -> StagePlan:
    """Return the plan of a stage of a finished run, with some other options."""
    stage = STAGES[name]
    recorded = (root or root_of(run)).datasets[stage.output].options
    chosen: Any = from_table(stage.options, {**recorded, **options}, "test")
    return plan_stages([(stage, chosen)], Storage(str(run)), root or root_of(run))[0]


def dry_run(run: Path, *flags: object) -> dict[str, str]:
    """Return the line of each stage that `--dry_run` prints."""
    output = ask_owt("run", run, *flags, "--dry_run")
    return {line.split()[0]: line for line in output.splitlines() if line.strip()}


def test_a_changed_option_is_named_with_both_values(run: Path) -> None:
    plan = plan_of(run, "dedupe", threshold=0.7)
    assert plan.causes == dict.fromkeys(range(2), Cause("options", "threshold", "0.8", "0.7"))
    assert plan.why == "threshold is now 0.7 (was 0.8)"
    assert not plan_of(run, "dedupe").causes
    lines = dry_run(run, "--threshold", 0.7)
    assert lines["dedupe"].endswith("threshold is now 0.7 (was 0.8)")
    assert lines["export"].endswith("duplicates/ changes")
    assert lines["clean"].split()[:3] == ["clean", "finished", "clean/"]


def test_a_new_version_of_the_code_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = STAGES["dedupe"].version
    monkeypatch.setattr(type(STAGES["dedupe"]), "version", version + 1)
    plan = plan_of(run, "dedupe")
    assert set(plan.causes.values()) == {Cause("code", "", str(version), str(version + 1))}
    assert plan.why == f"version {version + 1} of the stage replaces version {version}"


def test_a_takedown_is_not_a_changed_input(run: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"{url_of('A0')}\n")
    output = ask_owt("forget", run, tmp_path / "list.txt", "--workers", 1)
    assert "export: takedowns changed" in output
    assert "inputs changed" not in output
    assert "tokenize: corpus/ changed" in output


def test_a_retry_is_not_a_changed_input(run: Path) -> None:
    root = root_of(run)
    rounds = {"1": 1}
    plan = plan_of(run, "fetch", Root(**{**_fields(root), "rounds": rounds}))
    assert plan.causes == {1: Cause("rounds", "", "0", "1")}
    assert plan.why == "failed or lost pages are requested again (round 1, was 0)"
    assert not plan.patched


def test_a_month_is_counted_in_shards(finished_run: Path, run: Path) -> None:
    inputs = finished_run.parent
    lines = dry_run(run, "--add", "--dumps", inputs / "RS_B.gz")
    added = len(record_of_shards(run, inputs))
    for stage in ("collect", "fetch", "dedupe", "tokenize"):
        assert lines[stage].endswith(f"{added} shards added"), lines
    ask_owt("run", run, "--add", "--dumps", inputs / "RS_B.gz", "--until", "fetch", "--workers", 1)
    listed = ask_owt("ls", run)
    # `--dry_run` prints the same table, without the generations.
    assert listed.startswith(ask_owt("run", run, "--dry_run"))
    for stage in ("extract", "clean", "export"):
        (line,) = [line for line in listed.splitlines() if line.startswith(stage)]
        assert line.endswith(f"{added} shards added")
    assert not dry_run(run)["fetch"].endswith("added")


def test_an_edited_dump_is_named(finished_run: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    run = tmp_path / "run"
    sources = ("--dumps", tmp_path / "RS_A.gz", "--pages_from", tmp_path / "pages.warc.gz")
    ask_owt("run", run, *sources, *OPTIONS, "--until", "fetch")
    (tmp_path / "RS_A.gz").write_bytes((tmp_path / "RS_B.gz").read_bytes())
    lines = dry_run(run, "--until", "fetch")
    assert lines["collect"].endswith("RS_A.gz changed")
    assert lines["fetch"].endswith("urls/ changes")
    with (tmp_path / "pages.warc.gz").open("ab") as archive:
        archive.write(b"")
    assert "pages.warc.gz" not in dry_run(run, "--until", "fetch")["fetch"]


def test_a_lost_file_is_named_with_its_problem(run: Path) -> None:
    lost = shard_file(run, "corpus", 0)
    lost.unlink()
    plan = plan_of(run, "export")
    name = lost.relative_to(run).as_posix()
    assert plan.causes == {0: Cause("lost", f"{name} is missing")}
    assert plan.why == f"{name} is missing"
    assert f"export: {name} is missing; running 1 of 2 shards" in ask_owt("run", run)


@pytest.mark.parametrize("part", ["rounds", "takedowns", "limits"])
def test_each_part_of_a_history_is_a_cause_of_its_own(part: str) -> None:
    assert first_difference({part: "1", "corpus": "1"}, {"corpus": "1"}) == part
    assert first_difference({part: "1", "a": "1"}, {"a": "2"}) == "a"
    assert str(Cause(part, was="0", now="1")).split()[0] in ("failed", part)


def test_different_causes_are_counted() -> None:
    causes = {
        0: Cause("options", "threshold", "0.8", "0.7"),
        1: Cause("takedowns", was="a", now="b"),
        2: Cause("takedowns", was="a", now="b"),
        3: Cause("added"),
    }
    assert describe_causes(causes, {}) == (
        "1 shard added, takedowns changed (2 shards), threshold is now 0.7 (was 0.8) (1 shard)"
    )
    assert describe_causes({0: Cause("new")}, {}) == ""
    problems = {"b": "is missing", "a": "is missing", "c": "is missing"}
    assert describe_causes({0: Cause("lost", "a")}, problems) == "a is missing (and 2 more files)"


def test_a_part_that_is_new_or_gone_differs() -> None:
    parts = {"code": "1", "options": "2", "clean": "3"}
    assert first_difference(parts, parts) == ""
    assert first_difference({**parts, "takedowns": "4"}, parts) == "takedowns"
    assert first_difference(parts, {**parts, "takedowns": "4"}) == "takedowns"
    assert first_difference({**parts, "clean": "5", "takedowns": "4"}, parts) == "clean"
    assert first_difference({**parts, "clean": "5", "options": "4"}, parts) == "options"


def _fields(root: Root) -> dict[str, Any]:
    return {name: getattr(root, name) for name in root.__struct_fields__}


def record_of_shards(run: Path, inputs: Path) -> range:
    """Return the shards that dump B would have as a generation of the run."""
    sources = {"dumps": [str(inputs / "RS_A.gz"), str(inputs / "RS_B.gz")], "num_shards": 2}
    options: Any = from_table(STAGES["collect"].options, sources, "test")
    runtime = Runtime(Storage(str(run)), add=True)
    root, _ = record_generations([(STAGES["collect"], options)], runtime, write=False)
    return root.generations[-1].shard_numbers
