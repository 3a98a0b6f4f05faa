"""The documents that dedupe looks at, numbered through, and the parts in which they are read.

They are the run's own, shard by shard and row by row, and after them those of earlier corpora that it is only compared
with. A document's number finds its text without a join, and costs four bytes wherever one number a document is held.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.engine.commit import record_name
from owt_pipeline.engine.dataset import DatasetReader, reading
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.stage import StageRun, read_record
from owt_pipeline.engine.storage import Storage
from schemas.manifest import ShardFile

SKETCHES = "sketches"
"""Kind of the files with sketches: of a part; and, where duplicates/ keeps them, of a shard's documents that stay."""

SKETCH = "sketch"
"""The step that writes the sketches of the parts."""

_NAME = "collection.msgpack"
_MOST_DOCUMENTS = 1 << 32
_PART_BYTES = 3 << 20  # at least, as compressed: a row group as we write them, or several smaller ones
_MOST_PARTS = 1024  # or so, of a large corpus: each sends rows to each range of hashes
_BATCH_ROWS = 1024
_REQUESTS_TOGETHER = 16  # each waits for a bucket


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows of a shard: all, or some of its row groups.

    Attributes:
      shard: its number in the collection.
      path: of its file, in its working directory.
      row: the first row.
      rows: how many there are.
    """

    shard: int
    path: str
    row: int
    rows: int


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Documents of one corpus with consecutive numbers, read by one worker.

    Attributes:
      corpus: 0 for the run's own; or the number of an earlier one, from 1.
      first: the number of the first document.
      pieces: where they are.
    """

    corpus: int
    first: int
    pieces: list[Piece]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


class Collection(msgspec.Struct, frozen=True):
    """The run's own documents and those of earlier corpora, which stay whatever comes, and before any of the run's own.

    Attributes:
      workdirs: the working directory of each corpus.
      first_of_shard: the number of each shard's first document, and how many documents there are.
      own_shards: how many of the shards are the run's own.
      parts: all documents in order.
      kept: the file with the sketches of each shard of the earlier corpora.
    """

    workdirs: list[str]
    first_of_shard: list[int]
    own_shards: int
    parts: list[Part]
    kept: list[str]

    @property
    def documents(self) -> int:
        return self.first_of_shard[-1]

    @property
    def own_documents(self) -> int:
        """Documents of this number and greater ones are those of earlier corpora."""
        return self.first_of_shard[self.own_shards]

    def shard_of(self, documents: np.ndarray) -> np.ndarray:
        """The shard of each document."""
        return np.searchsorted(np.array(self.first_of_shard), documents, side="right") - 1

    def parts_of_shard(self, shard: int) -> list[int]:
        """The numbers of the parts that have documents of a shard."""
        first = [part.first for part in self.parts]
        start, end = self.first_of_shard[shard : shard + 2]
        found = range(int(np.searchsorted(first, start, side="right")) - 1, int(np.searchsorted(first, end)))
        return [number for number in found if self.parts[number].rows] if end > start else []

    def read(
        self, number: int, columns: Sequence[str], documents: np.ndarray | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of part `number` in batches: all, or those of some `documents` (sorted, all of this part)."""
        part = self.parts[number]
        folder = Storage(self.workdirs[part.corpus])
        for piece in part.pieces:
            rows = None
            if documents is not None:
                first = self.first_of_shard[piece.shard] + piece.row
                rows = documents[slice(*np.searchsorted(documents, [first, first + piece.rows]))]
                rows = rows.astype(np.int64) - self.first_of_shard[piece.shard]
            if piece.rows and (rows is None or len(rows)):
                with reading(folder.path(piece.path)), folder.open(piece.path) as file:
                    yield from _rows(pq.ParquetFile(file), piece, list(columns), rows)

    def sketches(self, run: StageRun, number: int, columns: Sequence[str] = ()) -> pa.Table:
        """The sketches of part `number` with the numbers of their documents: all columns, or some.

        Of an earlier corpus, those that stay have any; and they stay before all others.
        """
        part = self.parts[number]
        if not part.corpus:
            record = read_record(run.records(SKETCH), record_name(number))
            (file,) = (file for file in record.files if file.kind == SKETCHES)
            table = _read_arrow(run.work, file.path, columns)
            return table.append_column("document", pa.array(np.arange(part.first, part.first + len(table), dtype="u4")))
        tables = []
        for piece in part.pieces:
            name = self.kept[piece.shard - self.own_shards]
            table = _read_arrow(Storage(self.workdirs[part.corpus]), name, ["row", *columns] if columns else ())
            documents = table["row"].to_numpy().astype(np.uint32) + np.uint32(self.first_of_shard[piece.shard])
            tables.append(table.drop_columns("row").append_column("document", pa.array(documents)))
        found = pa.concat_tables(tables).combine_chunks()
        if "precedence" in found.column_names:
            before_all = pa.array(np.full(len(found), np.iinfo(np.int64).min))
            found = found.set_column(found.column_names.index("precedence"), "precedence", before_all)
        return found


class Earlier(msgspec.Struct, frozen=True):
    """A corpus of another run, to be compared with: its texts, and the files of its shards' sketches."""

    clean: DatasetReader
    kept: list[str]


def open_earlier(workdir: str, made_with: dict[str, object]) -> Earlier:
    """The corpus of another run.

    Args:
      workdir: its working directory.
      made_with: what its sketches must have been made with: options, properties and version of the stage.

    Raises UserError where it has no decisions or kept no sketches, or made them otherwise.
    """
    folder = Storage(workdir)
    decisions, clean = DatasetReader.open(folder, "duplicates"), DatasetReader.open(folder, "clean")
    manifest = decisions.manifest
    kept = [file.path for file in decisions.files(SKETCHES)]
    if not kept:
        raise UserError(f"{workdir} keeps no sketches: run `owt dedupe --workdir {workdir} --keep_sketches` first")
    if manifest.inputs["clean"] != clean.manifest.digest:
        raise UserError(f"{workdir}/duplicates was not made from {workdir}/clean: run `owt dedupe` there again")
    theirs = {**manifest.options, **manifest.properties, "stage_version": manifest.stage_version}
    for name, value in made_with.items():
        if theirs.get(name) != value:
            raise UserError(
                f"the sketches of {workdir} were made with {name}={theirs.get(name)!r}, not {value!r}: "
                "give that here, or run dedupe there again"
            )
    return Earlier(clean, kept)


def write_collection(run: StageRun, earlier: Sequence[Earlier]) -> Collection:
    """Number the documents and cut them into parts, which follow from the files alone; for all processes of the stage.

    Raises UserError for more documents than have numbers.
    """
    corpora = [run.inputs["clean"], *(corpus.clean for corpus in earlier)]
    rows = [count for corpus in corpora for count in corpus.rows_of_shards()]
    first_of_shard = [0, *np.cumsum(rows, dtype=np.int64).tolist()]
    if first_of_shard[-1] >= _MOST_DOCUMENTS:
        raise UserError(
            f"dedupe: {first_of_shard[-1]:,} documents, more than {_MOST_DOCUMENTS:,}: split the run by year"
        )
    collection = Collection(
        [str(corpus.workdir.uri) for corpus in corpora],
        first_of_shard,
        corpora[0].num_shards,
        _cut(corpora, first_of_shard),
        [path for corpus in earlier for path in corpus.kept],
    )
    run.work.write(_NAME, msgspec.msgpack.encode(collection))
    return collection


def read_collection(run: StageRun) -> Collection:
    """What `write_collection` wrote."""
    return _read_collection(run.work, run.started)


@functools.lru_cache(maxsize=1)  # a process works on part after part
def _read_collection(work: Storage, started: float) -> Collection:
    return msgspec.msgpack.decode(work.read(_NAME), type=Collection)


def _cut(corpora: Sequence[DatasetReader], first_of_shard: Sequence[int]) -> list[Part]:
    """Parts of about the same size: some row groups of a large file, or several small files."""
    files = [corpus.files("data") for corpus in corpora]
    least = max(_PART_BYTES, sum(file.bytes for some in files for file in some) // _MOST_PARTS)
    large = [file for file in files[0] if file.bytes >= 2 * least]
    with ThreadPoolExecutor(_REQUESTS_TOGETHER) as threads:
        found = threads.map(lambda file: _row_groups(corpora[0].workdir, file), large)
        groups = {file.path: rows for file, rows in zip(large, found, strict=True)}
    parts: list[Part] = []
    before = 0
    for corpus, some in enumerate(files):
        pieces: list[Piece] = []
        size = 0.0
        for file in some:
            row = 0
            for rows in (groups.get(file.path) if not corpus else None) or [file.rows]:
                shard = before + file.shard
                if pieces and pieces[-1].shard == shard:
                    pieces[-1] = msgspec.structs.replace(pieces[-1], rows=pieces[-1].rows + rows)
                else:
                    pieces.append(Piece(shard, file.path, row, rows))
                row, size = row + rows, size + file.bytes * rows / max(file.rows, 1)
                if size >= least:
                    parts.append(Part(corpus, first_of_shard[pieces[0].shard] + pieces[0].row, pieces))
                    pieces, size = [], 0.0
        if pieces:
            parts.append(Part(corpus, first_of_shard[pieces[0].shard] + pieces[0].row, pieces))
        before += corpora[corpus].num_shards
    return parts


def _row_groups(folder: Storage, file: ShardFile) -> list[int]:
    """Rows of each row group of a file."""
    with reading(folder.path(file.path)), folder.open(file.path) as opened:
        metadata = pq.read_metadata(opened)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _rows(
    file: pq.ParquetFile, piece: Piece, columns: list[str], wanted: np.ndarray | None
) -> Iterator[pa.RecordBatch]:
    """A piece's rows, all or those `wanted`, by their numbers in the file; other row groups are not read."""
    first = 0
    for group in range(file.num_row_groups):
        last = first + file.metadata.row_group(group).num_rows
        of_piece = piece.row <= first < piece.row + piece.rows
        if of_piece and (wanted is None or np.searchsorted(wanted, first) < np.searchsorted(wanted, last)):
            # By this thread: where all cores are busy, Arrow's own threads would only make it wait.
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
                if wanted is not None:
                    mine = wanted[slice(*np.searchsorted(wanted, [first, first + batch.num_rows]))] - first
                    first += batch.num_rows
                    batch = batch if len(mine) == batch.num_rows else batch.take(pa.array(mine))
                if batch.num_rows:
                    yield batch
        first = last


def _read_arrow(folder: Storage, name: str, columns: Iterable[str]) -> pa.Table:
    """The rows of an Arrow IPC file, mapped into memory where it is on this machine."""
    with reading(folder.path(name)):
        source = pa.memory_map(folder.path(name)) if folder.is_local else folder.open(name)
        with source, pa.ipc.open_file(source) as reader:
            table = reader.read_all()
    return table.select(list(columns)) if columns else table
