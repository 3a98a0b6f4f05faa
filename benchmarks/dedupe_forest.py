"""The time of dedupe's single-worker step, the spanning forest, as a share of the stage on many workers.

    .venv/bin/python benchmarks/dedupe_forest.py [--documents 10000000] [--workers 50] [--sample 10000]

The steps that read text are measured on `--sample` documents of 1,140 words, a fifth of which are copies or edited
copies. The other steps of the stage run part by part on generated hashes of `--documents` documents: a tenth are exact
copies, a tenth near-copies that share bands with their originals as often as documents that are 85% similar. The parts
of each step are then assigned to the workers, the longest first, and each step waits for the one before. The time of
the runner and of a bucket is ignored, which only increases the share.

Exits 1 if the single worker takes more than 2% of the stage.
"""

from __future__ import annotations

import argparse
import heapq
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from dedupe_documents import long_documents, write_clean

from owt_pipeline import progress
from owt_pipeline.engine import parts
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import SLICES, Slice, read_index
from owt_pipeline.stages.dedupe import chain, collection
from owt_pipeline.stages.dedupe.collection import Collection, Part
from owt_pipeline.stages.dedupe.past import Corpus, Ranges
from owt_pipeline.stages.dedupe.shingles import mix
from owt_pipeline.stages.dedupe.stage import STAGE, Options
from owt_pipeline.storage.folder import Storage

MOST, SIMILARITY = 0.02, 0.85
PARTS = 1024
BYTES = 2600  # of a document of 1,140 words in a compressed file


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--documents", type=int, default=10_000_000, metavar="N", help="(default: 10000000)")
    parser.add_argument("--workers", type=int, default=50, metavar="N", help="(default: 50)")
    parser.add_argument("--sample", type=int, default=10_000, metavar="N", help="real documents (default: 10000)")
    arguments = parser.parse_args()
    testdata = Path(os.environ.get("OWT_TESTDATA", Path(__file__).resolve().parent.parent.parent / "shared" / "data"))
    if not testdata.is_dir():
        parser.error(f"no folder {testdata}: set OWT_TESTDATA to the folder of test data")
    progress.configure(quiet=True, live=False)
    with tempfile.TemporaryDirectory(prefix="dedupe-") as folder:
        measured = measure_texts(Path(folder) / "sample", testdata, arguments.sample)
    with tempfile.TemporaryDirectory(prefix="dedupe-") as folder:
        between = measure_forest(Path(folder), arguments.documents)
    seconds: dict[str, list[float]] = {}
    for step in (step.name for step in STAGE.steps):
        per_document = measured[step] / arguments.sample
        seconds[step] = between.get(step) or [per_document * arguments.documents / PARTS] * PARTS
    print(f"{arguments.documents:,} documents, {arguments.workers} workers, CPU seconds of one core each")
    print(f"{'':>12} {'parts':>6} {'CPU s':>9} {'longest':>9} {'us a document':>14} {'takes, s':>9} {'share':>7}")
    takes = {step: makespan(some, arguments.workers) for step, some in seconds.items()}
    total = sum(takes.values())
    for step, some in seconds.items():
        each, share = sum(some) / arguments.documents * 1e6, takes[step] / total
        print(f"{step:>12} {len(some):>6,} {sum(some):>9.2f} {max(some):>9.2f} {each:>14.2f} {takes[step]:>9.2f} "
              f"{share:>7.2%}")  # fmt: skip
    share = takes["join"] / total
    print(f"{'':>12} {'':>6} {'':>9} {'':>9} {'':>14} {total:>9.2f}; the one worker {share:.2%}")
    if share > MOST:
        print(f"FAILED: the one worker takes {share:.2%}, over {MOST:.0%}")
    return int(share > MOST)


def makespan(seconds: Sequence[float], workers: int) -> float:
    """The time until the last worker is done, if each free worker takes the longest part left."""
    free = [0.0] * workers
    for one in sorted(seconds, reverse=True):
        heapq.heappush(free, heapq.heappop(free) + one)
    return max(free)


def measure_texts(workdir: Path, testdata: Path, count: int) -> Mapping[str, float]:
    """CPU seconds of each step over real documents."""
    write_clean(workdir, long_documents(testdata, count), count)
    taken: dict[str, float] = defaultdict(float)
    make = parts._make

    def timed(run: Any, step: Any, key: int, slices: Sequence[Slice], replaces: str | None) -> Any:
        started = time.process_time()
        record = make(run, step, key, slices, replaces)
        taken[step.name] += time.process_time() - started
        return record

    parts._make = timed
    run_stage(STAGE, Options(), Runtime(Storage(str(workdir))))
    parts._make = make
    return taken


def measure_forest(folder: Path, documents: int) -> Mapping[str, list[float]]:
    """CPU seconds of each part of the steps between sketches and shingles, on generated hashes."""
    work = Storage(str(folder))
    bounds = np.linspace(0, documents, PARTS + 1).astype(int).tolist()
    options = Options()
    ranges = Ranges.of(documents, chain.banding_of(options).bands)
    own = Corpus(work.uri, ranges)
    numbered = Collection([own], [0, documents], [Part(0, first, []) for first in bounds[:-1]])
    work.write(collection._NAME, msgspec.msgpack.encode(numbered))
    total = SimpleNamespace(total=lambda kind: SimpleNamespace(bytes=BYTES * documents))
    run: Any = SimpleNamespace(
        options=options, work=work, started=0.0, inputs={"clean": SimpleNamespace(manifest=total)}
    )
    sent: dict[int, list[Slice]] = defaultdict(list)
    for part in range(PARTS):
        with ShardWriter(work, work / "sketch" / "records", part, {}, step="sketch") as writer:
            send_made_up(bounds[part], bounds[part + 1], options, ranges, writer)
        for key, slice in sent_by(work, writer):
            sent[key].append(slice)
    seconds: dict[str, list[float]] = {}
    for step in STAGE.steps[1:4]:
        given, sent, seconds[step.name] = sent, defaultdict(list), []
        for key in sorted(given):
            started = time.process_time()
            with ShardWriter(work, work / step.name / "records", key, {}, step=step.name) as writer:
                step.work(run, key, sorted(given[key]), writer)
            found = sent_by(work, writer)
            seconds[step.name].append(time.process_time() - started)
            for to, slice in found:
                sent[to].append(slice)
        print(step.name, writer.record.stats, file=sys.stderr)
        if step.name == "buckets":
            shutil.rmtree(folder / "sketch")
    return seconds


def sent_by(work: Storage, writer: ShardWriter) -> list[tuple[int, Slice]]:
    return [one for file in writer.record.files if file.kind == SLICES for one in read_index(work, file.path)]


def send_made_up(first: int, last: int, options: Options, ranges: Ranges, writer: ShardWriter) -> None:
    """Send generated rows in place of a part's sketches."""
    bands = chain.banding_of(options)
    rng = np.random.default_rng(first)
    own = np.arange(first, last, dtype=np.uint64)
    kind = rng.random(len(own))
    other = mix(own) % np.maximum(own, 1)  # an earlier document, anywhere
    text = np.where(kind < 0.1, other, own)
    near = np.where((kind >= 0.1) & (kind < 0.2), other, text)
    columns = {
        "text_high": mix(text * 2),
        "text_low": mix(text * 2 + 1),
        "n_shingles": np.full(len(own), 1136, np.uint32),
    }
    for band in range(bands.bands):
        shared = np.where(rng.random(len(own)) < SIMILARITY**bands.rows, near, text)
        columns[f"band_{band}"] = mix(shared * np.uint64(64) + np.uint64(band) + np.uint64(1 << 63))
    sketches = pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})
    chain.send_hashes(sketches, pa.array(own.astype(np.uint32)), np.arange(len(own)), ranges, writer)


if __name__ == "__main__":
    sys.exit(main())
