"""Decisions: what was found, exact and near, as one table in which nobody is kept who goes himself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.dedupe.places import shard_of

DECIDED = pa.schema(
    [
        ("place", pa.uint64()),
        ("url_id", pa.uint64()),
        ("kept_url_id", pa.uint64()),
        ("kept_shard", pa.uint32()),
        ("rule", pa.string()),
        ("similarity", pa.float32()),
        ("shared_bands", pa.uint16()),
        ("cluster_size", pa.uint32()),
    ]
)


CLUSTERS = pa.schema(
    [
        ("kept_url_id", pa.uint64()),
        ("kept_shard", pa.uint32()),
        ("documents", pa.uint32()),
        ("sample", pa.list_(pa.uint64())),
    ]
)
"""A cluster: the document that stays, how many it is with those that go, and the places of some of these."""


def decide(exact: pa.Table, near: pa.Table) -> pa.Table:
    """One row of DECIDED for each document that goes, sorted by place.

    Args:
      exact: rows of `exact.PLACED`.
      near: rows of `verification.PROVEN`, over what `exact` leaves.

    A copy of a document that itself goes as a near-duplicate goes in favour of the same document, by the rule
    near: its shingles are the same, so the similarity is.
    """
    near = near.sort_by("place")
    near_place = near["place"].to_numpy()
    kept = exact["kept_place"].to_numpy()
    found = np.searchsorted(near_place, kept)
    passes_on = np.zeros(len(kept), bool)
    inside = found < len(near_place)
    passes_on[inside] = near_place[found[inside]] == kept[inside]
    heir = found[passes_on]

    def joined(name: str, of_copy: np.ndarray) -> np.ndarray:
        values = near[name].to_numpy()
        of_exact = of_copy.astype(values.dtype)
        of_exact[passes_on] = values[heir]
        return np.concatenate([of_exact, values])

    place = np.concatenate([exact["place"].to_numpy(), near_place])
    order = np.argsort(place)
    kept_place = joined("kept_place", kept)[order]
    _, cluster, sizes = np.unique(kept_place, return_inverse=True, return_counts=True)
    is_near = np.concatenate([passes_on, np.ones(len(near_place), bool)])[order]
    return pa.Table.from_arrays(
        [
            pa.array(place[order]),
            pa.array(np.concatenate([exact["url_id"].to_numpy(), near["url_id"].to_numpy()])[order]),
            pa.array(joined("kept_url_id", exact["kept_url_id"].to_numpy())[order]),
            pa.array(shard_of(kept_place).astype(np.uint32)),
            pa.array(np.where(is_near, "near", "exact").tolist(), pa.string()),
            pa.array(joined("similarity", np.ones(len(kept)))[order]),
            pa.array(joined("shared_bands", np.zeros(len(kept)))[order]),
            pa.array((sizes[cluster] + 1).astype(np.uint32)),
        ],
        schema=DECIDED,
    )


def largest_clusters(decided: pa.Table, most: int = 10) -> pa.RecordBatch:
    """The clusters of most documents, as rows of CLUSTERS."""
    kept, first, gone = np.unique(decided["kept_url_id"].to_numpy(), return_index=True, return_counts=True)
    rows = [
        {
            "kept_url_id": kept[i],
            "kept_shard": decided["kept_shard"][first[i]].as_py(),
            "documents": gone[i] + 1,
            "sample": decided["place"].filter(pc.equal(decided["kept_url_id"], kept[i]))[:5].to_pylist(),
        }
        for i in np.argsort(-gone, kind="stable")[:most].tolist()
    ]
    return pa.RecordBatch.from_pylist(rows, CLUSTERS)
