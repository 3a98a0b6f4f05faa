"""`extract`: each page's main text, title, author, date, language and licence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from owt_pipeline.engine.stage import Recorded, Stage, StageRun, Step, rows_of_input
from owt_pipeline.stages.extract.built_in import BUILT_IN, LIBRARIES
from owt_pipeline.stages.extract.extractor import sources, try_extractor
from owt_pipeline.stages.extract.options import Options

if TYPE_CHECKING:
    from owt_pipeline.ledger.commit import ShardWriter
    from owt_pipeline.ledger.exchange import Slice


# Pages of a task. A worker that dies of one of them costs the time of the others.
_MAX_ROWS = 128

# While the last pages of a shard are at work, the other workers have pages of the next one.
_MAX_CONCURRENT = 2


def extract_shard(run: StageRun, shard: int, _slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the documents of a shard. The workers read the pages, and this process only writes."""
    from owt_pipeline.formats.warc import placed_pages
    from owt_pipeline.stages.extract.pages import extract_batches

    reader = run.inputs["pages"]
    workers = run.runtime.workers
    num_pages = sum(file.rows for file in reader.files("data", shard))
    # Each worker gets several tasks of a small shard, too.
    rows = max(1, min(_MAX_ROWS, num_pages // (2 * workers)))
    batches = placed_pages(reader, shard, rows=rows)
    for pages, outcome in extract_batches(batches, run.options, run.workdir, workers):
        writer.add(pages.num_rows, outcome)


class Extract(Stage):
    """Extract each page's main text and metadata, in worker processes with limits for each page."""

    name = "extract"
    inputs = ("pages",)
    output = "documents"
    options = Options
    version = 34
    libraries = ("lxml", "chardet", "webencodings", *LIBRARIES)
    steps = (Step(extract_shard, rows=rows_of_input, max_concurrent=_MAX_CONCURRENT),)
    example = "owt run run --until extract --favor precision"

    def external_inputs(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return the digest of our model, or of the user's own code; the output depends on it.

        Try the user's code on a page, so that a mistake is found before the first stage.
        """
        try_extractor(options)
        return sources(options.extractor)

    def preload(self, options: Options) -> list[str]:
        """Return modules to preload, so that a worker killed by a page is quickly replaced."""
        modules = ["owt_pipeline.stages.extract.pages"]
        built_in = BUILT_IN.get(options.extractor)
        if built_in is not None:
            modules += ["owt_pipeline.stages.extract.block_extractor", *built_in.preload]
        return modules


STAGE = Extract()
