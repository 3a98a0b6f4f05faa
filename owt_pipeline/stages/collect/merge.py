"""Merges the submissions of a shard's URLs into one row per URL.

             ordered by URL, then by time
url_id       7    7    7    |  9    9    | 12
submission   a    b    b'   |  c    d    |  e        b' is b from another dump
becomes      row            |  row       |  -        the score of e is too low
rejected     repeated ×2    |  repeated  |  low_score
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.stages.collect.earlier import Earlier
from owt_pipeline.stages.collect.spread import Spread
from schemas import DATASETS, REJECTS, Reason

URLS: pa.Schema = DATASETS["urls"].schema

_LEAST = np.iinfo(np.int64).min
_INT32 = np.iinfo(np.int32)

_OF_REJECTS = ["url_id", "url", "submission_id", "source_name", "line"]
_ORDER = [  # within a URL; nulls last. The order of the sources does not matter.
    ("url_id", "ascending"),
    ("created_utc", "ascending"),
    ("submission_id", "ascending"),
    ("score", "descending"),
    ("source_name", "ascending"),
    ("line", "ascending"),
]


def merge_submissions(
    rows: pa.Table,
    source_names: Sequence[str],
    *,
    min_score: int,
    score_policy: str,
    spread: Spread,
    earlier: Earlier | None = None,
) -> tuple[pa.Table, pa.Table]:
    """(URLs, rejects) of all the submissions of some URLs, both ordered by url_id.

    Args:
      rows: of schema ROWS, in any order. A submission that occurs twice (in two dumps) counts once.
      source_names: name of each source, for the rejects' details.
      min_score: the least score of a URL; one from a list or a WARC file needs none.
      score_policy: `max` or `sum` of the scores of a URL's submissions.
      spread: gives `host_shards`.
      earlier: what the bases know about these URLs: those they accepted are rejected; the scores of the others count
        with these.
    """
    names = pa.array(source_names, pa.string()).take(rows["source"].combine_chunks())
    rows = rows.drop_columns(["bucket", "source"]).append_column("source_name", names)
    is_wanted = rows["reason"].is_null()
    unwanted = rows.select([*_OF_REJECTS, "reason", "note"]).filter(pc.invert(is_wanted))
    rejects = [_rejects(unwanted, unwanted["reason"], unwanted["note"])]
    rows = _ordered(rows.drop_columns(["reason", "note"]).filter(is_wanted))
    collides = _collides(rows)
    if collides.any():
        collided = rows.filter(pa.array(collides))
        rejects.append(_rejects(collided, str(Reason.ID_COLLISION), collided["url"]))
        rows = rows.filter(pa.array(~collides))
    if earlier is not None:
        places = pc.index_in(rows["url_id"], value_set=earlier.seen["url_id"].combine_chunks())
        seen = rows.filter(places.is_valid())
        rejects.append(_rejects(seen, str(Reason.SEEN_BEFORE), earlier.seen["note"].take(places.drop_null())))
        rows = rows.filter(places.is_null()).combine_chunks()
    urls = pa.Table.from_batches([], URLS)
    if rows.num_rows:
        urls, accepted, starts, together = _merged(rows, min_score, score_policy, spread, earlier)
        repeated = accepted.copy()
        repeated[starts] = False
        rows = rows.select([*_OF_REJECTS, "score"])
        again, low = rows.filter(pa.array(repeated)), rows.filter(pa.array(~accepted))
        note = pc.binary_join_element_wise("score", low["score"].cast(pa.string()), " ")
        if together is not None:
            more = pc.binary_join_element_wise(together.filter(pa.array(~accepted)), "with earlier runs", " ")
            note = pc.coalesce(pc.binary_join_element_wise(note, more, ", "), note)
        rejects.append(_rejects(again, str(Reason.REPEATED_URL), None))
        rejects.append(_rejects(low, str(Reason.LOW_SCORE), note))
    if earlier is not None:
        urls = pa.concat_tables([urls, earlier.again]).sort_by("url_id")
    rejected = pa.concat_tables(rejects)
    order = pc.sort_indices(rejected, [(name, "ascending") for name in ("url_id", "source_name", "line")])
    return urls, rejected.select(REJECTS.names).take(order).cast(REJECTS)


def _ordered(rows: pa.Table) -> pa.Table:
    """Sorted by _ORDER: all by id, and by the rest only those that share an id, as most URLs have one submission."""
    ids = rows["url_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    same = ids[1:] == ids[:-1]
    shared = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    among = rows.select([name for name, _ in _ORDER]).take(order[shared])
    order[shared] = order[shared][pc.sort_indices(among, _ORDER).to_numpy()]
    return rows.take(order).combine_chunks()


def _collides(rows: pa.Table) -> np.ndarray:
    """Which rows have another URL than the first row with the same id."""
    if not rows.num_rows:
        return np.zeros(0, bool)
    starts, group = _groups(rows["url_id"].to_numpy())
    urls = rows["url"].combine_chunks()
    return pc.not_equal(urls, urls.take(starts[group])).to_numpy(zero_copy_only=False)


def _groups(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(index of each group's first row, group of each row) of ordered ids."""
    first = np.append(True, ids[1:] != ids[:-1])
    return np.flatnonzero(first), np.cumsum(first) - 1


def _merged(
    rows: pa.Table, min_score: int, score_policy: str, spread: Spread, earlier: Earlier | None
) -> tuple[pa.Table, np.ndarray, np.ndarray, pa.Array | None]:
    """(URLs, which rows are of an accepted URL, first row of each URL, each row's score in all runs if earlier ones
    count) of ordered rows."""
    starts, group = _groups(rows["url_id"].to_numpy())
    submission = rows["submission_id"].combine_chunks()
    same = pc.fill_null(pc.equal(submission[1:], submission[:-1]), False).to_numpy(zero_copy_only=False)
    again = np.insert(same & (group[1:] == group[:-1]), 0, False)  # the same submission, from another dump

    scored = rows["score"].is_valid().to_numpy()
    scores = rows["score"].fill_null(_LEAST).to_numpy()
    highest = np.maximum.reduceat(scores, starts)
    score = highest if score_policy == "max" else np.add.reduceat(np.where(scored & ~again, scores, 0), starts)
    together = None
    if earlier is not None:
        ids, scores_of_ids = _over_all_runs(rows, earlier.scores, score_policy)
        places = np.searchsorted(rows["url_id"].to_numpy()[starts], ids)
        score = score.copy()
        score[places] = scores_of_ids
        counted_earlier = np.zeros(len(starts), bool)
        counted_earlier[places] = True
        together = pa.array(score[group], mask=~counted_earlier[group]).cast(pa.string())
    listed = np.logical_or.reduceat(~scored, starts)
    has_score = np.logical_or.reduceat(scored, starts)
    accepted = listed | (has_score & (score >= min_score))

    of_highest = np.flatnonzero(scores == highest[group])
    best = of_highest[np.unique(group[of_highest], return_index=True)[1]]
    counted = rows["num_comments"].is_valid().to_numpy() & ~again
    comments = np.add.reduceat(np.where(counted, rows["num_comments"].fill_null(0).to_numpy(), 0), starts)
    has_comments = np.logical_or.reduceat(counted, starts)

    leaders = rows.take(starts)
    columns = {
        "url_id": leaders["url_id"],
        "url": leaders["url"],
        "posted_url": leaders["posted_url"],
        "host": leaders["host"],
        "host_shards": spread.host_shards(leaders["host"]),
        "title": rows["title"].take(pa.array(best)),
        "score": pa.array(np.clip(score, _INT32.min, _INT32.max).astype(np.int32), mask=~has_score),
        "created_utc": leaders["created_utc"],
        "subreddits": _sorted_lists(group, len(starts), rows["subreddit"]),
        "num_comments": pa.array(np.clip(comments, 0, _INT32.max).astype(np.int32), mask=~has_comments),
        "submission_ids": _sorted_lists(group, len(starts), submission),
    }
    urls = pa.Table.from_arrays([columns[name] for name in URLS.names], schema=URLS)
    return urls.filter(pa.array(accepted)), accepted[group], starts, together


def _over_all_runs(rows: pa.Table, earlier: pa.Table, score_policy: str) -> tuple[np.ndarray, np.ndarray]:
    """(ids, scores) of the URLs with submissions in earlier runs; a submission counts once in all runs."""
    names = ["url_id", "submission_id", "score"]
    earlier = earlier.filter(pc.is_in(earlier["url_id"], value_set=rows["url_id"].combine_chunks())).select(names)
    rows = rows.select(names).filter(rows["score"].is_valid())
    rows = rows.filter(pc.is_in(rows["url_id"], value_set=earlier["url_id"].combine_chunks()))
    both = pa.concat_tables([rows, earlier])
    numbers = pa.array(np.arange(len(both))).cast(pa.string())  # a submission without an id differs from all others
    key = pc.coalesce(both["submission_id"], pc.binary_join_element_wise("", numbers, " "))
    both = both.set_column(1, "submission_id", key)
    best = both.group_by(["url_id", "submission_id"]).aggregate([("score", "max")])
    found = best.group_by("url_id").aggregate([("score_max", score_policy)])
    return found["url_id"].to_numpy(), found[f"score_max_{score_policy}"].to_numpy()


def _sorted_lists(group: np.ndarray, num_groups: int, values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The distinct values of each group, sorted, without nulls."""
    encoded = pc.dictionary_encode(values)
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    ranks = pc.rank(encoded.dictionary).to_numpy().astype(np.int64) - 1
    valid = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    codes = ranks[encoded.indices.fill_null(0).to_numpy()[valid]] if len(ranks) else np.zeros(0, np.int64)
    pairs = np.unique(group[valid] * np.int64(max(len(ranks), 1)) + codes)
    groups, codes = np.divmod(pairs, max(len(ranks), 1))
    offsets = np.searchsorted(groups, np.arange(num_groups + 1)).astype(np.int32)
    texts = encoded.dictionary.take(pc.sort_indices(encoded.dictionary)).take(pa.array(codes))
    return pa.ListArray.from_arrays(offsets, texts, type=URLS.field("subreddits").type)


def _rejects(rows: pa.Table, reason: str | pa.ChunkedArray, note: pa.ChunkedArray | None) -> pa.Table:
    """Reject rows, whose details have a place: `note; submission ID, FILE:LINE`; and the columns they are sorted by."""
    if isinstance(reason, str):
        reason = pa.repeat(pa.scalar(reason), rows.num_rows)
    where = pc.binary_join_element_wise(rows["source_name"], rows["line"].cast(pa.string()), ":")
    by = pc.binary_join_element_wise("submission ", rows["submission_id"], ", ", "")
    detail = pc.binary_join_element_wise(pc.fill_null(by, ""), where, "")
    if note is not None:
        detail = pc.binary_join_element_wise(pc.coalesce(pc.binary_join_element_wise(note, "; ", ""), ""), detail, "")
    columns = [rows["url_id"], rows["url"], reason, detail, rows["source_name"], rows["line"]]
    return pa.table(columns, [*REJECTS.names, "source_name", "line"])
