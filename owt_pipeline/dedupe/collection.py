"""The documents that dedupe looks at: the run's own, and those of corpora that stand and are only compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.exact import HASHED
from owt_pipeline.dedupe.parts import Part, cut
from owt_pipeline.dedupe.places import places
from owt_pipeline.dedupe.step_files import read_arrow, step_file
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.storage import Storage

SKETCHES = "sketches"
"""Kind of the files with a shard's sketches, where duplicates/ keeps them: of the documents that stay, by row."""


@dataclass(frozen=True)
class Corpus:
    """Documents with what is known of them.

    Attributes:
      clean: their texts.
      hashes: the folder of the hashes of their texts: all that count.
      sketches: the folder of their sketches: of a text that several have, one.
      kept: for a corpus of another run, the file of each shard's hashes and sketches in these folders.
    """

    clean: DatasetReader
    hashes: Storage
    sketches: Storage
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collection:
    """Corpora whose shards are numbered through: first the run's own, then those it is compared with.

    The documents of the others stand: they stay whatever comes, and before any of the run's own.

    Attributes:
      own: the run's own corpus; of its hashes and sketches there is a file for each part.
      others: the others; of theirs, there is one for each shard.
      parts: texts as they are read, by shard and row: the run's own, and those of the others that are needed.
    """

    own: Corpus
    others: tuple[Corpus, ...]
    parts: tuple[Part, ...]

    @property
    def is_local(self) -> bool:
        """Whether what is known of the documents is on this machine's disks."""
        return all(corpus.sketches.is_local for corpus in (self.own, *self.others))

    @property
    def num_shards(self) -> int:
        return self.own.clean.num_shards + sum(corpus.clean.num_shards for corpus in self.others)

    @property
    def documents(self) -> int:
        return self.own.clean.rows() + sum(corpus.clean.rows() for corpus in self.others)

    @property
    def first_standing(self) -> np.uint64:
        """The least place of a document that stands."""
        return np.uint64(places(self.own.clean.num_shards, np.zeros(1))[0])

    def stands(self, shard: int) -> bool:
        return shard >= self.own.clean.num_shards

    def find(self, shard: int) -> tuple[Corpus, int]:
        """The corpus that a shard is of, and its number there."""
        for corpus in (self.own, *self.others):
            if shard < corpus.clean.num_shards:
                return corpus, shard
            shard -= corpus.clean.num_shards
        raise AssertionError(f"no shard {shard}")

    def with_texts_of(self, shards: Iterable[int]) -> Collection:
        """The same with the parts of these shards, sorted, where they are of the others."""
        parts = list(self.parts)
        for shard in shards:
            if self.stands(shard):
                corpus, number = self.find(shard)
                parts += cut(corpus.clean, [number], shard - number)
        return replace(self, parts=tuple(parts))

    def part_of(self, place: np.ndarray) -> np.ndarray:
        """The number of the part that each place is in."""
        first = [places(part.shard, np.array(part.first)) for part in self.parts]
        return np.searchsorted(np.array(first, np.uint64), place, side="right") - 1

    def hashes(self, shard: int) -> pa.Table:
        """Rows of `exact.HASHED`, by row, for a shard's documents; those that stand come before all others."""
        return self._read(self.find(shard)[0].hashes, self._files(shard), HASHED.names, self.stands(shard))

    def sketches(self, shard: int, columns: list[str] | None = None) -> pa.Table:
        """The sketches of a shard's documents, by row; those that stand come before all others."""
        return self._read(self.find(shard)[0].sketches, self._files(shard), columns, self.stands(shard))

    def sketches_of(self, number: int, rows: np.ndarray, columns: list[str]) -> pa.Table:
        """The sketches of the documents at some rows of part `number`, in the order of `rows`."""
        shard = self.parts[number].shard
        files = self._files(shard) if self.stands(shard) else [step_file(number)]
        sketches = self._read(self.find(shard)[0].sketches, files, ["row", *columns], self.stands(shard))
        return sketches.take(pa.array(np.searchsorted(sketches["row"].to_numpy(), rows))).select(columns)

    def _files(self, shard: int) -> list[str]:
        if self.stands(shard):
            corpus, number = self.find(shard)
            return [corpus.kept[number]]
        return [step_file(number) for number, part in enumerate(self.parts) if part.shard == shard]

    def _read(self, folder: Storage, files: list[str], columns: list[str] | None, stand: bool) -> pa.Table:
        rows = pa.concat_tables([read_arrow(folder, name, columns) for name in files]).combine_chunks()
        if stand and "precedence" in rows.column_names:
            first = pa.array(np.full(len(rows), np.iinfo(np.int64).min))
            return rows.set_column(rows.column_names.index("precedence"), "precedence", first)
        return rows


def collect(own: Corpus, others: tuple[Corpus, ...]) -> Collection:
    """The collection of these corpora, without the texts of the others."""
    return Collection(own, others, tuple(cut(own.clean, range(own.clean.num_shards))))


def open_corpus(workdir: str, made_with: dict[str, object]) -> Corpus:
    """The corpus of another run, to be compared with.

    Args:
      workdir: its working directory.
      made_with: what its sketches must have been made with: options, properties and version of the stage.

    Raises UserError where it has no decisions or kept no sketches, or made them otherwise.
    """
    folder = Storage(workdir)
    decisions, clean = DatasetReader.open(folder, "duplicates"), DatasetReader.open(folder, "clean")
    manifest = decisions.manifest
    kept = tuple(file.path for file in decisions.files(SKETCHES))
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
    return Corpus(clean, folder, folder, kept)
