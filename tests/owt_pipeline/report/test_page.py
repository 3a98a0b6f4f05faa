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


def test_the_page_is_small_has_every_section_and_needs_no_other_file(run: Path) -> None:
    text = (run / "report" / "index.html").read_text()
    assert len(text) < 1_000_000
    shown = [name for name in SECTIONS if name not in ("generations", "reserved")]  # of which the demo has none
    assert sections_of(text) == shown
    page = html.fromstring(text)
    references = page.xpath("//@src | //*[not(self::a)]/@href | //a[starts-with(@href, '#')]/@href")
    ids = page.xpath("//@id")
    assert {f"#{name}" for name in shown} <= set(references)
    assert {name.removeprefix("#") for name in references} <= set(ids)
    assert len(set(ids)) == len(ids)


CHECKS = Path(__file__).with_name("page_checks.js").read_text()


def test_the_page_names_its_run_and_shows_twenty_rows_of_a_table(run: Path, browser: Browser) -> None:
    browser.open(run / "report" / "index.html", 390, 900)
    assert browser.evaluate("document.querySelector('h1').textContent") == f"Corpus report of {run.name}"
    assert "[dedupe]" in browser.evaluate("document.querySelector('#settings pre').textContent")
    assert browser.evaluate("document.querySelectorAll('th:not([scope])').length") == 0
    few = browser.evaluate("""[...document.querySelectorAll('table[data-name] tbody')]
      .map(body => [...body.rows].filter(row => !row.hidden).length)""")
    assert max(few) <= 25
    rows = "document.querySelector('[data-name=domains] tbody').rows"
    if browser.evaluate(f"{rows}.length") > 25:
        browser.evaluate("document.querySelector('[data-name=domains]').parentElement.nextSibling.click()")
        assert browser.evaluate(f"[...{rows}].every(row => !row.hidden)")


OPEN = "[...document.querySelectorAll('.section[open]')].map(one => one.parentElement.id)"


def test_a_phone_shows_the_first_sections_and_the_others_on_demand(run: Path, browser: Browser) -> None:
    browser.open(run / "report" / "index.html", 1280, 900)
    assert browser.evaluate(OPEN) == [name for name in SECTIONS if name not in ("generations", "reserved")]
    browser.open(run / "report" / "index.html", 390, 900)
    assert browser.evaluate(OPEN) == list(SECTIONS[:3])
    assert browser.evaluate("document.documentElement.scrollHeight") < 7_000
    browser.evaluate("document.querySelector('nav a[href=\"#histograms\"]').click()")
    assert browser.evaluate(OPEN) == [*SECTIONS[:3], "histograms"]
    assert browser.comes_to("document.querySelector('#histograms canvas')?.width > 200")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_draws_in_a_browser_and_nothing_is_cut(run: Path, browser: Browser, width: int, dark: bool) -> None:
    browser.open(run / "report" / "index.html", width, 900, dark=dark)
    browser.evaluate("document.querySelectorAll('.section').forEach(one => (one.open = true))")
    # Charts are drawn when the browser says that their sections are open.
    assert browser.comes_to("[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('canvas'))")
    assert browser.evaluate("document.querySelectorAll('.plot canvas').length") >= 15
    browser.evaluate(CHECKS)
    for check in ("blankPlots()", "cutPage()", "overlappingTexts()", "brokenNames()"):
        assert browser.evaluate(check) == []
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
    assert browser.requests == [(run / "report" / "index.html").as_uri()]


def test_a_reason_of_few_rows_is_seen_and_opens_to_urls(run: Path, browser: Browser, stats: dict[str, Any]) -> None:
    browser.open(run / "report" / "index.html", 390, 900)
    for stage in stages(stats):
        for reason in stage["rejected"]:
            row = f"document.getElementById('{stage['stage']}-{reason['reason']}')"
            bar = f"{row}.querySelector('.log')"
            drawn = browser.evaluate(
                f"{bar}.getBoundingClientRect().width * parseFloat(getComputedStyle({bar}).backgroundSize) / 100"
            )
            assert drawn > 10
            assert f"{100 * reason['share']:.1f} %" in browser.evaluate(f"{row}.textContent")
    reason = stats["funnel"][0]["rejected"][0]
    browser.evaluate("document.querySelector('#funnel details details summary').click()")
    links = browser.evaluate(
        "[...document.querySelectorAll('#funnel details details[open] li')].map(e => e.textContent)"
    )
    assert len(links) == len(reason["sample"]) == min(10, reason["count"])
    assert reason["sample"][0]["url"] in links[0]


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


def test_the_page_prints(run: Path, browser: Browser) -> None:
    browser.open(run / "report" / "index.html", 1280, 900, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.comes_to("drawn.years.options.plugins.legend.labels.color === '#000000'")
    assert len(browser.call("Page.printToPDF")["data"]) > 50_000
    assert browser.problems == []


def test_a_table_is_offered_as_csv(run: Path, browser: Browser, stats: dict[str, Any], tmp_path: Path) -> None:
    browser.open(run / "report" / "index.html", 1280, 900)
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
