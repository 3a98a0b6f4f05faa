"""Commit shards and datasets: a record finishes a shard, the root manifest finishes a dataset.

Any number of attempts at a shard may run, one after the other or at once, and each may fail at any
point:

1. Files are spooled to the local disk, hashed, and published under a name that contains their hash.
   A late attempt that writes the same bytes rewrites the same file. One that writes other bytes
   writes another file.
2. The record of the shard's key is created only if there is none. If attempts differ, the first
   record decides whose files count.
3. The root manifest is replaced by compare-and-swap on the version that this run has written last.
   One of several attempts at publishing succeeds, and a late one replaces nothing.
4. Nothing is deleted. `sweep` removes out-of-date files once the run has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline import progress
from owt_pipeline.errors import LedgerError, RunSuperseded
from owt_pipeline.ledger.dataset import DatasetReader, Outcome
from owt_pipeline.ledger.exchange import SLICES, SliceWriter
from owt_pipeline.ledger.root import read_root, swap_root
from owt_pipeline.storage.disk import HashingFile
from owt_pipeline.storage.folder import Storage
from schemas import REJECTS, Reason
from schemas.manifest import (
    Counts,
    FileList,
    FileTable,
    Manifest,
    ManifestError,
    ShardFile,
    ShardRecord,
    ledger_of,
)

ROW_GROUP_BYTES = 16 << 20
"""Bytes of rows that are written at once: enough to compress well, and little memory."""

# Smaller row groups of these datasets: reading one document costs a row group, and the ranks of
# some trainers, such as nanochat's, share the row groups of a file. The files are 1.4% and 0.9%
# larger.
_ROW_GROUP_BYTES = {"clean": 1 << 19, "corpus": 1 << 20}

# Columns whose values rarely repeat are written without a dictionary.
_PLAIN_COLUMNS = {"text", "url", "posted_url", "url_id", "kept_url_id", "detail"}


def shard_name(shard: int) -> str:
    """Return the stem of the names of a shard's files."""
    return f"part-{shard:05d}"


@dataclass(frozen=True)
class RecordPath:
    """The path of the record of a shard, or of a part of an intermediate step, and its origin.

    Attributes:
      records: the folder of records.
      shard: the shard or part.
      key: hex SHA-256 of everything that the shard is built from; empty for a part.
      made_from: see `ShardRecord`.
      versions: versions of the libraries that shape the bytes.
    """

    records: Storage
    shard: int
    key: str = ""
    made_from: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the record's name: the shard, and the first digits of its key."""
        if not self.key:
            return f"{self.shard:05d}.json"
        return f"{self.shard:05d}-{self.key[:16]}.json"

    def find(self) -> tuple[ShardRecord | None, str | None]:
        """Return the record, and the version of its file.

        The record is None if it is missing or damaged. Its part is then rebuilt.
        """
        content, version = self.records.read_version(self.name) or (b"", None)
        try:
            record = ShardRecord.from_json(content, self.name)
        except ManifestError:
            return None, version
        if record.key != self.key:
            return None, version
        return record, version


class ShardWriter:
    """Writes a shard in one attempt: its rows, its rejects, other files, and finally its record.

        with ShardWriter(workdir, RecordPath(records, shard, key), {"": schema}, dataset="clean") as
        writer:
            writer.add(batch.num_rows, outcome)

    No file appears under its final name before the block ends without an error. When it ends,
    raises LedgerError unless each row that entered has left or was rejected.
    """

    def __init__(
        self,
        folder: Storage,
        place: RecordPath,
        outputs: Mapping[str, pa.Schema],
        *,
        dataset: str = "",
        step: str = "",
        file_format: str = "parquet",
        replaces: str | None = None,
    ):
        """Prepare to write one shard.

        Args:
          folder: the run's folder. For an intermediate step, the folder of the stage's work.
          place: the shard's record.
          outputs: schema of each output; "" is the dataset itself, another name a folder in it. A
            step has none.
          dataset: the dataset's name; "" for an intermediate step, which has no ledger, so its rows
            need not balance.
          step: name of an intermediate step and of its folder.
          file_format: `parquet` or `arrow`.
          replaces: version of a damaged record that this one replaces.
        """
        self.shard = place.shard
        self._folder = folder
        self._place = place
        self._outputs = outputs
        self._dataset = dataset
        self._step = step
        self._format = file_format
        self._replaces = replaces
        self._slices: SliceWriter | None = None
        self._entered = 0
        self._rejected: Counter[str] = Counter()
        self._stats: Counter[str] = Counter()
        self._sinks: dict[str, _Sink] = {}
        self._files: list[_OpenFile] = []
        self._referred_files: list[ShardFile] = []
        self._kept: ShardRecord | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ShardWriter:
        name = f"{self._dataset} shard {self.shard}"
        row_group_bytes = _ROW_GROUP_BYTES.get(self._dataset)
        for output, schema in self._outputs.items():
            folder = f"{self._dataset}/{output}".rstrip("/")
            file = self._open(folder, f".{self._format}", "data")
            self._sinks[output] = _Sink(name, file, schema, self._format, row_group_bytes)
        if self._outputs:
            file = self._open(f"{ledger_of(self._dataset)}/rejects", ".parquet", "rejects")
            self._sinks["rejects"] = _Sink(name, file, REJECTS, "parquet")
        return self

    def _open(self, folder: str, suffix: str, kind: str) -> HashingFile:
        file = self._stack.enter_context(self._folder.spool())
        stem = f"{folder}/{shard_name(self.shard)}"
        self._files.append(_OpenFile(stem, suffix, kind, file))
        return file

    def enter(self, rows: int) -> None:
        """Count rows that entered the stage."""
        self._entered += rows

    def write(self, rows: pa.RecordBatch, output: str = "") -> None:
        """Write rows that leave the stage."""
        self._sinks[output].write(rows)

    def reject(self, rows: pa.RecordBatch) -> None:
        """Write rejects: rows of schema `REJECTS`."""
        if not rows.num_rows:
            return
        for count in rows.column("reason").value_counts().to_pylist():
            self._rejected[str(Reason.of(count["values"]))] += count["counts"]
        self._sinks["rejects"].write(rows)

    def count(self, stats: Mapping[str, int]) -> None:
        """Add to the shard's further counts."""
        self._stats.update(stats)

    def add(self, entered: int, outcome: Outcome) -> None:
        """Write the outcome of `entered` rows, and report the progress."""
        self.enter(entered)
        kept = outcome.kept if isinstance(outcome.kept, Mapping) else {"": outcome.kept}
        for output, rows in kept.items():
            self.write(rows, output)
        self.reject(outcome.rejects)
        self.count(outcome.stats)
        progress.advance(entered)

    def open_file(self, suffix: str, kind: str) -> HashingFile:
        """Open another file of the shard, in the ledger. The caller sets its `rows`."""
        folder = f"{ledger_of(self._dataset)}/{kind}" if self._dataset else self._step
        return self._open(folder, suffix, kind)

    def refer(self, files: Iterable[ShardFile]) -> None:
        """Add files that exist already, and that the shard needs, to its record."""
        self._referred_files += files

    def keep(self, record: ShardRecord) -> None:
        """Name the files and counts of an earlier record of the shard in place of written files.

        For a shard that turns out to be unchanged, although its key has changed.
        """
        self._kept = record

    def send(self, key: int | np.ndarray, rows: pa.RecordBatch) -> None:
        """Send rows to part `key` of the next step. An array (rows,) has the part of each row.

        The rows stay in a file of this part until the stage is finished.
        """
        if self._slices is None:
            self._slices = SliceWriter(self.open_file(".slices", SLICES))
        self._slices.send(key, rows)

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, traceback)  # type: ignore[arg-type]
            return
        with self._stack:
            # Also if no file is published: the writer of a file closes it when it is collected.
            for sink in self._sinks.values():
                sink.close()
            place = self._place
            record = self._kept or self._written_record()
            self.record = msgspec.structs.replace(record, key=place.key, made_from=place.made_from)
            version = place.records.swap(place.name, self.record.to_json(), self._replaces)
            self.is_first = version is not None

    def _written_record(self) -> ShardRecord:
        """Publish the files, and return their record; raise LedgerError if a row is missing."""
        if self._slices is not None:
            self._slices.close()
        left = sum(self._sinks[name].file.rows for name in self._outputs)
        counts = Counts(self._entered, left, dict(sorted(self._rejected.items())))
        if self._dataset and not counts.balanced:
            raise LedgerError(
                f"{self._dataset} shard {self.shard}: the ledger does not balance: {counts}"
            )
        files = [self._publish(file) for file in self._files] + self._referred_files
        return ShardRecord(
            self.shard,
            counts,
            files,
            stats=dict(sorted(self._stats.items())),
            versions=dict(sorted(self._place.versions.items())),
        )

    def _publish(self, open_file: _OpenFile) -> ShardFile:
        file = open_file.file
        path = f"{open_file.stem}-{file.sha256[:8]}{open_file.suffix}"
        file.publish(path)
        return ShardFile(path, open_file.kind, self.shard, file.rows, file.bytes, file.sha256)


@dataclass(frozen=True)
class _OpenFile:
    """A file that is being written.

    Attributes:
      stem: its path without the hash and the suffix.
      suffix: its suffix, with the dot.
      kind: its kind (`ShardFile.kind`).
      file: the file.
    """

    stem: str
    suffix: str
    kind: str
    file: HashingFile


class _Sink:
    """Writes a Parquet or Arrow file, ROW_GROUP_BYTES at a time.

    These bytes are one row group, or several smaller ones. The end of a group depends only on the
    rows, not on the batches in which they came.
    """

    def __init__(
        self,
        name: str,
        file: HashingFile,
        schema: pa.Schema,
        file_format: str,
        row_group_bytes: int | None = None,
    ):
        self.name = name
        self.file = file
        self.schema = schema
        self._row_group_bytes = row_group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        if file_format == "parquet":
            dictionary = [name for name in schema.names if name not in _PLAIN_COLUMNS]
            self._writer = pq.ParquetWriter(
                file, schema, compression="zstd", use_dictionary=dictionary
            )
        else:
            self._writer = pa.ipc.new_file(file, schema)

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if not rows.schema.equals(self.schema):
            raise LedgerError(f"{self.name}: rows of schema {rows.schema} for {self.schema}")
        self.file.rows += rows.num_rows
        sizes = _bytes_of_rows(rows)
        while rows.num_rows:
            filled = np.cumsum(sizes) + self._waiting_bytes
            count = min(int(np.searchsorted(filled, ROW_GROUP_BYTES)) + 1, rows.num_rows)
            self._waiting.append(rows.slice(0, count))
            self._waiting_bytes = int(filled[count - 1])
            rows = rows.slice(count)
            sizes = sizes[count:]
            if self._waiting_bytes >= ROW_GROUP_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write the waiting rows."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, self.schema).combine_chunks()
        num_groups = 1
        if self._row_group_bytes:
            num_groups = max(self._waiting_bytes // self._row_group_bytes, 1)
        rows_per_group = math.ceil(len(table) / num_groups)
        self._writer.write_table(table, rows_per_group)
        self._waiting = []
        self._waiting_bytes = 0

    def close(self) -> None:
        """Complete the file."""
        self.flush()
        self._writer.close()


def _bytes_of_rows(rows: pa.RecordBatch) -> np.ndarray:
    """Return the approximate number of bytes of each row, int64 (rows,).

    Texts and lists count by their length. Every value counts eight bytes.
    """
    sizes = np.full(rows.num_rows, 8 * rows.num_columns)
    for column in rows.columns:
        if pa.types.is_list(column.type):
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
            sizes += lengths * _item_bytes(column.type.value_type)
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return sizes


def _item_bytes(kind: pa.DataType) -> int:
    if not pa.types.is_primitive(kind):
        return 8
    return int(kind.bit_width // 8)


def lost_files(workdir: Storage, files: Iterable[ShardFile]) -> dict[str, str]:
    """Return the problem of each of these files that is missing or has another size, by path.

    Each folder is listed once, because in a bucket a request per file would cost more.
    """
    files_by_folder: dict[str, list[ShardFile]] = {}
    for file in files:
        folder, _, _ = file.path.rpartition("/")
        files_by_folder.setdefault(folder, []).append(file)
    problem_by_path = {}
    for folder, files_there in files_by_folder.items():
        size_by_name = {entry.name: entry.bytes for entry in (workdir / folder).walk()}
        for file in files_there:
            _, _, name = file.path.rpartition("/")
            size = size_by_name.get(name)
            if size is None:
                problem_by_path[file.path] = "is missing"
            elif size != file.bytes:
                problem_by_path[file.path] = f"has {size} bytes, not {file.bytes}"
    return problem_by_path


def surviving_files(workdir: Storage, manifest: Manifest) -> DatasetReader:
    """Return a reader of a dataset that leaves out its lost files."""
    files = DatasetReader(workdir, manifest).table_of_files.files
    return DatasetReader(workdir, manifest, frozenset(lost_files(workdir, files)))


def publish_dataset(
    workdir: Storage,
    records: Sequence[ShardRecord],
    assets: Sequence[ShardFile] = (),
    contents: Mapping[str, bytes] | None = None,
    *,
    run: str = "",
    version: str | None = None,
    **about: Any,
) -> tuple[Manifest, str]:
    """Write a dataset's list of files, then the root manifest, which finishes the dataset.

    Args:
      records: the record of each shard, in order.
      assets: files of the complete dataset.
      contents: contents of assets by path, which are written here.
      run: id of the run that publishes.
      version: version of the root that this run wrote last.
      about: the other fields of the manifest.

    Another attempt of this run may have published the same dataset. Returns the manifest and the
    version of the root. Raises RunSuperseded if another run has published.
    """
    table = FileTable(records, assets)
    dataset = str(about["dataset"])
    content = table.to_parquet()
    sha256 = hashlib.sha256(content).hexdigest()
    path = f"{ledger_of(dataset)}/files-{sha256[:8]}.parquet"
    file_list = FileList(path, len(content), sha256, len(table.files))
    manifest = Manifest(files=file_list, digest=table.digest, totals=table.totals, **about)
    workdir.write(path, content)
    for asset_path, asset in (contents or {}).items():
        workdir.write(asset_path, asset)
    root, _ = read_root(workdir)
    published = msgspec.structs.replace(root, datasets={**root.datasets, dataset: manifest})
    try:
        _, written = swap_root(workdir, published, version, run)
        return manifest, written
    except RunSuperseded:
        root, current = read_root(workdir)
        if root.run != run or root.datasets.get(dataset) != manifest or current is None:
            raise
        return manifest, current
