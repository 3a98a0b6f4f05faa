"""Near-duplicates by datasketch's MinHashLSH, as its documentation shows it: a peer of dedupe.

    .venv/bin/python benchmarks/peers/datasketch_lsh.py DOCUMENTS.jsonl

Each document (`id`, `text`) is looked up in the index, and goes if anything is found there; else it is inserted.
Word 5-grams, 128 permutations, threshold 0.8, nothing verified. Prints JSON: CPU seconds, and the ids that go.
"""

from __future__ import annotations

import json
import re
import sys
import time

from datasketch import MinHash, MinHashLSH

THRESHOLD, NUM_PERM, NGRAM = 0.8, 128, 5


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    started = time.process_time()
    index = MinHashLSH(threshold=THRESHOLD, num_perm=NUM_PERM)
    removed = []
    for document in documents:
        words = re.findall(r"\w+", document["text"].lower())
        sketch = MinHash(num_perm=NUM_PERM)
        count = max(len(words) - NGRAM + 1, 1)
        sketch.update_batch({" ".join(words[i : i + NGRAM]).encode() for i in range(count)})
        if index.query(sketch):
            removed.append(document["id"])
        else:
            index.insert(document["id"], sketch)
    print(json.dumps({"seconds": time.process_time() - started, "removed": removed}))


if __name__ == "__main__":
    main()
