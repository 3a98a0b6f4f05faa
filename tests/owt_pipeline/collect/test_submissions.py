"""Submissions of all years of the dumps are read; other lines are rejected with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.lines import Block
from owt_pipeline.formats.urls import host_hash, id_of
from owt_pipeline.stages.collect.rules import Rules
from owt_pipeline.stages.collect.submissions import ROWS, read_block, rows_of

LINK = {
    "id": "abc1",
    "url": "http://www.example.com/story?utm_source=x",
    "permalink": "/r/books/comments/abc1/story/",
    "domain": "example.com",
    "is_self": False,
    "over_18": False,
    "subreddit": "Books",
    "title": "A story",
    "score": 7,
    "created_utc": 1300000000,
    "num_comments": 2,
}


def rows(*lines: bytes | dict[str, Any], rules: Rules | None = None) -> list[dict[str, Any]]:
    rules = rules or Rules()
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    batch = rows_of(read_block(Block(b"\n".join(texts), 11), rules), 3, "RS_test.zst", rules)
    assert batch.schema == ROWS
    batch.validate(full=True)
    return batch.to_pylist()


def row(fields: dict[str, Any], rules: Rules | None = None, **changes: Any) -> dict[str, Any]:
    (only,) = rows({**fields, **changes}, rules=rules)
    return only


def test_a_link_becomes_a_row() -> None:
    copied_fields = {name: LINK[name] for name in ("title", "score", "created_utc", "num_comments")}
    url = "https://example.com/story"
    host = "example.com"
    made_fields = {
        "home": host_hash(host),
        "url_id": id_of(url),
        "url": url,
        "posted_url": LINK["url"],
        "host": host,
    }
    fields_of_place = {"submission_id": "abc1", "subreddits": ["Books"], "source": 3, "line": 11}
    assert row(LINK) == {
        **dict.fromkeys(ROWS.names),
        **copied_fields,
        **made_fields,
        **fields_of_place,
    }


CASES = [
    line.split("\t")
    for line in Path(__file__).with_name("submissions.tsv").read_text().splitlines()[1:]
]


@pytest.mark.parametrize(("expected", "changes"), CASES)
def test_submissions_of_all_eras_become_a_row_or_a_reject(expected: str, changes: str) -> None:
    fields = {
        name: value for name, value in {**LINK, **json.loads(changes)}.items() if value != "ABSENT"
    }
    result = row(fields)
    assert (result["reason"] or "kept") == ("kept" if expected == "same" else expected)
    assert expected != "same" or result == row(LINK)


def test_a_reject_has_the_id_of_its_url_or_of_its_place() -> None:
    assert row(LINK, url="http://i.imgur.com/a.png")["url_id"] == id_of("https://i.imgur.com/a.png")
    assert row(LINK, url=None)["url"] == "https://reddit.com/r/books/comments/abc1/story"
    assert row(LINK, url="ftp://a.org/")["url"] == "ftp://a.org/"
    broken = rows(b"{", b"{")
    assert [r["line"] for r in broken] == [11, 12]
    assert len({r["url_id"] for r in broken}) == 2
    assert all(r["url"] is None and r["reason"] == "bad_line" for r in broken)


def test_a_bad_line_loses_only_itself() -> None:
    good = json.dumps(LINK).encode()
    bad = [good[:40], b"[1]", b"null", b"\xff\xfe", bytes(9), good + good, b"{}", b"{} {}"]
    results = rows(good, b"", b"  \r", good + b"\r", *bad, good)
    assert [(r["line"], r["reason"]) for r in results] == [
        *((11, None), (14, None)),
        *((15 + i, "bad_line") for i in range(len(bad))),
        (15 + len(bad), None),
    ]
    assert all(r["note"] for r in results if r["reason"])


def test_json_of_lax_writers_is_read() -> None:
    lone = json.dumps({**LINK, "title": "half \ud83d"}).encode()
    nan = json.dumps({**LINK, "num_comments": float("nan")}).encode()
    latin = json.dumps({**LINK, "title": "caf@"}).encode().replace(b"@", b"\xe9")
    huge = json.dumps({**LINK, "num_comments": 10**400}).encode()
    results = rows(b"\xef\xbb\xbf" + json.dumps(LINK).encode(), lone, nan, latin, huge)
    assert [r["reason"] for r in results] == [None] * 5
    assert [r["title"] for r in results] == ["A story", "half ?", "A story", "caf\ufffd", "A story"]
    assert results[2]["num_comments"] is results[4]["num_comments"] is None


def test_rules_are_options() -> None:
    assert row(LINK, rules=Rules(over_18=True), over_18=True)["reason"] is None
    assert (
        row(LINK, rules=Rules(deny_subreddits=frozenset({"books"})))["reason"]
        == "blocked_subreddit"
    )
    assert row(LINK, rules=Rules(allow_subreddits=frozenset({"books"})))["reason"] is None
    assert (
        row(LINK, rules=Rules(allow_subreddits=frozenset({"other"})))["reason"]
        == "blocked_subreddit"
    )


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=8),
    st.just([]),
    st.just({"a": 1}),
)
submissions = st.fixed_dictionaries({}, optional=dict.fromkeys((*LINK, "ups", "downs"), values))


damaged = st.builds(
    lambda at, damage: (text := json.dumps(LINK).encode())[:at] + damage + text[at + 1 :],
    st.integers(0, len(json.dumps(LINK))),
    st.binary(max_size=3),
)


@given(st.lists(st.one_of(submissions, damaged, st.binary(max_size=20)), max_size=8))
def test_any_line_becomes_one_row_or_is_blank(given_lines: list[dict[str, Any] | bytes]) -> None:
    lines = [
        line.replace(b"\n", b"") if isinstance(line, bytes) else json.dumps(line).encode()
        for line in given_lines
    ]
    results = rows(*lines) if lines else []
    assert [r["line"] for r in results] == [
        11 + i for i, line in enumerate(lines) if line.strip(b" \t\r\x0b\x0c")
    ]


GOOD = json.dumps(LINK).encode()


@pytest.mark.parametrize(
    "lines",
    [
        [GOOD, GOOD],
        [GOOD, b"", b"  \r", GOOD + b"\r", GOOD],
        # As many objects as lines, but not one on each.
        [GOOD + b" " + GOOD, GOOD[:-1] + b',"a":', b"1}"],
        [GOOD + GOOD, b'{"id": "x", "preview": {"a": {}', b'}, "b": {}}'],
        [GOOD + b"," + GOOD, b'{"id": [{}', b",{}]}"],
        [GOOD, b'{"title": "}', b'{"}', GOOD],
        [GOOD, b"{}", b'{"id": "\xff"}', GOOD],
        [GOOD, b"[" * 5000 + b"]" * 5000, GOOD],
        [b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", GOOD],
        [b"\xef\xbb\xbf" + GOOD, GOOD],
        [b"{", b"}"],
        [b"}", b"{"],
        [b"{}{}", b"}{"],
        [b'{"id": NaN}', GOOD],
    ],
)
def test_lines_of_a_block_are_read_as_single_lines(lines: list[bytes]) -> None:
    rows_of_lines: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 11):
        rows_of_lines += [{**result, "line": number} for result in rows(line)]
    rows_of_block = rows(*lines)
    for results in (rows_of_lines, rows_of_block):
        for result in results:
            # A line without a URL has the id of its place.
            if result["url"] is None:
                del result["url_id"], result["home"]
    assert rows_of_block == rows_of_lines
