"""What can be looked into: a dataset of a run, its rejects, or a single file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.engine.dataset import DatasetReader, read_manifest, reading
from owt_pipeline.engine.errors import NotFound, UserError
from owt_pipeline.engine.lease import mention_running
from owt_pipeline.engine.storage import Storage
from schemas import DATASETS

_WARC = (".warc", ".warc.gz", ".arc", ".arc.gz")


@dataclass(frozen=True)
class Source:
    """Files of one schema, and what is known of them.

    Attributes:
      name: as it was asked for.
      files: (folder, path below it) of each.
      about: facts to show, by name.
      schema: of the rows; None for WARC files.
    """

    name: str
    files: list[tuple[Storage, str]]
    about: dict[str, Any]
    schema: pa.Schema | None

    def batches(self, columns: list[str] | None = None, rows: int = 1024) -> Iterator[pa.RecordBatch]:
        """The rows, file by file; raises UserError on a damaged one."""
        for folder, path in self.files:
            with reading(folder.path(path)), folder.open(path) as file:
                if path.endswith(".arrow"):
                    opened = pa.ipc.open_file(file)
                    for index in range(opened.num_record_batches):
                        batch = opened.get_batch(index)
                        batch = batch.select(columns) if columns else batch
                        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
                else:
                    yield from pq.ParquetFile(file).iter_batches(batch_size=rows, columns=columns)


def open_source(name: str) -> Source:
    """The dataset's folder, the folder of its rejects (`RUN/ledger/corpus/rejects`), or the Parquet, Arrow or WARC file
    that `name` is.

    Raises NotFound for what is not there, UserError for what is none of these.
    """
    parent, tail = _split(name)
    if tail == "rejects":  # of ledger/DATASET/rejects
        dataset, workdir = _split(parent.uri)[1], _split(_split(parent.uri)[0].uri)[0]
        if (manifest := read_manifest(workdir, dataset)) is not None:
            return _dataset(name, DatasetReader(workdir, manifest), "rejects")
    if (manifest := read_manifest(parent, tail)) is not None:
        return _dataset(name, DatasetReader.open(parent, tail), "data")
    if not parent.exists(tail):
        raise NotFound(f"there is no {name}: name a dataset's folder (runs/2013/corpus) or a file")
    if os.path.isdir(name):
        inside = [dataset for dataset in DATASETS if read_manifest(Storage(name), dataset) is not None]
        hint = f"; it is a run: look into {', '.join(f'{name}/{dataset}' for dataset in inside)}" if inside else ""
        raise UserError(f"{name} is not a finished dataset of a run{hint}")
    return _file(name, parent, tail)


def _split(name: str) -> tuple[Storage, str]:
    """The folder that `name` is in, and its last part."""
    head, _, tail = name.rstrip("/").rpartition("/")
    return Storage(head or ("/" if name.startswith("/") else ".")), tail


def _dataset(name: str, reader: DatasetReader, kind: str) -> Source:
    mention_running(reader.workdir)
    manifest, files = reader.manifest, reader.files(kind)
    about = {
        "dataset": manifest.dataset + ("/rejects" if kind == "rejects" else ""),
        "written_by": f"{manifest.stage} (version {manifest.stage_version})",
        "rows": sum(file.rows for file in files),
        "shards": manifest.num_shards,
        "bytes": manifest.total(kind).bytes if kind == "rejects" else manifest.total_bytes,
        "counts": str(manifest.counts),
        "options": manifest.options,
    }
    if not files:
        raise NotFound(f"{name} holds no rows")
    return Source(name, [(reader.workdir, file.path) for file in files], about, reader.schema(files[0]))


def _file(name: str, parent: Storage, path: str) -> Source:
    about: dict[str, Any] = {"file": name, "bytes": parent.size(path)}
    if path.endswith(_WARC):
        return Source(name, [(parent, path)], {**about, "format": "WARC"}, None)
    if not path.endswith((".parquet", ".arrow")):
        raise UserError(f"{name} is neither Parquet (.parquet), nor Arrow (.arrow), nor WARC ({', '.join(_WARC)})")
    with reading(name), parent.open(path) as file:
        if path.endswith(".arrow"):
            opened = pa.ipc.open_file(file)
            about |= {"format": "Arrow IPC", "record_batches": opened.num_record_batches}
            return Source(name, [(parent, path)], about, opened.schema)
        parquet = pq.ParquetFile(file)
        about |= {"format": "Parquet", "rows": parquet.metadata.num_rows, "row_groups": parquet.num_row_groups}
        return Source(name, [(parent, path)], about, parquet.schema_arrow)
