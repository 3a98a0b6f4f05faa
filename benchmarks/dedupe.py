"""Which near-duplicates are found, next to peers, and at what CPU time for a document?

    make bench-peers    # once: the peers' environment
    .venv/bin/python benchmarks/dedupe.py [--peer .venv-peers/bin/python] \
        [--bases 300] [--documents 20000] [--peer_documents 500]

`owt.near_duplicates` runs all steps of the stage. The peers are rensa, datasketch, text-dedup and
datatrove (`peers/near_duplicates.py`), each as its documentation shows it.

- Planted copies: `--bases` real posts and pages, each with ten copies: verbatim, with 1 to 40% of
  the words edited, truncated, joined with another, and in a template that all share. The similarity
  is the exact Jaccard similarity of the sets of word 5-grams. Precision is the share of removed
  documents with a similarity of 0.8 or more to a kept one. Recall is the share of pairs of 0.8 or
  more with a removed document.
- Clusters, ours only: versions of one page of CLUSTER_WORDS words, each with up to eight of them
  changed. A kept document that repeats an earlier kept one is in excess. Recall is the share of the
  documents to remove that are removed.
- Rates: documents of 1,140 words of real posts. A fifth of them are copies or edited copies of
  others. The figure is the CPU time of the complete process for a document, on one core, without
  the time for 16 documents.

Exits 1 unless our precision is 1 and our recall at least 0.999, the excess of a cluster is at most
MAX_EXCESS, our CPU time for a document grows by less than 1.3 times from a quarter of the documents
to all, and each peer takes more.
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
OURS = "owt.near_duplicates"
NAMES = (OURS, "rensa", "datasketch", "text-dedup", "datatrove")
THRESHOLD = 0.8
NGRAM = 5
MIN_RECALL = 0.999

# The time for this number of documents counts as the start of a process.
NUM_FEW = 16
# Of our CPU time for a document, from a quarter of the documents to all.
MAX_GROWTH = 1.3
# Words of a long document: the mean of OpenWebText's.
WORDS = 1140
SEGMENT_WORDS = 40
# The shares of words that are replaced in planted copies.
EDITS = (0.01, 0.02, 0.05, 0.10, 0.20, 0.40)

CLUSTER_SIZES = (2_500, 20_000)
# A missed copy costs weight: its page is read once more in training. A page may weigh a tenth more
# than its versions that differ, in a cluster of any size.
MAX_EXCESS = 0.1
CLUSTER_WORDS = 250
# The numbers of words that are replaced in versions of a page. Each is equally likely.
CLUSTER_CHANGES = (0, 0, 1, 2, 3, 4, 6, 8)

# The similarity of each pair of similar documents, by their numbers (lower, higher).
SimilarPairs = dict[tuple[int, int], float]


def main() -> int:
    """Measure planted copies, clusters and rates; return the exit status."""
    arguments = parse_arguments()
    python_by_name = {OURS: sys.executable}
    if arguments.peer:
        python_by_name |= {name: arguments.peer for name in NAMES if name != OURS}
    with tempfile.TemporaryDirectory(prefix="dedupe-") as folder:
        file = Path(folder) / "documents.jsonl"
        texts = plant_copies(arguments.testdata, arguments.bases)
        failures = measure_planted(python_by_name, file, texts)
        failures += measure_clusters(file)
        texts = list(make_long_documents(arguments.testdata, arguments.documents))
        failures += measure_rates(python_by_name, file, texts, arguments.peer_documents)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def parse_arguments() -> argparse.Namespace:
    """Return the arguments, with the folder of test data as `testdata`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--peer", metavar="PYTHON", help="the Python that has the peers")
    parser.add_argument(
        "--bases", type=int, default=300, metavar="N", help="documents to copy (default: 300)"
    )
    parser.add_argument(
        "--documents", type=int, default=20_000, metavar="N", help="for the rate (default: 20000)"
    )
    parser.add_argument(
        "--peer_documents",
        type=int,
        default=500,
        metavar="N",
        help="for the peers' rates (default: 500)",
    )
    arguments = parser.parse_args()
    testdata = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    if not testdata.is_dir():
        parser.error(f"no folder {testdata}: set OWT_TESTDATA to the folder of test data")
    arguments.testdata = testdata
    return arguments


def measure_planted(python_by_name: dict[str, str], file: Path, texts: Sequence[str]) -> list[str]:
    """Print which planted copies each finder removes; return failed limits."""
    write_documents(file, texts)
    pairs = find_similar_pairs(texts)
    mean_words = np.mean([len(text.split()) for text in texts])
    print(
        f"planted: {len(texts):,} documents of {mean_words:,.0f} words, "
        f"{len(pairs):,} pairs of {THRESHOLD} or more"
    )
    print(f"{'':>22} {'removed':>8} {'precision':>10} {'recall':>8} {'CPU s':>8}")
    failures = []
    for name, python in python_by_name.items():
        removed, seconds = run_finder(python, name, file)
        precision, recall = score(removed, pairs)
        print(
            f"{name:>22} {len(removed):>8,} {precision:>10.4f} {recall:>8.4f} {seconds:>8.1f}",
            flush=True,
        )
        if name == OURS and (precision < 1 or recall < MIN_RECALL):
            failures.append(f"precision {precision:.4f}, recall {recall:.4f}")
    return failures


def measure_clusters(file: Path) -> list[str]:
    """Print which versions of a page are removed from clusters; return failed limits."""
    print(
        f"\n{'cluster of':>22} {'removed':>8} {'left':>8} {'recall':>8} {'excess':>8} {'CPU s':>8}"
    )
    failures = []
    for size in CLUSTER_SIZES:
        texts = list(make_versions(size))
        write_documents(file, texts)
        removed, seconds = run_finder(sys.executable, OURS, file)
        kept = [text for number, text in enumerate(texts) if number not in removed]
        num_left = len({later for _, later in find_similar_pairs(kept)})
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


def make_versions(count: int, seed: int = 7) -> Iterator[str]:
    """Yield versions of one page. They are equally long, so that the first of several is kept."""
    rng = random.Random(seed)
    page = [f"w{rng.randrange(60_000)}" for _ in range(CLUSTER_WORDS)]
    for _ in range(count):
        version = list(page)
        num_changes = rng.choice(CLUSTER_CHANGES)
        for position in rng.sample(range(CLUSTER_WORDS), num_changes):
            version[position] = f"w{rng.randrange(60_000)}"
        yield " ".join(version)


def find_similar_pairs(texts: Sequence[str]) -> SimilarPairs:
    """Return the exact similarity of all pairs of texts that reach the threshold."""
    sets = ngrams(hash_words(pa.array(texts)), NGRAM).sets()
    sizes = np.array([len(shingles) for shingles in sets])
    values = np.concatenate(sets)
    _, columns = np.unique(values, return_inverse=True)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    # A row for each document, a column for each shingle: the product has the common shingles.
    matrix = csr_array((np.ones(len(values), np.int32), columns, offsets))
    common = (matrix @ matrix.T).tocoo()
    is_upper = common.row < common.col
    first = common.row[is_upper]
    second = common.col[is_upper]
    num_common = common.data[is_upper]
    similarities = num_common / (sizes[first] + sizes[second] - num_common)
    all_pairs = zip(first.tolist(), second.tolist(), strict=True)
    return {
        pair: similarity
        for pair, similarity in zip(all_pairs, similarities.tolist(), strict=True)
        if similarity >= THRESHOLD
    }


def score(removed: set[int], pairs: SimilarPairs) -> tuple[float, float]:
    """Return precision and recall."""
    proven = set()
    num_found = 0
    for first, second in pairs:
        num_found += first in removed or second in removed
        # One of the two is kept, so the removal of the other is right.
        if (first in removed) != (second in removed):
            proven.add(first if first in removed else second)
    return len(proven) / max(len(removed), 1), num_found / max(len(pairs), 1)


def measure_rates(
    python_by_name: dict[str, str], file: Path, texts: Sequence[str], num_for_peers: int
) -> list[str]:
    """Print the CPU time for a document of each finder; return failed limits."""
    count = len(texts)

    def measure_micros(name: str, num_documents: int) -> float:
        write_documents(file, texts[:NUM_FEW])
        _, start_seconds = run_finder(python_by_name[name], name, file)
        write_documents(file, texts[:num_documents])
        _, seconds = run_finder(python_by_name[name], name, file)
        return 1e6 * (seconds - start_seconds) / (num_documents - NUM_FEW)

    of_quarter = measure_micros(OURS, count // 4)
    of_all = measure_micros(OURS, count)
    growth = of_all / max(of_quarter, 1e-9)
    print(
        f"\nCPU us a document: {OURS} {of_quarter:,.0f} of {count // 4:,}, {of_all:,.0f} of "
        f"{count:,} ({growth:.2f} times)",
        flush=True,
    )
    failures = []
    if growth > MAX_GROWTH:
        failures.append(f"growth is {growth:.2f}, over {MAX_GROWTH}")
    for name in python_by_name:
        if name == OURS:
            continue
        of_peer = measure_micros(name, num_for_peers)
        print(
            f"{name:>22} {of_peer:,.0f} of {num_for_peers:,}: {of_peer / of_all:.1f} times ours",
            flush=True,
        )
        if of_peer <= of_all:
            failures.append(f"{name} takes {of_peer:,.0f} us")
    return failures


def run_finder(python: str, name: str, file: Path) -> tuple[set[int], float]:
    """Run a finder on one core; return the removed documents and the CPU seconds of its process."""
    environment = dict(os.environ)
    environment["OMP_NUM_THREADS"] = "1"
    environment["RAYON_NUM_THREADS"] = "1"
    environment["PYTHONPATH"] = str(REPOSITORY) if name == OURS else ""
    seconds_before = children_cpu_seconds()
    process = subprocess.run(
        [python, str(PEERS), name, str(file)],
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=partial(pin_to_cores, 1),
    )
    if process.returncode:
        raise SystemExit(f"{name} failed: {process.stderr[-2000:]}")
    seconds = children_cpu_seconds() - seconds_before
    return set(map(int, json.loads(process.stdout)["removed"])), seconds


def children_cpu_seconds() -> float:
    """Return the CPU seconds of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def pin_to_cores(num_cores: int) -> None:
    """Restrict this process and its children to a number of cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])


def read_posts(testdata: Path) -> list[str]:
    """Return unchanged posts of Reddit."""
    with gzip.open(testdata / "text" / "reddit-posts.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def read_articles(testdata: Path) -> list[str]:
    """Return the main content of web pages."""
    with gzip.open(testdata / "web" / "wcxb-dev.truth.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["main_content"] for line in file]


def make_long_documents(testdata: Path, count: int, seed: int = 0) -> Iterator[str]:
    """Yield documents of WORDS words, joined from segments of real posts.

    A tenth of them are copies of recent documents, and a tenth are edited copies.
    """
    words = " ".join(read_posts(testdata)).split(" ")
    rng = random.Random(seed)
    recent: list[list[str]] = []
    for number in range(count):
        choice = rng.random()
        if recent and choice < 0.2:
            document = list(rng.choice(recent))
            if choice < 0.1:
                num_edits = round(rng.choice(EDITS) * len(document))
                for position in rng.sample(range(len(document)), num_edits):
                    document[position] = f"edit{rng.randrange(1000)}"
        else:
            num_segments = WORDS // SEGMENT_WORDS + 1
            starts = [rng.randrange(len(words) - SEGMENT_WORDS) for _ in range(num_segments)]
            document = []
            for start in starts:
                document += words[start : start + SEGMENT_WORDS]
            document = document[:WORDS]
        if number % 2:
            recent = [*recent[-500:], document]
        yield " ".join(document)


def plant_copies(testdata: Path, num_bases: int, seed: int = 0) -> list[str]:
    """Return real documents with planted copies, in random order."""
    rng = random.Random(seed)
    sources = [*read_posts(testdata), *read_articles(testdata)]
    texts = sorted({text for text in sources if 150 <= len(text.split()) <= 2500})
    rng.shuffle(texts)
    bases = [text.split() for text in texts[:num_bases]]
    template = texts[num_bases].split()[:120]
    documents = list(bases)
    for number, words in enumerate(bases):
        documents.append(words)
        for share in EDITS:
            documents.append(edit(rng, words, share))
        documents.append(words[: len(words) * 9 // 10])
        documents.append(words[: len(words) * 7 // 10])
        documents.append(words + bases[(number + 1) % num_bases])
        documents.append(template[:60] + words[:80] + template[60:])
    rng.shuffle(documents)
    return [" ".join(words) for words in documents]


def edit(rng: random.Random, words: list[str], share: float) -> list[str]:
    """Return the words with a share of them replaced."""
    edited = list(words)
    for position in rng.sample(range(len(words)), round(share * len(words))):
        edited[position] = f"edit{rng.randrange(100_000)}"
    return edited


def write_documents(path: Path, texts: Iterable[str]) -> None:
    """Write texts as JSON lines. The id of a text is its number."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": str(number), "text": text}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
