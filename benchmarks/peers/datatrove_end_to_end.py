"""The work from WARC to a deduplicated corpus, done by datatrove from PyPI: the peer of `end_to_end.py`.

    .venv-peers/bin/python benchmarks/peers/datatrove_end_to_end.py PAGES.warc.gz [--workers 2] [--fineweb]

It is the pipeline of datatrove's own examples (`fineweb.py`, then `minhash_deduplication.py`) with their
defaults: WarcReader, Trafilatura, FTFYFormatter and JsonlWriter, then MinHash signatures, buckets, clusters
and the filter. Tokenizing is left out, as are, without `--fineweb`, FineWeb's quality filters and language
identification (by py3langid: the model that FineWeb uses is a download). datatrove distributes work by
file, so the WARC is first split into one file per worker; that is not timed. Prints one JSON object: seconds a
step and in all, pages in, documents out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LambdaFilter,
)
from datatrove.pipeline.formatters import FTFYFormatter
from datatrove.pipeline.readers import JsonlReader, WarcReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from warcio.archiveiterator import ArchiveIterator
from warcio.warcwriter import WARCWriter


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("warc", type=Path, help="the pages, as a .warc.gz file")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("--folder", type=Path, help="an empty folder for everything written (default: a temporary one)")
    parser.add_argument("--fineweb", action="store_true", help="add FineWeb's quality filters, and keep English alone")
    parser.add_argument("--timeout", type=float, default=1, metavar="SECONDS", help="by the clock, a page (default: 1)")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="datatrove-")))
        print(json.dumps(measure(arguments, folder), indent=2))


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Run the steps over the WARC in `folder`, and return their seconds and the counts of pages and documents."""
    workers = arguments.workers
    pages = split_by_worker(arguments.warc, folder / "pages", workers)
    filters = fineweb_filters() if arguments.fineweb else []
    seconds = {name: timed(run) for name, run in steps(folder, workers, filters, arguments.timeout)}
    return {
        "pages": pages,
        "documents": count_lines(folder / "text"),
        "documents_kept": count_lines(folder / "deduplicated"),
        "workers": workers,
        "seconds_by_step": {name: round(value, 2) for name, value in seconds.items()},
        "seconds": round(sum(seconds.values()), 2),
    }


def fineweb_filters() -> list[object]:
    """As in datatrove's `fineweb.py`, in its order."""
    return [
        LambdaFilter(is_english),
        GopherRepetitionFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        GopherQualityFilter(),
        FineWebQualityFilter(),
    ]


def is_english(document: Document) -> bool:
    import py3langid

    return py3langid.classify(document.text)[0] == "en"


def steps(folder: Path, workers: int, filters: list[object], timeout: float) -> list[tuple[str, Callable[[], object]]]:
    """The pipelines in order, each a function that runs it; every one of them writes below `folder`."""
    minhash = MinhashConfig()

    def pipeline(name: str, blocks: list[object], tasks: int) -> tuple[str, Callable[[], object]]:
        executor = LocalPipelineExecutor(blocks, tasks=tasks, workers=workers, logging_dir=str(folder / "logs" / name))
        return name, executor.run

    def path(name: str) -> str:
        return str(folder / name)

    return [
        pipeline(
            "extract",
            [
                WarcReader(path("pages")),
                Trafilatura(timeout=timeout),
                *filters,
                FTFYFormatter(),
                JsonlWriter(path("text")),
            ],
            tasks=workers,
        ),
        pipeline(
            "signatures",
            [JsonlReader(path("text")), MinhashDedupSignature(path("signatures"), config=minhash)],
            tasks=workers,
        ),
        pipeline(
            "buckets",
            [MinhashDedupBuckets(path("signatures"), path("buckets"), config=minhash)],
            tasks=minhash.num_buckets,
        ),
        pipeline("cluster", [MinhashDedupCluster(path("buckets"), path("repeats"), config=minhash)], tasks=1),
        pipeline(
            "filter",
            [JsonlReader(path("text")), MinhashDedupFilter(path("repeats")), JsonlWriter(path("deduplicated"))],
            tasks=workers,
        ),
    ]


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def split_by_worker(warc: Path, folder: Path, workers: int) -> int:
    """Deal the records of `warc` out to one file per worker in turn; returns the number of responses."""
    folder.mkdir(parents=True)
    pages = 0
    with ExitStack() as stack:
        parts = [
            WARCWriter(stack.enter_context(open(folder / f"part-{i}.warc.gz", "wb")), gzip=True) for i in range(workers)
        ]
        for record in ArchiveIterator(stack.enter_context(open(warc, "rb"))):
            if record.rec_type == "response":
                parts[pages % workers].write_record(record)
                pages += 1
    return pages


def count_lines(folder: Path) -> int:
    total = 0
    for file in folder.glob("*.jsonl.gz"):
        with gzip.open(file, "rb") as lines:
            total += sum(1 for _ in lines)
    return total


if __name__ == "__main__":
    main()
