"""A dry run says what a run would do, and does nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from owt_pipeline.commands.estimate import SHIPPED, SHIPPED_RATES, duration, rate_of, size
from owt_pipeline.engine.plan import Finished, Plan, prepare
from owt_pipeline.engine.storage import Storage
from owt_pipeline.stages import ORDER
from tests.owt_pipeline.runs import ask_owt, copy_of, manifest_of, run_owt, snapshot, table_of


def planned(config: Path, run: Path, *flags: object) -> dict[str, dict]:
    text = ask_owt("run", config, "--workdir", run, "--dry_run", "--log_json", *flags)
    return {step["stage"]: step for step in json.loads(text)}


def test_a_finished_run_has_nothing_to_do(small_config: Path, small_run: Path) -> None:
    before = snapshot(small_run)
    assert ask_owt("run", small_config, "--workdir", small_run, "--dry_run").splitlines()[-1] == "nothing to do"
    assert {step["verdict"] for step in planned(small_config, small_run).values()} == {"finished"}
    assert snapshot(small_run) == before


def test_a_changed_option_is_named_and_what_it_makes_run(small_config: Path, small_run: Path) -> None:
    steps = planned(small_config, small_run, "--min_tokens", 60)
    assert [step["verdict"] for step in steps.values()] == ["finished"] * 3 + ["runs"] + ["may run"] * 4
    assert steps["clean"]["why"] == "min_tokens is 60, was 64"
    assert steps["export"]["why"] == "clean/, duplicates/ made anew"
    documents = manifest_of(small_run, "documents")
    assert steps["clean"]["rows"] == documents.counts.left
    assert steps["clean"]["bytes"] > 10_000
    assert all(steps[name]["seconds"] >= 0 < steps[name]["disk"] for name in ORDER[3:])


def test_the_dry_run_says_what_then_runs(small_config: Path, small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run", without=("tokens",))
    shutil.rmtree(run / "report")
    steps = planned(small_config, run, "--rules", "exact")
    assert [name for name, step in steps.items() if step["verdict"] != "finished"] == ["export", "tokenize", "report"]
    said = run_owt("run", small_config, "--workdir", run, "--rules", "exact", "--workers", 1)
    assert "export: rules is ['exact'], was ['exact', 'near']" in said
    assert said.count("(finished)") == 5


def test_nothing_made_yet_is_estimated_from_the_dump_and_leaves_no_trace(small_config: Path, tmp_path: Path) -> None:
    table = ask_owt("run", small_config, "--workdir", tmp_path / "run", "--dry_run", "--runner", "DataflowRunner")
    assert "nothing is made yet" in table
    assert "on Dataflow, by list prices" in table
    assert f"by {SHIPPED_RATES}" in table
    assert not (tmp_path / "run").exists()


def test_an_interrupted_stage_says_how_far_it_is(small_config: Path, small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    records = table_of(run, "clean").records
    plan = Plan.of_manifest(manifest_of(run, "clean"), [record.made_from for record in records])
    (run / "ledger/clean/manifest.json").unlink()
    assert planned(small_config, run)["clean"]["why"] == "nothing is made yet"
    prepare(Storage(str(run)), "clean", plan, Finished({record.shard: record for record in records[:2]}, {}, ""))
    step = planned(small_config, run)["clean"]
    assert (step["verdict"], step["why"]) == ("continues", "2 of 3 shards are finished")


def test_a_runs_own_rates_count_where_it_ran_long_enough() -> None:
    entry = {"stage": "clean", "seconds": 10.0, "workers": 2, "entered": 1000, "left": 500, "bytes": 5000, "shards": 4}
    assert rate_of("clean", []).measured == SHIPPED_RATES
    complete = rate_of("clean", [{**entry, "shards_written": 4}])
    assert (complete.rows_per_second, complete.kept, complete.bytes_per_row) == (50, 0.5, 10)
    for other in ({"shards_written": 1}, {"shards_written": 4, "seconds": 0.1}):
        assert rate_of("clean", [{**entry, **other}]) == SHIPPED["clean"]
    assert set(SHIPPED) >= set(ORDER)
    alone = rate_of("fetch", [{**entry, "stage": "fetch", "shards_written": 4}], live=True)
    assert alone.rows_per_second == 100  # as the web is waited for, with any number of workers


@pytest.mark.parametrize(
    ("seconds", "shown"), [(5, "5 s"), (600, "10 min"), (7200, "2.0 h"), (10 * 86_400, "10.0 days")]
)
def test_durations_are_for_people(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")])
def test_sizes_are_for_people(count: float, shown: str) -> None:
    assert size(count) == shown


def test_what_each_source_is_asked_for_is_counted_with_its_archives(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    flags = ("--sources", "archive,live,wayback", "--user_agent", "a/1 (+mailto:a@b.example)", "--wayback_delay", 2)
    step = planned(small_config, run, *flags)["fetch"]
    urls = manifest_of(small_run, "urls").counts.left
    files, live, wayback = step["asked"]
    assert [asked["source"] for asked in step["asked"]] == ["archive", "live", "wayback"]
    sizes = [file.stat().st_size for file in small_config.parent.rglob("*.warc.gz")]
    assert (files["files"], files["bytes"], files["urls"]) == (len(sizes), sum(sizes), urls)
    assert step["bytes"] >= sum(sizes) > 0
    assert urls > live["urls"] > wayback["urls"] > 0
    assert wayback["requests"] > wayback["urls"]
    assert step["seconds"] >= wayback["seconds"] == pytest.approx(2 * wayback["requests"])
    text = ask_owt("run", small_config, "--workdir", run, "--dry_run", *flags)
    assert f"fetch asks archive ({len(sizes)} file" in text
    assert "then wayback (~" in text


def test_crawls_that_would_be_looked_through_are_named(small_config: Path, tmp_path: Path) -> None:
    index = "https://data.commoncrawl.example/cc-index/table/cc-main/warc"
    flags = ("--sources", "live,commoncrawl", "--user_agent", "a/1 (+mailto:a@b.example)")
    crawls = ("--cc_index", index, "--cc_crawls", "CC-MAIN-2013-20", "CC-MAIN-2013-48", "--cc_delay", 0.5)
    step = planned(small_config, tmp_path / "run", *flags, *crawls)["fetch"]
    live, bulk = step["asked"]
    assert bulk["source"] == f"commoncrawl: CC-MAIN-2013-20, CC-MAIN-2013-48 of {index}"
    assert live["urls"] > bulk["urls"] > bulk["requests"] > 0
    assert bulk["seconds"] == pytest.approx(0.5 * bulk["requests"])


def test_the_files_of_an_index_that_can_be_listed_are_counted(small_config: Path, tmp_path: Path) -> None:
    index = tmp_path / "cc-index" / "table" / "cc-main" / "warc"
    for crawl, kilobytes in (("CC-MAIN-2013-20", 3), ("CC-MAIN-2013-48", 4), ("CC-MAIN-2014-10", 100)):
        folder = index / f"crawl={crawl}" / "subset=warc"
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").write_bytes(bytes(kilobytes * 1000))
    crawls = ("--cc_index", index, "--cc_crawls", "CC-MAIN-2013-20", "CC-MAIN-2013-48")
    flags = ("--sources", "commoncrawl", "--user_agent", "a/1 (+mailto:a@b.example)", *crawls)
    (bulk,) = planned(small_config, tmp_path / "run", *flags)["fetch"]["asked"]
    assert bulk["source"].endswith(f" of {index}, 2 files of 7.0 kB, read in part")
