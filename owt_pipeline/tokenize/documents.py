"""A batch of documents to rows of token ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.dataset import Outcome, rejects_batch
from owt_pipeline.formats.encoding import Encoding, load
from schemas import DATASETS, Reason


def tokenize_batch(batch: pa.RecordBatch, *, tokenizer: str, eot_token: str, val_fraction: float) -> Outcome:
    """The documents' ids as rows of `train` and `val`; those without a token are rejected.

    Args:
      batch: columns `url_id`, `url` and `text`.
      tokenizer: see `encoding.load`, as `eot_token`.
      val_fraction: see `split.is_validation`.
    """
    encoding = load(tokenizer, eot_token)
    ids, offsets = encoding.encode_batch(batch["text"].to_pylist())
    n_tokens = np.diff(offsets).astype(np.uint32)
    url_ids = batch["url_id"].to_numpy()
    tokens = pa.ListArray.from_arrays(offsets, pa.array(ids), type=schema_for(encoding).field("tokens").type)
    rows = pa.RecordBatch.from_arrays([batch["url_id"], pa.array(n_tokens), tokens], schema=schema_for(encoding))
    some, val = n_tokens > 0, is_validation(url_ids, val_fraction)
    kept = {"train": rows.filter(pa.array(some & ~val)), "val": rows.filter(pa.array(some & val))}
    stats = {f"documents_{split}": part.num_rows for split, part in kept.items()}
    stats |= {f"tokens_{split}": int(pc.sum(part["n_tokens"]).as_py() or 0) for split, part in kept.items()}
    stats["text_bytes"] = int(pc.sum(pc.binary_length(batch["text"].filter(pa.array(some)))).as_py() or 0)
    empty = batch.filter(pa.array(~some))
    rejects = [(row["url_id"], row["url"], Reason.NO_TOKENS, None) for row in empty.to_pylist()]
    return Outcome(kept, rejects_batch(rejects), stats)


def schema_for(encoding: Encoding) -> pa.Schema:
    """The schema of `tokens/`, with ids as wide as the vocabulary needs."""
    schema = DATASETS["tokens"].schema
    if encoding.dtype == np.uint16:
        return schema
    index = schema.get_field_index("tokens")
    wide = schema.field(index).with_type(pa.list_(pa.field("item", pa.uint32(), nullable=False)))
    return schema.set(index, wide)


def is_validation(url_ids: np.ndarray, fraction: float) -> np.ndarray:
    """Whether each document is in the validation split; url_ids uint64 (n,), the result bool (n,).

    A pure function of the id, so a document never moves between the splits, whatever else the corpus holds,
    and a larger fraction only adds documents. The ids are mixed first (the finalizer of SplitMix64, Steele,
    Lea and Flood 2014): an id's bits also decide its shard, and text may be imported with ids of any kind.
    """
    mixed = url_ids.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction
