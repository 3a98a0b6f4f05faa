"""The report as a stage: its bytes, its schema, when it is written again, and runs of which little is there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from owt_pipeline.report.figures.likeness import read_reference
from owt_pipeline.runtime.errors import UserError
from owt_pipeline.runtime.stage import Runtime, run_stage
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.stages import load
from owt_pipeline.stages.report import STAGE, ReportOptions
from schemas import Manifest
from schemas.stats import stats_reference, stats_schema
from tests.owt_pipeline.report.browser import Browser
from tests.owt_pipeline.report.test_page import SECTIONS, Page
from tests.owt_pipeline.whole_runs import run_owt

REPOSITORY = Path(__file__).resolve().parents[3]


def validate(stats: Any) -> None:
    """Raises where the figures are not of the documented schema."""
    jsonschema.Draft202012Validator(stats_schema()).validate(stats)


def test_every_figure_is_of_the_documented_schema(stats: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(stats_schema())
    validate(stats)


def test_the_reference_of_stats_is_not_stale() -> None:
    stale = "run `python -m schemas.stats > docs/stats.md; python -m schemas.stats --json > docs/stats.schema.json`"
    assert (REPOSITORY / "docs" / "stats.md").read_text() == stats_reference(), stale
    assert json.loads((REPOSITORY / "docs" / "stats.schema.json").read_text()) == stats_schema(), stale


def test_one_and_two_workers_write_the_same_bytes_and_a_rerun_too(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for workers in (1, 2):
        shutil.rmtree(copy / "report")
        options = ReportOptions(reference_domains=str(run.parent / "sites.txt"))
        run_stage(STAGE, options, Runtime(Storage(str(copy)), workers))
        for name in ("index.html", "stats.json", "manifest.json"):
            assert (copy / "report" / name).read_bytes() == (run / "report" / name).read_bytes()


def test_a_run_of_imported_text_has_a_report_of_what_is_there(tmp_path: Path) -> None:
    rows = [{"text": f"</script><script>alert({i})</script> & a text of its own. " * 40 + str(i)} for i in range(9)]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({**row, "title": "<b>&"}) for row in rows))
    run_owt("import", tmp_path / "in.jsonl", "--workdir", tmp_path / "run", "--num_shards", 2)
    for stage in map(load, ("clean", "dedupe", "export", "tokenize", "report")):
        run_stage(stage, stage.options(), Runtime(Storage(str(tmp_path / "run"))))
    stats = json.loads((tmp_path / "run" / "report" / "stats.json").read_bytes())
    assert stats["funnel"][0]["stage"] == "import"
    assert stats["funnel"][0]["entered"] == 9
    assert (stats["fetch"], stats["scores"], stats["domains"]["top"]) == ({}, [], [])
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert page.count("Nothing was fetched") == 1
    assert "<script>alert(" not in page
    assert "&lt;b&gt;&amp;" in page
    assert Page(page).sections == list(SECTIONS)
    validate(stats)


def test_the_report_stands_until_anything_it_tells_of_changes(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    runtime = Runtime(Storage(str(copy)))
    options = ReportOptions(reference_domains=str(run.parent / "sites.txt"))
    assert not run_stage(STAGE, options, runtime)[1]
    dedupe = load("dedupe")
    run_stage(dedupe, dedupe.options(threshold=0.95), runtime)
    assert run_stage(STAGE, options, runtime)[1]
    assert Manifest.from_json((copy / "report" / "manifest.json").read_bytes()).of_kind("asset")


@pytest.fixture(scope="module")
def stricter(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by stricter options, with a report that compares it with the first."""
    copy = tmp_path_factory.mktemp("other") / "stricter <b>"
    shutil.copytree(run, copy)
    runtime = Runtime(Storage(str(copy)))
    changed = {"clean": {"min_tokens": 400}, "dedupe": {"threshold": 0.9}, "report": {"compare": str(run)}}
    for name in ("clean", "dedupe", "export", "tokenize", "report"):
        stage = load(name)
        run_stage(stage, stage.options(**changed.get(name, {})), runtime)
    return copy


def test_two_runs_stand_side_by_side(stricter: Path, stats: dict[str, Any]) -> None:
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
    assert browser.evaluate("!!document.querySelector('#comparison #plot-compared-tokens .main-svg')")
    assert browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert browser.problems == []


def test_a_run_without_a_report_cannot_be_compared_with(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"run `owt report --workdir {re.escape(str(tmp_path))}` first"):
        run_stage(STAGE, ReportOptions(compare=str(tmp_path)), Runtime(Storage(str(run))))


@pytest.mark.parametrize(
    ("text", "problem"), [("12 google\n7 a b\n", "line 2: '7 a b' is not a count and a site"), ("1 google", "lists 1")]
)
def test_a_list_that_is_none_is_refused_by_its_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(UserError, match=re.escape(problem)):
        read_reference(str(tmp_path / "list.txt"))
