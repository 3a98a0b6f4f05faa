"""The report as a stage: its bytes, its schema, when it is written again, and runs of which little is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from socket import gethostname
from typing import Any

import duckdb
import jsonschema
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.engine.phases import log_entry
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.stages import load
from owt_pipeline.stages.report import measures, tables
from owt_pipeline.stages.report.comparisons import read_reference
from owt_pipeline.stages.report.figures import times
from owt_pipeline.stages.report.stage import STAGE, Options
from owt_pipeline.stages.report.tables import open_tables
from owt_pipeline.storage.folder import Storage
from schemas.reference import stats_reference
from schemas.stats import Stats, stats_schema
from tests.owt_pipeline.report.browser import Browser
from tests.owt_pipeline.report.queries import queries
from tests.owt_pipeline.report.test_page import SECTIONS, Page
from tests.owt_pipeline.runs import copy_of, differing, files_of, manifest_of, run_owt, work_of

REPOSITORY = Path(__file__).resolve().parents[3]


def validate(stats: Any) -> None:
    """Raises where the figures are not of the documented schema, or cannot be read as its Structs."""
    msgspec.convert(stats, Stats)
    jsonschema.Draft202012Validator(stats_schema()).validate(stats)


def test_every_figure_is_of_the_documented_schema(stats: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(stats_schema())
    validate(stats)


def test_the_reference_of_stats_is_not_stale() -> None:
    command = "python -m schemas.reference"
    stale = f"run `{command} stats > docs/stats.md; {command} stats.schema > docs/stats.schema.json`"
    assert (REPOSITORY / "docs" / "stats.md").read_text() == stats_reference(), stale
    assert json.loads((REPOSITORY / "docs" / "stats.schema.json").read_text()) == stats_schema(), stale


def test_one_and_two_workers_write_the_same_bytes_and_a_rerun_too(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for workers in (1, 2):
        shutil.rmtree(copy / "report")
        options = Options(reference_domains=str(run.parent / "sites.txt"))
        run_stage(STAGE, options, Runtime(Storage(str(copy)), workers))
        assert differing(copy, run) == []


def test_few_bytes_of_memory_and_one_thread_come_to_the_same_bytes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of(run, tmp_path / "run", without=("report",))
    with monkeypatch.context() as small:
        small.setattr(tables, "MEMORY", "24MB")
        run_stage(STAGE, Options(reference_domains=str(run.parent / "sites.txt")), Runtime(Storage(str(copy))))
    assert differing(copy, run) == []
    assert not list((copy / ".tmp").glob("*"))


def test_what_does_not_fit_into_memory_is_spilled_and_comes_to_the_same_rows(tmp_path: Path) -> None:
    def shown(memory: str, threads: int, *settings: str) -> list[tables.Row]:
        parameters = {"sample_rejects": 5}
        folder = Storage(str(tmp_path))
        with tables.open_tables({}, folder, [], parameters, threads=threads, memory=memory) as opened:
            for statement in settings:
                opened.connection.execute(statement)
            opened.connection.execute(
                "insert into rejects (url_id, shard, reason, dataset) "
                "select range, range % 7, 'reason-' || range % 3, 'urls' from range(600_000)"
            )
            return opened.rows("rejected")

    assert len(shown("1GB", 2)) == 15
    assert shown("40MB", 1) == shown("1GB", 2)
    with pytest.raises(duckdb.OutOfMemoryException):
        shown("40MB", 1, "set max_temp_directory_size = '0KB'")


def test_the_tables_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom owt_pipeline.storage.folder import Storage\n"
        "from owt_pipeline.stages.report.tables import open_tables\n"
        "with open_tables({}, Storage(sys.argv[1]), [], {}):\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        child.kill()
    assert list((tmp_path / ".tmp").rglob("tables.duckdb"))
    Storage(str(tmp_path)).remove_dead_spools()
    assert not (tmp_path / ".tmp").exists()


@pytest.mark.parametrize("name", ["a?b", "a\\b"])
def test_the_tables_of_a_folder_with_an_odd_name_open(tmp_path: Path, name: str) -> None:
    """DuckDB takes `?` for the end of a path, and a backslash for a slash."""
    with open_tables({}, Storage(str(tmp_path / name)), [], {}) as found:
        assert found.rows("rules") == []


def test_another_number_of_shards_comes_to_the_same_figures(run: Path, stats: dict[str, Any], tmp_path: Path) -> None:
    config = (run.parent / "config.toml").read_text().replace("num_shards = 3", "num_shards = 5")
    (tmp_path / "config.toml").write_text(config)
    options = ["--workers", 2, "--reference_domains", run.parent / "sites.txt"]
    run_owt("run", tmp_path / "config.toml", "--workdir", tmp_path / "run", *options)
    found = json.loads((tmp_path / "run" / "report" / "stats.json").read_bytes())
    assert manifest_of(tmp_path / "run", "urls").num_shards == 5
    for one in (found, expected := json.loads(json.dumps(stats))):
        del one["settings"]
        for row in one["funnel"]:
            del row["bytes"]
    assert found == expected


def test_a_damaged_file_is_named_with_what_to_do(run: Path, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "run", without=("report",))
    path = next((copy / "duplicates").glob("part-00001-*"))
    path.write_bytes(b"PAR1" + bytes(path.stat().st_size - 8) + b"PAR1")
    with pytest.raises(UserError, match=rf"{path.name} cannot be read: .* run `owt verify --repair`"):
        run_stage(STAGE, Options(), Runtime(Storage(str(copy))))


def test_an_interrupted_report_continues_after_its_finished_parts(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of(run, tmp_path / "run", without=("report",))
    arguments = (STAGE, Options(reference_domains=str(run.parent / "sites.txt")), Runtime(Storage(str(copy))))
    with monkeypatch.context() as broken:
        broken.delattr(tables.Tables, "rows")
        with pytest.raises(AttributeError):
            run_stage(*arguments)
    damaged = next((work_of(copy, "report") / "measured").glob("part-00001-*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    read: list[int] = []
    lengths = measures._lengths
    monkeypatch.setattr(measures, "_lengths", lambda *given: read.append(given[1]) or lengths(*given))
    run_stage(*arguments)
    assert read == [1]  # what was damaged since
    assert differing(copy, run) == []


def test_a_run_of_imported_text_has_a_report_of_what_is_there(tmp_path: Path) -> None:
    rows = [{"text": f"</script><script>alert({i})</script> & a text of its own. " * 40 + str(i)} for i in range(9)]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({**row, "title": "<b>&"}) for row in rows))
    run_owt("import", tmp_path / "in.jsonl", "--workdir", tmp_path / "run", "--num_shards", 2)
    for made in map(load, ("clean", "dedupe", "export", "tokenize", "report")):
        run_stage(made, made.options(), Runtime(Storage(str(tmp_path / "run"))))
    stats = json.loads((tmp_path / "run" / "report" / "stats.json").read_bytes())
    assert stats["funnel"][0]["stage"] == "import"
    assert stats["funnel"][0]["entered"] == 9
    assert (stats["fetch"], stats["scores"], stats["domains"]["top"]) == (None, [], [])
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert page.count("There are no pages") == 1
    assert "<script>alert(" not in page
    assert "&lt;b&gt;&amp;" in page
    assert Page(page).sections == list(SECTIONS)
    validate(stats)


def test_evaluation_sets_and_other_corpora_are_among_the_sources(tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(600)]
    texts = [" ".join(words[start : start + 200]) for start in (0, 100, 400)]
    made_of = {"other": texts[1:2], "run": texts}
    (tmp_path / "evaluation.txt").write_text(texts[2])
    for name, own in made_of.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in own))
        run_owt("import", tmp_path / f"{name}.jsonl", "--workdir", tmp_path / name, "--num_shards", 1)
        flags = ["--min_tokens", 0, "--languages", "all"]
        given = ["--decontaminate", tmp_path / "evaluation.txt"] if name == "run" else []
        run_owt("clean", "--workdir", tmp_path / name, *flags, *given)
        run_owt("dedupe", "--workdir", tmp_path / name, *(["--against", tmp_path / "other"] if name == "run" else []))
    for stage in ("export", "tokenize", "report"):
        run_owt(stage, "--workdir", tmp_path / "run")
    page, card = (tmp_path / "run" / place for place in ("report/index.html", "ledger/corpus/README.md"))
    assert "clean read evaluation.txt" in page.read_text()
    assert "dedupe read other" in page.read_text()
    assert "| `clean` | evaluation.txt | – |" in card.read_text()
    assert manifest_of(tmp_path / "run", "corpus").counts.left == 1
    stats = json.loads((tmp_path / "run/report/stats.json").read_bytes())
    assert [source["name"] for source in stats["settings"]["duplicates"]["sources"]] == ["other"]


def test_the_report_stays_until_anything_it_shows_changes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    runtime = Runtime(Storage(str(copy)))
    options = Options(reference_domains=str(run.parent / "sites.txt"))
    assert not run_stage(STAGE, options, runtime)[1]
    dedupe = load("dedupe")
    run_stage(dedupe, dedupe.options(threshold=0.95), runtime)
    assert run_stage(STAGE, options, runtime)[1]
    assert not run_stage(STAGE, options, runtime)[1]
    unchanged = tables._sql
    monkeypatch.setattr(tables, "_sql", lambda name: unchanged(name).replace("order by", "ORDER BY"))
    assert run_stage(STAGE, options, runtime)[1]
    assert [file.path for file in files_of(copy, "report", "asset")] == ["report/index.html", "report/stats.json"]


@pytest.fixture(scope="module")
def stricter(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by stricter options, with a report that compares it with the first."""
    copy = tmp_path_factory.mktemp("other") / "stricter <b>"
    shutil.copytree(run, copy)
    runtime = Runtime(Storage(str(copy)))
    changed = {"clean": {"min_tokens": 400}, "dedupe": {"threshold": 0.9}, "report": {"compare": str(run)}}
    for name in ("clean", "dedupe", "export", "tokenize", "report"):
        made = load(name)
        run_stage(made, made.options(**changed.get(name, {})), runtime)
    return copy


def test_two_runs_are_compared_side_by_side(stricter: Path, stats: dict[str, Any]) -> None:
    ours = json.loads((stricter / "report" / "stats.json").read_bytes())
    validate(ours)
    found = ours["comparison"]
    assert found["other"] == "run"
    for key, pair in found["totals"].items():
        assert pair == [ours["totals"][key], stats["totals"][key]]
    assert found["totals"]["documents"][0] < found["totals"]["documents"][1]
    stages = {row["dataset"]: row for row in found["stages"]}
    for rows, side in ((ours["funnel"], 0), (stats["funnel"], 1)):
        for row in rows:
            assert stages[row["dataset"]]["left"][side] == row["left"]
            for reason in row["rejected"]:
                key = (row["stage"], reason["reason"])
                (other,) = [r for r in found["rejected"] if (r["stage"], r["reason"]) == key]
                assert other["count"][side] == reason["count"]
    for bins, of in zip(found["token_histograms"], (ours, stats), strict=True):
        assert sum(share for *_, share in bins) == pytest.approx(1, abs=1e-4)
        assert [low for low, *_ in bins] == [low for low, *_ in of["lengths"]["tokens"]["histogram"]]
    differing = {(row["stage"], row["option"]): row["values"] for row in found["settings"]}
    assert differing == {("clean", "min_tokens"): [400, 64], ("dedupe", "threshold"): [0.9, 0.8]}


def test_the_page_of_two_runs_draws_on_a_phone(stricter: Path, browser: Browser) -> None:
    browser.open(stricter / "report" / "index.html", 390, 900)
    assert browser.evaluate("!!document.querySelector('#comparison #plot-compared canvas')")
    assert browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert browser.problems == []


def test_the_losses_of_a_training_run_are_drawn_thinned(run: Path, tmp_path: Path) -> None:
    copy, lines = copy_of(run, tmp_path / "run", without=("report",)), tmp_path / "gpt" / "metrics.jsonl"
    lines.parent.mkdir()
    records: list[dict[str, Any]] = [{"step": k, "loss": 10 / k, "lr": 1e-3} for k in range(1, 1002)]
    records[499]["val_loss"] = 3.5
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    run_stage(STAGE, Options(training=str(lines.parent)), Runtime(Storage(str(copy))))
    stats = json.loads((copy / "report" / "stats.json").read_bytes())
    validate(stats)
    training = stats["training"]
    assert (training["name"], training["last_step"]) == ("gpt", 1001)
    assert training["steps"][-1] == [1001, 10 / 1001, None]
    assert [500, 0.02, 3.5] in training["steps"]
    assert len(training["steps"]) <= 302
    assert "training" in Page((copy / "report" / "index.html").read_text()).sections
    lines.write_text('{"step": 1}\n')
    with pytest.raises(UserError, match=r"--training .*metrics.jsonl is not a training run's \('loss'\)"):
        run_stage(STAGE, Options(training=str(lines.parent)), Runtime(Storage(str(copy))))


def test_the_times_of_the_stages_are_shown_where_they_are_asked_for(
    run: Path, stats: dict[str, Any], tmp_path: Path
) -> None:
    copy = copy_of(run, tmp_path / "run", without=("report",))
    shutil.copy(run / "run-log.jsonl", copy)
    run_stage(STAGE, Options(times=True), Runtime(Storage(str(copy))))
    found = json.loads((copy / "report" / "stats.json").read_bytes())
    validate(found)
    assert stats["times"] is None
    assert [row["stage"] for row in found["times"]] == [stage["stage"] for stage in stats["funnel"]]
    assert {(row["host"], row["workers"]) for row in found["times"]} == {(gethostname(), "2")}
    log = {entry.get("stage"): entry for entry in map(json.loads, (run / "run-log.jsonl").read_text().splitlines())}
    assert [row["seconds"] for row in found["times"]] == [
        round(log[row["stage"]]["seconds"], 1) for row in found["times"]
    ]
    assert 'data-name="times"' in (copy / "report" / "index.html").read_text()


def test_the_times_of_a_run_are_those_of_its_last_stages(run: Path) -> None:
    manifest = manifest_of(run, "clean")
    entry = log_entry(manifest, 1_700_000_000, 3600, host="DataflowRunner")
    earlier = {**entry, "fingerprint": "another run", "seconds": 1}
    (row,) = times([entry, earlier, {"job": "", "metrics": {}}], {"clean": manifest})
    assert (row["started"], row["seconds"]) == ("2023-11-14T22:13:20+00:00", 3600)
    assert (row["host"], row["workers"]) == ("DataflowRunner", None)


def test_a_run_without_a_report_cannot_be_compared_with(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"run `owt report --workdir {re.escape(str(tmp_path))}` first"):
        run_stage(STAGE, Options(compare=str(tmp_path)), Runtime(Storage(str(run))))


@pytest.mark.parametrize(
    ("text", "problem"), [("12 google\n7 a b\n", "line 2: '7 a b' is not a count and a site"), ("1 google", "lists 1")]
)
def test_a_file_that_is_not_a_list_is_refused_by_its_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(UserError, match=re.escape(problem)):
        read_reference(str(tmp_path / "list.txt"))


def test_times_are_those_of_the_pages_fetched_live_and_distances_those_of_each_source(
    run: Path, tmp_path: Path
) -> None:
    copy = copy_of(run, tmp_path / "run", without=("report",))
    for path in (copy / "pages").glob("part-*.parquet"):
        pages = pq.read_table(path)
        rows = np.arange(pages.num_rows)
        days = [None if row % 7 == 0 else 3 * row - 50 for row in rows.tolist()]
        for name, values in (
            ("source", np.where(rows % 3, "live", "warc")),
            ("fetch_ms", 7 * rows % 400),
            ("days_after_submission", days),
        ):
            place = pages.schema.get_field_index(name)
            pages = pages.set_column(place, pages.field(name), pa.array(values, pages.field(name).type))
        pq.write_table(pages, path)
    run_stage(STAGE, Options(), Runtime(Storage(str(copy))))
    fetch, sql = json.loads((copy / "report" / "stats.json").read_bytes())["fetch"], queries(copy)
    assert fetch["sources"] == dict(sql("select source, count(*) from pages group by 1"))
    days = "days_after_submission"
    of_source = sql(
        f"select source, count(*), count(*) filter ({days} < 0), count({days}), sum(abs({days}))::bigint, "
        f"max(abs({days})) from pages group by 1 order by 1"
    )
    assert of_source == [
        (row["source"], row["pages"], row["before"], *(row["days"][key] for key in ("count", "sum", "maximum")))
        for row in fetch["distances"]
    ]
    assert all(before > 0 for _, _, before, *_ in of_source)
    live = "from pages where source = 'live'"
    assert sql(f"select count(*), sum(fetch_ms)::bigint, max(fetch_ms) {live}") == [
        tuple(fetch["milliseconds"][key] for key in ("count", "sum", "maximum"))
    ]
    for row in fetch["domains"]:
        ((mean,),) = sql(f"select avg(fetch_ms) {live} and split_part(url, '/', 3) = '{row['domain']}'")
        assert row["mean_milliseconds"] == (None if mean is None else pytest.approx(mean, abs=0.06))
    means = {row["years"]: row["mean_milliseconds"] for row in fetch["ages"]}
    captured, age = fetch["captured"].split("-"), "(year(m) * 12 + month(m))"
    posted = f"select *, to_timestamp(created_utc) at time zone 'UTC' as m {live}"
    months = int(captured[0]) * 12 + int(captured[1])
    for years, mean in sql(f"select greatest({months} - {age}, 0) // 12, avg(fetch_ms) from ({posted}) group by 1"):
        assert means.pop(years, None) == (pytest.approx(mean, abs=0.06) if years is not None else None)
    assert not any(means.values())
