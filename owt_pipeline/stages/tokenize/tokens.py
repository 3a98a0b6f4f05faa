"""Token ids of documents, as rows of `train` and `val`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.stage import StageRun
from owt_pipeline.errors import LedgerError, UserError
from owt_pipeline.formats.encoding import RESPACED, Encoding, load
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import Outcome, rejects_batch
from owt_pipeline.ledger.exchange import Slice
from schemas import DATASETS, Reason
from schemas.datasets import is_validation
from schemas.manifest import ShardRecord

logger = logging.getLogger("owt")


def tokenize_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    tokenize = partial(
        tokenize_batch,
        tokenizer=tokenizer_of(run),
        eot_token=run.options.eot_token,
        val_fraction=run.options.val_fraction,
    )
    run.map_batches(shard, writer, tokenize, rows=256, columns=["url_id", "url", "text"])


def schemas_of_splits(run: StageRun) -> dict[str, pa.Schema]:
    schema = schema_for(load(tokenizer_of(run), run.options.eot_token))
    return {"train": schema, "val": schema}


def tokenizer_of(run: StageRun) -> str:
    """The copy in the working directory: workers may run on machines without the user's file or
    the hub."""
    named: str = run.options.tokenizer
    return named if named == "gpt2" else run.workdir.path(run.properties["tokenizer"]["file"])


def check_changed(run: StageRun, records: Sequence[ShardRecord]) -> None:
    """Raise UserError if the tokenizer cannot write too many of the documents; warn of fewer."""
    changed = sum(record.stats.get("documents_changed", 0) for record in records)
    respaced = sum(record.stats.get("documents_respaced", 0) for record in records)
    share = changed / max(sum(record.counts.entered for record in records), 1)
    if respaced == changed:
        reason = "does not keep their white space, and losses per byte count bytes that it drops"
    else:
        reason = "cannot write all of their text, and losses per byte count bytes that no token has"
    found = (
        f"tokenize: {changed:,} documents ({share:.1%}) are not what their tokens decode to: "
        f"{run.options.tokenizer} {reason}"
    )
    if share > run.options.max_changed_share:
        raise UserError(f"{found}; use another --tokenizer, or allow it with --max_changed_share 1")
    if changed:
        logger.warning("%s", found)


def tokenize_batch(
    batch: pa.RecordBatch, *, tokenizer: str, eot_token: str, val_fraction: float
) -> Outcome:
    """Token ids of the documents, as rows of `train` and `val`; documents without tokens are
    rejected.

    Args:
      batch: columns `url_id`, `url` and `text`.
      tokenizer: see `encoding.load`, as for `eot_token`.
      val_fraction: see `schemas.datasets.is_validation`.
    """
    encoding = load(tokenizer, eot_token)
    ids, offsets = encoding.encode_batch(batch["text"].to_pylist())
    if ids.max(initial=0) >= encoding.vocab_size:  # readers of the manifest rely on this
        raise LedgerError(
            f"token id {ids.max()} is outside the vocabulary of {encoding.vocab_size}"
        )
    n_tokens = np.diff(offsets).astype(np.uint32)
    url_ids = batch["url_id"].to_numpy()
    tokens = pa.ListArray.from_arrays(
        offsets, pa.array(ids), type=schema_for(encoding).field("tokens").type
    )
    rows = pa.RecordBatch.from_arrays(
        [batch["url_id"], pa.array(n_tokens), tokens], schema=schema_for(encoding)
    )
    some, val = n_tokens > 0, is_validation(url_ids, val_fraction)
    kept = {"train": rows.filter(pa.array(some & ~val)), "val": rows.filter(pa.array(some & val))}
    stats = {f"documents_{split}": part.num_rows for split, part in kept.items()}
    changes = encoding.changes(batch["text"].to_pylist(), ids, offsets)
    stats["documents_changed"] = int(np.count_nonzero(changes))
    if num_respaced := int(np.count_nonzero(changes == RESPACED)):
        stats["documents_respaced"] = num_respaced
    stats |= {
        f"tokens_{split}": int(pc.sum(part["n_tokens"]).as_py() or 0)
        for split, part in kept.items()
    }
    stats["text_bytes"] = int(
        pc.sum(pc.binary_length(batch["text"].filter(pa.array(some)))).as_py() or 0
    )
    empty = batch.filter(pa.array(~some))
    rejects = [(row["url_id"], row["url"], Reason.NO_TOKENS, None) for row in empty.to_pylist()]
    return Outcome(kept, rejects_batch(rejects), stats)


def schema_for(encoding: Encoding) -> pa.Schema:
    """The schema of `tokens/`: ids are uint16, or uint32 for a large vocabulary."""
    schema = DATASETS["tokens"].schema
    if encoding.dtype == np.uint16:
        return schema
    index = schema.get_field_index("tokens")
    wide = schema.field(index).with_type(pa.list_(pa.field("item", pa.uint32(), nullable=False)))
    return schema.set(index, wide)
