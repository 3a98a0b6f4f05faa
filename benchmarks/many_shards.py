"""The cost of a dataset with very many shards: publishing, finding it finished, verifying every byte.

    python benchmarks/many_shards.py --shards 65535

Writes `urls/` of that many small shards into a temporary folder, and measures each step in a separate process.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline import progress
from owt_pipeline.commands.verify import verify
from owt_pipeline.ledger.commit import lost_files, publish
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import swap_root
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, REJECTS
from schemas.manifest import Counts, Generation, Root, ShardFile, ShardRecord

ROWS = 3


def write(run: Path, shards: int) -> None:
    """Write the files of `urls/`, without the manifest."""
    schema = DATASETS["urls"].schema
    rejects = run / "ledger/urls/rejects"
    rejects.mkdir(parents=True)
    (run / "urls").mkdir()
    sink = pa.BufferOutputStream()
    pq.write_table(REJECTS.empty_table(), sink)
    empty = sink.getvalue().to_pybytes()
    name = hashlib.sha256(empty).hexdigest()[:8]
    for shard in range(shards):
        ids = range(shard * ROWS, shard * ROWS + ROWS)
        rows = [
            {
                "url_id": i, "url": f"https://example.org/{i}", "posted_url": f"https://example.org/{i}",
                "host": "example.org", "subreddits": [], "submission_ids": [],
            }
            for i in ids
        ]  # fmt: skip
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema), sink)
        content = sink.getvalue().to_pybytes()
        digest = hashlib.sha256(content).hexdigest()
        (run / f"urls/part-{shard:05d}-{digest[:8]}.parquet").write_bytes(content)
        (rejects / f"part-{shard:05d}-{name}.parquet").write_bytes(empty)


def records(run: Path) -> list[ShardRecord]:
    found = {}
    for folder, kind, rows in (("urls", "data", ROWS), ("ledger/urls/rejects", "rejects", 0)):
        for path in sorted((run / folder).iterdir()):
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            shard = int(path.name.split("-")[1])
            file = ShardFile(f"{folder}/{path.name}", kind, shard, rows, len(content), digest)
            found.setdefault(shard, []).append(file)
    return [ShardRecord(shard, Counts(ROWS, ROWS), files) for shard, files in sorted(found.items())]


def step(name: str, run: Path) -> None:
    """One measured step, in this process: prints its seconds and the process' peak memory."""
    if name == "publish":
        of_shards = records(run)
        started = time.perf_counter()
        total = sum((record.counts for record in of_shards), Counts())
        about = {"dataset": "urls", "stage": "collect", "stage_version": 1, "num_shards": len(of_shards)}
        root = Root(generations=[Generation("collect", 0, len(of_shards))])
        _, version = swap_root(Storage(str(run)), root, None, "")
        manifest, _ = publish(Storage(str(run)), of_shards, version=version, counts=total, **about)
        size = (run / "ledger/manifest.json").stat().st_size
        note = f"manifest.json {size:,} bytes, list of files {manifest.files.bytes:,} bytes"
    elif name == "find finished":
        started = time.perf_counter()
        files = DatasetReader.open(Storage(str(run)), "urls").table_of_files.files
        assert not lost_files(Storage(str(run)), files)
        note = f"{len(files):,} files listed"
    else:
        progress.configure(quiet=False, live=False)
        started = time.perf_counter()
        (finding,) = verify(Storage(str(run)))
        assert not finding.problems, finding.problems[:3]
        note = "every byte, every id"
    seconds = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:14} {seconds:7.1f} s  {memory:6.0f} MiB at most  {note}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=65_535)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        step(arguments.step, arguments.run)
        return 0
    with tempfile.TemporaryDirectory(prefix="many-shards-") as folder:
        run = Path(folder) / "run"
        write(run, arguments.shards)
        print(f"{arguments.shards:,} shards, {2 * arguments.shards:,} files", flush=True)
        for name in ("publish", "find finished", "verify"):
            command = [sys.executable, __file__, "--step", name, "--run", str(run)]
            subprocess.run(command, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
