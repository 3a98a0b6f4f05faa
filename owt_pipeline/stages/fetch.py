"""fetch: the page of every URL, live or from archives, as WARC with an index; or why there is none."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

from owt_pipeline.runtime.errors import UserError
from owt_pipeline.runtime.stage import Stage, StageRun
from owt_pipeline.runtime.storage import describe_source, expand_globs
from schemas import option


@dataclass(frozen=True)
class Options:
    pages_from: tuple[str, ...] = option(
        (), "take pages from WARC or ARC files: paths, folders or globs, local or gs:// or s3://", metavar="GLOB"
    )
    sources: tuple[str, ...] = option(
        (),
        "where to look for a page, the first that has it wins; default: warc where --pages_from is given, else live",
        choices=("live", "warc"),
    )
    max_page_bytes: int = option(10_000_000, "a page with a larger decoded body is rejected", minimum=1)
    max_redirects: int = option(10, "redirects followed for one URL", minimum=0)


def run(run: StageRun) -> None:
    from owt_pipeline.fetch import archives
    from owt_pipeline.fetch.shards import fetch_shard

    options: Options = run.options
    sources = options.sources or (("warc",) if options.pages_from else ("live",))
    if "warc" in sources and not options.pages_from:
        raise UserError("--sources warc: give the WARC files with --pages_from")
    found = None
    if "warc" in sources:
        files = tuple(expand_globs(options.pages_from, "--pages_from"))
        records = run.write_step(
            "index", range(len(files)), partial(archives.index_archive, files=files), archives.COUNTS
        )
        found = archives.Archives(
            files, run.work / "index", tuple(records), options.max_page_bytes, options.max_redirects
        )
        run.properties["archives"] = archives.summary(found)
    urls = run.inputs["urls"]
    run.write_shards(partial(fetch_shard, urls=urls, sources=sources, archives=found), rows=urls.rows())


def _archives(options: Options) -> list[dict[str, Any]]:
    return [describe_source(file) for file in expand_globs(options.pages_from, "--pages_from")]


STAGE = Stage(
    name="fetch",
    output="pages",
    inputs=("urls",),
    options=Options,
    version=1,
    run=run,
    help="Fetch the page of every URL of urls/, over HTTP or from WARC files. Writes pages/: a WARC file and its "
    "index a shard, and a reject row with its reason for each URL without a page.",
    sources=_archives,
    libraries=("fastwarc",),
    example="owt fetch --workdir run --pages_from 'archives/*.warc.gz'",
)

if __name__ == "__main__":
    from owt_pipeline.stages.command import main

    sys.exit(main(STAGE))
