"""Datasets that a test writes by itself, as a stage would have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa

from owt_pipeline.ledger.commit import RecordPath, ShardWriter, publish_dataset
from owt_pipeline.ledger.dataset import Outcome
from owt_pipeline.ledger.root import change_root
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, REJECTS
from schemas.manifest import Counts, Generation, Manifest, Root, ShardRecord


def write_dataset(
    workdir: Storage,
    dataset: str,
    write: Callable[[int, ShardWriter], None],
    num_shards: int = 1,
    stage: str = "",
) -> Manifest:
    """Make `dataset` in `workdir`, shard by shard, by `write(shard, writer)`."""
    records = []
    for shard in range(num_shards):
        about = DATASETS[dataset]
        place = RecordPath(workdir / f".records/{uuid4()}", shard)
        outputs = (
            {"train": about.schema, "val": about.schema}
            if dataset == "tokens"
            else {"": about.schema}
        )
        with ShardWriter(
            workdir, place, outputs, dataset=dataset, file_format=about.format
        ) as writer:
            write(shard, writer)
        records.append(writer.record)
    return _publish(workdir, dataset, records, stage=stage or DATASETS[dataset].stage)


def _publish(workdir: Storage, dataset: str, records: list[ShardRecord], **about: Any) -> Manifest:
    workdir.delete(*(entry.name for entry in workdir.list(".records/")))

    def with_shards(root: Root) -> Root:
        stage = "import" if about.get("stage") == "import" else "collect"
        return msgspec.structs.replace(
            root, generations=root.generations or [Generation(stage, 0, len(records))]
        )

    _, version = change_root(workdir, with_shards, "")
    counts = sum((record.counts for record in records), Counts())
    known = {
        "dataset": dataset,
        "stage": DATASETS[dataset].stage,
        "stage_version": 1,
        "counts": counts,
    }
    return publish_dataset(
        workdir, records, version=version, num_shards=len(records), **{**known, **about}
    )[0]


def publish_rows(
    workdir: Storage,
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    rejects: Sequence[Mapping[str, Any]] = (),
    **about: Any,
) -> Manifest:
    """Write a dataset of one shard, in place of one that is there, without a pipeline; fields
    not given are empty."""
    schema = DATASETS[dataset].schema
    place = RecordPath(workdir / f".records/{uuid4()}", 0)
    with ShardWriter(workdir, place, {"": schema}, dataset=dataset) as writer:
        add_rows(writer, dataset, rows, rejects)
    return _publish(workdir, dataset, [writer.record], **about)


def add_rows(
    writer: ShardWriter,
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    rejects: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write rows and rejects to a shard; fields not given are empty."""
    writer.add(
        len(rows) + len(rejects),
        Outcome(_batch(rows, DATASETS[dataset].schema), _batch(rejects, REJECTS)),
    )


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    full = [
        {field.name: row.get(field.name, _empty(field.type)) for field in schema} for row in rows
    ]
    return pa.RecordBatch.from_pylist(full, schema)


def _empty(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return []
    return "" if pa.types.is_string(kind) else None if pa.types.is_struct(kind) else 0
