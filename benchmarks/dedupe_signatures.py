"""MinHash signatures of the same hashes: ours in numpy, beside the libraries and the compiler that could replace it.

    make bench-peers    # once: the peers' environment
    PYTHONPATH=. .venv-peers/bin/python benchmarks/dedupe_signatures.py [--documents 2000] [--repeats 5]

CPU microseconds a document of 1,136 hashes (1,140 words in 5-grams) and 126 permutations (21 bands of 6), one thread,
the best of the repeats: ours; datasketch's MinHash, which takes one document at a time; the same scheme in a loop that
numba compiles for the processor at hand; and rensa, in Rust, whose permutations are others. Beside it, what each
costs a process once: imports, and numba's compiler.

Exits 1 where ours, datasketch's and numba's are not equal.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"  # rensa's threads

import numpy as np

from owt_pipeline.dedupe.minhash import fmix32, keep_freed_memory, permutations, signatures

HASHES, PERMUTATIONS = 1136, 126
CHUNK = 80  # documents, as the stage signs them

Sign = Callable[[np.ndarray, np.ndarray], Any]
"""Signatures of hashes end to end, uint32, by the offsets of each document's."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--documents", type=int, default=2000, metavar="N", help="(default: 2000)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="the fastest counts (default: 5)")
    arguments = parser.parse_args()
    keep_freed_memory()
    count = arguments.documents
    hashes = np.random.default_rng(0).integers(0, 1 << 32, count * HASHES, np.uint32)
    offsets = np.arange(0, len(hashes) + 1, HASHES)
    wanted = ours()(hashes, offsets)
    same = True
    print(f"{'':>12} {'us a document':>14} {'documents/s':>12} {'once, s':>8}")
    for prepare in (ours, datasketch, numba, rensa):
        started = time.process_time()
        sign = prepare()
        sign(hashes[:HASHES], offsets[:2])
        once = time.process_time() - started
        times = []
        for _ in range(arguments.repeats):
            started = time.process_time()
            found = sign(hashes, offsets)
            times.append(time.process_time() - started)
        best = min(times) / count
        print(f"{prepare.__name__:>12} {best * 1e6:>14.1f} {1 / best:>12,.0f} {once:>8.2f}")
        if prepare is not rensa and not np.array_equal(found, wanted):
            print(f"FAILED: the signatures of {prepare.__name__} differ from ours")
            same = False
    return 0 if same else 1


def ours() -> Sign:
    def sign(hashes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        found = []
        for start in range(0, len(offsets) - 1, CHUNK):
            some = offsets[start : start + CHUNK + 1]
            found.append(signatures(hashes[some[0] : some[-1]], some - some[0], PERMUTATIONS))
        return np.concatenate(found, axis=1)

    return sign


def datasketch() -> Sign:
    from datasketch import MinHash

    empty = MinHash(PERMUTATIONS, hashfunc=int)

    def sign(hashes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        result = np.empty((PERMUTATIONS, len(offsets) - 1), np.uint32)
        for i in range(len(offsets) - 1):
            sketch = empty.copy()
            sketch.update_batch(hashes[offsets[i] : offsets[i + 1]])
            result[:, i] = sketch.hashvalues
        return result

    return sign


def numba() -> Sign:
    from numba import njit

    a, b = permutations(PERMUTATIONS)

    @njit
    def least(mixed: Any, offsets: Any, a: Any, b: Any, result: Any) -> None:
        for i in range(len(offsets) - 1):
            values = mixed[offsets[i] : offsets[i + 1]]
            for k in range(len(a)):
                factor, term, smallest = a[k], b[k], np.uint32(0xFFFFFFFF)
                for j in range(len(values)):  # by number, and without min(): so it becomes vector instructions
                    value = np.uint32(values[j] * factor + term)
                    smallest = value if value < smallest else smallest
                result[k, i] = smallest

    def sign(hashes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        result = np.empty((PERMUTATIONS, len(offsets) - 1), np.uint32)
        least(fmix32(hashes), offsets, a, b, result)
        return result

    return sign


def rensa() -> Sign:
    from rensa import RMinHash

    def sign(hashes: np.ndarray, offsets: np.ndarray) -> Any:
        of_hashes = RMinHash.digest_matrix_from_flat_token_hashes
        return of_hashes(hashes.astype(np.uint64), offsets.astype(np.uint64), PERMUTATIONS, 1)

    return sign


if __name__ == "__main__":
    sys.exit(main())
