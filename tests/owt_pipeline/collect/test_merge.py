"""Merging the submissions of a URL equals a plain implementation of the rules, in any order of
rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.stages.collect.merge import KNOWN, URLS, known_of, merge_submissions
from owt_pipeline.stages.collect.submissions import ROWS
from schemas import REJECTS

NAMES = ["RS_1.zst", "RS_2.zst", "list.txt"]
ORIGINS = ["reddit", "reddit", "links"]
LAST = float("inf")


def submission(**fields: Any) -> dict[str, Any]:
    row = dict.fromkeys(ROWS.names)
    return {
        **row,
        "home": 0,
        "host": "h.org",
        "source": 0,
        "line": 1,
        "posted_url": "http://h.org/x",
        **fields,
    }


def merged(
    rows: list[dict[str, Any]], earlier: pa.Table | None = None
) -> tuple[pa.Table, pa.Table]:
    table = pa.Table.from_pylist(rows, ROWS)
    return merge_submissions(table, [*zip(NAMES, ORIGINS, strict=True)], min_score=3, known=earlier)


def merge(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the URLs and the rejects of submissions, in the schemas of the datasets."""
    urls, rejects = merged(rows)
    assert (urls.schema, rejects.schema) == (URLS, REJECTS)
    urls.validate(full=True)
    return urls.to_pylist(), rejects.to_pylist()


def test_accepted_urls_are_rejected_and_earlier_low_scores_count() -> None:
    def generation(
        number: int, *rows: dict[str, Any], earlier: pa.Table
    ) -> tuple[list[Any], list[Any], pa.Table]:
        urls, rejects = merged(list(rows), earlier)
        return (
            urls.to_pylist(),
            rejects.to_pylist(),
            pa.concat_tables([earlier, known_of(urls, rejects, number)]),
        )

    a, b, c = (
        {"url_id": k, "url": f"https://{k}.org/", "submission_id": f"s{k}"} for k in (1, 2, 3)
    )
    # The minimum is 3: the first is accepted, and the scores of the other two are remembered.
    first = [submission(**a, score=5), submission(**b, score=1), submission(**c, score=-2)]
    _, _, earlier_urls = generation(0, *first, earlier=KNOWN.empty_table())
    assert earlier_urls.select(["url_id", "generation", "score"]).to_pylist() == [
        {"url_id": k, "generation": 0, "score": score} for k, score in ((1, None), (2, 1), (3, -2))
    ]
    second = [submission(**a, score=9), submission(**b, score=4), submission(**c, score=2)]
    urls, rejects, earlier_urls = generation(1, *second, earlier=earlier_urls)
    assert [(url["url_id"], url["score"]) for url in urls] == [(2, 4)]
    assert [(reject["reason"], reject["detail"]) for reject in rejects] == [
        ("seen_before", "generation 0; submission s1, RS_1.zst:1"),
        ("low_score", "score 2, 2 with earlier generations; submission s3, RS_1.zst:1"),
    ]
    _, rejects, _ = generation(2, *second, earlier=earlier_urls)
    assert [reject["detail"].partition(";")[0] for reject in rejects[:2]] == [
        "generation 0",
        "generation 1",
    ]


submissions = st.fixed_dictionaries(
    {
        "url_id": st.integers(0, 5),
        "url": st.sampled_from("uuuv"),
        "submission_id": st.one_of(st.none(), st.sampled_from("abcd")),
        "score": st.one_of(st.none(), st.integers(-2, 9)),
        "created_utc": st.one_of(st.none(), st.integers(0, 3)),
        "num_comments": st.one_of(st.none(), st.integers(0, 3)),
        "subreddits": st.one_of(st.none(), st.lists(st.sampled_from("xyz"), max_size=2)),
        "link_sources": st.one_of(
            st.none(), st.lists(st.sampled_from("hl"), min_size=1, max_size=2)
        ),
        "title": st.one_of(st.none(), st.sampled_from("TUV")),
        "source": st.integers(0, 2),
        "reason": st.sampled_from([None, None, None, "over_18"]),
    }
)


def in_order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sort key by which the earliest submission comes first."""
    created = row["created_utc"]
    score = row["score"]
    name = NAMES[row["source"]]
    best_first = LAST if score is None else -score
    return (
        LAST if created is None else created,
        row["submission_id"] or "~",
        best_first,
        name,
        row["line"],
    )


def reject(row: dict[str, Any], reason: str, *details: str) -> tuple[int, str, str]:
    """Return the id, the reason and the detail of a submission's reject."""
    submission = [f"submission {row['submission_id']}, "] if row["submission_id"] else []
    place = f"{NAMES[row['source']]}:{row['line']}"
    return row["url_id"], reason, "; ".join([*details, "".join([*submission, place])])


def plainly_merged(
    rows: list[dict[str, Any]], min_score: int
) -> tuple[dict[int, dict[str, Any]], list[Any]]:
    """Merge submissions URL by URL, by the rules of the docstrings."""
    urls = {}
    rejects = [reject(row, row["reason"]) for row in rows if row["reason"]]
    for url_id in {row["url_id"] for row in rows}:
        every = sorted(
            (row for row in rows if row["url_id"] == url_id and not row["reason"]), key=in_order
        )
        group = [row for row in every if row["url"] == every[0]["url"]]
        rejects += [reject(row, "id_collision", row["url"]) for row in every if row not in group]
        scores = [row["score"] for row in group if row["score"] is not None]
        if len(scores) == len(group) and max(scores, default=-1) < min_score:
            rejects += [reject(row, "low_score", f"score {row['score']}") for row in group]
            continue
        rejects += [reject(row, "repeated_url") for row in group[1:]]
        ids = [row["submission_id"] for row in group]
        once = [
            row["num_comments"]
            for k, row in enumerate(group)
            if ids[k] is None or ids[k] not in ids[:k]
        ]
        comments = [count for count in once if count is not None]
        urls[url_id] = {
            "url": group[0]["url"],
            "score": max(scores, default=None),
            "created_utc": group[0]["created_utc"],
            "title": max(group, key=lambda row: -LAST if row["score"] is None else row["score"])[
                "title"
            ],
            "subreddits": sorted({name for row in group for name in row["subreddits"] or ()}),
            "link_sources": sorted(
                {n for row in group for n in row["link_sources"] or (ORIGINS[row["source"]],)}
            ),
            "submission_ids": sorted(set(filter(None, ids))),
            "num_comments": sum(comments) if comments else None,
            "posted_url": group[0]["posted_url"],
            "host": "h.org",
        }
    return urls, sorted(rejects)


@settings(max_examples=50)
@given(st.lists(submissions, max_size=14), st.randoms())
def test_submissions_merge_by_the_rules_in_any_order(
    given_rows: list[dict[str, Any]], rng: random.Random
) -> None:
    rows = [submission(**row, line=k, posted_url=f"p{k}") for k, row in enumerate(given_rows)]
    urls, rejects = merge(rows)
    expected, rejected = plainly_merged(rows, 3)
    assert {
        u["url_id"]: {name: u[name] for name in expected[u["url_id"]]} for u in urls
    } == expected
    assert sorted((row["url_id"], row["reason"], row["detail"]) for row in rejects) == rejected
    for table in (urls, rejects):
        assert [row["url_id"] for row in table] == sorted(row["url_id"] for row in table)
    rng.shuffle(rows)
    assert merge(rows) == (urls, rejects)
