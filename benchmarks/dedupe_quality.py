"""The precision and recall of dedupe and of peers.

    make bench-peers    # once: the peers' environment
    .venv/bin/python benchmarks/dedupe_quality.py [--bases 300] [--no_peers]

The documents are real posts and pages, each with ten planted copies: verbatim, with 1 to 40% of the words edited,
truncated, joined with another, in a template that all share. Similarity is the exact Jaccard similarity of the sets of
word 5-grams. Precision is the share of removed documents with a similarity of 0.8 or more to a kept one; recall is the
share of pairs of 0.8 or more of which one document is removed. Articles with known copies and pairs of pages judged by
people follow.

Exits 1 unless dedupe's precision is 1 and its recall at least 0.99.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from dedupe import PEER_PYTHON, PEERS, ask_peer
from dedupe_documents import Planted, jsonl, planted, write_clean
from scipy.sparse import csr_array

from owt_pipeline import progress
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.dedupe.shingles import fold, shingle
from owt_pipeline.stages.dedupe.stage import STAGE, Options
from owt_pipeline.storage.folder import Storage

REPOSITORY = Path(__file__).resolve().parent.parent
THRESHOLD, NGRAM = 0.8, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bases", type=int, default=300, metavar="N", help="documents to copy (default: 300)")
    parser.add_argument("--no_peers", action="store_true", help="measure ours alone")
    arguments = parser.parse_args()
    testdata = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    if not testdata.is_dir():
        parser.error(f"no folder {testdata}: set OWT_TESTDATA to the folder of test data")
    progress.configure(quiet=True, live=False)
    documents = planted(testdata, arguments.bases)
    texts = [document.text for document in documents]
    pairs = similar_pairs(texts)
    lengths = [len(text.split()) for text in texts]
    print(f"{len(texts):,} documents of {min(lengths)} to {max(lengths):,} words, {np.mean(lengths):,.0f} on average; "
          f"{sum(s >= THRESHOLD for s in pairs.values()):,} pairs of a similarity of {THRESHOLD} or more")  # fmt: skip

    decisions = decide(texts)
    ours = scored(set(decisions), len(texts), pairs)
    proven = sum(pairs.get((min(a, b), max(a, b)), 0.0) >= THRESHOLD for a, b in decisions.items())
    print(f"\n{'':>40} {'removed':>8} {'precision':>10} {'recall':>8}")
    print_scores("owt dedupe", ours)
    print(f"{'':>40} each for the document it names: {proven} of {len(decisions)}")
    if not arguments.no_peers:
        with tempfile.TemporaryDirectory() as folder:
            jsonl(Path(folder) / "documents.jsonl", texts)
            for name, python, script in (
                ("datatrove, its defaults", PEER_PYTHON, "datatrove_dedupe.py"),
                ("text-dedup, threshold 0.8", PEER_PYTHON, "text_dedup_minhash.py"),
                ("datasketch MinHashLSH, threshold 0.8", Path(sys.executable), "datasketch_lsh.py"),
            ):
                found = ask_peer(python, PEERS / script, Path(folder) / "documents.jsonl")
                if isinstance(found, str):
                    print(f"{name:>40} left out: {found}")
                else:
                    print_scores(name, scored({int(one) for one in found["removed"]}, len(texts), pairs))
    print_kinds(documents, set(decisions), pairs)
    print_articles(testdata)
    print_judged_pairs(testdata)
    return 0 if ours[1] == 1 and ours[2] >= 0.99 and proven == len(decisions) else 1


def similar_pairs(texts: Sequence[str]) -> dict[tuple[int, int], float]:
    """The exact Jaccard similarity of all pairs of texts that share a shingle: (lesser, greater) -> similarity."""
    sets = shingle(fold(pa.array(texts)), NGRAM).sets()
    values = np.concatenate(sets)
    _, column = np.unique(values, return_inverse=True)
    sizes = np.array([len(one) for one in sets])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    matrix = csr_array((np.ones(len(values), np.int32), column, offsets))
    common = (matrix @ matrix.T).tocoo()
    upper = common.row < common.col
    a, b, shared = common.row[upper], common.col[upper], common.data[upper]
    similarity = shared / (sizes[a] + sizes[b] - shared)
    return dict(zip(zip(a.tolist(), b.tolist(), strict=True), similarity.tolist(), strict=True))


def decide(texts: Sequence[str], threshold: float = THRESHOLD) -> dict[int, int]:
    """Removed document -> kept document, by dedupe with its default options."""
    with tempfile.TemporaryDirectory() as folder:
        write_clean(Path(folder), iter(texts), len(texts))
        manifest, _ = run_stage(STAGE, Options(threshold=threshold), Runtime(Storage(folder)))
        rows = DatasetReader(Storage(folder), manifest).table().to_pylist()
    return {row["url_id"]: row["kept_url_id"] for row in rows}


def scored(removed: set[int], documents: int, pairs: dict[tuple[int, int], float]) -> tuple[int, float, float]:
    """(removals, precision, recall)."""
    proven: set[int] = set()
    found = total = 0
    for (a, b), similarity in pairs.items():
        if similarity < THRESHOLD:
            continue
        total += 1
        found += a in removed or b in removed
        if (a in removed) != (b in removed):
            proven.add(a if a in removed else b)
    return len(removed), len(proven) / max(len(removed), 1), found / max(total, 1)


def print_scores(name: str, scores: tuple[int, float, float]) -> None:
    print(f"{name:>40} {scores[0]:>8,} {scores[1]:>10.4f} {scores[2]:>8.4f}")


def print_kinds(documents: Sequence[Planted], removed: set[int], pairs: dict[tuple[int, int], float]) -> None:
    """Print for each kind of copy its similarity to the original, and how many pairs remain."""
    original = {document.source: i for i, document in enumerate(documents) if document.kind == "original"}
    kinds: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for i, document in enumerate(documents):
        j = original[document.source]
        if i != j:
            gone = i in removed or j in removed
            kinds[document.kind].append((pairs.get((min(i, j), max(i, j)), 0.0), gone))
    print(f"\n{f'copies of {len(original)} documents':>24} {'similarity':>11} "
          f"{'of 0.8 or more':>15} {'of these, found':>16}")  # fmt: skip
    for kind, found in sorted(kinds.items(), key=lambda item: -np.mean([s for s, _ in item[1]])):
        reach = [gone for similarity, gone in found if similarity >= THRESHOLD]
        mean = np.mean([similarity for similarity, _ in found])
        print(f"{kind:>24} {mean:>11.3f} {len(reach):>15} {sum(reach):>16}")


def print_articles(testdata: Path) -> None:
    """Print how many of the planted pairs of articles are found."""
    print()
    for count in (100, 1000):
        with gzip.open(testdata / "neardup" / f"articles-{count}.jsonl.gz", "rt", encoding="utf-8") as file:
            articles = [json.loads(line) for line in file]
        number = {article["id"]: i for i, article in enumerate(articles)}
        lines = (testdata / "neardup" / f"articles-{count}.truth.txt").read_text(encoding="utf-8").splitlines()
        truth = {frozenset(number[name] for name in line.split()) for line in lines}
        for threshold in (0.8, 0.5):
            pairs = {frozenset(pair) for pair in decide([article["text"] for article in articles], threshold).items()}
            print(f"articles-{count}, threshold {threshold}: {len(pairs & truth)} of {len(truth)} pairs found, "
                  f"{len(pairs - truth)} others")  # fmt: skip


def print_judged_pairs(testdata: Path) -> None:
    """Print by label, from 0 (different) to 3 (the same), how many pairs judged by people lose a page."""
    with gzip.open(testdata / "neardup" / "gov2-pairs.jsonl.gz", "rt", encoding="utf-8") as file:
        pairs = [json.loads(line) for line in file]
    texts = [text for pair in pairs for text in (pair["left"], pair["right"])]
    removed = set(decide(texts))
    similarity = similar_pairs(texts)
    print(f"\n{'gov2-pairs, label':>24} {'pairs':>6} {'of 0.8 or more':>15} {'of these, one goes':>19}")
    for label in range(4):
        mine = [i for i, pair in enumerate(pairs) if pair["label"] == label]
        reach = [i for i in mine if similarity.get((2 * i, 2 * i + 1), 0.0) >= THRESHOLD]
        goes = sum(2 * i in removed or 2 * i + 1 in removed for i in reach)
        print(f"{label:>24} {len(mine):>6} {len(reach):>15} {goes:>19}")


if __name__ == "__main__":
    sys.exit(main())
