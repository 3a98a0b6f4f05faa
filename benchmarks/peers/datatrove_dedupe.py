"""Near-duplicates by datatrove's MinHash, in its four steps and with its defaults: a peer of dedupe.

    .venv-peers/bin/python benchmarks/peers/datatrove_dedupe.py DOCUMENTS.jsonl [--signatures_only]

Documents have `id` and `text`. Everything runs in this process. Prints JSON: CPU seconds of the signatures and of all
steps, imports and the tokenizer's loading left out, and the ids that go.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
from datatrove.utils.logging import logger


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("documents", type=Path)
    parser.add_argument("--signatures_only", action="store_true")
    arguments = parser.parse_args()
    logger.remove()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        result = measure(arguments.documents, Path(folder), arguments.signatures_only)
    print(json.dumps(result))


def measure(documents: Path, folder: Path, signatures_only: bool) -> dict[str, object]:
    """Run the steps in `folder`."""
    (folder / "text").mkdir()
    shutil.copy(documents, folder / "text" / "00000.jsonl")
    config = MinhashConfig()
    signature = MinhashDedupSignature(str(folder / "signatures"), config=config)
    signature.get_shingles("so that the word tokenizer is loaded before the clock starts")

    def read() -> object:
        return JsonlReader(str(folder / "text")).run()

    started = time.process_time()
    signature.run(read())
    signatures = time.process_time() - started
    if signatures_only:
        return {"seconds_signatures": signatures}
    for bucket in range(config.num_buckets):
        step = MinhashDedupBuckets(str(folder / "signatures"), str(folder / "buckets"), config=config)
        step.run(rank=bucket, world_size=config.num_buckets)
    MinhashDedupCluster(str(folder / "buckets"), str(folder / "repeats"), config=config).run()
    kept = {document.id for document in MinhashDedupFilter(str(folder / "repeats")).run(read())}
    seconds = time.process_time() - started
    removed = [document.id for document in read() if document.id not in kept]
    return {"seconds_signatures": signatures, "seconds": seconds, "removed": removed}


if __name__ == "__main__":
    main()
