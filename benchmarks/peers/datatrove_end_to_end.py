"""Deduplicate the pages of a WARC file with datatrove from PyPI: the peer of `end_to_end.py`.

    .venv-peers/bin/python benchmarks/peers/datatrove_end_to_end.py PAGES.warc.gz WORKERS

The steps are those of datatrove's own examples (`fineweb.py`, then `minhash_deduplication.py`),
with their defaults, except that a page has 20 seconds:

1. extract: WarcReader, Trafilatura, FTFYFormatter, JsonlWriter
2. signatures: MinHash signatures
3. buckets, cluster: which documents repeat another
4. filter: the other documents

Tokenizing, FineWeb's quality filters and the identification of the language are left out. datatrove
distributes work by file, so the WARC file is first split into one file for each worker, which is
not timed. Prints one JSON object with the seconds of each step and of all, the pages that were
read, and the documents before and after the filter.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
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
    """Run the pipeline over the WARC file with the number of workers of the command line."""
    warc = Path(sys.argv[1])
    num_workers = int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="datatrove-") as name:
        folder = Path(name)
        num_pages = split_by_worker(warc, folder / "pages", num_workers)
        seconds_by_step = {}
        for step, executor in make_steps(folder, num_workers).items():
            started = time.perf_counter()
            executor.run()
            seconds_by_step[step] = time.perf_counter() - started
        report = {
            "pages": num_pages,
            "documents": count_lines(folder / "text"),
            "documents_kept": count_lines(folder / "deduplicated"),
            "seconds_by_step": {
                step: round(seconds, 2) for step, seconds in seconds_by_step.items()
            },
            "seconds": round(sum(seconds_by_step.values()), 2),
        }
    print(json.dumps(report))


def make_steps(folder: Path, num_workers: int) -> dict[str, LocalPipelineExecutor]:
    """Return the steps in their order. Each reads and writes below `folder`."""
    config = MinhashConfig()
    pages = str(folder / "pages")
    text = str(folder / "text")
    signatures = str(folder / "signatures")
    buckets = str(folder / "buckets")
    repeats = str(folder / "repeats")
    deduplicated = str(folder / "deduplicated")
    blocks_by_step = {
        "extract": [WarcReader(pages), Trafilatura(timeout=20), FTFYFormatter(), JsonlWriter(text)],
        "signatures": [JsonlReader(text), MinhashDedupSignature(signatures, config=config)],
        "buckets": [MinhashDedupBuckets(signatures, buckets, config=config)],
        "cluster": [MinhashDedupCluster(buckets, repeats, config=config)],
        "filter": [JsonlReader(text), MinhashDedupFilter(repeats), JsonlWriter(deduplicated)],
    }
    # As in datatrove's example, a task reads one bucket, and one task clusters all of them.
    num_tasks_by_step = {"buckets": config.num_buckets, "cluster": 1}
    return {
        step: LocalPipelineExecutor(
            blocks,
            tasks=num_tasks_by_step.get(step, num_workers),
            workers=num_workers,
            logging_dir=str(folder / "logs" / step),
        )
        for step, blocks in blocks_by_step.items()
    }


def split_by_worker(warc: Path, folder: Path, num_workers: int) -> int:
    """Split a WARC file's responses into a file for each worker; return the number of responses."""
    folder.mkdir(parents=True)
    num_responses = 0
    with ExitStack() as stack:
        writers = []
        for number in range(num_workers):
            part = stack.enter_context(open(folder / f"part-{number}.warc.gz", "wb"))
            writers.append(WARCWriter(part, gzip=True))
        for record in ArchiveIterator(stack.enter_context(open(warc, "rb"))):
            if record.rec_type != "response":
                continue
            writers[num_responses % num_workers].write_record(record)
            num_responses += 1
    return num_responses


def count_lines(folder: Path) -> int:
    """Return the number of lines in a folder of compressed JSON lines."""
    num_lines = 0
    for file in folder.glob("*.jsonl.gz"):
        with gzip.open(file, "rb") as lines:
            num_lines += sum(1 for _ in lines)
    return num_lines


if __name__ == "__main__":
    main()
