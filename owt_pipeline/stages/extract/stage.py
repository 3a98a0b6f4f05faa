"""`extract`: each page's main text, title, author, date, language and licence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from owt_pipeline.engine.stage import Recorded, Stage, StageRun, Step, rows_of_input
from owt_pipeline.stages.extract.built_in import BUILT_IN, LIBRARIES
from owt_pipeline.stages.extract.extractor import sources, try_extractor
from owt_pipeline.stages.extract.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

    from owt_pipeline.ledger.commit import ShardWriter
    from owt_pipeline.ledger.dataset import DatasetReader
    from owt_pipeline.ledger.exchange import Slice


# Pages in a batch of documents. Workers receive pages one by one, which balances their load.
_ROWS = 64


def extract_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the documents of a shard."""
    from owt_pipeline.stages.extract.pages import documents, extract_all, extract_row

    results = extract_all(
        _rows(run.inputs["pages"], shard), run.options, run.runtime.workers, extract_row
    )
    while batch := list(islice(results, _ROWS)):
        writer.add(len(batch), documents(batch))


def _rows(reader: DatasetReader, shard: int) -> Iterator[pa.RecordBatch]:
    from owt_pipeline.formats.warc import pages

    for batch in pages(reader, shard, rows=_ROWS):
        for index in range(batch.num_rows):
            yield batch.slice(index, 1)


class Extract(Stage):
    """Extract each page's main text and metadata, in worker processes with limits for each page."""

    name = "extract"
    inputs = ("pages",)
    output = "documents"
    options = Options
    version = 33
    libraries = ("lxml", "chardet", "webencodings", *LIBRARIES)
    steps = (Step(extract_shard, rows=rows_of_input, max_concurrent=1),)
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
