"""Shards on disk: written whole with their counts, read in batches."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.runtime import progress
from owt_pipeline.runtime.batches import Outcome
from owt_pipeline.runtime.errors import LedgerError, UserError
from owt_pipeline.runtime.storage import HashingFile, Storage
from schemas import REJECTS, Counts, Manifest, Reason, ShardFile

ROW_GROUP_BYTES = 16 << 20
"""Rows are written once this many bytes wait: large enough to compress well, small against memory."""

_PLAIN_COLUMNS = {"text", "url", "posted_url", "url_id", "kept_url_id", "detail"}


@dataclass(frozen=True)
class ShardRecord:
    """What was written for one shard: its counts and files. It is stored last, so it marks a shard as whole."""

    shard: int
    counts: Counts
    files: list[ShardFile]
    stats: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> ShardRecord:
        record = json.loads(data)
        return cls(
            record["shard"],
            Counts(**record["counts"]),
            [ShardFile(**entry) for entry in record["files"]],
            record["stats"],
        )


def shard_name(shard: int) -> str:
    return f"part-{shard:05d}"


class ShardWriter:
    """Writes one shard: its rows, its rejects, further files, and last its record.

        with ShardWriter(folder, records, shard, {"": schema}) as writer:
            writer.add(batch.num_rows, outcome)

    Nothing appears under its final name before the block ends without an error. On leaving, every row
    that entered must have left or been rejected: raises LedgerError otherwise.
    """

    def __init__(
        self,
        folder: Storage,
        records: Storage,
        shard: int,
        outputs: Mapping[str, pa.Schema],
        *,
        file_format: str = "parquet",
        rejects: bool = True,
    ):
        """A writer of shard `shard` of the dataset at `folder`.

        Args:
          folder: the dataset's folder.
          records: where the shard's record goes.
          shard: its number.
          outputs: schema of each output; "" is the dataset itself, another name a folder below it.
          file_format: `parquet` or `arrow`.
          rejects: whether the shard has a ledger. An intermediate step has none: its rows need not balance. Nor is it
            synced to the disk, at some milliseconds a file: where a run goes on, `step_stands` tells what is whole.
        """
        self._folder, self._records, self.shard = folder, records, shard
        self._outputs, self._format, self._rejects = outputs, file_format, rejects
        self._entered = 0
        self._rejected: Counter[str] = Counter()
        self._stats: Counter[str] = Counter()
        self._sinks: dict[str, _Sink] = {}
        self._extra: list[tuple[str, str, HashingFile, list[int]]] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ShardWriter:
        name = shard_name(self.shard)
        for output, schema in self._outputs.items():
            prefix = f"{output}/" if output else ""
            self._sinks[output] = self._open_sink(f"{prefix}{name}.{self._format}", "data", schema, self._format)
        if self._rejects:
            self._sinks["rejects"] = self._open_sink(f"rejects/{name}.parquet", "rejects", REJECTS, "parquet")
        return self

    def _open_sink(self, path: str, kind: str, schema: pa.Schema, file_format: str) -> _Sink:
        file = self._stack.enter_context(self._folder.create_file(path, sync=self._rejects))
        return _Sink(path, kind, file, schema, file_format)

    def enter(self, rows: int) -> None:
        """Count rows that entered the stage."""
        self._entered += rows

    def write(self, rows: pa.RecordBatch, output: str = "") -> None:
        """Rows that leave the stage."""
        self._sinks[output].write(rows)

    def flush(self) -> None:
        """End the row group (of an Arrow file: the record batch), so that what was written can be read by itself."""
        for sink in self._sinks.values():
            sink.flush()

    def reject(self, rows: pa.RecordBatch) -> None:
        """Rows of schema `REJECTS`."""
        if rows.num_rows:
            for count in rows.column("reason").value_counts().to_pylist():
                self._rejected[str(Reason.of(count["values"]))] += count["counts"]
            self._sinks["rejects"].write(rows)

    def count(self, stats: Mapping[str, int]) -> None:
        """Add to the shard's further counts."""
        self._stats.update(stats)

    def add(self, entered: int, outcome: Outcome) -> None:
        """Write what became of `entered` rows, and report the progress."""
        self.enter(entered)
        kept = outcome.kept if isinstance(outcome.kept, Mapping) else {"": outcome.kept}
        for output, rows in kept.items():
            self.write(rows, output)
        self.reject(outcome.rejects)
        self.count(outcome.stats)
        progress.advance(entered)

    def open_file(self, suffix: str, kind: str) -> tuple[HashingFile, list[int]]:
        """A further file of the shard, such as its WARC file, and a one-item list to count its rows in."""
        path = shard_name(self.shard) + suffix
        file = self._stack.enter_context(self._folder.create_file(path, sync=self._rejects))
        rows = [0]
        self._extra.append((path, kind, file, rows))
        return file, rows

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, traceback)  # type: ignore[arg-type]
            return
        for sink in self._sinks.values():
            sink.close()
        left = sum(sink.rows for sink in self._sinks.values() if sink.kind == "data")
        counts = Counts(self._entered, left, dict(sorted(self._rejected.items())))
        if self._rejects and not counts.balanced:
            problem = LedgerError(f"{self._folder} shard {self.shard}: the ledger does not balance: {counts}")
            self._stack.__exit__(LedgerError, problem, None)
            raise problem
        self._stack.close()
        files = [
            ShardFile(s.path, s.kind, self.shard, s.rows, s.file.bytes, s.file.sha256) for s in self._sinks.values()
        ] + [ShardFile(path, k, self.shard, rows[0], f.bytes, f.sha256) for path, k, f, rows in self._extra]
        record = ShardRecord(self.shard, counts, files, dict(sorted(self._stats.items())))
        with self._records.create_file(shard_name(self.shard) + ".json", sync=self._rejects) as file:
            file.write(record.to_json())
        progress.shard_done()


def step_stands(folder: Storage, records: Storage, key: int) -> bool:
    """Whether an intermediate step's file for `key` is there and as its record says, down to its SHA-256."""
    name = f"{shard_name(key)}.json"
    if not records.exists(name):
        return False
    if not folder.is_local:
        return True  # objects are whole, or not there
    try:
        files = ShardRecord.from_json(records.read(name)).files
        return all(folder.size(file.path) == file.bytes and folder.sha256(file.path) == file.sha256 for file in files)
    except (ValueError, FileNotFoundError):
        return False


class _Sink:
    """One Parquet or Arrow file being written, in row groups of ROW_GROUP_BYTES."""

    def __init__(self, path: str, kind: str, file: HashingFile, schema: pa.Schema, file_format: str):
        self.path, self.kind, self.file, self.schema, self.rows = path, kind, file, schema, 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        if file_format == "parquet":
            dictionary = [name for name in schema.names if name not in _PLAIN_COLUMNS]
            self._writer = pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=dictionary)
        else:
            self._writer = pa.ipc.new_file(file, schema)

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if not rows.schema.equals(self.schema):
            raise LedgerError(f"{self.path}: rows of schema {rows.schema} for {self.schema}")
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self.schema).combine_chunks()
            self._writer.write_table(table)
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        self.flush()
        self._writer.close()


class DatasetReader:
    """Reads a dataset by its manifest, never by a glob. Picklable."""

    def __init__(self, folder: Storage, manifest: Manifest):
        self.folder, self.manifest = folder, manifest

    @property
    def num_shards(self) -> int:
        return self.manifest.num_shards

    def rows(self, kind: str = "data") -> int:
        return sum(file.rows for file in self.manifest.of_kind(kind))

    def rows_of_shards(self) -> list[int]:
        """Rows of each shard's data."""
        rows = [0] * self.num_shards
        for file in self.manifest.of_kind("data"):
            rows[file.shard] += file.rows
        return rows

    def files(self, kind: str, shard: int | None = None) -> list[ShardFile]:
        return self.manifest.of_kind(kind, shard)

    def batches(
        self,
        shard: int | None = None,
        *,
        kind: str = "data",
        columns: list[str] | None = None,
        rows: int = 256,
        only: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `rows` rows of one shard, or of all in order; `only` names a single file of them.

        Raises UserError on a damaged file.
        """
        for file in self.manifest.of_kind(kind, shard):
            if only not in (None, file.path):
                continue
            with reading(self.folder.path(file.path)), self.folder.open(file.path) as source:
                if file.path.endswith(".arrow"):
                    reader = pa.ipc.open_file(source)
                    for index in range(reader.num_record_batches):
                        batch = reader.get_batch(index)
                        batch = batch.select(columns) if columns else batch
                        for start in range(0, batch.num_rows, rows):
                            yield batch.slice(start, rows)
                else:
                    yield from pq.ParquetFile(source).iter_batches(batch_size=rows, columns=columns)

    def table(self, shard: int | None = None, *, kind: str = "data", columns: list[str] | None = None) -> pa.Table:
        """One shard, or all, as a table."""
        schema = self.schema(self.manifest.of_kind(kind, shard)[0])
        if columns:
            schema = pa.schema([schema.field(name) for name in columns])
        return pa.Table.from_batches(self.batches(shard, kind=kind, columns=columns, rows=1 << 16), schema)

    def schema(self, file: ShardFile) -> pa.Schema:
        """The Arrow schema of one file; raises UserError on a damaged one."""
        with reading(self.folder.path(file.path)), self.folder.open(file.path) as source:
            return pa.ipc.open_file(source).schema if file.path.endswith(".arrow") else pq.read_schema(source)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn an error of reading `path` into a UserError that says what to do."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path} cannot be read: {error}. It was changed after it was written: `owt verify` lists all "
            "such files; delete the dataset's manifest.json and run its stage again"
        ) from error
