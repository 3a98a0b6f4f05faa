"""The time and memory of `owt report` on runs of 10,000, 100,000 and 1,000,000 URLs.

    .venv/bin/python benchmarks/report.py [--rows 10000 100000 1000000] [--slack 1.25] [--memory 2000]

The runs are created by benchmarks/synthetic_run.py. The report runs in a separate process, whose peak memory is
measured. For comparison, DuckDB with one thread computes a part of the report from the same files: rejects by reason,
the most frequent domains, lengths, and the use of the vocabulary. Exits 1 if the CPU time per URL grows by more than
`--slack` from the first size of at least 100,000 to the last, or if a report takes more than `--memory` MiB: DuckDB may
use 768 MB before it writes to disk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from synthetic_run import write_run

from owt_pipeline.storage.folder import Storage

QUERIES = """
select reason, count(*) from '{run}/ledger/*/rejects/*.parquet' group by 1;
select split_part(url, '/', 3), count(*) as n from '{run}/corpus/part-*.parquet' group by 1 order by n desc limit 100;
select count(*), sum(length(text)), quantile_cont(length(text), [0.05, 0.5, 0.95]) from '{run}/corpus/part-*.parquet';
"""


@dataclass(frozen=True)
class Taken:
    """Wall-clock seconds, CPU seconds (user and system) and peak memory of a process."""

    seconds: float
    cpu_seconds: float
    megabytes: float


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N")
    parser.add_argument("--slack", type=float, default=1.25, help="growth allowed (default: 1.25)")
    parser.add_argument("--memory", type=float, default=2000, help="MiB allowed (default: 2000)", metavar="MIB")
    arguments = parser.parse_args()
    found: dict[int, Taken] = {}
    columns = ("     URLs", "GB", "report, s", "CPU, s", "MiB", "page, MB", "DuckDB, a part: CPU, s", "MiB")
    print("".join(f"{column:>{len(column) + 3}}" for column in columns))
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory(prefix="owt-report-") as folder:
            write_run(Storage(folder), rows)
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            found[rows] = take([sys.executable, "-m", "owt_pipeline", "report", "--workdir", folder])
            peer = take([sys.executable, __file__, "--peer", folder])
            page = (Path(folder) / "report" / "index.html").stat().st_size
        report = found[rows]
        shown = (
            f"{rows:,}",
            f"{size / 1e9:.2f}",
            f"{report.seconds:.1f}",
            f"{report.cpu_seconds:.1f}",
            f"{report.megabytes:.0f}",
            f"{page / 1e6:.2f}",
            f"{peer.cpu_seconds:.1f}",
            f"{peer.megabytes:.0f}",
        )
        print("".join(f"{cell:>{len(column) + 3}}" for cell, column in zip(shown, columns, strict=True)), flush=True)
    return verdict(found, arguments.slack, arguments.memory)


def verdict(found: dict[int, Taken], slack: float, memory: float) -> int:
    """1 if a size takes more memory than allowed, or the last one too much more CPU time per URL than the first."""
    most = max(taken.megabytes for taken in found.values())
    large = [rows for rows in found if rows >= 100_000]
    growth = 1.0
    if len(large) > 1:
        first, last = large[0], large[-1]
        growth = found[last].cpu_seconds / last / (found[first].cpu_seconds / first)
        print(f"from {first:,} to {last:,} URLs: {growth:.2f} of the CPU time a URL")
    return 0 if growth <= slack and most <= memory else 1


def take(command: list[str]) -> Taken:
    """Run a process to its end; exits if it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": os.getcwd()})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed")
    return Taken(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def peer(run: str) -> None:
    """DuckDB's part of the report, with one thread."""
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect(config={"threads": 1})
    for query in QUERIES.format(run=run).strip().split(";")[:-1]:
        connection.execute(query).fetchall()
    for path in sorted(Path(run).glob("tokens/train/*.arrow")):
        tokens = pa.ipc.open_file(pa.memory_map(str(path))).read_all()  # found by its name in the query
        connection.execute("select id, count(*) from (select unnest(tokens) as id from tokens) group by 1").fetchall()
        del tokens


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        sys.exit(peer(sys.argv[2]))
    sys.exit(main())
