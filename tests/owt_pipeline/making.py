"""Write datasets for a test as a stage would have written them."""

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
    """Write `dataset` in `workdir` by calling `write(shard, writer)` for each shard."""
    records = []
    for shard in range(num_shards):
        description = DATASETS[dataset]
        place = RecordPath(workdir / f".records/{uuid4()}", shard)
        splits = ("train", "val") if dataset == "tokens" else ("",)
        outputs = dict.fromkeys(splits, description.schema)
        with ShardWriter(
            workdir, place, outputs, dataset=dataset, file_format=description.format
        ) as writer:
            write(shard, writer)
        records.append(writer.record)
    return _publish(workdir, dataset, records, stage=stage or DATASETS[dataset].stage)


def _publish(
    workdir: Storage, dataset: str, records: list[ShardRecord], **manifest_fields: Any
) -> Manifest:
    """Publish the shards of a dataset, with some fields of its manifest."""
    workdir.delete(*(entry.name for entry in workdir.list(".records/")))

    def with_shards(root: Root) -> Root:
        stage = "import" if manifest_fields.get("stage") == "import" else "collect"
        return msgspec.structs.replace(
            root, generations=root.generations or [Generation(stage, 0, len(records))]
        )

    _, version = change_root(workdir, with_shards, "")
    fields = {
        "dataset": dataset,
        "stage": DATASETS[dataset].stage,
        "stage_version": 1,
        "counts": sum((record.counts for record in records), Counts()),
        **manifest_fields,
    }
    manifest, _ = publish_dataset(
        workdir, records, version=version, num_shards=len(records), **fields
    )
    return manifest


def publish_rows(
    workdir: Storage,
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    rejects: Sequence[Mapping[str, Any]] = (),
    **fields: Any,
) -> Manifest:
    """Write a dataset of one shard without a pipeline, in place of an existing one.

    Fields that a row does not have are empty.
    """
    schema = DATASETS[dataset].schema
    place = RecordPath(workdir / f".records/{uuid4()}", 0)
    with ShardWriter(workdir, place, {"": schema}, dataset=dataset) as writer:
        add_rows(writer, dataset, rows, rejects)
    return _publish(workdir, dataset, [writer.record], **fields)


def add_rows(
    writer: ShardWriter,
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    rejects: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write rows and rejects to a shard. Fields that they do not have are empty."""
    writer.add(
        len(rows) + len(rejects),
        Outcome(_batch(rows, DATASETS[dataset].schema), _batch(rejects, REJECTS)),
    )


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as a batch. Fields that they do not have are empty."""
    empty_row = {field.name: _empty(field.type) for field in schema}
    return pa.RecordBatch.from_pylist([{**empty_row, **row} for row in rows], schema)


def _empty(kind: pa.DataType) -> Any:
    """Return the empty value of an Arrow type."""
    if pa.types.is_list(kind):
        return []
    if pa.types.is_string(kind):
        return ""
    if pa.types.is_struct(kind):
        return None
    return 0
