"""report: the statistics of a run as one HTML page and stats.json."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from owt_pipeline.runtime import progress
from owt_pipeline.runtime.stage import Stage, StageRun
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.stages.command import main
from schemas import DATASETS, Counts, option


@dataclass(frozen=True)
class ReportOptions:
    top_domains: int = option(100, "domains to list", minimum=1, maximum=1000)
    sample_urls: int = option(20, "URLs to show of each reject reason", minimum=0, maximum=1000)
    sample_documents: int = option(5, "documents of the corpus to show", minimum=0, maximum=100)


def run(run: StageRun) -> None:
    from owt_pipeline.report.figures import candidates_of, figures
    from owt_pipeline.report.page import page
    from owt_pipeline.report.summaries import (
        Details,
        Sizes,
        Summary,
        look_up,
        parts_of_first_pass,
        parts_of_second_pass,
        summarize,
    )

    options: ReportOptions = run.options
    readers = {name: run.inputs[name] for name in DATASETS if name in run.inputs}  # in the order of the stages
    sizes = Sizes(options.sample_urls, options.sample_documents)
    read = partial(summarize, readers=readers, sizes=sizes)
    summary: Summary = _merged(run, "statistics", parts_of_first_pass(readers), read, Summary)
    candidates = candidates_of(summary)
    find = partial(look_up, readers=readers, candidates=candidates, url_ids=summary.clustered_ids())
    details: Details = _merged(run, "details", parts_of_second_pass(readers), find, Details)
    manifests = {name: reader.manifest for name, reader in readers.items()}
    stats = figures(manifests, summary, candidates, details, options.top_domains)
    run.write_asset("stats.json", (json.dumps(stats, indent=1, ensure_ascii=False) + "\n").encode())
    run.write_asset("index.html", page(stats).encode())
    documents = readers["tokens"].rows()
    run.counts = Counts(documents, documents)


def _merged(
    run: StageRun, name: str, parts: Sequence[Any], summarize: Callable[[Any], Any], empty: Callable[[], Any]
) -> Any:
    """What one pass over `parts` comes to; a pass that was done before the stage was broken off is not done again."""
    from owt_pipeline.transforms.report import MergeSummaries

    file = f"{name}.pickle"
    if not run.work.exists(file):
        transform = MergeSummaries(parts, summarize, empty, partial(_store, folder=run.work, file=file))
        with progress.step(f"report ({name})", shards=len(parts)):
            run.pipeline(partial(_build, transform))
    return pickle.loads(run.work.read(file))


def _build(transform: Any, pipeline: Any) -> None:
    _ = pipeline | transform


def _store(summary: Any, *, folder: Storage, file: str) -> None:
    folder.write(file, pickle.dumps(summary))


STAGE = Stage(
    name="report",
    output="report",
    inputs=("tokens",),
    optional_inputs=("urls", "pages", "documents", "clean", "duplicates", "corpus"),
    options=ReportOptions,
    version=1,
    run=run,
    help="Write the statistics of the run: report/index.html, one page for a browser that needs nothing else, and\n"
    "report/stats.json, every figure of it (docs/stats.md).",
    num_shards=lambda options: 0,
    libraries=("plotly",),
    example="owt report --workdir runs/2013",
)

if __name__ == "__main__":
    sys.exit(main(STAGE))
