"""`report`: the statistics of a run as one HTML page and stats.json.

One part reads the datasets' narrow columns into tables of DuckDB and runs each file of `queries/`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from owt_pipeline.engine.stage import Stage, StageRun, Step, one_part
from owt_pipeline.formats.takedowns import takedowns_of_chain
from owt_pipeline.ledger.bases import FORGOTTEN, open_chain, place_of
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.report.figures import figures, generation
from owt_pipeline.stages.report.page import page
from owt_pipeline.stages.report.tables import digest_of_queries, open_tables
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, option
from schemas.manifest import Counts, ShardRecord
from schemas.settings import shaping_options


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    top_domains: int = option(100, "domains to list", minimum=1, maximum=1000)
    sample_urls: int = option(10, "URLs to show for each reject reason", minimum=0, maximum=1000)
    sample_documents: int = option(
        20, "documents to show, from the corpus and from those that each filter dropped", minimum=0, maximum=100
    )


def query(run: StageRun, _: int, __: Sequence[Slice], writer: ShardWriter) -> None:
    readers = _readers(run)
    own = {name: reader.manifest for name, reader in readers.items()}
    generations = [generation(base.name, base.manifests) for base in run.bases]
    generations.append(generation(place_of(run.workdir).rpartition("/")[2], own))
    takedowns = takedowns_of_chain(run.workdir, [base.workdir for base in run.bases])
    with open_tables(readers, run.work, generations, vars(run.options), threads=run.runtime.workers) as tables:
        found = figures(tables, readers, takedowns)
    writer.open_file(".json", "figures").write(json.dumps(found).encode())


def _readers(run: StageRun) -> dict[str, DatasetReader]:
    return {name: run.inputs[name] for name in DATASETS if name in run.inputs}


class Report(Stage):
    """Write the run's statistics: report/index.html, a self-contained web page, and report/stats.json, all of its
    figures.
    """

    name = "report"
    inputs = ("tokens",)
    optional_inputs = ("urls", "pages", "documents", "clean", "duplicates", "corpus")
    bases = ("urls", "duplicates", "corpus", "tokens", FORGOTTEN)
    lists = (FORGOTTEN,)
    output = "report"
    options = Options
    version = 11
    libraries = ("duckdb", "jinja2")
    steps = (Step(query, "figures", keys=one_part, spread="shards"),)
    example = "owt report --workdir runs/2013 --top_domains 500"

    def shaping(self, options: Options, workdir: Storage) -> dict[str, Any]:
        """With the tokens of the bases, whose counts are shown."""
        found = {base.name: read_manifest(base.workdir, "tokens") for base in open_chain(workdir)}
        digests = {name: manifest.digest if manifest else "" for name, manifest in found.items()}
        return shaping_options(options) | ({"_tokens of the bases": digests} if digests else {})

    def sources(self, options: Options) -> list[dict[str, Any]]:
        return [{"name": "the queries", "sha256": digest_of_queries()}]

    def num_shards(self, options: Options) -> int:
        return 0  # the output consists of assets

    def finish(self, run: StageRun, _: Sequence[ShardRecord]) -> None:
        (file,) = run.read_records("figures")[0].files
        stats = json.loads(run.work.read(file.path))
        run.write_asset("stats.json", (json.dumps(stats, indent=1, ensure_ascii=False) + "\n").encode())
        run.write_asset("index.html", page(stats).encode())
        documents = run.inputs["tokens"].rows()
        run.counts = Counts(documents, documents)


STAGE = Report()
