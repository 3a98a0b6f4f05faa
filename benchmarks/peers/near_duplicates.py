"""Near-duplicates by the library, by rensa and by datasketch, each as its documentation shows it.

    python benchmarks/peers/near_duplicates.py owt|rensa|datasketch DOCUMENTS.jsonl

Documents have `id` and `text`. Word 5-grams, threshold 0.8, 128 permutations. Prints the ids of removed documents as
JSON.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

THRESHOLD, NUM_PERM, NGRAM = 0.8, 128, 5


def owt(path: Path) -> list[int]:
    import owt_pipeline

    return owt_pipeline.near_duplicates(path, threshold=THRESHOLD, workers=1)["row"].to_pylist()


def rensa(path: Path) -> list[int]:
    """A document is removed if the sketch of an earlier one shares enough of its values for the threshold."""
    from rensa import RMinHash, RMinHashLSH

    index, sketches, gone = RMinHashLSH(THRESHOLD, NUM_PERM, 16), [], []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            words = re.findall(r"\w+", json.loads(line)["text"].lower())
            sketch = RMinHash(NUM_PERM, 42)
            sketch.update([" ".join(words[i : i + NGRAM]) for i in range(max(len(words) - NGRAM + 1, 1))])
            sketches.append(sketch)
            if any(sketch.jaccard(sketches[other]) >= THRESHOLD for other in index.query(sketch)):
                gone.append(number)
            else:
                index.insert(number, sketch)
    return gone


def datasketch(path: Path) -> list[int]:
    """A document is removed if anything is found in the index, else inserted; nothing is verified."""
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


def main() -> None:
    finders = {"owt": owt, "rensa": rensa, "datasketch": datasketch}
    print(json.dumps({"removed": finders[sys.argv[1]](Path(sys.argv[2]))}))


if __name__ == "__main__":
    main()
