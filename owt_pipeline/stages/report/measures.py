"""Figures that no column has: lengths of texts, sizes of dropped documents, and the frequency of each token id.

They are measured shard by shard, as a step of the stage; all other figures are queries over columns (`tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline import progress
from owt_pipeline.engine.stage import StageRun
from owt_pipeline.formats import encoding
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice

MEASURES = {
    "lengths": pa.schema([("characters", pa.int64()), ("bytes", pa.int64())]),
    "lost": pa.schema(
        [
            ("stage", pa.string()),
            ("reason", pa.string()),
            ("characters", pa.int64()),
            ("bytes", pa.int64()),
            ("tokens", pa.int64()),
        ]
    ),
    "vocabulary": pa.schema([("id", pa.int64()), ("n", pa.int64())]),
}
"""The measured tables: one row per document of the corpus, per dropped document, and per token id of a shard."""

_DROPPED_BY = {"documents": "clean", "clean": "corpus"}
"""For each dataset, the one whose rejects are rows of it, and thus have their texts in it."""


def measure(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the `MEASURES` of shard k of each dataset of the run, one Arrow file per table."""
    for name, measured in (("lengths", _lengths), ("lost", _lost), ("vocabulary", _vocabulary)):
        with pa.ipc.new_file(writer.open_file(".arrow", name), MEASURES[name]) as file:
            for columns in measured(run.inputs, shard):
                file.write_batch(pa.RecordBatch.from_pydict(columns, MEASURES[name]))


def rows_of_shards(run: StageRun) -> list[int]:
    """The number of rows that `measure` reads for each shard."""
    names = {"documents", "clean", "corpus", "tokens"} & run.inputs.keys()
    return [sum(rows) for rows in zip_longest(*(run.inputs[name].rows_of_shards() for name in names), fillvalue=0)]


Columns = dict[str, Any]


def _lengths(readers: Mapping[str, DatasetReader], shard: int) -> Iterator[Columns]:
    if "corpus" in readers:
        for batch in readers["corpus"].batches(shard, columns=["text"], rows=2048):
            yield {"characters": pc.utf8_length(batch["text"]), "bytes": pc.binary_length(batch["text"])}
            progress.advance(batch.num_rows)


def _lost(readers: Mapping[str, DatasetReader], shard: int) -> Iterator[Columns]:
    for dataset, next_one in _DROPPED_BY.items():
        if dataset not in readers or next_one not in readers:
            continue
        rejects = readers[next_one].table(shard, kind="rejects", columns=["url_id", "reason"])
        ids, reasons = (rejects[name].combine_chunks() for name in ("url_id", "reason"))
        if not len(ids):
            continue
        tokenizer, stage = _tokenizer(readers["tokens"]), readers[next_one].manifest.stage
        for batch in readers[dataset].batches(shard, columns=["url_id", "text"], rows=512):
            place = pc.index_in(batch["url_id"], ids)
            texts = batch["text"].filter(pc.is_valid(place))
            yield {
                "stage": pa.repeat(stage, len(texts)),
                "reason": reasons.take(place.drop_null()),
                "characters": pc.utf8_length(texts),
                "bytes": pc.binary_length(texts),
                "tokens": tokenizer.count(texts.to_pylist()),
            }
            progress.advance(batch.num_rows)


def _vocabulary(readers: Mapping[str, DatasetReader], shard: int) -> Iterator[Columns]:
    counts = np.zeros(0, np.int64)
    for batch in readers["tokens"].batches(shard, columns=["tokens"], rows=2048):
        own = np.bincount(batch["tokens"].flatten().to_numpy(), minlength=len(counts))
        own[: len(counts)] += counts
        counts = own
        progress.advance(batch.num_rows)
    used = np.flatnonzero(counts)
    yield {"id": used, "n": counts[used]}


def _tokenizer(tokens: DatasetReader) -> encoding.Encoding:
    """The tokenizer of the run's tokens, from the copy in its ledger."""
    about = tokens.manifest.properties["tokenizer"]
    if about["name"] == "gpt2":
        return encoding.load("gpt2")
    return encoding.load(tokens.workdir.path(about["file"]), tokens.manifest.options["eot_token"])
