"""The documents that are compared, each identified by its number.

Numbers count the rows of all shards in order, then the texts of the files of `against`. These texts
are never removed. A part is a shard or one of these files.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from owt_pipeline.errors import UserError
from owt_pipeline.formats.files import find_files, texts_of_option
from owt_pipeline.formats.records import texts_of_files
from owt_pipeline.storage.folder import Storage

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.stages.dedupe.options import Options

MAX_DOCUMENTS = 1 << 32
"""A document's number has 32 bits."""

_BATCH_ROWS = 1024
_FILES_NAME = "against.json"


def first_of_parts(run: StageRun) -> np.ndarray:
    """Return the number of the first document of each part, then the number of documents, int64.

    Raises UserError for more than MAX_DOCUMENTS.
    """
    rows = [
        *run.inputs["clean"].rows_of_shards(),
        *(file.num_texts for file in known_files(run)),
    ]
    first = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
    if first[-1] >= MAX_DOCUMENTS:
        raise UserError(
            f"dedupe: the run has {first[-1]:,} documents, and dedupe can compare at most "
            f"{MAX_DOCUMENTS:,}: split the run by year"
        )
    return first


def first_of_generations(run: StageRun) -> np.ndarray:
    """Return the number of each generation's first document, int64."""
    return first_of_parts(run)[[generation.first for generation in run.root.generations]]


class KnownFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of `against`: its path or URI, and the number of its texts."""

    uri: str
    num_texts: int


def files_of(options: Options) -> list[str]:
    """Return the files of `against`; raise UserError if one is missing."""
    return find_files(options.against, texts_of_option("--against"))


def count_files(run: StageRun) -> None:
    """List the files of `against` and count their texts, for all processes of the stage."""
    files = [KnownFile(uri, sum(map(len, _texts_of(uri)))) for uri in files_of(run.options)]
    run.work.write(_FILES_NAME, msgspec.json.encode(files))


def known_files(run: StageRun) -> list[KnownFile]:
    """Return the files that `count_files` listed."""
    return _read_files(run.work, run.plan.started) if run.options.against else []


@functools.lru_cache(maxsize=1)  # every part of a process needs the same files
def _read_files(work: Storage, started: float) -> list[KnownFile]:
    """Return the files of a run of the stage. `started` keeps several runs apart in the cache."""
    return msgspec.json.decode(work.read(_FILES_NAME), type=list[KnownFile])


def documents_of(run: StageRun, part: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a part.

    A text of a file has its hash as url_id. Its other columns are null.
    """
    if part < run.num_shards:
        yield from run.inputs["clean"].batches(part, columns=columns, rows=_BATCH_ROWS)
        return
    for texts in _texts_of(known_files(run)[part - run.num_shards].uri):
        ids = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts.to_pylist()]
        known = {"text": texts, "url_id": pa.array(ids, pa.uint64())}
        missing = pa.nulls(len(texts), pa.int64())
        yield pa.record_batch({name: known.get(name, missing) for name in columns})


def _texts_of(uri: str) -> Iterator[pa.Array]:
    for texts in texts_of_files([uri], "text", "--against"):
        yield texts.drop_null()
