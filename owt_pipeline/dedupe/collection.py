"""The documents that dedupe looks at: the run's own, and those of corpora that stand and are only compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from owt_pipeline.dedupe.exact import HASHED
from owt_pipeline.dedupe.places import places
from owt_pipeline.dedupe.step_files import read_arrow
from owt_pipeline.runtime.errors import UserError
from owt_pipeline.runtime.shards import DatasetReader, shard_name
from owt_pipeline.runtime.stage import require_manifest
from owt_pipeline.runtime.storage import Storage

SKETCHES = ".sketches.arrow"
"""End of the name of a shard's sketches where duplicates/ keeps them: of the documents that stay, by row."""


@dataclass(frozen=True)
class Corpus:
    """Documents with what is known of them.

    Attributes:
      clean: their texts.
      hashes: the folder of the hashes of their texts, one file a shard: all that count.
      sketches: the folder of their sketches, one file a shard: of a text that several have, one.
      suffix: what the names of these files end in.
    """

    clean: DatasetReader
    hashes: Storage
    sketches: Storage
    suffix: str = ".arrow"


@dataclass(frozen=True)
class Collection:
    """Corpora whose shards are numbered through: first the run's own, then those it is compared with.

    The documents of the others stand: they stay whatever comes, and before any of the run's own.
    """

    own: Corpus
    others: tuple[Corpus, ...] = ()

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

    def hashes(self, shard: int) -> pa.Table:
        """Rows of `exact.HASHED`, by row, for a shard's documents; those that stand come before all others."""
        corpus, number = self.find(shard)
        return self._preceding(shard, read_arrow(corpus.hashes, shard_name(number) + corpus.suffix, HASHED.names))

    def sketches(self, shard: int, columns: list[str] | None = None) -> pa.Table:
        """The sketches of a shard's documents, by row; those that stand come before all others."""
        corpus, number = self.find(shard)
        return self._preceding(shard, read_arrow(corpus.sketches, shard_name(number) + corpus.suffix, columns))

    def sketches_of(self, shard: int, rows: np.ndarray, columns: list[str]) -> pa.Table:
        """The sketches of the documents at some rows of a shard, in the order of `rows`."""
        sketches = self.sketches(shard, ["row", *columns])
        return sketches.take(pa.array(np.searchsorted(sketches["row"].to_numpy(), rows))).select(columns)

    def _preceding(self, shard: int, rows: pa.Table) -> pa.Table:
        if self.stands(shard) and "precedence" in rows.column_names:
            first = pa.array(np.full(len(rows), np.iinfo(np.int64).min))
            return rows.set_column(rows.column_names.index("precedence"), "precedence", first)
        return rows


def open_corpus(workdir: str, made_with: dict[str, object]) -> Corpus:
    """The corpus of another run, to be compared with.

    Args:
      workdir: its working directory.
      made_with: what its sketches must have been made with: options, properties and version of the stage.

    Raises UserError where it has no decisions or kept no sketches, or made them otherwise.
    """
    folder = Storage(workdir)
    decisions = DatasetReader(folder / "duplicates", require_manifest(folder, "duplicates"))
    clean = DatasetReader(folder / "clean", require_manifest(folder, "clean"))
    manifest = decisions.manifest
    if not decisions.files("sketches"):
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
    return Corpus(clean, decisions.folder, decisions.folder, SKETCHES)
