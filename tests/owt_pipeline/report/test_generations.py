"""The report of a run with generations: what each added and repeated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.owt_pipeline.dedupe.corpora import prose
from tests.owt_pipeline.report.test_figures import rows_of
from tests.owt_pipeline.runs import ask_owt

GENERATIONS = (
    ["a.org/1", "a.org/2", "b.org/1", "c.org/1", "d.org/1", "d.org/2"],
    ["a.org/3", "b.org/2", "e.org/1", "copy-of.org/a.org/1", "copy-of.org/b.org/2", "e.org/2"],
)
"""URLs of each generation's documents; those of copy-of.org have the text of the URL they end in."""


def text_of(url: str) -> str:
    text = " ".join(prose(random.Random(url.removeprefix("copy-of.org/")), 60))
    return text.rsplit(" ", 1)[0] if url.startswith("copy-of.org/") else text


def report_with(run: Path, number: int) -> dict[str, Any]:
    file = run.parent / f"{number}.jsonl"
    rows = [{"url": f"https://{url}", "text": text_of(url)} for url in GENERATIONS[number]]
    file.write_text("\n".join(map(json.dumps, rows)))
    ask_owt("import", run, file, "--num_shards", 2, *(["--add"] if number else []))
    ask_owt("clean", run, "--min_tokens", 0, "--languages", "all")
    for stage in ("dedupe", "export", "tokenize", "report"):
        ask_owt(stage, run)
    return json.loads((run / "report/stats.json").read_bytes())


def test_each_generation_says_what_it_added_and_repeated(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert rows_of(report_with(run, 0), "generations") == []
    stats = report_with(run, 1)
    first, second = rows_of(stats, "generations")
    assert (first["generation"], first["urls"], first["documents"], first["repeats_of_earlier"]) == ("0", 0, 6, 0)
    assert (second["documents"], second["repeats_within"], second["repeats_of_earlier"]) == (4, 1, 1)
    # b.org/2 has a copy in its own generation, a.org/1 one in a later generation
    assert rows_of(stats, "copies") == [{"copies": 2, "documents": 1}]
    assert first["tokens"] + second["tokens"] == stats["totals"]["tokens"]
    page = (run / "report/index.html").read_text()
    charts = json.loads(page.split('<script type="application/json" id="charts">')[1].split("</script>")[0])
    assert [one["values"] for one in charts["generations"]["series"]] == [[6, 4], [0, 1], [0, 1]]
