"""A dry run says what a run would do, and does nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from owt_pipeline.command_line import duration, size
from owt_pipeline.ledger.plan import Finished, Plan, prepare
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.runs import ask_owt, copy_of, manifest_of, run_owt, snapshot, table_of


def planned(config: Path, run: Path, *flags: object) -> dict[str, str]:
    """By stage, what the table says of it."""
    lines = ask_owt("run", config, "--workdir", run, "--dry_run", *flags).splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:] if line != "nothing to do"}


def test_a_finished_run_has_nothing_to_do(small_config: Path, small_run: Path) -> None:
    before = snapshot(small_run)
    assert ask_owt("run", small_config, "--workdir", small_run, "--dry_run").splitlines()[-1] == "nothing to do"
    assert set(planned(small_config, small_run).values()) == {"finished"}
    assert snapshot(small_run) == before


def test_a_changed_option_is_named_and_what_it_makes_run(small_config: Path, small_run: Path) -> None:
    found = planned(small_config, small_run, "--min_tokens", 60)
    rows = manifest_of(small_run, "documents").counts.left
    assert list(found.values())[:3] == ["finished"] * 3
    assert found["clean"] == f"runs {rows:,} min_tokens is 60, was 64"
    assert found["export"] == "may run clean/, duplicates/ made anew"


def test_the_dry_run_says_what_then_runs(small_config: Path, small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run", without=("tokens",))
    shutil.rmtree(run / "report")
    found = planned(small_config, run, "--rules", "exact")
    assert [name for name, said in found.items() if said != "finished"] == ["export", "tokenize", "report"]
    said = run_owt("run", small_config, "--workdir", run, "--rules", "exact", "--workers", 1)
    assert "export: rules is ['exact'], was ['exact', 'near']" in said
    assert said.count("(finished)") == 5


def test_a_dry_run_of_nothing_made_yet_leaves_no_trace(small_config: Path, tmp_path: Path) -> None:
    assert planned(small_config, tmp_path / "run")["collect"] == "runs not made yet"
    assert not (tmp_path / "run").exists()


def test_pages_of_the_web_that_are_lost_are_the_error_that_the_run_would_end_with(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    (run / "ledger/pages/manifest.json").unlink()
    command = ("run", small_config, "--workdir", run, "--sources", "live", "--user_agent", "a/1 (+mailto:a@b.example)")
    said = ask_owt(*command, "--dry_run", code=1)
    assert "the manifest of pages/ is missing or damaged" in said
    assert said.splitlines()[-1] == ask_owt(*command, code=1).splitlines()[-1]
    assert planned(small_config, run, *command[4:], "--refetch")["fetch"].startswith("runs")


def test_an_interrupted_stage_says_how_far_it_is(small_config: Path, small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    records = table_of(run, "clean").records
    plan = Plan.of_manifest(manifest_of(run, "clean"), [record.made_from for record in records])
    (run / "ledger/clean/manifest.json").unlink()
    assert planned(small_config, run)["clean"].endswith("not made yet")
    prepare(Storage(str(run)), "clean", plan, Finished({record.shard: record for record in records[:2]}, {}, ""))
    found = planned(small_config, run)["clean"]
    assert found.startswith("continues")
    assert found.endswith("2 of 3 shards are finished")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(5, "5 s"), (600, "10 min"), (7200, "2.0 h"), (10 * 86_400, "10.0 days")]
)
def test_durations_are_for_people(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")])
def test_sizes_are_for_people(count: float, shown: str) -> None:
    assert size(count) == shown
