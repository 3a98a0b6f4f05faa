"""`extract`: each page's main text, title, author, date, language and licence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
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


# Pages that are read together. Workers receive pages one by one, which balances their load.
_ROWS = 64


def extract_shard(run: StageRun, shard: int, _slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the documents of a shard."""
    from owt_pipeline.stages.extract.pages import Result, documents, extract_all, extract_record

    batches: deque[pa.RecordBatch] = deque()
    pages = _pages(run.inputs["pages"], shard, batches)
    results: list[Result] = []
    for _, result in extract_all(pages, run.options, run.runtime.workers, extract_record):
        results.append(result)
        if len(results) == batches[0].num_rows:
            writer.add(len(results), documents(batches.popleft(), results))
            results = []


def _pages(
    reader: DatasetReader, shard: int, batches: deque[pa.RecordBatch]
) -> Iterator[tuple[str, int, bytes]]:
    """Yield what a worker needs of each page, and append the rows of `pages/` to `batches`.

    A row of Arrow would take 16 times as long to send.
    """
    from owt_pipeline.formats.warc import pages

    for batch in pages(reader, shard, rows=_ROWS):
        batches.append(batch.drop_columns(["record"]))
        columns = [batch[name].to_pylist() for name in ("final_url", "fetched_at", "record")]
        yield from zip(*columns, strict=True)


class Extract(Stage):
    """Extract each page's main text and metadata, in worker processes with limits for each page."""

    name = "extract"
    inputs = ("pages",)
    output = "documents"
    options = Options
    version = 34
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
