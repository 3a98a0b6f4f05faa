"""Account for the ids of a run: what entered a stage leaves it or is a reject, once.

Each function takes the readers of two datasets, of a stage's input and of its output, or only the
reader of the output, and yields a line for each problem. Memory is bounded by a shard, except for
the ids that `collect` or `import` has given, and for the ids in duplicates/.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from owt_pipeline.ledger.dataset import DatasetReader
from schemas.quantities import pluralize

_NO_IDS = np.zeros(0, np.uint64)


def id_problems(source: DatasetReader, reader: DatasetReader) -> Iterator[str]:
    """Check that each id which entered a shard left it or was rejected, once."""
    # While a generation is half added, the source has more shards. Fewer are a problem.
    if source.num_shards < reader.num_shards:
        yield (
            f"{reader.name}/ has {pluralize(reader.num_shards, 'shard')}, but {source.name}/ "
            f"has only {source.num_shards}"
        )
        return
    for shard in range(reader.num_shards):
        entered = np.sort(source.ids(shard))
        both_kinds = [reader.ids(shard), reader.ids(shard, "rejects")]
        left_or_rejected = np.sort(np.concatenate(both_kinds))
        if np.array_equal(entered, left_or_rejected):
            continue
        outputs = f"shard {shard}: {reader.name}/ and its rejects"
        lost = np.setdiff1d(entered, left_or_rejected)
        if len(lost):
            yield (
                f"{outputs} lack {pluralize(len(lost), 'id')} of {source.name}/, such as {lost[0]}"
            )
        foreign = np.setdiff1d(left_or_rejected, entered)
        if len(foreign):
            ids = pluralize(len(foreign), "id")
            yield f"{outputs} have {ids} that {source.name}/ lacks, such as {foreign[0]}"
        repeated = _repeated(left_or_rejected)
        if len(repeated):
            ids = pluralize(len(repeated), "id")
            yield f"{outputs} have {ids} more than once, such as {repeated[0]}"


def unique_problems(reader: DatasetReader) -> Iterator[str]:
    """Check that each id has one row, in a dataset where ids begin."""
    twice = _repeated(np.concatenate([reader.ids(shard) for shard in range(reader.num_shards)]))
    if len(twice):
        ids = pluralize(len(twice), "id")
        yield f"{reader.name}/ has more than one row for {ids}, such as {twice[0]}"


def _repeated(ids: np.ndarray) -> np.ndarray:
    """Return the ids that occur more than once, each once."""
    distinct, counts = np.unique(ids, return_counts=True)
    return distinct[counts > 1]


def decision_problems(source: DatasetReader, reader: DatasetReader) -> Iterator[str]:
    """Check that each decision removes one existing document in favour of another that stays."""
    removed_of_shard = [np.sort(reader.ids(shard)) for shard in range(reader.num_shards)]
    removed = np.concatenate(removed_of_shard) if removed_of_shard else _NO_IDS
    kept_by_shard = _kept_by_shard(reader)
    for shard, ids in enumerate(removed_of_shard):
        present = source.ids(shard)
        unknown = np.setdiff1d(ids, present)
        if len(unknown):
            yield (
                f"shard {shard}: {source.name}/ does not have "
                f"{pluralize(len(unknown), 'document')} that the decisions remove, such as "
                f"{unknown[0]}"
            )
        if len(np.unique(ids)) != len(ids):
            yield f"shard {shard}: two decisions remove the same document"
        kept_ids = kept_by_shard.get(shard, _NO_IDS)
        lost = np.setdiff1d(kept_ids, present)
        if len(lost):
            yield (
                f"shard {shard}: {source.name}/ does not have {pluralize(len(lost), 'document')} "
                f"that the decisions keep, such as {lost[0]}"
            )
        kept_and_removed = np.intersect1d(kept_ids, removed)
        if len(kept_and_removed):
            yield (
                f"shard {shard}: the decisions both keep and remove "
                f"{pluralize(len(kept_and_removed), 'document')}, such as {kept_and_removed[0]}"
            )


def _kept_by_shard(decisions: DatasetReader) -> dict[int, np.ndarray]:
    """Return the ids of documents that others repeat, distinct and ascending, by `kept_shard`."""
    parts_by_shard: dict[int, list[np.ndarray]] = {}
    for batch in decisions.batches(columns=["kept_url_id", "kept_shard"]):
        ids = batch["kept_url_id"].to_numpy()
        shards = batch["kept_shard"].to_numpy()
        for shard in np.unique(shards).tolist():
            parts_by_shard.setdefault(shard, []).append(ids[shards == shard])
    return {shard: np.unique(np.concatenate(parts)) for shard, parts in parts_by_shard.items()}
