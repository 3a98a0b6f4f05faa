"""Committing: files are named by their content, a record finishes a shard, the root manifest
finishes a dataset.

Any number of attempts at a shard may run, one after the other or at once, and each may fail at any
point:

1. Files are spooled to the local disk, hashed, and published under a name that contains their hash.
   A late attempt that writes the same bytes rewrites the same file; one that writes other bytes
   writes another file.
2. The record of the shard's key is created only if there is none. If attempts differ, the first
   record decides whose files count.
3. The root manifest is replaced by compare-and-swap on the version that this run wrote last. Of
   several attempts at publishing, one succeeds, and a late one replaces nothing.
4. Nothing is deleted: `sweep` removes what is out of date once the run has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
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
"""Bytes of rows that are written at once: enough to compress well, little compared with the
memory."""

_ROW_GROUP_BYTES = {"clean": 1 << 19, "corpus": 1 << 20}
"""Smaller row groups for datasets of which single documents are read later, each of which costs
a row group, and for trainers whose ranks share the row groups of a file, such as nanochat's. The
files are 1.4% and 0.9% larger."""

_PLAIN_COLUMNS = {"text", "url", "posted_url", "url_id", "kept_url_id", "detail"}


def shard_name(shard: int) -> str:
    return f"part-{shard:05d}"


@dataclass(frozen=True)
class RecordPath:
    """Where the record of a shard, or of a part of an intermediate step, is, and what it says of
    its origin.

    Attributes:
      records: the folder of records.
      shard: the shard or part.
      key: hex SHA-256 of what the shard is made from; empty for a part.
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
        """The record's name: the shard, and the first digits of its key."""
        return f"{self.shard:05d}-{self.key[:16]}.json" if self.key else f"{self.shard:05d}.json"

    def find(self) -> tuple[ShardRecord | None, str | None]:
        """The record, and the version of its file; None for a missing or damaged record, whose
        part is then made again."""
        content, version = self.records.read_version(self.name) or (b"", None)
        with contextlib.suppress(ManifestError):
            record = ShardRecord.from_json(content, self.name)
            return (record if record.key == self.key else None), version
        return None, version


class ShardWriter:
    """One attempt at a shard: writes its rows, its rejects, further files, and finally its record.

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
        """A writer of one shard.

        Args:
          folder: the run's folder, or that of the stage's work for an intermediate step.
          place: the shard's record.
          outputs: schema of each output; "" is the dataset itself, another name a folder in it. A
            step has none.
          dataset: the dataset's name; "" for an intermediate step, which has no ledger, so its rows
            need not balance.
          step: an intermediate step's name, which is also that of its folder.
          file_format: `parquet` or `arrow`.
          replaces: version of a damaged record that this one replaces.
        """
        self._replaces = replaces
        self._folder, self._place, self.shard = folder, place, place.shard
        self._outputs, self._dataset, self._format = outputs, dataset, file_format
        self._step = step
        self._slices: SliceWriter | None = None
        self._entered = 0
        self._rejected: Counter[str] = Counter()
        self._stats: Counter[str] = Counter()
        self._sinks: dict[str, _Sink] = {}
        self._files: list[
            tuple[str, str, str, HashingFile]
        ] = []  # path without hash and suffix, suffix, kind, file
        self._there: list[ShardFile] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ShardWriter:
        place = f"{self._dataset} shard {self.shard}"
        for output, schema in self._outputs.items():
            file = self._open(f"{self._dataset}/{output}".rstrip("/"), f".{self._format}", "data")
            self._sinks[output] = _Sink(
                place, file, schema, self._format, _ROW_GROUP_BYTES.get(self._dataset)
            )
        if self._outputs:
            file = self._open(f"{ledger_of(self._dataset)}/rejects", ".parquet", "rejects")
            self._sinks["rejects"] = _Sink(place, file, REJECTS, "parquet")
        return self

    def _open(self, place: str, suffix: str, kind: str) -> HashingFile:
        file = self._stack.enter_context(self._folder.spool())
        self._files.append((f"{place}/{shard_name(self.shard)}", suffix, kind, file))
        return file

    def enter(self, rows: int) -> None:
        """Count rows that entered the stage."""
        self._entered += rows

    def write(self, rows: pa.RecordBatch, output: str = "") -> None:
        """Rows that leave the stage."""
        self._sinks[output].write(rows)

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
        """Write the outcome of `entered` rows, and report the progress."""
        self.enter(entered)
        kept = outcome.kept if isinstance(outcome.kept, Mapping) else {"": outcome.kept}
        for output, rows in kept.items():
            self.write(rows, output)
        self.reject(outcome.rejects)
        self.count(outcome.stats)
        progress.advance(entered)

    def open_file(self, suffix: str, kind: str) -> HashingFile:
        """A further file of the shard, in the ledger; the caller sets its `rows`."""
        return self._open(
            f"{ledger_of(self._dataset)}/{kind}" if self._dataset else self._step, suffix, kind
        )

    def refer(self, files: Iterable[ShardFile]) -> None:
        """Files that are there already, and that the shard needs."""
        self._there += files

    def send(self, key: int | np.ndarray, rows: pa.RecordBatch) -> None:
        """Send rows to part `key` of the next step; with an array (rows,), each row to its own
        part. They stay in a file of this part until the stage is finished."""
        if self._slices is None:
            self._slices = SliceWriter(self.open_file(".slices", SLICES))
        self._slices.send(key, rows)

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, traceback)  # type: ignore[arg-type]
            return
        with self._stack:
            for sink in self._sinks.values():
                sink.close()
            if self._slices is not None:
                self._slices.close()
            left = sum(self._sinks[name].file.rows for name in self._outputs)
            counts = Counts(self._entered, left, dict(sorted(self._rejected.items())))
            if self._dataset and not counts.balanced:
                raise LedgerError(
                    f"{self._dataset} shard {self.shard}: the ledger does not balance: {counts}"
                )
            files = [*(self._publish(*file) for file in self._files), *self._there]
            place = self._place
            stats = dict(sorted(self._stats.items()))
            self.record = ShardRecord(
                self.shard,
                counts,
                files,
                stats,
                place.key,
                place.made_from,
                dict(sorted(place.versions.items())),
            )
            self.is_first = (
                place.records.swap(place.name, self.record.to_json(), self._replaces) is not None
            )

    def _publish(self, stem: str, suffix: str, kind: str, file: HashingFile) -> ShardFile:
        path = f"{stem}-{file.sha256[:8]}{suffix}"
        file.publish(path)
        return ShardFile(path, kind, self.shard, file.rows, file.bytes, file.sha256)


class _Sink:
    """A Parquet or Arrow file being written, ROW_GROUP_BYTES at a time, as one row group or
    several smaller ones.

    Where a group ends depends on the rows alone, not on the batches in which they came.
    """

    def __init__(
        self,
        place: str,
        file: HashingFile,
        schema: pa.Schema,
        file_format: str,
        row_group_bytes: int | None = None,
    ):
        self.place, self.file, self.schema, self._row_group_bytes = (
            place,
            file,
            schema,
            row_group_bytes,
        )
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
            raise LedgerError(f"{self.place}: rows of schema {rows.schema} for {self.schema}")
        self.file.rows += rows.num_rows
        sizes = _bytes_of_rows(rows)
        while rows.num_rows:
            filled = np.cumsum(sizes) + self._waiting_bytes
            count = min(int(np.searchsorted(filled, ROW_GROUP_BYTES)) + 1, rows.num_rows)
            self._waiting.append(rows.slice(0, count))
            self._waiting_bytes = int(filled[count - 1])
            rows, sizes = rows.slice(count), sizes[count:]
            if self._waiting_bytes >= ROW_GROUP_BYTES:
                self.flush()

    def flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self.schema).combine_chunks()
            groups = self._waiting_bytes // self._row_group_bytes if self._row_group_bytes else 1
            self._writer.write_table(table, -(-len(table) // max(groups, 1)))
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        self.flush()
        self._writer.close()


def _bytes_of_rows(rows: pa.RecordBatch) -> np.ndarray:
    """About how many bytes each row has, int64 (rows,): texts and lists by their length, other
    values eight."""
    sizes = np.full(rows.num_rows, 8 * rows.num_columns)
    for column in rows.columns:
        if pa.types.is_list(column.type):
            sizes += pc.fill_null(pc.list_value_length(column), 0).to_numpy() * _item_bytes(
                column.type.value_type
            )
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return sizes


def _item_bytes(kind: pa.DataType) -> int:
    return kind.bit_width // 8 if pa.types.is_primitive(kind) else 8


def lost_files(workdir: Storage, files: Iterable[ShardFile]) -> dict[str, str]:
    """What is wrong with each of these files that is missing or has another size, by path: one
    listing per folder."""
    of_folder: dict[str, list[ShardFile]] = {}
    for file in files:
        of_folder.setdefault(file.path.rpartition("/")[0], []).append(file)
    found = {}
    for folder, some in of_folder.items():
        sizes = {entry.name: entry.bytes for entry in (workdir / folder).walk()}
        for file in some:
            size = sizes.get(file.path.rpartition("/")[2])
            if size is None:
                found[file.path] = "is missing"
            elif size != file.bytes:
                found[file.path] = f"has {size} bytes, not {file.bytes}"
    return found


def surviving_files(workdir: Storage, manifest: Manifest) -> DatasetReader:
    """A reader of a dataset that leaves out what is lost of it."""
    reader = DatasetReader(workdir, manifest)
    return DatasetReader(
        workdir, manifest, frozenset(lost_files(workdir, reader.table_of_files.files))
    )


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
    Returns the manifest, and the version of the root.

    Args:
      records: the record of each shard, in order.
      assets: files of the complete dataset.
      contents: contents of the assets whose names do not depend on them, by path, which are written
        here.
      run: id of the run that publishes.
      version: version of the root that this run wrote last.
      about: the other fields of the manifest.

    Another attempt of this run may have published the same. Raises RunSuperseded if another run has
    published.
    """
    table = FileTable(records, assets)
    dataset = str(about["dataset"])
    content = table.to_parquet()
    sha256 = hashlib.sha256(content).hexdigest()
    listed = FileList(
        f"{ledger_of(dataset)}/files-{sha256[:8]}.parquet", len(content), sha256, len(table.files)
    )
    manifest = Manifest(files=listed, digest=table.digest, totals=table.totals, **about)
    for name, asset in {listed.path: content, **(contents or {})}.items():
        workdir.write(name, asset)
    root, _ = read_root(workdir)
    try:
        datasets = {**root.datasets, dataset: manifest}
        return manifest, swap_root(
            workdir, msgspec.structs.replace(root, datasets=datasets), version, run
        )[1]
    except RunSuperseded:
        root, current = read_root(workdir)
        if root.run != run or root.datasets.get(dataset) != manifest or current is None:
            raise
        return manifest, current
