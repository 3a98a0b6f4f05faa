"""The documents that dedupe reads, with consecutive numbers, and the parts in which they are read.

The run's own documents come first, by shard and row, then those of the earlier corpora that it is compared with. A
document's number takes four bytes and locates its text without a join. Documents of an earlier corpus are read only
if its stored sketches (`past.py`) match a document of the run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.engine.stage import StageRun, read_record
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.commit import record_name
from owt_pipeline.ledger.dataset import DatasetReader, reading
from owt_pipeline.stages.dedupe.past import NOBODY, SKETCHES, Corpus, Ranges
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest, ShardFile

SKETCH = "sketch"
"""Name of the step that writes the sketches."""

_NAME = "collection.msgpack"
_MOST_DOCUMENTS = 1 << 32
_PART_BYTES = 3 << 20  # least compressed size of a part: one row group as our stages write them, or several smaller
_MOST_PARTS = 1024  # approximate: every part sends rows to every hash range
_BATCH_ROWS = 1024
_REQUESTS_TOGETHER = 16  # concurrent requests to a bucket


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows of a shard: the complete file or some of its row groups.

    Attributes:
      shard: the shard's number in the collection.
      path: its file, relative to the working directory.
      row: the first row.
      rows: the number of rows.
    """

    shard: int
    path: str
    row: int
    rows: int


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Documents of one corpus with consecutive numbers, read by one worker.

    Attributes:
      corpus: 0 for the run's own; earlier corpora count from 1.
      first: the number of the first document.
      pieces: where the documents are stored.
    """

    corpus: int
    first: int
    pieces: list[Piece]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


class Collection(msgspec.Struct, frozen=True):
    """The run's own documents and those of earlier corpora; the latter are never removed and always take precedence.

    Attributes:
      corpora: the run's own, then the earlier ones.
      first_of_shard: the number of each shard's first document, then the number of documents.
      parts: all documents in order.
    """

    corpora: list[Corpus]
    first_of_shard: list[int]
    parts: list[Part]

    @property
    def own_documents(self) -> int:
        """The number of own documents; numbers from here on belong to earlier corpora."""
        return self.first_of_shard[self.own_shards]

    @property
    def own_shards(self) -> int:
        """The number of own shards; numbers from here on belong to earlier corpora."""
        return self.corpora[1].first_shard if len(self.corpora) > 1 else len(self.first_of_shard) - 1

    @property
    def own_parts(self) -> list[Part]:
        return [part for part in self.parts if not part.corpus]

    def find_past(
        self, key: int, hashes: np.ndarray, further: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(index into `hashes`, document of an earlier corpus with that hash) for hashes in the run's range `key`.

        Args:
          key: key of the range.
          hashes: uint64.
          further: uint64, the other halves of text hashes; None for bands.
        """
        for corpus in self.corpora[1:]:
            for other in corpus.ranges.that_meet(self.corpora[0].ranges, key):
                asked, documents = corpus.find(other, hashes, further)
                yield asked, documents + self.first_of_shard[corpus.first_shard]

    def who_stays(self, documents: np.ndarray) -> np.ndarray:
        """For each document of earlier corpora (sorted): itself if kept, else the document of its corpus kept in its
        place, or -1 if that belongs to another corpus, whose own sketches find it."""
        found = documents.astype(np.int64)
        shards = self.shard_of(documents)
        first = [corpus.first_shard for corpus in self.corpora]
        for rows in np.split(np.arange(len(found)), np.flatnonzero(np.diff(shards)) + 1) if len(found) else ():
            shard = int(shards[rows[0]])
            corpus = self.corpora[int(np.searchsorted(first, shard, side="right")) - 1]
            gone, stays = corpus.gone(shard - corpus.first_shard)
            mine = documents[rows].astype(np.int64) - self.first_of_shard[shard]
            goes = np.isin(mine, gone)
            instead = stays[np.searchsorted(gone, mine[goes])]
            start = self.first_of_shard[corpus.first_shard]
            found[rows[goes]] = np.where(instead == NOBODY, -1, instead + start)
        return found

    def shard_of(self, documents: np.ndarray) -> np.ndarray:
        """The shard number of each document."""
        return np.searchsorted(np.array(self.first_of_shard), documents, side="right") - 1

    def read(
        self, number: int, columns: Sequence[str], documents: np.ndarray | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of part `number` in batches: all, or only `documents` (sorted, within this part)."""
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
        """The sketches of own part `number` and their documents' numbers; `columns` selects columns, empty for all."""
        record = read_record(run.records(SKETCH), record_name(number))
        (file,) = (file for file in record.files if file.kind == SKETCHES)
        with reading(run.work.path(file.path)):  # memory-mapped if local
            source = pa.memory_map(run.work.path(file.path)) if run.work.is_local else run.work.open(file.path)
            with source, pa.ipc.open_file(source) as reader:
                table = reader.read_all()
        table = table.select(columns or table.schema.names)
        first = self.parts[number].first
        return table.append_column("document", pa.array(np.arange(first, first + len(table), dtype=np.uint32)))


Earlier: TypeAlias = tuple[DatasetReader, Corpus]
"""The corpus of another run to compare with: its documents, and their stored sketches."""


def open_earlier(
    workdir: str, decisions: DatasetReader, clean: DatasetReader, made_with: Mapping[str, object]
) -> Earlier:
    """The corpus of another run.

    Args:
      workdir: its working directory.
      decisions: its duplicates/.
      clean: its clean/.
      made_with: the options, properties and stage version that its sketches must have been made with.

    Raises UserError if it has no sketches, made them with other options, or has changed since.
    """
    check_sketches(workdir, decisions.manifest, made_with)
    if decisions.manifest.inputs["clean"] != clean.manifest.digest:
        raise UserError(f"{workdir}/duplicates was not made from {workdir}/clean: run `owt dedupe` there again")
    files = {file.shard: file.path for file in decisions.files(SKETCHES)}
    if len(files) < clean.num_shards:
        raise UserError(f"{workdir} keeps no sketches: run `owt dedupe --workdir {workdir}` first")
    ranges = msgspec.convert(decisions.manifest.properties["sketches"], Ranges)
    return clean, Corpus(clean.workdir.uri, ranges, tuple(files[shard] for shard in range(clean.num_shards)))


def check_sketches(workdir: str, decisions: Manifest, made_with: Mapping[str, object]) -> None:
    """Raise UserError unless the stored sketches of a corpus were made with `made_with`."""
    theirs = {**decisions.options, **decisions.properties, "stage_version": decisions.stage_version}
    for name, value in made_with.items():
        if theirs.get(name) != value:
            raise UserError(
                f"the sketches of {workdir} were made with {name}={theirs.get(name)!r}, not {value!r}: "
                "use the same value, or run dedupe there again"
            )


def write_collection(run: StageRun, earlier: Sequence[Earlier], bands: int) -> Collection:
    """Number the documents, cut them into parts and write the result for all processes of the stage.

    Numbers and parts depend on the files alone. Raises UserError for more documents than 32-bit numbers.
    """
    corpora = [run.inputs["clean"], *(clean for clean, _ in earlier)]
    rows = [count for corpus in corpora for count in corpus.rows_of_shards()]
    first_of_shard = [0, *np.cumsum(rows, dtype=np.int64).tolist()]
    if first_of_shard[-1] >= _MOST_DOCUMENTS:
        raise UserError(
            f"dedupe: {first_of_shard[-1]:,} documents, more than {_MOST_DOCUMENTS:,}: split the run by year"
        )
    own = corpora[0].num_shards
    numbered = [Corpus(corpora[0].workdir.uri, Ranges.of(first_of_shard[own], bands))]
    for clean, corpus in earlier:
        numbered.append(msgspec.structs.replace(corpus, first_shard=own))
        own += clean.num_shards
    collection = Collection(numbered, first_of_shard, _cut(corpora, first_of_shard))
    run.work.write(_NAME, msgspec.msgpack.encode(collection))
    return collection


def read_collection(run: StageRun) -> Collection:
    """The collection that `write_collection` wrote."""
    return _read_collection(run.work, run.started)


@functools.lru_cache(maxsize=1)  # every part of a process reads it
def _read_collection(work: Storage, started: float) -> Collection:
    return msgspec.msgpack.decode(work.read(_NAME), type=Collection)


def _cut(corpora: Sequence[DatasetReader], first_of_shard: Sequence[int]) -> list[Part]:
    """Parts of similar size: some row groups of a large file, or several small files."""
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
    """The number of rows in each row group."""
    with reading(folder.path(file.path)), folder.open(file.path) as opened:
        metadata = pq.read_metadata(opened)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _rows(
    file: pq.ParquetFile, piece: Piece, columns: list[str], wanted: np.ndarray | None
) -> Iterator[pa.RecordBatch]:
    """A piece's rows, all or those `wanted` (row numbers in the file); other row groups are not read."""
    # Without Arrow's threads: when all cores are busy, they only add waiting.
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
