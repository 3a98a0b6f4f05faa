"""Near-duplicates by the library, by rensa and by Daft, each as its documentation shows it.

    python benchmarks/peers/near_duplicates.py owt|rensa|daft DOCUMENTS.jsonl

Documents have `id` and `text`. Word 5-grams, threshold 0.8, 128 permutations. Prints the ids of removed documents as
JSON.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

THRESHOLD, NUM_PERM, NGRAM = 0.8, 128, 5
BANDS, ROWS = 9, 13  # what datasketch chooses for this threshold


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


def daft(path: Path) -> list[int]:
    """A join of bands; the first document of each component is kept."""
    import daft
    import numpy as np
    import pyarrow as pa
    from daft import col
    from daft.functions import minhash

    signed = daft.read_json(str(path)).select(
        col("id").cast(daft.DataType.int64()),
        minhash(col("text"), num_hashes=BANDS * ROWS, ngram_size=NGRAM, hash_function="xxhash3_64").alias("sketch"),
    )
    bands = signed.collect().to_arrow()
    values = np.asarray(bands["sketch"].combine_chunks().flatten()).reshape(-1, BANDS, ROWS)
    weights = np.random.default_rng(0).integers(0, 1 << 64, (BANDS, ROWS), np.uint64)  # another band, another hash
    keys = (values.astype(np.uint64) * weights).sum(axis=2, dtype=np.uint64)
    left = daft.from_arrow(pa.table({"id": np.repeat(bands["id"].to_numpy(), BANDS), "band": keys.reshape(-1)}))
    pairs = left.join(left.select(col("id").alias("other"), col("band")), on="band")
    edges = pairs.where(col("id") < col("other")).select("id", "other").distinct().to_arrow()
    first: dict[int, int] = {}

    def find(one: int) -> int:
        while first.get(one, one) != one:
            one = first[one]
        return one

    for a, b in zip(edges["id"].to_pylist(), edges["other"].to_pylist(), strict=True):
        a, b = find(a), find(b)
        first[max(a, b)] = min(a, b)
    return [one for one, before in first.items() if one != before]


def main() -> None:
    finders = {"owt": owt, "rensa": rensa, "daft": daft}
    print(json.dumps({"removed": finders[sys.argv[1]](Path(sys.argv[2]))}))


if __name__ == "__main__":
    main()
