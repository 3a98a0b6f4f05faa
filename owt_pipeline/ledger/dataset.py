"""Read the datasets of a run by their lists of files, never by a glob; build record batches."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline.errors import UserError, command, raise_unless_damage
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.storage.folder import Storage
from schemas import REJECTS, Reason
from schemas.datasets import LEDGER
from schemas.manifest import FileTable, Manifest, ManifestError, ShardFile, ShardRecord


class LocatedRow(NamedTuple):
    """A row of a dataset, the file that it is in, and its number there, from 0."""

    file: ShardFile
    number: int
    row: dict[str, Any]


class DatasetReader:
    """Reads a dataset by its manifest. Picklable.

    The list of files is read when it is first needed. The files `lost` are left out. If rows are
    among them, the dataset is `gone`: only its counts and rejects are left.
    """

    def __init__(self, workdir: Storage, manifest: Manifest, lost: Collection[str] = ()):
        self.workdir = workdir
        self.manifest = manifest
        self.lost = lost

    @classmethod
    def open(cls, workdir: Storage, dataset: str) -> DatasetReader:
        """Open a dataset; raise NotFound if it is not finished."""
        return cls(workdir, require_manifest(workdir, dataset))

    @property
    def name(self) -> str:
        """Return the name of the dataset."""
        return self.manifest.dataset

    @property
    def table_of_files(self) -> FileTable:
        """Return the list of files; raise UserError if it is missing or damaged."""
        file_list = self.manifest.files
        return _file_table(self.workdir, file_list.path, file_list.sha256, self.remedy)

    @property
    def remedy(self) -> str:
        """Return the advice to rebuild the dataset, for a message."""
        if self.manifest.stage == "import":
            return f"run {command('owt', 'import', self.workdir)} with the same files to rebuild it"
        return f"run {command('owt', 'run', self.workdir)} to rebuild it"

    @property
    def num_shards(self) -> int:
        """Return the number of shards."""
        return self.manifest.num_shards

    def rows(self, kind: str = "data") -> int:
        """Return the number of rows of one kind of files."""
        return self.manifest.total(kind).rows

    def rows_of_shards(self) -> list[int]:
        """Return the number of rows of each shard's data."""
        rows = [0] * self.num_shards
        for file in self.files("data"):
            rows[file.shard] += file.rows
        return rows

    def files(self, kind: str, shard: int | None = None) -> list[ShardFile]:
        """Return the files of one kind (and shard), ordered by path."""
        if self.gone and kind in ("data", "places", "warc"):
            return []
        files = self.table_of_files.of_kind(kind, shard)
        return [file for file in files if file.path not in self.lost]

    @property
    def gone(self) -> bool:
        """Return whether rows are lost."""
        if not self.lost:
            return False
        return any(file.path in self.lost for file in self.table_of_files.of_kind("data"))

    def batches(
        self,
        shard: int | None = None,
        *,
        kind: str = "data",
        columns: list[str] | None = None,
        rows: int = 256,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most `rows` rows of one shard, or of all shards in order.

        Raises UserError for a damaged file.
        """
        for file in self.files(kind, shard):
            yield from self.batches_of(file, columns=columns, rows=rows)

    def batches_of(
        self, file: ShardFile, *, columns: list[str] | None = None, rows: int = 256
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most `rows` rows of one file, fewer if the rows are long.

        Raises UserError if the file is damaged.
        """
        with reading(self.workdir, file.path), self.workdir.open(file.path) as source:
            if file.path.endswith(".arrow"):
                yield from arrow_batches(source, columns, rows)
            else:
                parquet = pq.ParquetFile(source)
                size = _rows_within_bytes(parquet.metadata, rows)
                for batch in parquet.iter_batches(batch_size=size, columns=columns):
                    yield batch.select(columns) if columns else batch

    def ids(self, shard: int, kind: str = "data") -> np.ndarray:
        """Return `url_id` of each row of a shard, uint64 (n,)."""
        batches = self.batches(shard, kind=kind, columns=["url_id"], rows=1 << 16)
        ids = [batch["url_id"].to_numpy() for batch in batches]
        # Without the empty array, a shard without rows would have no type.
        return np.concatenate([np.zeros(0, np.uint64), *ids])

    def rows_by_id(
        self,
        shard: int,
        ids: Iterable[int],
        *,
        kind: str = "data",
        columns: Sequence[str] | None = None,
    ) -> Iterator[LocatedRow]:
        """Yield the rows of a shard that have one of the ids, in the order of the files.

        A row has `columns`, by default all. If a row group has no such row, only its ids are read.
        Raises UserError for a damaged file.
        """
        wanted_ids = pa.array(sorted(ids), pa.uint64())
        for file in self.files(kind, shard):
            if not file.rows:
                continue
            with reading(self.workdir, file.path), self.workdir.open(file.path) as source:
                row_groups = _row_groups_of(source, file.path)
                start = 0
                for index in range(len(row_groups)):
                    own_ids = row_groups.read(index, ["url_id"])["url_id"]
                    numbers = np.flatnonzero(pc.is_in(own_ids, wanted_ids))
                    if len(numbers):
                        rows = row_groups.read(index, columns).take(pa.array(numbers))
                        for number, row in zip(numbers.tolist(), rows.to_pylist(), strict=True):
                            yield LocatedRow(file, start + number, row)
                    start += len(own_ids)

    def table(
        self, shard: int | None = None, *, kind: str = "data", columns: list[str] | None = None
    ) -> pa.Table:
        """Return one shard, or all, as a table."""
        schema = self.schema(self.files(kind, shard)[0])
        if columns:
            schema = pa.schema([schema.field(name) for name in columns])
        batches = self.batches(shard, kind=kind, columns=columns, rows=1 << 16)
        return pa.Table.from_batches(batches, schema)

    def schema(self, file: ShardFile) -> pa.Schema:
        """Return the Arrow schema of one file; raise UserError if it is damaged."""
        with reading(self.workdir, file.path), self.workdir.open(file.path) as source:
            if file.path.endswith(".arrow"):
                return pa.ipc.open_file(source).schema
            return pq.read_schema(source)


class RecordsReader(DatasetReader):
    """Reads a dataset by the records of its shards, even if no list of files contains them."""

    def __init__(self, workdir: Storage, manifest: Manifest, records: Iterable[ShardRecord]):
        super().__init__(workdir, manifest)
        self._records = records
        self._table: FileTable | None = None

    @property
    def table_of_files(self) -> FileTable:
        """Return the files of the records."""
        if self._table is None:
            self._table = FileTable(list(self._records))
        return self._table


# A batch of long documents has about this size at most, because all its rows are in memory.
_MAX_BATCH_BYTES = 64 << 20


def _rows_within_bytes(metadata: pq.FileMetaData, rows: int) -> int:
    """Return the number of rows to read at a time: `rows`, or fewer if the rows are long."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        row_bytes = group.total_byte_size // max(group.num_rows, 1)
        rows = min(rows, max(_MAX_BATCH_BYTES // max(row_bytes, 1), 1))
    return rows


def arrow_batches(
    source: pa.NativeFile, columns: list[str] | None, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most `rows` rows of an Arrow IPC file; only `columns` are read."""
    reader = pa.ipc.open_file(source)
    if columns:
        fields = [reader.schema.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        reader = pa.ipc.open_file(source, options=options)
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        if columns:
            # The file has its columns in its own order.
            batch = batch.select(columns)
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class _ParquetRowGroups:
    """The row groups of a Parquet file."""

    def __init__(self, source: pa.NativeFile):
        self._file = pq.ParquetFile(source)

    def __len__(self) -> int:
        return int(self._file.num_row_groups)

    def read(self, index: int, columns: Sequence[str] | None) -> pa.Table:
        """Return a row group with `columns` in that order; None means all."""
        names = list(columns or self._file.schema_arrow.names)
        return self._file.read_row_group(index, columns=names).select(names)


class _ArrowRowGroups:
    """The record batches of an Arrow IPC file."""

    def __init__(self, source: pa.NativeFile):
        self._source = source
        self._file = pa.ipc.open_file(source)

    def __len__(self) -> int:
        return int(self._file.num_record_batches)

    def read(self, index: int, columns: Sequence[str] | None) -> pa.Table:
        """Return a record batch with `columns` in that order; None means all."""
        names = list(columns or self._file.schema.names)
        fields = [self._file.schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        batch = pa.ipc.open_file(self._source, options=options).get_batch(index)
        return pa.Table.from_batches([batch]).select(names)


def _row_groups_of(source: pa.NativeFile, path: str) -> _ParquetRowGroups | _ArrowRowGroups:
    """Return the row groups of an opened file, whose format the path's extension names."""
    return _ArrowRowGroups(source) if path.endswith(".arrow") else _ParquetRowGroups(source)


@contextlib.contextmanager
def reading(workdir: Storage, name: str) -> Iterator[None]:
    """Turn an error about a damaged or missing file of the run into a UserError with the commands
    that help."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise_unless_damage(error, workdir.path(name))
        problem = " ".join(str(error).split())
        raise UserError(
            f"{workdir.path(name)} was changed or removed after it was written, and cannot be read "
            f"({problem}): run {command('owt', 'verify', run_of(workdir), '--repair')}, then "
            f"{command('owt', 'run', run_of(workdir))}"
        ) from error


def run_of(folder: Storage) -> str:
    """Return the path or URI of the run that a folder of intermediate steps is in, or is."""
    return folder.uri.partition(f"/{LEDGER}/")[0]


@functools.lru_cache(maxsize=32)
def _file_table(workdir: Storage, path: str, sha256: str, remedy: str) -> FileTable:
    """Return a list of files. Cached, because a process reads the files of many shards."""
    try:
        data = workdir.read(path)
    except OSError as error:
        raise_unless_damage(error, workdir.path(path))
        raise UserError(
            f"the list of files {workdir.path(path)} cannot be read ({error}): {remedy}"
        ) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UserError(f"{workdir.path(path)} was changed after it was written: {remedy}")
    try:
        return FileTable.from_parquet(data, workdir.path(path))
    except ManifestError as error:
        raise UserError(f"{error}; {remedy}") from error


@dataclass(frozen=True)
class Outcome:
    """The outcome of the rows of one batch: each was kept or rejected.

    Attributes:
      kept: rows for the dataset; by output name if a stage writes several outputs (`train`, `val`).
      rejects: rows of schema `REJECTS`.
      stats: counts to be summed over the run.
    """

    kept: pa.RecordBatch | Mapping[str, pa.RecordBatch]
    rejects: pa.RecordBatch = field(default_factory=lambda: empty(REJECTS))
    stats: Mapping[str, int] = field(default_factory=dict)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)


def rejects_batch(rows: Iterable[tuple[int, str | None, Reason, str | None]]) -> pa.RecordBatch:
    """Return reject rows from tuples (url_id, url, reason, detail)."""
    return batch_of(rows, REJECTS)


def batch_of(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of `schema` from rows as tuples."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def replace_columns(
    batch: pa.RecordBatch, schema: pa.Schema, **columns: pa.Array | Sequence
) -> pa.RecordBatch:
    """Return a batch of `schema` with the given columns, and the others as they are in `batch`."""
    arrays = []
    for column in schema:
        values = columns.get(column.name)
        if values is None:
            arrays.append(batch.column(column.name))
        elif isinstance(values, pa.Array):
            arrays.append(values)
        else:
            arrays.append(pa.array(values, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
