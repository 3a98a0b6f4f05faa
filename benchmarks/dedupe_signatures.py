"""The rate of MinHash signatures compared with other libraries: from texts, and from hashes.

    python -m venv .venv-daft    # once: Daft needs an older pyarrow than the other peers
    .venv-daft/bin/python -m pip install daft==0.7.26 datasketch==2.0.0 numba==0.68.1 rensa==0.5.0 xxhash
    PYTHONPATH=. .venv-daft/bin/python benchmarks/dedupe_signatures.py [--documents 2000] [--repeats 5]

All use one core and take turns; the best repeat counts. From texts of 1,140 words, with word 5-grams and 128
permutations: ours in numpy, ours compiled by numba, and Daft's `minhash` in Rust with its fastest hash function. From
1,136 hashes per document: both of ours; datasketch's MinHash, which takes one document at a time; and rensa in Rust,
which has other permutations. "Once" is the fixed cost per process: imports and numba's compilation.

Exits 1 if our signatures differ from datasketch's, or if our rate from texts is less than 0.88 (numpy) or 1 (compiled)
of Daft's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"  # rensa's threads

import numpy as np
import pyarrow as pa
from dedupe_documents import long_documents

from owt_pipeline.stages.dedupe.shingles import chunked, fold, shingle
from owt_pipeline.stages.dedupe.sketches import keep_freed_memory, signatures

HASHES, PERMUTATIONS, NGRAM = 1136, 128, 5
CHUNK = 80  # documents, as the stage signs them
DAFT_HASHES = ("xxhash3_64", "xxhash", "murmurhash3")
OF_DAFT = {"ours, numpy": 0.88, "ours, compiled": 1.0}

Sign = Callable[[], Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--documents", type=int, default=2000, metavar="N", help="(default: 2000)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="the fastest counts (default: 5)")
    arguments = parser.parse_args()
    testdata = Path(os.environ.get("OWT_TESTDATA", Path(__file__).resolve().parent.parent.parent / "shared" / "data"))
    if not testdata.is_dir():
        parser.error(f"no folder {testdata}: set OWT_TESTDATA to the folder of test data")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # Daft's threads too
    keep_freed_memory()
    count = arguments.documents
    texts = pa.array(long_documents(testdata, count), pa.string())
    daft = {f"Daft, {name}": partial(daft_from_texts, texts, name) for name in DAFT_HASHES}
    ours = {name: partial(ours_from_texts, texts, name.endswith("compiled")) for name in OF_DAFT}
    rates, _ = measure("from texts", {**ours, **daft}, count, arguments.repeats)
    fastest = max(rates[name] for name in daft)
    failures = []
    for name, least in OF_DAFT.items():
        share = rates[name] / fastest
        print(f"{name}: {share:.2f} of Daft's rate")
        failures += [f"{name}: {share:.2f} of Daft's rate, under {least:.2f}"] if share < least else []
    hashes = np.random.default_rng(0).integers(0, 1 << 32, count * HASHES, np.uint32)
    ways: dict[str, Callable[[], Sign]] = {
        "ours, numpy": partial(ours_from_hashes, hashes, False),
        "ours, compiled": partial(ours_from_hashes, hashes, True),
        "datasketch": partial(datasketch, hashes),
    }
    _, found = measure("from hashes", {**ways, "rensa": partial(rensa, hashes)}, count, arguments.repeats)
    failures += [
        f"the signatures of {n} differ from ours" for n in ways if not np.array_equal(found[n], found[next(iter(ways))])
    ]
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def measure(
    title: str, ways: Mapping[str, Callable[[], Sign]], count: int, repeats: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """(documents per CPU second, signatures) of each way."""
    signs, once = {}, {}
    for name, prepare in ways.items():
        started = time.process_time()
        signs[name] = prepare()
        once[name] = time.process_time() - started
    found = {name: sign() for name, sign in signs.items()}
    best = dict.fromkeys(signs, float("inf"))
    for _ in range(repeats):
        for name, sign in signs.items():
            started = time.process_time()
            sign()
            best[name] = min(best[name], time.process_time() - started)
    print(f"\n{title:>18} {'us a document':>14} {'documents/s':>12} {'once, s':>8}")
    for name, seconds in best.items():
        print(f"{name:>18} {seconds / count * 1e6:>14.1f} {count / seconds:>12,.0f} {once[name]:>8.2f}")
    return {name: count / seconds for name, seconds in best.items()}, found


def ours_from_texts(texts: pa.Array, compiled: bool) -> Sign:
    def sign() -> list[np.ndarray]:
        found = []
        for chunk in chunked(texts):
            shingles = shingle(fold(chunk), NGRAM)
            hashes = (shingles.hashes >> np.uint64(32)).astype(np.uint32)
            found.append(signatures(hashes, shingles.offsets, PERMUTATIONS, compiled=compiled))
        return found

    signatures(np.zeros(1, np.uint32), np.array([0, 1]), PERMUTATIONS, compiled=compiled)  # which compiles
    return sign


def daft_from_texts(texts: pa.Array, function: Any) -> Sign:
    import daft
    from daft.functions import minhash

    table = daft.from_arrow(pa.table({"text": texts})).collect()
    signed = minhash(daft.col("text"), num_hashes=PERMUTATIONS, ngram_size=NGRAM, hash_function=function)
    return lambda: table.select(signed).collect()


def ours_from_hashes(hashes: np.ndarray, compiled: bool) -> Sign:
    def sign() -> np.ndarray:
        found = []
        for start in range(0, len(hashes), CHUNK * HASHES):
            some = hashes[start : start + CHUNK * HASHES]
            found.append(signatures(some, np.arange(0, len(some) + 1, HASHES), PERMUTATIONS, compiled=compiled))
        return np.concatenate(found, axis=1)

    signatures(hashes[:1], np.array([0, 1]), PERMUTATIONS, compiled=compiled)
    return sign


def datasketch(hashes: np.ndarray) -> Sign:
    from datasketch import MinHash

    empty = MinHash(PERMUTATIONS, hashfunc=int)

    def sign() -> np.ndarray:
        result = np.empty((PERMUTATIONS, len(hashes) // HASHES), np.uint32)
        for i in range(result.shape[1]):
            sketch = empty.copy()
            sketch.update_batch(hashes[i * HASHES : (i + 1) * HASHES])
            result[:, i] = sketch.hashvalues
        return result

    return sign


def rensa(hashes: np.ndarray) -> Sign:
    from rensa import RMinHash

    wide, offsets = hashes.astype(np.uint64), np.arange(0, len(hashes) + 1, HASHES, dtype=np.uint64)
    return lambda: RMinHash.digest_matrix_from_flat_token_hashes(wide, offsets, PERMUTATIONS, 1)


if __name__ == "__main__":
    sys.exit(main())
