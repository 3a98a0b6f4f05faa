"""The two steps from files to shards of `documents/`.

place   a group of files           -> its records as rows, by shard
        a shard that is published  -> its ids, for the generations after it
merge   the rows of a shard        -> the first document of each id, and rejects
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.formats.dates import UnreadDates
from owt_pipeline.formats.records import Record, read_records
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice, read_slices
from owt_pipeline.stages.import_text.documents import (
    FIELDS,
    PLACED,
    first_of_each_id,
    outcome,
    place,
)
from owt_pipeline.stages.import_text.groups import SourceFile, read_groups

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.commit import ShardWriter
    from owt_pipeline.stages.import_text.options import Options
    from schemas.manifest import Generation

SEEN = pa.schema([pa.field("url_id", pa.uint64())])
"""An id that an earlier generation has."""

RECORDS_STEP = "records"
DATES_KIND = "dates"
"""Kind of the file that the first step writes for each group of files: its `UnreadDates`."""

_MAX_BATCH_CHARACTERS = 4 << 20
_MAX_BATCH_ROWS = 1024


def place_group(run: StageRun, group: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the records of a group of files to their shards, as step 1.

    Parts after the groups are the published shards, which send their ids.
    """
    groups = read_groups(run)
    if group >= len(groups):
        assert run.published is not None
        published = DatasetReader(run.workdir, run.published)
        _send_ids(run, 0, published.ids(group - len(groups)), writer)
        return
    number = groups[group][0].generation
    generation = run.root.generations[number]

    def send(rows: list[dict[str, Any]]) -> None:
        batch = pa.RecordBatch.from_pylist(rows, PLACED)
        ids = batch["url_id"].to_numpy()
        writer.send(_shards_of_ids(ids, generation), batch)
        # Arrow stores booleans as bits, which NumPy has to copy.
        is_document = batch["reason"].is_null().to_numpy(zero_copy_only=False)
        # A later generation rejects a document with the id of an earlier one.
        _send_ids(run, number + 1, ids[is_document], writer)
        progress.advance(len(rows))

    rows: list[dict[str, Any]] = []
    num_characters = 0
    unread_dates = UnreadDates()
    for record, names in _records(groups[group], run.options):
        rows.append(place(record, names, unread_dates))
        num_characters += len(rows[-1]["text"])
        if num_characters >= _MAX_BATCH_CHARACTERS or len(rows) == _MAX_BATCH_ROWS:
            send(rows)
            rows = []
            num_characters = 0
    if rows:
        send(rows)
    writer.open_file(".json", DATES_KIND).write(msgspec.json.encode(unread_dates))


def _send_ids(run: StageRun, since: int, ids: np.ndarray, writer: ShardWriter) -> None:
    """Send ids of an earlier generation to the pending shards of the generations from `since`."""
    for generation in run.root.generations[since:]:
        if generation.first < run.plan.num_settled:
            continue
        batch = pa.record_batch([pa.array(ids)], SEEN)
        writer.send(_shards_of_ids(ids, generation), batch)


def _shards_of_ids(ids: np.ndarray, generation: Generation) -> np.ndarray:
    """Return the shard of each id in a generation, int64."""
    return generation.first + (ids % np.uint64(generation.shards)).astype(np.int64)


def _records(
    files: Sequence[SourceFile], options: Options
) -> Iterator[tuple[Record, Mapping[str, str]]]:
    """Yield each record with the names of its fields."""
    names_by_options = {field: getattr(options, f"{field}_field") for field in FIELDS}
    names_of_plain_text = {**dict.fromkeys(FIELDS, ""), "text": "text"}
    columns: set[str] = set()
    for name in names_by_options.values():
        if name:
            # `a.b` is a column of that name, or field b of column a.
            columns |= {name, name.partition(".")[0]}
    for file in files:
        names = names_by_options
        if file.kind == "text":
            names = names_of_plain_text
        records = read_records(
            file.path, file.name, file.kind, columns=columns, split_text=options.split_text
        )
        for record in records:
            yield record, names


def merge_shard(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write one shard with the first document of each id, in the order of the files, as step 2."""
    seen_ids = [np.zeros(0, np.uint64)]
    columns = []
    for table in read_slices(run.work, slices):
        if table.schema.names == SEEN.names:
            seen_ids.append(table["url_id"].to_numpy())
        else:
            columns.append(table.select(["url_id", "reason"]))
    is_first = first_of_each_id(columns, np.concatenate(seen_ids))
    start = 0
    # The rows are read again, since their texts together may not fit into memory.
    for table in read_slices(run.work, slices):
        if table.schema.names == SEEN.names:
            continue
        for batch in table.to_batches(max_chunksize=256):
            end = start + batch.num_rows
            writer.add(batch.num_rows, outcome(batch, is_first[start:end]))
            start = end
