"""A dry run says what a run would do, and does nothing."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from owt_pipeline.commands.dry_run import Asked, asked_of_sources, shares_of_sources
from owt_pipeline.commands.estimate import SHIPPED, SHIPPED_RATES, duration, rate_of, size
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.plan import Finished, Plan, prepare
from owt_pipeline.stages import ORDER
from owt_pipeline.stages.fetch.stage import STAGE, Options
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.fetch.archive_server import ArchiveServer, capture_row
from tests.owt_pipeline.fetch.columnar import INDEX, filler, publish, table
from tests.owt_pipeline.fetch.columnar import row as columnar_row
from tests.owt_pipeline.fetch.conftest import write_urls as write_urls
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
    assert "not made yet" in table
    assert "on Dataflow, by list prices" in table
    assert f"by {SHIPPED_RATES}" in table
    assert not (tmp_path / "run").exists()


def test_what_the_time_of_live_pages_is_for_is_said() -> None:
    assert str(Asked("live", urls=20_831, seconds=420)) == "live (~20,831 URLs, ~7 min for the largest host)"
    assert str(Asked("wayback", urls=10, requests=20, seconds=50)) == "wayback (~10 URLs, ~20 requests, ~50 s)"


def test_pages_of_the_web_that_are_lost_are_the_error_that_the_run_would_end_with(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    (run / "ledger/pages/manifest.json").unlink()
    command = ("run", small_config, "--workdir", run, "--sources", "live", "--user_agent", "a/1 (+mailto:a@b.example)")
    said = ask_owt(*command, "--dry_run", code=1)
    assert "the manifest of pages/ is missing or damaged" in said
    assert said.splitlines()[-1] == ask_owt(*command, code=1).splitlines()[-1]
    assert planned(small_config, run, *command[4:], "--refetch")["fetch"]["verdict"] == "runs"


def test_an_interrupted_stage_says_how_far_it_is(small_config: Path, small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    records = table_of(run, "clean").records
    plan = Plan.of_manifest(manifest_of(run, "clean"), [record.made_from for record in records])
    (run / "ledger/clean/manifest.json").unlink()
    assert planned(small_config, run)["clean"]["why"] == "not made yet"
    prepare(Storage(str(run)), "clean", plan, Finished({record.shard: record for record in records[:2]}, {}, ""))
    step = planned(small_config, run)["clean"]
    assert (step["verdict"], step["why"]) == ("continues", "2 of 3 shards are finished")


def test_a_runs_own_rates_count_where_it_ran_long_enough() -> None:
    entry = {
        "stage": "clean",
        "seconds": 100.0,
        "workers": 2,
        "entered": 10000,
        "left": 5000,
        "bytes": 50000,
        "shards": 4,
    }
    assert rate_of("clean", []).measured == SHIPPED_RATES
    complete = rate_of("clean", [{**entry, "shards_written": 4}])
    assert (complete.rows_per_second, complete.kept, complete.bytes_per_row) == (50, 0.5, 10)
    for other in ({"shards_written": 1}, {"shards_written": 4, "seconds": 5.0}):
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


def test_an_index_that_cannot_be_reached_is_named_as_such(small_config: Path, tmp_path: Path) -> None:
    index = "https://data.commoncrawl.example/cc-index/table/cc-main/warc"
    flags = ("--sources", "live,commoncrawl", "--user_agent", "a/1 (+mailto:a@b.example)")
    crawls = ("--cc_index", index, "--cc_crawls", "CC-MAIN-2013-20", "CC-MAIN-2013-48", "--archive_retries", 0)
    step = planned(small_config, tmp_path / "run", *flags, *crawls)["fetch"]
    live, bulk = step["asked"]
    named = f"commoncrawl: CC-MAIN-2013-20, CC-MAIN-2013-48 of {index}, size unknown (--cc_index: "
    assert bulk["source"].startswith(named)
    assert live["urls"] > bulk["urls"] > 0 == bulk["requests"]


@pytest.fixture
def archive() -> Iterator[ArchiveServer]:
    server = ArchiveServer()
    server.collections = {f"CC-MAIN-{2008 + n}-10": (n * 10**7, (n + 1) * 10**7) for n in range(6)}
    yield server
    server.close()


URLS = [(f"http://a{n % 97}.example/{n}", 10**7 * (n % 6) + 5 * 10**6) for n in range(300)]
FOUND = [row for row in URLS if zlib.crc32(row[0].encode()) % 10 < 6]


def test_what_is_asked_of_a_cdx_index_is_as_many_requests_as_the_dry_run_says(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    for url, moment in FOUND:
        record = response_record(url, moment, "HTTP/1.1 200 OK", [("Content-Type", "text/html")], b"<p>page")
        file = f"{len(archive.files)}.warc.gz"
        archive.files[file] = record
        collection = next(name for name, (_, ends) in archive.collections.items() if moment < ends)
        archive.rows.setdefault(collection, []).append(capture_row(url, moment, file, 0, len(record)))
    options = Options(
        sources=("commoncrawl",), cdx_index=f"{archive.url}/collinfo.json", cdx_data=f"{archive.url}/data",
        user_agent="a/1 (+mailto:a@b.example)", cdx_delay=0.01, cdx_connections=8,
    )  # fmt: skip
    runtime = write_urls(URLS)
    (asked,) = asked_of_sources(options, len(URLS), (), {})
    assert not archive.seen  # the dry run needs none
    manifest = run_stage(STAGE, options, runtime)[0]
    assert asked.requests == pytest.approx(len(archive.seen), rel=0.25)
    assert asked.seconds == pytest.approx(0.01 * archive.asked, rel=0.4)
    shares = shares_of_sources([None, manifest])
    assert shares == {"commoncrawl": len(FOUND) / len(URLS)}
    (measured,) = asked_of_sources(options, len(URLS), (), shares)
    assert measured.requests == pytest.approx(len(archive.seen), rel=0.25)


def test_what_is_read_of_a_columnar_index_is_what_the_dry_run_says(
    archive: ArchiveServer, write_urls: Callable[..., Runtime]
) -> None:
    rows = []
    for url, moment in FOUND:
        record = response_record(url, moment, "HTTP/1.1 200 OK", [("Content-Type", "text/html")], b"<p>page")
        file = f"{len(archive.files)}.warc.gz"
        archive.files[file] = record
        rows.append(columnar_row(url, moment, file, 0, len(record)))
    index = pa.concat_tables([table(rows), filler(0, 60_000)])
    publish(archive.files, {"CC-MAIN-2014-10": index}, number=12)
    options = Options(
        sources=("commoncrawl",), cc_index=f"{archive.url}/data/{INDEX}", cc_crawls=("CC-MAIN-2014-10",),
        user_agent="a/1 (+mailto:a@b.example)", cc_delay=0.001,
    )  # fmt: skip
    runtime = write_urls(URLS)
    (asked,) = asked_of_sources(options, len(URLS), (), {})
    archive.seen.clear()
    archive.sent.clear()
    manifest = run_stage(STAGE, options, runtime)[0]
    read = sum(count for path, count in archive.sent.items() if INDEX in path)
    assert asked.files == 12
    assert manifest.stats["cc_index_bytes_read"] <= read
    assert read / 3 < asked.bytes < read * 3  # the URLs of this test are all on hosts that are neighbours
    assert len(archive.seen) < asked.requests < 2 * len(archive.seen)  # neighbours come together
    assert asked.seconds == pytest.approx(0.001 * asked.requests)
