"""Compares sending rows between steps as files and handles with sending Arrow batches through
GroupByKey.

    .venv/bin/python benchmarks/exchange.py [--rows 4000000 16000000] [--prism PATH]

`--parts` parts create rows of 12 bytes (a hash and a document's number, like dedupe's sketches) for
`--keys` keys; the rows of each key are then gathered and summed up. The exchange writes a part's
rows to one file and sends handles through the runner; the alternative sends the rows as Arrow
batches. Both run on the FnApiRunner, and on Prism if its binary is given (`go install
github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0`), each in a separate process. Prints wall-clock
seconds, CPU seconds and the peak memory of all its processes, minus those for a thousandth of the
rows.

Exits 1 if the sums differ, or the exchange takes more memory on any runner.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
import msgspec
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from owt_pipeline.ledger.commit import RecordPath, ShardWriter
from owt_pipeline.ledger.exchange import SLICES, Slice, gather, partition_of, read_index
from owt_pipeline.storage.folder import Storage

ROWS = pa.schema([("hash", pa.uint64()), ("document", pa.uint32())])
WAYS = ("exchange", "GroupByKey")


@dataclass(frozen=True)
class Measured:
    """Of one run: seconds, CPU seconds, bytes of memory, and the sum of the rows."""

    wall: float
    cpu: float
    memory: int
    total: int


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[4_000_000, 16_000_000], metavar="N")
    parser.add_argument("--parts", type=int, default=64, metavar="N", help="(default: 64)")
    parser.add_argument("--keys", type=int, default=22, metavar="N", help="(default: 22)")
    parser.add_argument("--prism", default="", metavar="PATH", help="Prism's binary")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(
            json.dumps(
                run(
                    *arguments.one,
                    arguments.rows[0],
                    arguments.parts,
                    arguments.keys,
                    arguments.prism,
                )
            )
        )
        return 0
    failures = []
    print(
        f"{'':>12} {'rows':>12} {'MB':>6} {'':>12} {'seconds':>9} {'CPU s':>9} "
        f"{'MB of memory':>13} {'of the rows':>12}"
    )
    for runner, rows in itertools.product(
        ["FnApiRunner", *(["Prism"] if arguments.prism else [])], arguments.rows
    ):
        found = {}
        for way in WAYS:
            least, most = (measure(arguments, way, runner, count) for count in (rows // 1000, rows))
            memory = most.memory - least.memory
            found[way] = memory, most.total
            print(f"{runner:>12} {rows:>12,} {rows * 12 / 1e6:>6.0f} {way:>12} "
            f"{most.wall - least.wall:>9.2f} "
                  f"{most.cpu - least.cpu:>9.2f} {memory / 1e6:>13,.0f} "
                  f"{memory / rows / 12:>11.1f}x")  # fmt: skip
        (ours, total), (theirs, other) = (found[way] for way in WAYS)
        failures += [f"{runner}, {rows:,} rows: the sums differ"] if total != other else []
        failures += (
            [f"{runner}, {rows:,} rows: the exchange takes more memory"] if ours > theirs else []
        )
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def measure(arguments: argparse.Namespace, way: str, runner: str, rows: int) -> Measured:
    """Run it in a separate process, measured with its children."""
    command = [
        sys.executable,
        __file__,
        "--one",
        way,
        runner,
        "--rows",
        str(rows),
        "--parts",
        str(arguments.parts),
    ]
    command += ["--keys", str(arguments.keys), "--prism", arguments.prism]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
        )
        cpu: dict[str, float] = {}
        memory = 0
        while process.poll() is None:
            memory = max(memory, look(process.pid, cpu))
            time.sleep(0.02)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}")
        output.seek(0)
        seconds, total = json.loads(output.read().splitlines()[-1])
    return Measured(seconds, sum(cpu.values()), memory, total)


def look(root: int, cpu: dict[str, float]) -> int:
    """Memory in bytes of a process and its descendants; notes their CPU seconds so far in `cpu`."""
    found: dict[int, tuple[int, float, int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                found[int(entry.name)] = (
                    int(fields[1]),
                    seconds,
                    int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
                )
    memory = 0
    for process, (_, seconds, size) in found.items():
        above = process
        while above not in (root, 0) and above in found:
            above = found[above][0]
        if above == root:
            cpu[str(process)] = seconds
            memory += size
    return memory


def run(way: str, runner: str, rows: int, parts: int, keys: int, prism: str) -> tuple[float, int]:
    """(seconds, sum of all rows) of one pipeline."""
    with tempfile.TemporaryDirectory(prefix="exchange-") as folder:
        work, total = Storage(folder), Path(folder) / "total"
        send, receive = (
            (Send(work, keys), Receive(work)) if way == "exchange" else (Emit(keys), Sum())
        )
        options = PipelineOptions(
            ["--runner=PrismRunner", f"--prism_location={prism}"] if runner == "Prism" else []
        )
        pipeline = beam.Pipeline(
            FnApiRunner() if runner == "FnApiRunner" else None, options=options
        )
        bounds = np.linspace(0, rows, parts + 1).astype(int).tolist()
        _ = (
            pipeline
            | beam.Create(list(itertools.pairwise(bounds)), reshuffle=False)
            | beam.Reshuffle()
            | beam.ParDo(send).with_output_types(tuple[int, bytes])
            | beam.GroupByKey()
            | beam.ParDo(receive)
            | beam.CombineGlobally(sum)
            | beam.Map(lambda found: total.write_text(str(found)))
        )
        started = time.perf_counter()
        pipeline.run().wait_until_finish()
        return time.perf_counter() - started, int(total.read_text())


def made(bounds: tuple[int, int], keys: int) -> tuple[np.ndarray, pa.RecordBatch]:
    """The rows of a part, and the key of each."""
    hashes = np.random.default_rng(bounds[0]).integers(0, 1 << 64, bounds[1] - bounds[0], np.uint64)
    documents = np.arange(*bounds, dtype=np.uint32)
    rows = pa.RecordBatch.from_arrays([pa.array(hashes), pa.array(documents)], schema=ROWS)
    return partition_of(hashes, keys).astype(np.int64), rows


def summed(rows: pa.Table) -> int:
    hashes, documents = (rows[name].to_numpy() for name in ROWS.names)
    return int((np.sort(hashes) * np.uint64(3)).sum(dtype=np.uint64) >> np.uint64(16)) + int(
        documents.sum()
    )


class Send(beam.DoFn):
    """A part's rows into a file -> (key, handle)."""

    def __init__(self, work: Storage, keys: int):
        self.work, self.keys = work, keys

    def process(self, bounds: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
        with ShardWriter(
            self.work, RecordPath(self.work / "rows/records", bounds[0]), {}, step="rows"
        ) as writer:
            writer.send(*made(bounds, self.keys))
        for file in writer.record.files:
            if file.kind == SLICES:
                for key, slice in read_index(self.work, file.path):
                    yield key, msgspec.msgpack.encode(slice)


class Receive(beam.DoFn):
    def __init__(self, work: Storage):
        self.work = work

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[int]:
        slices = sorted(msgspec.msgpack.decode(handle, type=Slice) for handle in element[1])
        yield summed(gather(self.work, slices, ROWS))


class Emit(beam.DoFn):
    """A part's rows -> (key, Arrow batch)."""

    def __init__(self, keys: int):
        self.keys = keys

    def process(self, bounds: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
        keys, rows = made(bounds, self.keys)
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows.take(pa.array(order))
        found, starts = np.unique(keys, return_index=True)
        for key, start, end in zip(found.tolist(), starts, [*starts[1:], len(keys)], strict=True):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, ROWS) as stream:
                stream.write_batch(rows.slice(start, end - start))
            yield key, sink.getvalue().to_pybytes()


class Sum(beam.DoFn):
    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[int]:
        tables = [pa.ipc.open_stream(batch).read_all() for batch in element[1]]
        yield summed(pa.concat_tables(tables).combine_chunks())


if __name__ == "__main__":
    sys.exit(main())
