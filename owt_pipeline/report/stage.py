"""report: the statistics of a run as one HTML page and stats.json."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from owt_pipeline.engine import progress
from owt_pipeline.engine.stage import Stage, StageRun
from owt_pipeline.engine.storage import Storage, describe_source
from owt_pipeline.stage_command import main
from schemas import DATASETS, option
from schemas.manifest import Counts


@dataclass(frozen=True)
class ReportOptions:
    top_domains: int = option(100, "domains to list", minimum=1, maximum=1000)
    sample_urls: int = option(20, "URLs to show of each reject reason", minimum=0, maximum=1000)
    sample_documents: int = option(
        20, "documents to show, of the corpus and of those each filter dropped", minimum=0, maximum=100
    )
    reference_domains: str = option(
        "",
        "a list of sites to compare with, `COUNT SITE` a line, such as the one OpenAI published of WebText's",
        metavar="FILE",
        shapes_bytes=False,  # what is in it does, and is among the sources
    )
    compare: str = option(
        "",
        "working directory of another run, with its report, to set beside this one",
        metavar="DIR",
        shapes_bytes=False,  # what its report says does, and is among the sources
    )


def sources(options: ReportOptions) -> list[dict[str, Any]]:
    """What the report tells of beside the run itself."""
    from owt_pipeline.report.figures.comparison import read_stats

    found = []
    if options.reference_domains:
        found.append(describe_source(options.reference_domains))
    if options.compare:
        other, content = _name_of(options.compare), read_stats(options.compare)[0]
        found.append({"name": other, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    return found


def _name_of(workdir: str) -> str:
    """What a run is called beside this one."""
    return workdir.rstrip("/").rpartition("/")[2] or workdir


def run(run: StageRun) -> None:
    from owt_pipeline.report.figures.comparison import comparison, read_stats
    from owt_pipeline.report.figures.likeness import read_reference
    from owt_pipeline.report.figures.stats import figures
    from owt_pipeline.report.first_pass import Sizes, parts_of_first_pass, summarize
    from owt_pipeline.report.page import page
    from owt_pipeline.report.second_pass import Wanted, look_up, parts_of_second_pass
    from owt_pipeline.report.summaries import Details, Summary

    options: ReportOptions = run.options
    reference = read_reference(options.reference_domains) if options.reference_domains else None
    readers = {name: run.inputs[name] for name in DATASETS if name in run.inputs}  # in the order of the stages
    read = partial(summarize, readers=readers, sizes=Sizes(options.sample_urls, options.sample_documents))
    summary: Summary = _merged(run, "statistics", parts_of_first_pass(readers), read, Summary)
    wanted = Wanted.of(summary, frozenset(reference.counts) if reference else frozenset())
    find = partial(look_up, readers=readers, wanted=wanted)
    details: Details = _merged(run, "details", parts_of_second_pass(readers), find, Details)
    manifests = {name: reader.manifest for name, reader in readers.items()}
    stats = figures(
        manifests, summary, wanted.candidates, details, top_domains=options.top_domains, reference=reference
    )
    if options.compare:
        stats["comparison"] = comparison(stats, read_stats(options.compare)[1], _name_of(options.compare))
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
    summary = _stored(run.work, file)
    if summary is None:
        transform = MergeSummaries(parts, summarize, empty, partial(_store, folder=run.work, file=file))
        with progress.step(f"report ({name})", shards=len(parts)):
            run.pipeline(partial(_build, transform))
        summary = _stored(run.work, file)
    return summary


def _build(transform: Any, pipeline: Any) -> None:
    _ = pipeline | transform


def _store(summary: Any, *, folder: Storage, file: str) -> None:
    content = pickle.dumps(summary)
    folder.write(file, hashlib.sha256(content).digest() + content)


def _stored(folder: Storage, file: str) -> Any | None:
    """The summary of `_store`; None where there is none, or it was damaged since."""
    try:
        stored = folder.read(file)
    except FileNotFoundError:
        return None
    digest, content = stored[:32], stored[32:]
    return pickle.loads(content) if hashlib.sha256(content).digest() == digest else None


STAGE = Stage(
    name="report",
    output="report",
    inputs=("tokens",),
    optional_inputs=("urls", "pages", "documents", "clean", "duplicates", "corpus"),
    options=ReportOptions,
    version=2,
    run=run,
    sources=sources,
    help="Write the statistics of the run: report/index.html, one page for a browser that needs nothing else, and\n"
    "report/stats.json, every figure of it (docs/stats.md).",
    num_shards=lambda options: 0,
    libraries=("tld",),
    example="owt report --workdir runs/2013 --reference_domains webtext-top-domains.txt --compare runs/2012",
)

if __name__ == "__main__":
    sys.exit(main(STAGE))
