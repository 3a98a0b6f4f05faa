"""The report's page in a real browser."""

from __future__ import annotations

import csv
import io
import re
import time
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from lxml import html

from owt_pipeline.stages.report.page import HINTS, largest_losses, stages
from owt_pipeline.stages.report.tables import figure_names
from schemas import Reason
from tests.owt_pipeline.report.browser import Browser
from tests.owt_pipeline.report.test_figures import rows_of

FIGURES = [name.partition("_")[2] for name in figure_names()]
SECTIONS = ("funnel", *FIGURES, "documents", "dropped", "removals", "settings")


def sections_of(page: str) -> list[str]:
    return html.fromstring(page).xpath("//section/@id")


def test_the_page_is_small_has_every_section_and_needs_no_other_file(small_run: Path) -> None:
    text = (small_run / "report" / "index.html").read_text()
    assert len(text) < 1_000_000
    shown = [name for name in SECTIONS if name not in ("generations", "reserved")]  # of which the demo has none
    assert sections_of(text) == shown
    page = html.fromstring(text)
    references = page.xpath("//@src | //*[not(self::a)]/@href | //a[starts-with(@href, '#')]/@href")
    ids = page.xpath("//@id")
    assert {f"#{name}" for name in shown} <= set(references)
    assert {name.removeprefix("#") for name in references} <= set(ids)
    assert len(set(ids)) == len(ids)
    assert "[dedupe]" in page.xpath("string(//*[@id='settings']//pre)")
    assert not page.xpath("//th[not(@scope)]")


CHECKS = Path(__file__).with_name("page_checks.js").read_text()


OPEN = "[...document.querySelectorAll('.section[open]')].map(one => one.parentElement.id)"


def test_a_phone_shows_the_first_sections_and_the_others_on_demand(small_run: Path, browser: Browser) -> None:
    browser.open(small_run / "report" / "index.html", 1280, 900)
    assert browser.evaluate(OPEN) == [name for name in SECTIONS if name not in ("generations", "reserved")]
    browser.open(small_run / "report" / "index.html", 390, 900)
    assert browser.evaluate(OPEN) == list(SECTIONS[:3])
    assert browser.evaluate("document.documentElement.scrollHeight") < 7_000
    browser.evaluate("document.querySelector('nav a[href=\"#histograms\"]').click()")
    assert browser.evaluate(OPEN) == [*SECTIONS[:3], "histograms"]
    assert browser.comes_to("document.querySelector('#histograms canvas')?.width > 200")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_draws_in_a_browser_and_nothing_is_cut(
    small_run: Path, browser: Browser, width: int, dark: bool
) -> None:
    browser.open(small_run / "report" / "index.html", width, 900, dark=dark)
    browser.evaluate("document.querySelectorAll('.section').forEach(one => (one.open = true))")
    # Charts are drawn when the browser says that their sections are open.
    assert browser.comes_to("[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('canvas'))")
    assert browser.evaluate("document.querySelectorAll('.plot canvas').length") >= 15
    browser.evaluate(CHECKS)
    for check in ("blankPlots()", "cutPage()", "overlappingTexts()", "brokenNames()"):
        assert browser.evaluate(check) == []
    assert browser.evaluate("document.querySelector('h1').textContent") == f"Corpus report of {small_run.name}"
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 300) == dark
    colours = PIL.Image.open(io.BytesIO(browser.screenshot())).convert("RGB").getcolors(1 << 24)
    assert colours
    red, green, blue = max(colours)[1]  # the paper's, on the picture too
    assert (red + green + blue < 300) == dark
    browser.evaluate("document.querySelectorAll('details').forEach(one => (one.open = true))")
    assert browser.evaluate("document.querySelectorAll('.scroll').length") > 8
    assert browser.evaluate("cutTables()") == browser.evaluate("cutPage()") == []
    assert browser.problems == []
    assert browser.requests == [(small_run / "report" / "index.html").as_uri()]


def test_the_largest_losses_come_first_and_none_twice(stats: dict[str, Any]) -> None:
    losses = largest_losses(stats)
    assert [row["count"] for row in losses] == sorted((row["count"] for row in losses), reverse=True)
    assert all(row["hint"] for row in losses)
    shown = [(stage["stage"], row["reason"]) for stage in stages(stats) for row in stage["rejected"]]
    assert len({reason for _, reason in shown}) == len(shown)
    assert ("dedupe", "near_duplicate") in shown


def test_rare_reasons_are_folded(stats: dict[str, Any]) -> None:
    (collect,) = (stage for stage in stats["funnel"] if stage["dataset"] == "urls")
    rows = [{**collect["rejected"][0], "reason": f"r{k}", "count": 9, "share": 10.0**-k} for k in range(9)]
    (folded,) = stages({**stats, "funnel": [{**collect, "rejected": rows}]})
    assert [row["reason"] for row in folded["rejected"]] == ["r0", "r1", "r2", "r3", "r4"]
    assert [row["reason"] for row in folded["rare"]] == ["r5", "r6", "r7", "r8"]


def test_every_hint_is_for_a_reason() -> None:
    assert set(HINTS) <= {str(reason) for reason in Reason}


def test_a_table_is_offered_as_csv(small_run: Path, browser: Browser, stats: dict[str, Any], tmp_path: Path) -> None:
    browser.open(small_run / "report" / "index.html", 1280, 900)
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tables = browser.evaluate("document.querySelectorAll('table[data-name]').length")
    assert browser.evaluate("document.querySelectorAll('button[title]').length") == tables
    browser.evaluate("document.querySelector('button[title=\"subreddits.csv\"]').click()")
    file = tmp_path / "subreddits.csv"
    deadline = time.monotonic() + 30
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    rows = list(csv.DictReader(file.read_text("utf-8-sig").splitlines()))
    assert [(row["subreddit"], int(row["documents"]), float(row["share"])) for row in rows] == [
        (row["subreddit"], row["documents"], row["share"]) for row in rows_of(stats, "subreddits")
    ]
