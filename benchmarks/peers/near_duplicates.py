"""Find near-duplicates with the library or a peer, for `dedupe.py`.

    python benchmarks/peers/near_duplicates.py NAME DOCUMENTS.jsonl

NAME is a key of FINDERS. A document has `id` and `text`, and its number is its id. Each peer is
called as its documentation shows it, with word 5-grams, a threshold of 0.8 and 128 permutations;
datatrove has its own defaults. text-dedup is a command, so it runs in a process of its own. The
others run in this process, whose start and imports count for all of them alike. Prints the ids of
removed documents as JSON.

Imports stand in the functions, since a peer's environment does not have the library.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

THRESHOLD = 0.8
NUM_PERM = 128
NGRAM = 5


def find_with_library(path: Path) -> list[int]:
    """Return the rows that `near_duplicates` removes."""
    import owt_pipeline

    removed = owt_pipeline.near_duplicates(path, threshold=THRESHOLD, workers=1)
    return removed["row"].to_pylist()


def find_with_rensa(path: Path) -> list[int]:
    """Return the documents whose sketch has enough in common with the sketch of an earlier one."""
    from rensa import RMinHash, RMinHashLSH

    index = RMinHashLSH(THRESHOLD, NUM_PERM, 16)
    sketches = []
    removed = []
    for number, shingles in enumerate(read_shingles(path)):
        sketch = RMinHash(NUM_PERM, 42)
        sketch.update(shingles)
        sketches.append(sketch)
        candidates = (sketches[candidate] for candidate in index.query(sketch))
        if any(sketch.jaccard(candidate) >= THRESHOLD for candidate in candidates):
            removed.append(number)
        else:
            index.insert(number, sketch)
    return removed


def find_with_datasketch(path: Path) -> list[int]:
    """Return the documents for which the index has a candidate, without verifying it."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=THRESHOLD, num_perm=NUM_PERM)
    removed = []
    for number, shingles in enumerate(read_shingles(path)):
        sketch = MinHash(num_perm=NUM_PERM)
        sketch.update_batch({shingle.encode() for shingle in shingles})
        if index.query(sketch):
            removed.append(number)
        else:
            index.insert(number, sketch)
    return removed


def read_shingles(path: Path) -> Iterator[list[str]]:
    """Yield the word n-grams of each document. A shorter document is one shingle."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            words = re.findall(r"\w+", json.loads(line)["text"].lower())
            num_shingles = max(len(words) - NGRAM + 1, 1)
            yield [" ".join(words[start : start + NGRAM]) for start in range(num_shingles)]


def find_with_text_dedup(path: Path) -> list[str]:
    """Return the documents that the command of text-dedup removes, with its faster hash."""
    import datasets

    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "--path": "json",
            "--data_files": path.resolve(),
            "--split": "train",
            "--column": "text",
            "--output": f"{folder}/out",
            "--cache_dir": f"{folder}/cache",
            "--ngram": NGRAM,
            "--num_perm": NUM_PERM,
            "--threshold": THRESHOLD,
            "--hash_func": "xxh3",
            "--num_proc": 1,
        }
        command = [sys.executable, "-m", "text_dedup.minhash"]
        for flag, value in flags.items():
            command += [flag, str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kept_ids = set(datasets.load_from_disk(f"{folder}/out")["id"])
    with path.open(encoding="utf-8") as file:
        ids = [json.loads(line)["id"] for line in file]
    return [document_id for document_id in ids if document_id not in kept_ids]


def find_with_datatrove(path: Path) -> list[str]:
    """Return the documents that the four steps of datatrove remove, with its defaults."""
    from datatrove.pipeline import dedup
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.utils.logging import logger

    logger.remove()
    logging.disable(logging.WARNING)
    # The steps print, and the output of this program is JSON.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        text = f"{folder}/text"
        signatures = f"{folder}/signatures"
        buckets = f"{folder}/buckets"
        repeats = f"{folder}/repeats"
        Path(text).mkdir()
        shutil.copy(path, f"{text}/00000.jsonl")
        config = MinhashConfig()
        dedup.MinhashDedupSignature(signatures, config=config).run(JsonlReader(text).run())
        for bucket in range(config.num_buckets):
            find_pairs = dedup.MinhashDedupBuckets(signatures, buckets, config=config)
            find_pairs.run(rank=bucket, world_size=config.num_buckets)
        dedup.MinhashDedupCluster(buckets, repeats, config=config).run()
        keep_unique = dedup.MinhashDedupFilter(repeats)
        kept_ids = {document.id for document in keep_unique.run(JsonlReader(text).run())}
        ids = [document.id for document in JsonlReader(text).run()]
    return [document_id for document_id in ids if document_id not in kept_ids]


FINDERS = {
    "owt.near_duplicates": find_with_library,
    "rensa": find_with_rensa,
    "datasketch": find_with_datasketch,
    "text-dedup": find_with_text_dedup,
    "datatrove": find_with_datatrove,
}


def main() -> None:
    """Run the finder that the command line names over its file."""
    find = FINDERS[sys.argv[1]]
    print(json.dumps({"removed": find(Path(sys.argv[2]))}))


if __name__ == "__main__":
    main()
