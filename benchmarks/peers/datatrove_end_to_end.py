"""The work from WARC to a deduplicated corpus, done by datatrove from PyPI: the peer of
`end_to_end.py`.

    .venv-peers/bin/python benchmarks/peers/datatrove_end_to_end.py PAGES.warc.gz WORKERS

It is the pipeline of datatrove's own examples (`fineweb.py`, then `minhash_deduplication.py`) with
their defaults: WarcReader, Trafilatura, FTFYFormatter and JsonlWriter, then MinHash signatures,
buckets, clusters and the filter. Tokenizing, FineWeb's quality filters and language identification
are left out. datatrove distributes work by file, so the WARC is first split into one file per
worker; that is not timed. Prints one JSON object: seconds a step and in all, pages in, documents
out.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.formatters import FTFYFormatter
from datatrove.pipeline.readers import JsonlReader, WarcReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from warcio.archiveiterator import ArchiveIterator
from warcio.warcwriter import WARCWriter


def main() -> None:
    warc, workers = Path(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="datatrove-") as name:
        folder = Path(name)
        pages = split_by_worker(warc, folder / "pages", workers)
        seconds = {step: timed(run) for step, run in steps(folder, workers)}
        report = {
            "pages": pages,
            "documents": count_lines(folder / "text"),
            "documents_kept": count_lines(folder / "deduplicated"),
            "seconds_by_step": {step: round(value, 2) for step, value in seconds.items()},
            "seconds": round(sum(seconds.values()), 2),
        }
    print(json.dumps(report))


def steps(folder: Path, workers: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """The pipelines in order, each a function that runs it; every one of them writes below
    `folder`."""
    minhash = MinhashConfig()

    def path(name: str) -> str:
        return str(folder / name)

    pipelines: dict[str, tuple[int, list[object]]] = {
        "extract": (
            workers,
            [WarcReader(path("pages")), Trafilatura(), FTFYFormatter(), JsonlWriter(path("text"))],
        ),
        "signatures": (
            workers,
            [JsonlReader(path("text")), MinhashDedupSignature(path("signatures"), config=minhash)],
        ),
        "buckets": (
            minhash.num_buckets,
            [MinhashDedupBuckets(path("signatures"), path("buckets"), config=minhash)],
        ),
        "cluster": (1, [MinhashDedupCluster(path("buckets"), path("repeats"), config=minhash)]),
        "filter": (
            workers,
            [
                JsonlReader(path("text")),
                MinhashDedupFilter(path("repeats")),
                JsonlWriter(path("deduplicated")),
            ],
        ),
    }
    for name, (tasks, blocks) in pipelines.items():
        executor = LocalPipelineExecutor(
            blocks, tasks=tasks, workers=workers, logging_dir=str(folder / "logs" / name)
        )
        yield name, executor.run


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def split_by_worker(warc: Path, folder: Path, workers: int) -> int:
    """Deal the records of `warc` out to one file per worker in turn; returns the number of
    responses."""
    folder.mkdir(parents=True)
    pages = 0
    with ExitStack() as stack:
        parts = [
            WARCWriter(stack.enter_context(open(folder / f"part-{i}.warc.gz", "wb")), gzip=True)
            for i in range(workers)
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
