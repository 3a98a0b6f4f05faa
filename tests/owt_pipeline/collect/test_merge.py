"""Merging the submissions of a URL equals a plain implementation of the rules, in any order of rows."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.stages.collect.merge import KNOWN, URLS, known_of, merge_submissions
from owt_pipeline.stages.collect.submissions import ROWS
from schemas import REJECTS

NAMES = ["RS_1.zst", "RS_2.zst", "list.txt"]
ORIGINS = ["reddit", "reddit", "links"]
LAST = float("inf")


def submission(**fields: Any) -> dict[str, Any]:
    row = dict.fromkeys(ROWS.names)
    return {**row, "home": 0, "host": "h.org", "source": 0, "line": 1, "posted_url": "http://h.org/x", **fields}


def merge(rows: list[dict[str, Any]], **options: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    options = {"min_score": 3, **options}
    urls, rejects = merge_submissions(pa.Table.from_pylist(rows, ROWS), [*zip(NAMES, ORIGINS, strict=True)], **options)
    assert urls.schema == URLS
    assert rejects.schema == REJECTS
    urls.validate(full=True)
    return urls.to_pylist(), rejects.to_pylist()


def test_submissions_of_a_url_become_one_row_and_name_the_others() -> None:
    a = submission(url_id=7, url="u7", submission_id="a", subreddits=["x"], title="first", score=2, created_utc=10)
    b = submission(
        url_id=7, url="u7", submission_id="b", subreddits=["w"], title="best", score=9, created_utc=20, line=4,
        num_comments=5, posted_url="http://www.h.org/x",
    )  # fmt: skip
    urls, rejects = merge([b, a])
    assert urls == [
        {
            "url_id": 7, "url": "u7", "posted_url": "http://h.org/x", "host": "h.org",
            "title": "best", "score": 9, "created_utc": 10, "subreddits": ["w", "x"], "num_comments": 5,
            "submission_ids": ["a", "b"], "link_sources": ["reddit"],
        }
    ]  # fmt: skip
    assert rejects == [{"url_id": 7, "url": "u7", "reason": "repeated_url", "detail": "submission b, RS_1.zst:4"}]


def test_a_submission_in_two_dumps_counts_once() -> None:
    rows = [
        submission(url_id=7, url="u", submission_id="a", score=2, num_comments=3, created_utc=10, source=0),
        submission(url_id=7, url="u", submission_id="a", score=1, num_comments=3, created_utc=10, source=1),
    ]
    assert merge(rows)[0] == []
    assert [r["detail"] for r in merge(rows)[1]] == [
        "score 2; submission a, RS_1.zst:1",
        "score 1; submission a, RS_2.zst:1",
    ]
    urls, _ = merge([*rows, submission(url_id=7, url="u", submission_id="b", score=3, created_utc=9)])
    assert [(u["score"], u["num_comments"], u["submission_ids"]) for u in urls] == [(3, 3, ["a", "b"])]


def test_a_listed_url_needs_no_score() -> None:
    urls, rejects = merge(
        [submission(url_id=1, url="u", source=2), submission(url_id=1, url="u", submission_id="a", score=-5)]
    )
    assert [(u["score"], u["submission_ids"]) for u in urls] == [(-5, ["a"])]
    assert [r["reason"] for r in rejects] == ["repeated_url"]


def test_two_urls_with_one_id_are_distinguished() -> None:
    rows = [
        submission(url_id=1, url="u", submission_id="a", score=9, created_utc=1),
        submission(url_id=1, url="v", submission_id="b", score=9, created_utc=2),
        submission(url_id=1, url="u", submission_id="c", score=9, created_utc=3),
    ]
    urls, rejects = merge(rows)
    assert [(u["url"], u["submission_ids"]) for u in urls] == [("u", ["a", "c"])]
    assert sorted((r["url"], r["reason"]) for r in rejects) == [("u", "repeated_url"), ("v", "id_collision")]


def test_what_earlier_generations_accepted_is_rejected_and_their_low_scores_count() -> None:
    def generation(number: int, *submissions: dict[str, Any], known: pa.Table) -> tuple[list[Any], list[Any], pa.Table]:
        rows = pa.Table.from_pylist(list(submissions), ROWS)
        urls, rejects = merge_submissions(rows, [*zip(NAMES, ORIGINS, strict=True)], min_score=3, known=known)
        return urls.to_pylist(), rejects.to_pylist(), pa.concat_tables([known, known_of(urls, rejects, number)])

    a, b, c = ({"url_id": k, "url": f"https://{k}.org/", "submission_id": f"s{k}"} for k in (1, 2, 3))
    first = [submission(**a, score=5), submission(**b, score=1), submission(**c, score=-2)]
    _, _, known = generation(0, *first, known=KNOWN.empty_table())
    assert known.select(["url_id", "generation", "score"]).to_pylist() == [
        {"url_id": k, "generation": 0, "score": score} for k, score in ((1, None), (2, 1), (3, -2))
    ]
    second = [submission(**a, score=9), submission(**b, score=4), submission(**c, score=2)]
    urls, rejects, known = generation(1, *second, known=known)
    assert [(url["url_id"], url["score"]) for url in urls] == [(2, 4)]
    assert [(reject["reason"], reject["detail"]) for reject in rejects] == [
        ("seen_before", "generation 0; submission s1, RS_1.zst:1"),
        ("low_score", "score 2, 2 with earlier generations; submission s3, RS_1.zst:1"),
    ]
    _, rejects, _ = generation(2, *second, known=known)
    assert [reject["detail"].partition(";")[0] for reject in rejects[:2]] == ["generation 0", "generation 1"]


def test_merging_no_rows_gives_none() -> None:
    assert merge([]) == ([], [])
    assert merge([submission(url_id=1, url="u", reason="self_post", submission_id="a")]) == (
        [],
        [{"url_id": 1, "url": "u", "reason": "self_post", "detail": "submission a, RS_1.zst:1"}],
    )


some = st.fixed_dictionaries(
    {
        "url_id": st.integers(0, 5),
        "submission_id": st.one_of(st.none(), st.sampled_from("abcd")),
        "score": st.one_of(st.none(), st.integers(-2, 9)),
        "created_utc": st.one_of(st.none(), st.integers(0, 3)),
        "num_comments": st.one_of(st.none(), st.integers(0, 3)),
        "subreddits": st.one_of(st.none(), st.lists(st.sampled_from("xyz"), max_size=2)),
        "link_sources": st.one_of(st.none(), st.lists(st.sampled_from("hl"), min_size=1, max_size=2)),
        "title": st.one_of(st.none(), st.sampled_from("TUV")),
        "source": st.integers(0, 2),
        "reason": st.sampled_from([None, None, None, "over_18"]),
    }
)


def plainly_merged(rows: list[dict[str, Any]], min_score: int) -> dict[int, dict[str, Any]]:
    """The rules of the docstrings, without numpy."""
    by_url = defaultdict(list)
    for row in rows:
        if row["reason"] is None:
            by_url[row["url_id"]].append(row)
    merged = {}
    for identifier, group in by_url.items():
        group.sort(
            key=lambda r: (
                LAST if r["created_utc"] is None else r["created_utc"],
                r["submission_id"] or "~",
                LAST if r["score"] is None else -r["score"],
                NAMES[r["source"]],
                r["line"],
            )
        )
        for row in group:
            row["score_or_least"] = -LAST if row["score"] is None else row["score"]
        ids = [row["submission_id"] for row in group]
        once = [row for k, row in enumerate(group) if ids[k] is None or ids[k] not in ids[:k]]
        score = max((row["score"] for row in group if row["score"] is not None), default=None)
        if all(r["score"] is not None for r in group) and (score is None or score < min_score):
            continue
        comments = [row["num_comments"] for row in once if row["num_comments"] is not None]
        merged[identifier] = {
            "score": score,
            "created_utc": group[0]["created_utc"],
            "title": max(group, key=lambda row: row["score_or_least"])["title"],
            "subreddits": sorted({name for r in group for name in r["subreddits"] or ()}),
            "link_sources": sorted({name for r in group for name in r["link_sources"] or (ORIGINS[r["source"]],)}),
            "submission_ids": sorted({r["submission_id"] for r in group if r["submission_id"]}),
            "num_comments": sum(comments) if comments else None,
            "posted_url": group[0]["posted_url"],
        }
    return merged


@given(st.lists(some, max_size=14), st.randoms())
def test_any_submissions_merge_as_the_rules_say_in_any_order(
    given_rows: list[dict[str, Any]], rng: random.Random
) -> None:
    rows = [submission(**row, url=f"u{row['url_id']}", line=k, posted_url=f"p{k}") for k, row in enumerate(given_rows)]
    urls, rejects = merge(rows)
    expected = plainly_merged([dict(row) for row in rows], 3)
    assert {u["url_id"]: {name: u[name] for name in expected[u["url_id"]]} for u in urls} == expected
    assert [u["url_id"] for u in urls] == sorted(expected)
    assert len(urls) + len(rejects) == len(rows)
    assert [r["url_id"] for r in rejects] == sorted(r["url_id"] for r in rejects)
    rng.shuffle(rows)
    assert merge(rows) == (urls, rejects)
