"""Token ids of documents, as rows of `train` and `val`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.stage import StageRun
from owt_pipeline.errors import LedgerError
from owt_pipeline.formats.encoding import Encoding, load
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import Outcome, rejects_batch
from owt_pipeline.ledger.exchange import Slice
from schemas import DATASETS, Reason
from schemas.datasets import is_validation


def tokenize_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard of `tokens/` from the same shard of the corpus."""
    tokenize = partial(
        tokenize_batch,
        tokenizer=tokenizer_of(run),
        eot_token=run.options.eot_token,
        val_fraction=run.options.val_fraction,
    )
    run.map_batches(shard, writer, tokenize, rows=256, columns=["url_id", "url", "text"])


def schemas_of_splits(run: StageRun) -> dict[str, pa.Schema]:
    """Return the schema of each split."""
    schema = schema_for(load(tokenizer_of(run), run.options.eot_token))
    return {"train": schema, "val": schema}


def tokenizer_of(run: StageRun) -> str:
    """Return `gpt2`, or the path of the tokenizer's copy in the run's folder.

    Workers may run on machines without the user's file or the Hub.
    """
    name: str = run.options.tokenizer
    if name == "gpt2":
        return name
    return run.workdir.path(run.properties["tokenizer"]["file"])


def tokenize_batch(
    batch: pa.RecordBatch, *, tokenizer: str, eot_token: str, val_fraction: float
) -> Outcome:
    """Return the token ids of the documents, as rows of `train` and `val`.

    Documents without tokens are rejected.

    Args:
      batch: columns `url_id`, `url` and `text`.
      tokenizer, eot_token: as for `encoding.load`.
      val_fraction: see `schemas.datasets.is_validation`.
    """
    encoding = load(tokenizer, eot_token)
    ids, offsets = encoding.encode_batch(batch["text"].to_pylist())
    if ids.max(initial=0) >= encoding.vocab_size:
        # Readers rely on the size of the vocabulary that the manifest records.
        raise LedgerError(
            f"token id {ids.max()} is outside the vocabulary of {encoding.vocab_size}"
        )
    n_tokens = np.diff(offsets).astype(np.uint32)
    schema = schema_for(encoding)
    tokens = pa.ListArray.from_arrays(offsets, pa.array(ids), type=schema.field("tokens").type)
    columns = [batch["url_id"], pa.array(n_tokens), tokens]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    has_tokens = n_tokens > 0
    is_val = is_validation(batch["url_id"].to_numpy(), val_fraction)
    kept = {
        "train": rows.filter(pa.array(has_tokens & ~is_val)),
        "val": rows.filter(pa.array(has_tokens & is_val)),
    }
    empty = batch.filter(pa.array(~has_tokens))
    rejects = [(row["url_id"], row["url"], Reason.NO_TOKENS, None) for row in empty.to_pylist()]
    texts = batch["text"].filter(pa.array(has_tokens))
    return Outcome(kept, rejects_batch(rejects), _counts(kept, texts))


def _counts(kept: Mapping[str, pa.RecordBatch], texts: pa.Array) -> dict[str, int]:
    """Return the counts of a batch's splits and of its kept texts."""
    counts = {f"documents_{split}": rows.num_rows for split, rows in kept.items()}
    for split, rows in kept.items():
        counts[f"tokens_{split}"] = int(pc.sum(rows["n_tokens"]).as_py() or 0)
    counts["text_bytes"] = int(pc.sum(pc.binary_length(texts)).as_py() or 0)
    return counts


def schema_for(encoding: Encoding) -> pa.Schema:
    """Return the schema of `tokens/`: ids are uint16, or uint32 for a large vocabulary."""
    schema = DATASETS["tokens"].schema
    if encoding.dtype == np.uint16:
        return schema
    index = schema.get_field_index("tokens")
    wide = schema.field(index).with_type(pa.list_(pa.field("item", pa.uint32(), nullable=False)))
    return schema.set(index, wide)
