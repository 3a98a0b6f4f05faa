"""`report`: the statistics of a run as one HTML page and stats.json.

One part reads the datasets' narrow columns into tables of DuckDB and runs each file of `queries/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from owt_pipeline.engine.stage import Recorded, Stage, StageRun, Step, Summary, one_part
from owt_pipeline.engine.takedowns import read_takedowns
from owt_pipeline.ledger.commit import ShardWriter, surviving_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.report.figures import figures
from owt_pipeline.stages.report.options import Options
from owt_pipeline.stages.report.page import page
from owt_pipeline.stages.report.tables import digest_of_queries, limits_of, open_tables
from schemas import DATASETS
from schemas.filters import BUILT_IN
from schemas.manifest import Counts, Root, ShardRecord

SHOWN = {"top_domains": 100, "sample_urls": 10}
"""The number of domains that the page lists, and of URLs for each reject reason.

The datasets contain all of them; `docs/data.md` opens these with DuckDB.
"""


def query(run: StageRun, _: int, __: Sequence[Slice], writer: ShardWriter) -> None:
    """Compute the figures of a run, and write them as one part."""
    readers = _readers(run)
    generations: list[dict[str, Any]] = []
    for number, generation in enumerate(run.root.generations):
        last = generation.first + generation.shards - 1
        row = {"generation": str(number), "first": generation.first, "last": last}
        generations.append(row)
    takedowns = read_takedowns(run.workdir, run.root.takedowns)
    with open_tables(
        readers, run.work, generations, SHOWN | vars(run.options), threads=run.runtime.workers
    ) as tables:
        stats = figures(tables, readers, run.root.generations, takedowns)
    writer.open_file(".json", "figures").write(json.dumps(stats).encode())
    writer.enter(0)


def _readers(run: StageRun) -> dict[str, DatasetReader]:
    """Return readers of the files that the datasets still have, by dataset."""
    return {
        name: surviving_files(run.workdir, run.inputs[name].manifest)
        for name in DATASETS
        if name in run.inputs
    }


def _changed_limits(root: Root) -> dict[str, dict[str, Any]]:
    """Return the limits of filters in the settings of clean/ that are not the default."""
    if "clean" not in root.datasets:
        return {}
    changed = {}
    for name, limits in limits_of(root.datasets["clean"].options).items():
        if limits and limits != vars(BUILT_IN[name]):
            changed[name] = limits
    return changed


class Report(Stage):
    """Write the run's statistics: report/index.html, a self-contained web page, and
    report/stats.json with all figures of that page.
    """

    name = "report"
    inputs = ("tokens",)
    optional_inputs = ("urls", "pages", "documents", "clean", "duplicates", "corpus")
    reads = "all"
    kinds = ("data", "rejects")
    output = "report"
    options = Options
    version = 17
    libraries = ("duckdb", "jinja2")
    steps = (Step(query, keys=one_part),)
    example = "owt run runs/2013 --until report --sample_documents 50"

    def external_inputs(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        return [{"name": "the queries", "sha256": digest_of_queries()}]

    def shard_history(
        self, options: Options, root: Root, inputs: Mapping[str, DatasetReader], shard: int
    ) -> dict[str, Any]:
        """Return the takedowns, whose texts are not shown, and limits that are not the default.

        The report shows the limits of filters, and other limits may leave the same documents in
        clean/.
        """
        return {"takedowns": root.takedowns, "limits": _changed_limits(root)}

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        """Write the page and stats.json from the part's figures."""
        (file,) = records[0].files
        stats = json.loads(run.workdir.read(file.path))
        documents = run.inputs["tokens"].rows()
        as_json = json.dumps(stats, indent=1, ensure_ascii=False) + "\n"
        contents = {
            run.asset_path("stats.json"): as_json.encode(),
            run.asset_path("index.html"): page(stats).encode(),
        }
        return Summary(counts=Counts(documents, documents), contents=contents)


STAGE = Report()
