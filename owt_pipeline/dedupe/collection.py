"""The documents that dedupe looks at, numbered through, and the parts in which they are read.

They are the run's own, shard by shard and row by row, and after them those of earlier corpora that it is only compared
with. A document's number finds its text without a join, and costs four bytes wherever one number a document is held.
Of an earlier corpus, only the documents that one of the run may repeat are ever looked at: what it keeps (`past.py`)
says which.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.dedupe.past import NOBODY, SKETCHES, Kept, Ranges
from owt_pipeline.engine.commit import record_name
from owt_pipeline.engine.dataset import DatasetReader, reading
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.stage import StageRun, read_record
from owt_pipeline.engine.storage import Storage
from schemas.manifest import Manifest, ShardFile

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


class Corpus(msgspec.Struct, frozen=True):
    """The run's own corpus, or an earlier one.

    Attributes:
      workdir: its working directory.
      first_shard: the number of its first shard among those of all corpora.
      ranges: of the hashes of its documents.
      kept: what it keeps of its sketches; None of the run's own.
    """

    workdir: str
    first_shard: int
    ranges: Ranges
    kept: Kept | None = None


class Collection(msgspec.Struct, frozen=True):
    """The run's own documents and those of earlier corpora, which stay whatever comes, and before any of the run's own.

    Attributes:
      corpora: the run's own, and the earlier ones.
      first_of_shard: the number of each shard's first document, and how many documents there are.
      parts: all documents in order.
    """

    corpora: list[Corpus]
    first_of_shard: list[int]
    parts: list[Part]

    @property
    def own_documents(self) -> int:
        """Documents of this number and greater ones are those of earlier corpora."""
        return self.first_of_shard[self.own_shards]

    @property
    def own_shards(self) -> int:
        """Shards of this number and greater ones are those of earlier corpora."""
        return self.corpora[1].first_shard if len(self.corpora) > 1 else len(self.first_of_shard) - 1

    @property
    def own_parts(self) -> list[Part]:
        return [part for part in self.parts if not part.corpus]

    def find_past(
        self, key: int, hashes: np.ndarray, further: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(number of the hash, document of an earlier corpus that has it too) of hashes of the run's range `key`.

        Args:
          key: of the range.
          hashes: uint64.
          further: uint64, the other halves of the hashes of texts; None for bands.
        """
        for corpus in self.corpora[1:]:
            assert corpus.kept is not None
            for other in corpus.ranges.that_meet(self.corpora[0].ranges, key):
                asked, documents = corpus.kept.find(other, hashes, further)
                yield asked, documents + self.first_of_shard[corpus.first_shard]

    def who_stays(self, documents: np.ndarray) -> np.ndarray:
        """For each document of earlier corpora, sorted: itself if it stays, else the one of its corpus that stays in
        its place, or -1 where that is of another corpus (which finds it by its own sketches)."""
        found = documents.astype(np.int64)
        shards = self.shard_of(documents)
        first = [corpus.first_shard for corpus in self.corpora]
        for rows in np.split(np.arange(len(found)), np.flatnonzero(np.diff(shards)) + 1) if len(found) else ():
            shard = int(shards[rows[0]])
            corpus = self.corpora[int(np.searchsorted(first, shard, side="right")) - 1]
            assert corpus.kept is not None
            gone, stays = corpus.kept.gone(shard - corpus.first_shard)
            mine = documents[rows].astype(np.int64) - self.first_of_shard[shard]
            goes = np.isin(mine, gone)
            instead = stays[np.searchsorted(gone, mine[goes])]
            start = self.first_of_shard[corpus.first_shard]
            found[rows[goes]] = np.where(instead == NOBODY, -1, instead + start)
        return found

    def shard_of(self, documents: np.ndarray) -> np.ndarray:
        """The shard of each document."""
        return np.searchsorted(np.array(self.first_of_shard), documents, side="right") - 1

    def read(
        self, number: int, columns: Sequence[str], documents: np.ndarray | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of part `number` in batches: all, or those of some `documents` (sorted, all of this part)."""
        part = self.parts[number]
        folder = Storage(self.corpora[part.corpus].workdir)
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
        """The sketches of part `number` of the run's own with the numbers of their documents: all columns, or some."""
        record = read_record(run.records(SKETCH), record_name(number))
        (file,) = (file for file in record.files if file.kind == SKETCHES)
        with reading(run.work.path(file.path)):  # mapped into memory where it is on this machine
            source = pa.memory_map(run.work.path(file.path)) if run.work.is_local else run.work.open(file.path)
            with source, pa.ipc.open_file(source) as reader:
                table = reader.read_all()
        table = table.select(columns or table.schema.names)
        first = self.parts[number].first
        return table.append_column("document", pa.array(np.arange(first, first + len(table), dtype=np.uint32)))


class Earlier(msgspec.Struct, frozen=True):
    """The corpus of another run, to be compared with: its documents, and what it keeps of their sketches."""

    clean: DatasetReader
    kept: Kept


def open_earlier(
    workdir: str, decisions: DatasetReader, clean: DatasetReader, made_with: Mapping[str, object]
) -> Earlier:
    """The corpus of another run.

    Args:
      workdir: its working directory.
      decisions: its duplicates/.
      clean: its clean/.
      made_with: what its sketches must have been made with: options, properties and version of the stage.

    Raises UserError where it kept no sketches, or made them otherwise, or has changed since.
    """
    check_sketches(workdir, decisions.manifest, made_with)
    if decisions.manifest.inputs["clean"] != clean.manifest.digest:
        raise UserError(f"{workdir}/duplicates was not made from {workdir}/clean: run `owt dedupe` there again")
    files = {file.shard: file.path for file in decisions.files(SKETCHES)}
    if len(files) < clean.num_shards:
        raise UserError(f"{workdir} keeps no sketches: run `owt dedupe --workdir {workdir}` first")
    ranges = msgspec.convert(decisions.manifest.properties["sketches"], Ranges)
    return Earlier(clean, Kept(workdir, [files[shard] for shard in range(clean.num_shards)], ranges))


def check_sketches(workdir: str, decisions: Manifest, made_with: Mapping[str, object]) -> None:
    """Raise UserError where the sketches that a corpus keeps are not made as those it is to be compared by."""
    theirs = {**decisions.options, **decisions.properties, "stage_version": decisions.stage_version}
    for name, value in made_with.items():
        if theirs.get(name) != value:
            raise UserError(
                f"the sketches of {workdir} were made with {name}={theirs.get(name)!r}, not {value!r}: "
                "give that here, or run dedupe there again"
            )


def write_collection(run: StageRun, earlier: Sequence[Earlier], bands: int) -> Collection:
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
    own = corpora[0].num_shards
    numbered = [Corpus(corpora[0].workdir.uri, 0, Ranges.of(first_of_shard[own], bands))]
    for corpus in earlier:
        numbered.append(Corpus(corpus.clean.workdir.uri, own, corpus.kept.ranges, corpus.kept))
        own += corpus.clean.num_shards
    collection = Collection(numbered, first_of_shard, _cut(corpora, first_of_shard))
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
    own, past = (
        max(_PART_BYTES, sum(file.bytes for some in among for file in some) // _MOST_PARTS)
        for among in (files[:1], files[1:])
    )
    large = [file for file in files[0] if file.bytes >= 2 * own]
    with ThreadPoolExecutor(_REQUESTS_TOGETHER) as threads:
        found = threads.map(lambda file: _row_groups(corpora[0].workdir, file), large)
        groups = {file.path: rows for file, rows in zip(large, found, strict=True)}
    parts: list[Part] = []
    before = 0
    for corpus, some in enumerate(files):
        least = past if corpus else own
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
    # By this thread: where all cores are busy, Arrow's own threads would only make it wait.
    batches = partial(file.iter_batches, _BATCH_ROWS, columns=columns, use_threads=False)
    bounds = np.cumsum([0, *(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))])
    groups = range(*np.searchsorted(bounds, [piece.row, piece.row + piece.rows]))
    if wanted is None:
        yield from batches(row_groups=list(groups))
        return
    for group in groups:
        first, last = bounds[group : group + 2]
        if np.searchsorted(wanted, first) < np.searchsorted(wanted, last):
            for batch in batches(row_groups=[group]):
                mine = wanted[slice(*np.searchsorted(wanted, [first, first + batch.num_rows]))] - first
                first += batch.num_rows
                if len(mine):
                    yield batch.take(pa.array(mine))
