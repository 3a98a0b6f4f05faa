"""Near-duplicates by text-dedup's MinHash: a peer of dedupe.

    .venv-peers/bin/python benchmarks/peers/text_dedup_minhash.py DOCUMENTS.jsonl

Documents have `id` and `text`. Its defaults, with word 5-grams, 128 permutations, threshold 0.8, its faster hash,
and one process. Prints JSON: CPU seconds of the complete command with its start, and the ids of removed documents.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import datasets


def main() -> None:
    documents = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        where = {"--path": "json", "--data_files": documents, "--split": "train", "--column": "text"}
        where |= {"--output": f"{folder}/out", "--cache_dir": f"{folder}/cache"}
        how = {"--ngram": 5, "--num_perm": 128, "--threshold": 0.8, "--hash_func": "xxh3", "--num_proc": 1}
        flags = [str(part) for item in {**where, **how}.items() for part in item]
        command = [sys.executable, "-m", "text_dedup.minhash", *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        kept = set(datasets.load_from_disk(f"{folder}/out")["id"])
    ids = [json.loads(line)["id"] for line in documents.open(encoding="utf-8")]
    print(json.dumps({"seconds": usage.ru_utime + usage.ru_stime, "removed": [one for one in ids if one not in kept]}))


if __name__ == "__main__":
    main()
