"""Merge the submissions of a shard's URLs into one row per URL.

             ordered by URL, then by time
url_id       7    7    7    |  9    9    | 12
submission   a    b    b'   |  c    d    |  e        b' is b from another dump
becomes      row            |  row       |  -        the score of e is too low
rejected     repeated ×2    |  repeated  |  low_score
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.formats.urls import host_hash, host_of
from schemas import DATASETS, REJECTS, Reason

if TYPE_CHECKING:
    import duckdb

URLS: pa.Schema = DATASETS["urls"].schema

# The verdict on each row that has no reason yet. Rows with a reason count for no URL.
# A row collides if the first row with its id has another URL.
# The windows sort narrow rows. `rows` itself is joined where the results are made.
_JUDGED = """
CREATE TEMP TABLE judged AS
WITH ordered AS (
  SELECT row, url_id, submission_id, score,
    row_number() OVER of_url AS place, first_value(url) OVER of_url IS DISTINCT FROM url AS collides
  FROM rows JOIN names USING (source) WHERE reason IS NULL
  WINDOW of_url AS (
    PARTITION BY url_id
    ORDER BY created_utc NULLS LAST, submission_id NULLS LAST, score DESC NULLS LAST,
      names.name, line
  )
), here AS (
  SELECT url_id, max(score) AS score, bool_or(score IS NULL) AS is_listed
  FROM ordered WHERE NOT collides GROUP BY url_id
), before AS (
  SELECT url_id, max(score) AS score, min(generation) FILTER (score IS NULL) AS generation
  FROM known GROUP BY url_id
), scored AS (
  SELECT row, ordered.url_id, place, collides, is_listed, here.score AS score_here,
    before.score AS score_before, before.generation, greatest(here.score, before.score) AS best,
    submission_id IS NULL
      OR row_number() OVER (PARTITION BY ordered.url_id, collides, submission_id ORDER BY place) = 1
      AS counts
  FROM ordered JOIN here USING (url_id) LEFT JOIN before USING (url_id)
)
SELECT *,
  CASE WHEN collides THEN $id_collision
       WHEN generation IS NOT NULL THEN $seen_before
       WHEN NOT is_listed AND best < $min_score THEN $low_score
       WHEN place > 1 THEN $repeated_url END AS verdict
FROM scored
"""

_URLS = """
SELECT url_id,
  first(url ORDER BY place) AS url,
  first(posted_url ORDER BY place) AS posted_url,
  first(host ORDER BY place) AS host,
  first(title ORDER BY score DESC NULLS LAST, place) AS title,
  CASE WHEN any_value(score_here) IS NOT NULL
       THEN greatest(least(any_value(best), 2147483647), -2147483648) END AS score,
  first(created_utc ORDER BY place) AS created_utc,
  coalesce(list_sort(list_distinct(flatten(list(subreddits)))), []) AS subreddits,
  CASE WHEN count(num_comments) FILTER (counts) > 0
       THEN greatest(least(sum(num_comments) FILTER (counts), 2147483647), 0) END AS num_comments,
  coalesce(list_sort(list_distinct(list(submission_id))), []) AS submission_ids,
  list_sort(list_distinct(flatten(list(coalesce(link_sources, [link_source]))))) AS link_sources
FROM judged JOIN rows USING (row, url_id) JOIN names USING (source)
WHERE verdict IS NULL OR verdict = $repeated_url
GROUP BY url_id
ORDER BY url_id
"""

_REJECTS = """
SELECT rows.url_id, url, coalesce(reason, verdict) AS reason,
  concat(
    CASE verdict WHEN $id_collision THEN url
                 WHEN $seen_before THEN concat('generation ', generation)
                 WHEN $low_score THEN concat(
                   'score ', score, CASE WHEN score_before IS NOT NULL
                   THEN concat(', ', best, ' with earlier generations') END
                 ) ELSE note END || '; ',
    'submission ' || submission_id || ', ', name, ':', line
  ) AS detail
FROM rows JOIN names USING (source) LEFT JOIN judged USING (row)
WHERE reason IS NOT NULL OR verdict IS NOT NULL
ORDER BY rows.url_id, name, line, reason
"""


KNOWN = pa.schema(
    [
        pa.field("home", pa.uint64(), nullable=False),
        pa.field("url_id", pa.uint64(), nullable=False),
        pa.field("generation", pa.int32(), nullable=False),
        pa.field("score", pa.int64()),
    ]
)
"""A URL that a generation accepted, or rejected for a low score.

`score` is the score of the rejected submission; null for an accepted URL.
"""


def known_of(urls: pa.Table, rejects: pa.Table, generation: int) -> pa.Table:
    """Return rows of schema KNOWN from a shard of a generation: from its URLs, and its rejects."""
    low = rejects.filter(pc.equal(rejects["reason"], str(Reason.LOW_SCORE)))
    details = low["detail"].combine_chunks()
    score = pc.extract_regex(details, r"^score (?P<score>-?[0-9]+)").field("score")
    known_urls = [*urls["url"].to_pylist(), *low["url"].to_pylist()]
    columns = {
        "home": pa.array([host_hash(host_of(url)) for url in known_urls], pa.uint64()),
        "url_id": pa.chunked_array([*urls["url_id"].chunks, *low["url_id"].chunks], pa.uint64()),
        "generation": pa.array([generation] * len(known_urls), pa.int32()),
        "score": pa.concat_arrays([pa.nulls(len(urls), pa.int64()), score.cast(pa.int64())]),
    }
    return pa.table(columns, schema=KNOWN)


def merge_submissions(
    rows: pa.Table,
    sources: Sequence[tuple[str, str]],
    *,
    min_score: int,
    known: pa.Table | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Return (URLs, rejects) of all the submissions of some URLs, both ordered by url_id.

    A URL has the score of its best submission, since WebText's recipe counts the karma of a link's
    submission and not the sum of all.

    Args:
      rows: of schema ROWS, in any order. A submission that occurs twice (in two dumps) counts once.
      sources: name of each source, for the rejects' details, and where its links are found.
      min_score: the minimum score of a URL. A URL from a table or a WARC file may have no score,
        and then needs none.
      known: of schema KNOWN, from earlier generations. A URL that they accepted is rejected here.
        A score that they rejected counts here too.
    """
    reasons = {str(r): str(r) for r in (Reason.ID_COLLISION, Reason.SEEN_BEFORE, Reason.LOW_SCORE)}
    repeated = {"repeated_url": str(Reason.REPEATED_URL)}
    with _database().cursor() as database:  # with tables of its own
        database.execute("SET enable_progress_bar = false")
        database.register("rows", rows.append_column("row", pa.array(np.arange(len(rows)))))
        names = {
            "source": pa.array(range(len(sources))),
            "name": pa.array([name for name, _ in sources]),
            "link_source": pa.array([link_source for _, link_source in sources]),
        }
        database.register("names", pa.table(names))
        database.register("known", KNOWN.empty_table() if known is None else known)
        database.execute(_JUDGED, {**reasons, **repeated, "min_score": min_score})
        urls = database.sql(_URLS, params=repeated).to_arrow_table()
        rejects = database.sql(_REJECTS, params=reasons).to_arrow_table().cast(REJECTS)
    return urls.cast(URLS), rejects


@functools.cache  # starting one takes longer than merging a small shard
def _database() -> duckdb.DuckDBPyConnection:
    import duckdb  # slow to import

    atexit.register(_database.cache_clear)  # DuckDB warns of one that is left at the end
    return duckdb.connect(config={"threads": 1})  # other workers take the other cores
