"""The report's page in a real browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lxml import html

from owt_pipeline.stages.report.page import largest_losses, stages
from owt_pipeline.stages.report.tables import figure_names
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
    """What `look` of page_checks.js finds on a page in a browser; fails where that says an error or a warning."""
    programs = ("chromium", "chromium-browser", "google-chrome", "chrome")
    program = next(filter(None, map(shutil.which, programs)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(programs)} is installed (apt-get install chromium)")
    checks, frame = Path(__file__).with_name("page_checks.js").read_text(), folder / "frame.html"
    frame.write_text(FRAME.format(width=width, checks=json.dumps(checks), page=json.dumps(page.as_uri())))
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    flags += ["--disable-web-security", "--window-size=1400,1000", "--enable-logging=stderr"]  # a frame of a file
    flags += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=30000", "--dump-dom"]
    shown = ""
    with open(folder / "said", "w") as said:
        command = [program, *flags, frame.as_uri()]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        while line := process.stdout.readline():  # type: ignore[union-attr]
            shown += line
            if line.endswith("</html>\n"):
                break
        process.kill()  # some never end
        process.communicate()
    assert "CONSOLE" not in (folder / "said").read_text()
    found: dict[str, Any] = json.loads(html.fromstring(shown).get_element_by_id("found").text)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_draws_in_a_browser_and_nothing_is_cut(
    small_run: Path, stats: dict[str, Any], tmp_path: Path, width: int, dark: bool
) -> None:
    """A phone shows the first sections, and the others on demand."""
    found = look_at(small_run / "report" / "index.html", width, dark, tmp_path)
    if width == 390:
        assert found["opened"] == list(SECTIONS[:3])
        assert found["height"] < 7_000
        assert found["afterClick"] == [*SECTIONS[:3], "histograms"]
    else:
        assert found["opened"] == [name for name in SECTIONS if name not in ("generations", "reserved")]
    assert found["wrong"] == []
    assert found["plots"] >= 15
    assert found["requests"] == 0
    assert (sum(map(int, re.findall(r"\d+", found["paper"]))) < 300) == dark
    rows = list(csv.DictReader(found["csv"].removeprefix("\ufeff").splitlines()))
    assert [(row["subreddit"], int(row["documents"]), float(row["share"])) for row in rows] == [
        (row["subreddit"], row["documents"], row["share"]) for row in rows_of(stats, "subreddits")
    ]


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
