"""Near-duplicates next to peers, in one run: what is found of planted copies, and CPU time a
document.

    make bench-peers    # once: the peers' environment
    .venv/bin/python benchmarks/dedupe.py [--peer .venv-peers/bin/python] \
        [--bases 300] [--documents 20000]
        [--peer_documents 500]

Planted: real posts and pages, each with ten copies: verbatim, with 1 to 40% of the words edited,
truncated, joined with another, in a template that all share. Similarity is the exact Jaccard
similarity of the sets of word 5-grams. Precision is the share of removed documents with a
similarity of 0.8 or more to a kept one; recall is the share of pairs of 0.8 or more of which one
document is removed.

Clusters: versions of one page of CLUSTER_WORDS words, each with up to eight of them changed. A
document that is kept and repeats an earlier kept one is kept too much. Recall is the share of the
documents to remove that are removed.

Rates: documents of 1,140 words of real posts, of which a fifth are copies or edited copies of
others; CPU seconds of the complete process above those for 16 documents, on one core.
`owt.near_duplicates` runs all steps of the stage.

Exits 1 unless precision is 1, recall at least 0.999, the excess of a cluster at most MAX_EXCESS,
CPU time a document grows by less than 1.3 times from a quarter of the documents to all, and each
peer takes more of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from owt_pipeline.formats.shingles import hash_words, ngrams

REPOSITORY = Path(__file__).resolve().parent.parent
PEERS = REPOSITORY / "benchmarks" / "peers" / "near_duplicates.py"
THRESHOLD, NGRAM, FEW, GROWTH = 0.8, 5, 16, 1.3
OURS = "owt.near_duplicates"
NAMES = (OURS, "rensa", "datasketch", "text-dedup", "datatrove")
WORDS = 1140
"""Words of a long document: the mean of OpenWebText's."""

EDITS = (0.01, 0.02, 0.05, 0.10, 0.20, 0.40)
"""Shares of words that are replaced in planted copies."""

SEGMENT_WORDS = 40

CLUSTER_SIZES = (2_500, 20_000)

# What a missed copy costs is weight: its page is read once more in training. A page may weigh a
# tenth more than its versions that differ, in a cluster of any size.
MAX_EXCESS = 0.1

CLUSTER_WORDS = 250
CLUSTER_CHANGES = (0, 0, 1, 2, 3, 4, 6, 8)
"""Numbers of words that are replaced in versions of a page, each as often."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", help="the Python that has the peers")
    parser.add_argument(
        "--bases", type=int, default=300, metavar="N", help="documents to copy (default: 300)"
    )
    parser.add_argument(
        "--documents", type=int, default=20_000, metavar="N", help="for the rate (default: 20000)"
    )
    parser.add_argument(
        "--peer_documents", type=int, default=500, metavar="N", help="for the peers' (default: 500)"
    )
    arguments = parser.parse_args()
    testdata = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    if not testdata.is_dir():
        parser.error(f"no folder {testdata}: set OWT_TESTDATA to the folder of test data")
    python = {name: arguments.peer for name in NAMES if arguments.peer} | {OURS: sys.executable}
    with tempfile.TemporaryDirectory(prefix="dedupe-") as folder:
        file = Path(folder) / "documents.jsonl"
        failures = find_planted(python, file, planted(testdata, arguments.bases))
        failures += find_clusters(file)
        failures += measure_rates(
            python, file, testdata, arguments.documents, arguments.peer_documents
        )
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def find_planted(python: dict[str, str], file: Path, texts: Sequence[str]) -> list[str]:
    jsonl(file, texts)
    pairs = similar_pairs(texts)
    print(f"planted: {len(texts):,} documents of "
    f"{np.mean([len(text.split()) for text in texts]):,.0f} words, "
          f"{len(pairs):,} pairs of {THRESHOLD} or more")  # fmt: skip
    print(f"{'':>22} {'removed':>8} {'precision':>10} {'recall':>8} {'CPU s':>8}")
    failures = []
    for name in python:
        removed, seconds = run(python[name], name, file)
        precision, recall = scored(removed, pairs)
        print(
            f"{name:>22} {len(removed):>8,} {precision:>10.4f} {recall:>8.4f} {seconds:>8.1f}",
            flush=True,
        )
        if name == OURS and (precision < 1 or recall < 0.999):
            failures.append(f"precision {precision:.4f}, recall {recall:.4f}")
    return failures


def find_clusters(file: Path) -> list[str]:
    """Print what is found of clusters of versions of a page; return failed limits."""
    print(
        f"\n{'cluster of':>22} {'removed':>8} {'left':>8} {'recall':>8} {'excess':>8} {'CPU s':>8}"
    )
    failures = []
    for size in CLUSTER_SIZES:
        texts = list(versions(size))
        jsonl(file, texts)
        removed, seconds = run(sys.executable, OURS, file)
        kept = [text for number, text in enumerate(texts) if number not in removed]
        num_left = len({later for _, later in similar_pairs(kept)})
        recall = len(removed) / (len(removed) + num_left)
        excess = num_left / (len(kept) - num_left)
        print(
            f"{size:>22,} {len(removed):>8,} {num_left:>8,} {recall:>8.4f} {excess:>8.3f} "
            f"{seconds:>8.1f}",
            flush=True,
        )
        if excess > MAX_EXCESS:
            failures.append(f"an excess of {excess:.3f} in a cluster of {size:,}")
    return failures


def versions(count: int, seed: int = 7) -> Iterator[str]:
    """Versions of one page, equally long, so that the first of several is kept."""
    rng = random.Random(seed)
    page = [f"w{rng.randrange(60_000)}" for _ in range(CLUSTER_WORDS)]
    for _ in range(count):
        version = list(page)
        for at in rng.sample(range(CLUSTER_WORDS), rng.choice(CLUSTER_CHANGES)):
            version[at] = f"w{rng.randrange(60_000)}"
        yield " ".join(version)


def similar_pairs(texts: Sequence[str]) -> dict[tuple[int, int], float]:
    """The exact similarity of all pairs of texts that reach the threshold: (lesser, greater) ->
    similarity."""
    sets = ngrams(hash_words(pa.array(texts)), NGRAM).sets()
    values = np.concatenate(sets)
    _, column = np.unique(values, return_inverse=True)
    sizes = np.array([len(one) for one in sets])
    matrix = csr_array(
        (np.ones(len(values), np.int32), column, np.concatenate([[0], np.cumsum(sizes)]))
    )
    common = (matrix @ matrix.T).tocoo()
    upper = common.row < common.col
    a, b, shared = common.row[upper], common.col[upper], common.data[upper]
    similarity = shared / (sizes[a] + sizes[b] - shared)
    found = zip(zip(a.tolist(), b.tolist(), strict=True), similarity.tolist(), strict=True)
    return {pair: value for pair, value in found if value >= THRESHOLD}


def scored(removed: set[int], pairs: dict[tuple[int, int], float]) -> tuple[float, float]:
    """(precision, recall)."""
    proven = {a if a in removed else b for a, b in pairs if (a in removed) != (b in removed)}
    found = sum(a in removed or b in removed for a, b in pairs)
    return len(proven) / max(len(removed), 1), found / max(len(pairs), 1)


def measure_rates(
    python: dict[str, str], file: Path, testdata: Path, count: int, peers: int
) -> list[str]:
    """Print CPU time a document; returns failed limits."""
    texts = list(long_documents(testdata, count))

    def microseconds(name: str, size: int) -> float:
        seconds = []
        for some in (texts[:FEW], texts[:size]):
            jsonl(file, some)
            seconds.append(run(python[name], name, file)[1])
        return 1e6 * (seconds[1] - seconds[0]) / (size - FEW)

    quarter, all_of_them = microseconds(OURS, count // 4), microseconds(OURS, count)
    growth = all_of_them / max(quarter, 1e-9)
    print(f"\nCPU us a document: {OURS} {quarter:,.0f} of {count // 4:,}, {all_of_them:,.0f} of "
    f"{count:,} "
          f"({growth:.2f} times)", flush=True)  # fmt: skip
    failures = [f"growth is {growth:.2f}, over {GROWTH}"] if growth > GROWTH else []
    for name in python:
        if name != OURS:
            theirs = microseconds(name, peers)
            print(
                f"{name:>22} {theirs:,.0f} of {peers:,}: {theirs / all_of_them:.1f} times ours",
                flush=True,
            )
            failures += [f"{name} takes {theirs:,.0f} us"] if theirs <= all_of_them else []
    return failures


def run(python: str, name: str, file: Path) -> tuple[set[int], float]:
    """(numbers of the removed documents, CPU seconds of the complete process), on one core."""
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
        "PYTHONPATH": str(REPOSITORY) if name == OURS else "",
    }
    before = children_cpu()
    done = subprocess.run(
        [python, str(PEERS), name, str(file)],
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=partial(pin, 1),
    )
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr[-2000:]}")
    return {int(one) for one in json.loads(done.stdout)["removed"]}, children_cpu() - before


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def pin(cores: int) -> None:
    """Restrict this process and its children to that many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def posts(testdata: Path) -> list[str]:
    """Unchanged posts of Reddit."""
    with gzip.open(testdata / "text" / "reddit-posts.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def articles(testdata: Path) -> list[str]:
    """The main content of web pages."""
    with gzip.open(testdata / "web" / "wcxb-dev.truth.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["main_content"] for line in file]


def long_documents(testdata: Path, count: int, seed: int = 0) -> Iterator[str]:
    """Documents of WORDS words in segments of real posts; a tenth are copies, a tenth edited
    copies."""
    words = " ".join(posts(testdata)).split(" ")
    rng = random.Random(seed)
    recent: list[list[str]] = []
    for i in range(count):
        choice = rng.random()
        if recent and choice < 0.2:
            document = list(rng.choice(recent))
            if choice < 0.1:
                for at in rng.sample(
                    range(len(document)), round(rng.choice(EDITS) * len(document))
                ):
                    document[at] = f"edit{rng.randrange(1000)}"
        else:
            starts = [
                rng.randrange(len(words) - SEGMENT_WORDS) for _ in range(WORDS // SEGMENT_WORDS + 1)
            ]
            document = [word for start in starts for word in words[start : start + SEGMENT_WORDS]][
                :WORDS
            ]
        recent = [*recent[-500:], document] if i % 2 else recent
        yield " ".join(document)


def planted(testdata: Path, bases: int, seed: int = 0) -> list[str]:
    """Real documents with planted copies: verbatim, edited, truncated, joined with another, put
    into one template."""
    rng = random.Random(seed)
    texts = sorted(
        {
            text
            for text in [*posts(testdata), *articles(testdata)]
            if 150 <= len(text.split()) <= 2500
        }
    )
    rng.shuffle(texts)
    chosen = [text.split() for text in texts[:bases]]
    template = texts[bases].split()[:120]
    documents = [*chosen]
    for i, words in enumerate(chosen):
        documents += [
            words,
            *(edited(rng, words, share) for share in EDITS),
        ]  # verbatim, and edited
        documents += [
            words[: len(words) * 9 // 10],
            words[: len(words) * 7 // 10],
            words + chosen[(i + 1) % bases],
        ]
        documents.append(template[:60] + words[:80] + template[60:])
    rng.shuffle(documents)
    return [" ".join(words) for words in documents]


def edited(rng: random.Random, words: list[str], share: float) -> list[str]:
    words = list(words)
    for at in rng.sample(range(len(words)), round(share * len(words))):
        words[at] = f"edit{rng.randrange(100_000)}"
    return words


def jsonl(path: Path, texts: Iterable[str]) -> None:
    """Write the texts for a peer, the i-th with id i."""
    with path.open("w", encoding="utf-8") as file:
        for i, text in enumerate(texts):
            file.write(json.dumps({"id": str(i), "text": text}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
