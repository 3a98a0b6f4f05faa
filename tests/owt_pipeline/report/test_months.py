"""The report of a run that builds on others: what each month added and repeated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.stages.report.stage import STAGE as REPORT
from owt_pipeline.stages.report.stage import Options
from owt_pipeline.stages.tokenize.stage import STAGE as TOKENIZE
from owt_pipeline.stages.tokenize.stage import TokenizeOptions
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.dedupe.corpora import make_month, prose
from tests.owt_pipeline.report.test_figures import rows_of

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


def test_each_generation_says_what_it_added_and_repeated(chain: Path) -> None:
    first, second = rows_of(report(chain / "1"), "generations")
    assert (first["run"], first["urls"], first["documents"], first["repeats_of_earlier"]) == ("0", None, 6, 0)
    assert (second["documents"], second["repeats_within"], second["repeats_of_earlier"]) == (4, 1, 1)
    assert first["tokens"] > second["tokens"] == stats_of(chain / "1")["totals"]["tokens"]
    assert rows_of(report(chain / "0"), "generations") == []
    page = (chain / "1/report/index.html").read_text()
    charts = json.loads(page.split('<script type="application/json" id="charts">')[1].split("</script>")[0])
    assert [one["values"] for one in charts["generations"]["series"]] == [[6, 4], [0, 1], [0, 1]]
