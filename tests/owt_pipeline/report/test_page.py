"""The report's page in a real browser.

In another run, titles, URLs, texts and subreddits try to act in the page.
"""

from __future__ import annotations

import copy
import csv
import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from lxml import html

from owt_pipeline.formats.warc import response_record
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.report.page import (
    HINTS,
    OPEN_SECTIONS,
    Chart,
    largest_losses,
    numeric_columns,
    only_bar,
    preset_differences,
    stages,
)
from owt_pipeline.stages.report.tables import figure_names
from schemas import Reason
from tests.owt_pipeline.report.test_figures import rows_of
from tests.owt_pipeline.runs import ask_owt

FIGURES = [name.partition("_")[2] for name in figure_names()]
SECTIONS = ("funnel", *FIGURES, "documents", "dropped", "removals", "settings")


def sections_of(page: str) -> list[str]:
    """Return the ids of the sections of a page."""
    return html.fromstring(page).xpath("//section/@id")


def test_hints_name_reasons_and_flags_that_exist() -> None:
    names = set()
    for stage in STAGES.values():
        names.update(field.name for field in dataclasses.fields(stage.options))
    for reason, hint in HINTS.items():
        assert Reason.of(reason).description
        assert set(re.findall(r"--(\w+)", hint)) <= names, hint


def test_the_page_is_small_and_complete_and_loads_nothing(small_run: Path) -> None:
    text = (small_run / "report" / "index.html").read_text()
    assert len(text) < 1_000_000
    # The demo has one generation, and no page that reserves its use.
    shown = [name for name in SECTIONS if name not in ("generations", "reserved")]
    assert sections_of(text) == shown
    page = html.fromstring(text)
    references = page.xpath("//@src | //*[not(self::a)]/@href | //a[starts-with(@href, '#')]/@href")
    ids = page.xpath("//@id")
    assert {f"#{name}" for name in shown} <= set(references)
    assert {name.removeprefix("#") for name in references} <= set(ids)
    assert len(set(ids)) == len(ids)
    assert "[dedupe]" in page.xpath("string(//*[@id='settings']//pre)")
    assert not page.xpath("//th[not(@scope)]")


# A frame is as narrow as a phone, which a window of a headless browser is not.
FRAME = """<iframe id="page" style="width: {width}px; height: 900px"></iframe><pre id="found"></pre><script>
page.onload = async () => {{
  const checks = page.contentDocument.createElement("script");
  checks.textContent = {checks};
  page.contentDocument.body.append(checks);
  found.textContent = JSON.stringify(await page.contentWindow.look());
}};
page.src = {page};
</script>"""


def look_at(page: Path, width: int, dark: bool, folder: Path) -> dict[str, Any]:
    """Return what `look` of page_checks.js finds on a page in a browser.

    Fails if the browser reports an error or a warning.
    """
    programs = ("chromium", "chromium-browser", "google-chrome", "chrome")
    program = next(filter(None, map(shutil.which, programs)), None)
    if program is None:
        pytest.skip(
            f"no browser: none of {', '.join(programs)} is installed (apt-get install chromium)"
        )
    checks = Path(__file__).with_name("page_checks.js").read_text()
    frame = folder / "frame.html"
    frame.write_text(
        FRAME.format(width=width, checks=json.dumps(checks), page=json.dumps(page.as_uri()))
    )
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        # The page is a file, in a frame of another file.
        "--disable-web-security",
        "--window-size=1400,1000",
        "--enable-logging=stderr",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--virtual-time-budget=120000",
        "--dump-dom",
    ]
    command = [program, *flags, frame.as_uri()]
    # A headless browser may print the page before its frames were drawn; then nothing was found.
    for _ in range(10):
        page_of_frame = html.fromstring(dumped_page(command, folder / "messages"))
        assert "CONSOLE" not in (folder / "messages").read_text()
        result = page_of_frame.get_element_by_id("found").text
        if result:
            findings: dict[str, Any] = json.loads(result)
            return findings
    raise AssertionError("the browser printed the page ten times before it was drawn")


def dumped_page(command: list[str], log: Path) -> str:
    """Return the page that a browser prints; its messages go to `log`."""
    page = ""
    with open(log, "w") as messages:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True)
        while line := process.stdout.readline():  # type: ignore[union-attr]
            page += line
            if line.endswith("</html>\n"):
                break
        # Some browsers never end.
        process.kill()
        process.communicate()
    return page


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_draws_in_a_browser_and_nothing_is_cut(
    small_run: Path, stats: dict[str, Any], tmp_path: Path, width: int, dark: bool
) -> None:
    """A phone shows the first sections, and the others on demand."""
    findings = look_at(small_run / "report" / "index.html", width, dark, tmp_path)
    if width == 390:
        assert findings["opened"] == ["funnel", "webtext"]
        assert findings["height"] < 7_000
        assert findings["afterClick"] == ["funnel", "webtext", "histograms"]
    else:
        assert findings["opened"] == [name for name in SECTIONS if name in OPEN_SECTIONS]
        # Five screens.
        assert findings["height"] < 4_000
    assert findings["wrong"] == []
    assert findings["plots"] >= 15
    assert findings["requests"] == 0
    assert (sum(map(int, re.findall(r"\d+", findings["paper"]))) < 300) == dark
    rows = list(csv.DictReader(findings["csv"].removeprefix("\ufeff").splitlines()))
    assert [(row["subreddit"], int(row["documents"]), float(row["share"])) for row in rows] == [
        (row["subreddit"], row["documents"], row["share"]) for row in rows_of(stats, "subreddits")
    ]


def test_the_largest_losses_come_first_and_none_twice(stats: dict[str, Any]) -> None:
    losses = largest_losses(stats)
    counts = [row["count"] for row in losses]
    assert counts == sorted(counts, reverse=True)
    assert all(row["hint"] for row in losses)
    shown = [
        (stage["stage"], row["reason"]) for stage in stages(stats) for row in stage["rejected"]
    ]
    assert len({reason for _, reason in shown}) == len(shown)
    assert ("dedupe", "near_duplicate") in shown


def test_settings_are_compared_with_each_preset(stats: dict[str, Any]) -> None:
    differences = preset_differences(stats)
    assert "[dedupe] threshold = 0.8, not 0.5" in differences["openwebtext"]
    assert '[collect] blocked_domains = [], not ["wikipedia.org"]' in differences["webtext"]
    changed = copy.deepcopy(stats)
    changed["settings"]["urls"]["sources"] += [{"kind": "blocklist", "name": "wikipedia.org"}]
    assert preset_differences(changed)["webtext"] == ["[clean] min_tokens = 64, not 128"]


def test_a_column_is_aligned_by_its_values_not_by_its_gaps() -> None:
    rows = [
        {"host": "a.org", "reason": None, "ms": None, "share": None},
        {"host": "b.org", "reason": "dns", "ms": None, "share": 0.5},
    ]
    assert numeric_columns(rows) == {"share"}
    assert numeric_columns([]) == set()


def test_a_chart_with_one_bar_is_a_line() -> None:
    chart: Chart = {
        "labels": ["1,000–2,499"],
        "percent": False,
        "series": [{"name": "within", "values": [1217]}, {"name": "beyond", "values": [0]}],
    }
    assert only_bar(chart) == "1,000–2,499: 1,217 within"
    assert only_bar({**chart, "labels": ["1", "2"]}) == ""
    shares = [{"name": "page share", "values": [0.5]}]
    assert (
        only_bar({**chart, "percent": True, "series": shares}) == "1,000–2,499: 50.0 % page share"
    )
    empty = [{"name": "within", "values": [None]}]
    assert only_bar({**chart, "series": empty}) == "1,000–2,499: none"


def test_rare_reasons_are_folded(stats: dict[str, Any]) -> None:
    (collect,) = (stage for stage in stats["funnel"] if stage["dataset"] == "urls")
    rows = [
        {**collect["rejected"][0], "reason": f"r{k}", "count": 9, "share": 10.0**-k}
        for k in range(9)
    ]
    (folded,) = stages({**stats, "funnel": [{**collect, "rejected": rows}]})
    assert [row["reason"] for row in folded["rejected"]] == ["r0", "r1", "r2"]
    assert [row["reason"] for row in folded["rare"]] == ["r3", "r4", "r5", "r6", "r7", "r8"]


SCRIPT = "</script><script>window.acted = 1</script>"
IMAGE = "<img src=x onerror='window.acted = 1'>"
LINK = '<a href="javascript:window.acted = 1">x</a>'
PATHS = (
    '/"><script>window.acted=1</script>',
    "/'onmouseover='window.acted=1",
    "/%3Cscript%3E",
    "/b?q=<img src=x>",
    "/c",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run in which every string tries to act."""
    folder = tmp_path_factory.mktemp("hostile")
    urls = [f"https://{host}.example{path}" for host in ("evil", "worse") for path in PATHS]
    submissions = [
        {
            "id": f"a{n}",
            "url": url,
            "title": SCRIPT,
            "subreddit": (LINK, IMAGE, "&lt;b&gt;")[n % 3],
            "score": 9,
            "created_utc": 1_400_000_000 + 10_000_000 * n,
            "over_18": False,
            "is_self": False,
        }
        for n, url in enumerate([*urls, "javascript:window.acted=1", f"ftp://{SCRIPT}/"])
    ]
    (folder / "dump.ndjson").write_text("\n".join(map(json.dumps, submissions)) + f'\n"{SCRIPT}\n')
    headers = [("Content-Type", "text/html; charset=utf-8")]
    records = [
        response_record(url, 10**9, "HTTP/1.1 200 OK", headers, _html(number).encode())
        for number, url in enumerate(urls)
    ]
    (folder / "pages.warc.gz").write_bytes(b"".join(records))
    flags = ["--num_shards", 2, "--languages", "all", "--min_tokens", 400]
    sources = ["--dumps", folder / "dump.ndjson", "--pages_from", folder / "pages.warc.gz"]
    ask_owt("run", folder / "run", *sources, *flags)
    return folder / "run" / "report" / "index.html"


def _html(number: int) -> str:
    """Return a page with markup in its text. Each third page is too short, and is dropped."""
    markup = f"{SCRIPT} {IMAGE} {LINK} &amp; ".replace("<", "&lt;").replace(">", "&gt;")
    sentence = (
        f"The committee of the village met on day {number // 2} to speak about the bridge, "
        f"{markup} and went home. "
    )
    num_paragraphs = 2 if number % 3 == 2 else 30
    text = ""
    for paragraph in range(num_paragraphs):
        text += f"<p>{sentence.replace('met', f'met {paragraph} times')}</p>"
    title = "&lt;/title&gt;" + SCRIPT.replace("<", "&lt;")
    return (
        f"<!doctype html><html><head><title>{title}</title></head>"
        f"<body><article>{text}</article></body></html>"
    )


def test_names_are_shown_as_they_are_and_nothing_of_a_page_acts(page: Path) -> None:
    text = page.read_text()
    # The strings are shown as text.
    assert "window.acted" in text
    stats = json.loads((page.parent / "stats.json").read_text())
    assert {row["subreddit"] for row in rows_of(stats, "subreddits")} <= {LINK, IMAGE, "&lt;b&gt;"}
    assert stats["removals"]
    assert stats["dropped"]
    # None of them is markup.
    tree = html.fromstring(text)
    assert len(tree.xpath("//script")) == 3
    assert not tree.xpath("//img | //@*[starts-with(name(), 'on')] | //*[@id='subreddits']//a")
    # A link without a scheme points into the page.
    assert {urlsplit(href).scheme for href in tree.xpath("//a/@href")} <= {"https", ""}
    assert LINK in tree.xpath("string(//*[@id='subreddits'])")
