"""The report's page in a real browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.owt_pipeline.report.browser import Browser

SECTIONS = (
    "funnel", "likeness", "domains", "subreddits", "years", "languages", "scores", "lengths", "sampler", "fetch",
    "filters", "duplicates", "documents", "dropped", "settings",
)  # fmt: skip


class Page(HTMLParser):
    """The ids of the sections and of all elements, and what a page refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.sections: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(given["id"] or "")
            if tag == "section":
                self.sections.append(given["id"] or "")
        where = given.get("src") or given.get("href") or ""
        if where and (tag != "a" or where.startswith("#")):
            self.references.append(where)


def test_the_page_has_every_section_and_needs_no_other_file(run: Path) -> None:
    page = Page((run / "report" / "index.html").read_text())
    assert page.sections == list(SECTIONS)
    assert page.references[: len(SECTIONS)] == [f"#{name}" for name in SECTIONS]
    assert {name.removeprefix("#") for name in page.references} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)


@pytest.mark.parametrize(("width", "dark"), [(1100, False), (1100, True), (390, False)])
def test_the_page_draws_in_a_browser(run: Path, browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    browser.open(run / "report" / "index.html", width, 900, dark=dark)
    plots = browser.evaluate("[...document.querySelectorAll('.plot')].map(p => [p.id, !!p.querySelector('.main-svg')])")
    assert len(plots) >= 18
    assert all(drawn for _, drawn in plots)
    sideways = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert sideways == 0
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 300) == dark
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000
    assert browser.problems == []
    assert browser.requests == [(run / "report" / "index.html").as_uri()]


def test_pointing_at_a_bar_shows_its_value(run: Path, browser: Browser, stats: dict[str, Any]) -> None:
    browser.open(run / "report" / "index.html", 1100, 900)
    bar = "document.querySelector('#plot-funnel .bars .point path').getBoundingClientRect()"
    x, y = browser.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({bar})")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - 5, y=y)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    label = f"entered: {stats['totals']['entered']:,}"
    assert browser.comes_to(f"document.querySelector('#plot-funnel .hoverlayer').textContent.includes('{label}')")


def test_a_reason_opens_to_urls(run: Path, browser: Browser, stats: dict[str, Any]) -> None:
    browser.open(run / "report" / "index.html", 390, 900)
    reason = stats["funnel"][0]["rejected"][0]
    browser.evaluate("document.querySelector('#funnel summary').click()")
    links = browser.evaluate("[...document.querySelectorAll('#funnel details[open] li')].map(e => e.textContent)")
    assert len(links) == len(reason["sample"])
    assert reason["sample"][0]["url"] in links[0]


def test_the_page_prints(run: Path, browser: Browser) -> None:
    browser.open(run / "report" / "index.html", 1100, 900, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.comes_to("document.querySelector('#plot-funnel .main-svg').getBoundingClientRect().width === 680")
    assert len(browser.call("Page.printToPDF")["data"]) > 50_000
    assert browser.problems == []


def test_a_bar_of_the_funnel_leads_to_its_reasons(run: Path, browser: Browser) -> None:
    browser.open(run / "report" / "index.html", 1100, 900)
    browser.evaluate("document.getElementById('plot-funnel').emit('plotly_click', {points: [{y: 'fetch'}]})")
    top = "document.getElementById('rejected-fetch').getBoundingClientRect().top"
    assert browser.comes_to(f"Math.abs({top}) < 5")


def test_a_removal_opens_to_both_texts_with_their_differences(run: Path, browser: Browser) -> None:
    browser.open(run / "report" / "index.html", 1100, 900)
    sides = "[...document.querySelectorAll('#duplicates details .sides')][0]"
    browser.evaluate(f"{sides}.closest('details').open = true")
    left, right = browser.evaluate(f"[...{sides}.children].map(e => e.getBoundingClientRect().left)")
    assert left < right
    marked = browser.evaluate(f"[{sides}.querySelectorAll('del').length, {sides}.querySelectorAll('ins').length]")
    assert marked[0] == marked[1] > 0
    browser.open(run / "report" / "index.html", 390, 900)
    browser.evaluate(f"{sides}.closest('details').open = true")
    left, right = browser.evaluate(f"[...{sides}.children].map(e => e.getBoundingClientRect().left)")
    assert left == right
    assert browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
