"""The report of a run that builds on others: what each month added, repeated, gained and lost."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.stages.report.stage import STAGE as REPORT
from owt_pipeline.stages.report.stage import Options
from owt_pipeline.stages.tokenize.stage import STAGE as TOKENIZE
from owt_pipeline.stages.tokenize.stage import TokenizeOptions
from owt_pipeline.storage.folder import Storage
from schemas.stats import stats_schema
from tests.owt_pipeline.dedupe.corpora import make_month, prose

MONTHS = (
    ["a.org/1", "a.org/2", "b.org/1", "c.org/1", "d.org/1", "d.org/2"],
    ["a.org/3", "b.org/2", "e.org/1", "copy-of.org/a.org/1", "copy-of.org/b.org/2", "e.org/2"],
)
"""URLs of each month's documents; those of copy-of.org have the text of the URL they end in."""


def text_of(url: str) -> str:
    text = " ".join(prose(random.Random(url.removeprefix("copy-of.org/")), 60))
    return text.rsplit(" ", 1)[0] if url.startswith("copy-of.org/") else text


def run_to_tokens(folder: Path, number: int, *bases: Path) -> Path:
    run = folder / str(number)
    urls = [f"https://{url}" for url in MONTHS[number]]
    make_month(run, number, [text_of(url) for url in MONTHS[number]], bases, columns={"url": urls})
    run_stage(TOKENIZE, TokenizeOptions(), Runtime(Storage(str(run))))
    return run


def report(run: Path) -> dict[str, Any]:
    run_stage(REPORT, Options(), Runtime(Storage(str(run))))
    return stats_of(run)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("months")
    run_to_tokens(folder, 1, run_to_tokens(folder, 0))
    return folder


def stats_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "report/stats.json").read_bytes())


def test_months_are_compared(chain: Path) -> None:
    """First without the report of the first month, which alone knows of its domains; then with it."""
    first, second = report(chain / "1")["months"]
    assert (first["run"], first["urls"], first["documents"], first["repeat_past"]) == ("0", None, 6, 0)
    assert first["domains"] is first["gained"] is second["gained"] is second["lost"] is None
    assert (second["documents"], second["examined"]) == (4, 6)
    assert (second["repeat_month"], second["repeat_past"]) == (1, 1)
    assert first["tokens"] > second["tokens"] == stats_of(chain / "1")["totals"]["tokens"]
    assert report(chain / "0")["months"] is None
    stats = report(chain / "1")
    validate(stats, stats_schema())
    first, second = stats["months"]
    assert (first["domains"], second["domains"]) == (4, len({"a.org", "b.org", "e.org"}))
    assert second["gained"] == {"count": 1, "top": [["e.org", 2]]}
    assert (first["report"], second["report"]) == ("../../0/report/index.html", None)
    assert (chain / "1/report" / first["report"]).resolve() == (chain / "0/report/index.html").resolve()
    assert '<a href="../../0/report/index.html">0</a>' in (chain / "1/report/index.html").read_text()
    assert second["lost"] == {"count": 2, "top": [["d.org", 2], ["c.org", 1]]}


def test_the_page_has_the_months_and_their_plots(chain: Path) -> None:
    for number in range(2):
        report(chain / str(number))
    page = (chain / "1/report/index.html").read_text()
    assert '<section id="months"' in page
    charts = json.loads(page.split('<script type="application/json" id="charts">')[1].split("</script>")[0])
    assert [one["values"] for one in charts["months-documents"]["series"]] == [[6, 4], [0, 1], [0, 1]]
    assert {"months-urls", "months-tokens"} <= charts.keys()
