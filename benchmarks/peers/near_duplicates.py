"""Near-duplicates by the library and by peers, each as its documentation shows it: what
`dedupe.py` measures.

    python benchmarks/peers/near_duplicates.py NAME DOCUMENTS.jsonl

Documents have `id` and `text`. Word 5-grams, threshold 0.8, 128 permutations; datatrove has its own
defaults. All but text-dedup, which is a command, run in this process. Prints the ids of removed
documents as JSON.
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
from pathlib import Path

THRESHOLD, NUM_PERM, NGRAM = 0.8, 128, 5


def ours(path: Path) -> list[int]:
    import owt_pipeline

    return owt_pipeline.near_duplicates(path, threshold=THRESHOLD, workers=1)["row"].to_pylist()


def rensa(path: Path) -> list[int]:
    """A document is removed if the sketch of an earlier one shares enough of its values for the
    threshold."""
    from rensa import RMinHash, RMinHashLSH

    index, sketches, gone = RMinHashLSH(THRESHOLD, NUM_PERM, 16), [], []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            words = re.findall(r"\w+", json.loads(line)["text"].lower())
            sketch = RMinHash(NUM_PERM, 42)
            sketch.update(
                [" ".join(words[i : i + NGRAM]) for i in range(max(len(words) - NGRAM + 1, 1))]
            )
            sketches.append(sketch)
            if any(sketch.jaccard(sketches[other]) >= THRESHOLD for other in index.query(sketch)):
                gone.append(number)
            else:
                index.insert(number, sketch)
    return gone


def datasketch(path: Path) -> list[int]:
    """A document is removed if anything is found in the index, else inserted; nothing is
    verified."""
    from datasketch import MinHash, MinHashLSH

    index, gone = MinHashLSH(threshold=THRESHOLD, num_perm=NUM_PERM), []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            words = re.findall(r"\w+", json.loads(line)["text"].lower())
            sketch = MinHash(num_perm=NUM_PERM)
            count = max(len(words) - NGRAM + 1, 1)
            sketch.update_batch({" ".join(words[i : i + NGRAM]).encode() for i in range(count)})
            if index.query(sketch):
                gone.append(number)
            else:
                index.insert(number, sketch)
    return gone


def text_dedup(path: Path) -> list[str]:
    """Its command, with its faster hash."""
    import datasets

    with tempfile.TemporaryDirectory() as folder:
        where = {
            "--path": "json",
            "--data_files": path.resolve(),
            "--split": "train",
            "--column": "text",
        }
        where |= {"--output": f"{folder}/out", "--cache_dir": f"{folder}/cache"}
        how = {
            "--ngram": NGRAM,
            "--num_perm": NUM_PERM,
            "--threshold": THRESHOLD,
            "--hash_func": "xxh3",
        }
        flags = [str(part) for item in {**where, **how, "--num_proc": 1}.items() for part in item]
        command = [sys.executable, "-m", "text_dedup.minhash", *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kept = set(datasets.load_from_disk(f"{folder}/out")["id"])
    ids = [json.loads(line)["id"] for line in path.open(encoding="utf-8")]
    return [one for one in ids if one not in kept]


def datatrove(path: Path) -> list[str]:
    """Its four steps, with its defaults."""
    from datatrove.pipeline import dedup
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.utils.logging import logger

    logger.remove()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(sys.stderr):
        text, signatures, buckets, repeats = (
            f"{name}/{part}" for part in ("text", "signatures", "buckets", "repeats")
        )
        Path(text).mkdir()
        shutil.copy(path, f"{text}/00000.jsonl")
        config = MinhashConfig()
        dedup.MinhashDedupSignature(signatures, config=config).run(JsonlReader(text).run())
        for bucket in range(config.num_buckets):
            step = dedup.MinhashDedupBuckets(signatures, buckets, config=config)
            step.run(rank=bucket, world_size=config.num_buckets)
        dedup.MinhashDedupCluster(buckets, repeats, config=config).run()
        kept = {
            document.id
            for document in dedup.MinhashDedupFilter(repeats).run(JsonlReader(text).run())
        }
        return [document.id for document in JsonlReader(text).run() if document.id not in kept]


FINDERS = {
    "owt.near_duplicates": ours,
    "rensa": rensa,
    "datasketch": datasketch,
    "text-dedup": text_dedup,
    "datatrove": datatrove,
}


def main() -> None:
    print(json.dumps({"removed": FINDERS[sys.argv[1]](Path(sys.argv[2]))}))


if __name__ == "__main__":
    main()
