"""`report`: the statistics of a run as one HTML page and stats.json.

measured    per shard, figures that no column has: lengths of texts, dropped tokens, frequencies of token ids
figures     one part: the datasets' narrow columns as tables of DuckDB, and one query per figure (`queries/*.sql`)
finish      comparisons with other runs; the page
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from owt_pipeline.engine.phases import read_log
from owt_pipeline.engine.stage import Stage, StageRun, Step, one_part
from owt_pipeline.formats.takedowns import takedowns_of_chain
from owt_pipeline.ledger.bases import FORGOTTEN, open_chain, place_of
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.report.comparisons import (
    TRAINING_METRICS,
    comparison,
    months,
    read_reference,
    read_stats,
    read_training,
    report_of,
)
from owt_pipeline.stages.report.figures import figures, times
from owt_pipeline.stages.report.measures import measure, rows_of_shards
from owt_pipeline.stages.report.page import page
from owt_pipeline.stages.report.tables import digest_of_queries, open_tables
from owt_pipeline.storage.folder import Storage, describe_source
from schemas import DATASETS, option
from schemas.manifest import Counts, ShardRecord
from schemas.settings import shaping_options

_TOP_SUBREDDITS = 100


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    top_domains: int = option(100, "domains to list", minimum=1, maximum=1000)
    sample_urls: int = option(10, "URLs to show for each reject reason", minimum=0, maximum=1000)
    sample_documents: int = option(
        20, "documents to show, from the corpus and from those that each filter dropped", minimum=0, maximum=100
    )
    reference_domains: str = option(
        "",
        "list of sites to compare with, one `COUNT SITE` per line, such as OpenAI's list for WebText",
        metavar="FILE",
        shapes_bytes=False,  # its content does, as one of the sources
    )
    compare: str = option(
        "",
        "working directory of another run with a report, to compare this run with",
        metavar="DIR",
        shapes_bytes=False,  # the report's content does, as one of the sources
    )
    training: str = option(
        "",
        "folder of a training run, whose losses are drawn (from metrics.jsonl)",
        metavar="DIR",
        shapes_bytes=False,  # its content does, as one of the sources
    )

    times: bool = option(
        False,
        "show when, where and for how many seconds each stage ran, and its price on Dataflow; the page then differs "
        "from run to run",
    )


def query(run: StageRun, _: int, __: Sequence[Slice], writer: ShardWriter) -> None:
    options, readers = run.options, _readers(run)
    measured = [file for record in run.read_records("measured") for file in record.files]
    parameters = {
        "top_domains": options.top_domains,
        "top_subreddits": _TOP_SUBREDDITS,
        "sample_rejects": max(options.sample_urls, options.sample_documents),
        "sample_documents": options.sample_documents,
    }
    with open_tables(readers, run.work, measured, parameters, threads=run.runtime.workers) as tables:
        found = figures(
            tables,
            readers,
            sample_urls=options.sample_urls,
            reference=read_reference(options.reference_domains),
            takedowns=takedowns_of_chain(run.workdir, [base.workdir for base in run.bases]),
        )
    writer.open_file(".json", "figures").write(json.dumps(found).encode())


def _readers(run: StageRun) -> dict[str, DatasetReader]:
    return {name: run.inputs[name] for name in DATASETS if name in run.inputs}


def _name_of(workdir: str) -> str:
    return workdir.rstrip("/").rpartition("/")[2] or workdir


class Report(Stage):
    """Write the run's statistics: report/index.html, a self-contained web page, and report/stats.json, all of its
    figures (docs/stats.md).
    """

    name = "report"
    inputs = ("tokens",)
    optional_inputs = ("urls", "pages", "documents", "clean", "duplicates", "corpus")
    bases = ("urls", "duplicates", "corpus", "tokens", FORGOTTEN)
    lists = (FORGOTTEN,)
    output = "report"
    options = Options
    version = 11
    libraries = ("duckdb", "jinja2", "lxml", "lxml_html_clean", "tld")
    steps = (
        Step(
            measure,
            "measured",
            keys=lambda run: range(len(rows_of_shards(run))),
            rows=rows_of_shards,
            spread="shards",
        ),
        Step(query, "figures", keys=one_part, spread="shards"),
    )
    example = "owt report --workdir runs/2013 --reference_domains webtext-top-domains.txt --compare runs/2012"

    def shaping(self, options: Options, workdir: Storage) -> dict[str, Any]:
        reports = {base.name: report_of(base.workdir) for base in open_chain(workdir)}
        digests = {name: hashlib.sha256(content).hexdigest() if content else "" for name, content in reports.items()}
        return shaping_options(options) | ({"_reports of the bases": digests} if digests else {})

    def sources(self, options: Options) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"name": "the queries", "sha256": digest_of_queries()}]
        if options.reference_domains:
            found.append(describe_source(options.reference_domains))
        if options.training:
            found.append(describe_source(f"{options.training.rstrip('/')}/{TRAINING_METRICS}"))
        if options.compare:
            other, content = _name_of(options.compare), read_stats(options.compare)[0]
            found.append({"name": other, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
        return found

    def noted(self, options: Options) -> dict[str, str]:
        """The files and folders to compare with, by complete paths: another command may run in another folder."""
        given = {name: getattr(options, name) for name in ("reference_domains", "compare", "training")}
        return {name: place_of(Storage(path)) for name, path in given.items() if path}

    def num_shards(self, options: Options) -> int:
        return 0  # the output consists of assets

    def prepare(self, run: StageRun) -> None:
        read_reference(run.options.reference_domains)  # raises UserError for an unreadable list here, not in a worker

    def finish(self, run: StageRun, _: Sequence[ShardRecord]) -> None:
        options: Options = run.options
        readers = _readers(run)
        own = {name: reader.manifest for name, reader in readers.items()}
        (file,) = run.read_records("figures")[0].files
        stats = json.loads(run.work.read(file.path))
        stats["training"] = read_training(options.training) if options.training else None
        if options.compare:
            stats["comparison"] = comparison(stats, read_stats(options.compare)[1], _name_of(options.compare))
        if options.times:
            stats["times"] = times(read_log(run.workdir), own)
        stats["months"] = months(run.workdir, own, stats, run.bases)
        run.write_asset("stats.json", (json.dumps(stats, indent=1, ensure_ascii=False) + "\n").encode())
        run.write_asset("index.html", page(stats).encode())
        documents = readers["tokens"].rows()
        run.counts = Counts(documents, documents)


STAGE = Report()
