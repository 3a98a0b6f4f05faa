"""Submissions as dumps and the API have them, judged by what they say of themselves.

Fields come and go, and change their type, with the years of the dumps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.collect.rows import SUBMISSIONS
from owt_pipeline.collect.rules import Rules
from owt_pipeline.formats.lines import Block
from schemas import Reason

_REDDIT = "https://www.reddit.com"


class Submission(msgspec.Struct, gc=False):
    """The fields of a submission that are read, of whatever type; the others are skipped unparsed."""

    id: Any = None
    url: Any = None
    is_self: Any = None
    over_18: Any = None
    subreddit: Any = None
    title: Any = None
    score: Any = None
    created_utc: Any = None
    num_comments: Any = None


class FullSubmission(Submission, gc=False):
    """With the fields that replace others: read where one of those is missing."""

    permalink: Any = None
    domain: Any = None
    ups: Any = None
    downs: Any = None
    link_id: Any = None  # of a comment
    body: Any = None


def read_block(block: Block, rules: Rules) -> pa.Table:
    """The submissions of a block, of schema SUBMISSIONS; blank lines are none.

    A line that is no JSON object, or has neither id nor URL, or no score, has the reason `bad_line`.
    """
    return pa.Table.from_batches([_read_piece(piece, rules) for piece in block.pieces()])


def _read_piece(block: Block, rules: Rules) -> pa.RecordBatch:
    records, lines, problems = decode_block(block, Submission)
    full = cache(lambda: decode_block(block, FullSubmission)[0])
    reasons: list[str | None] = [None] * len(records)
    notes: list[str | None] = [None] * len(records)
    for i in [i for i, s in enumerate(records) if s.is_self is not False or s.over_18 is not False]:
        s = records[i]
        if s.is_self is True or is_true(s.is_self) or (s.is_self is None and _looks_like_self_post(full()[i])):
            reasons[i] = Reason.SELF_POST
        elif is_true(s.over_18) and not rules.over_18:
            reasons[i] = Reason.OVER_18
    if rules.allow_subreddits or rules.deny_subreddits:
        for i, name in enumerate(texts([s.subreddit for s in records]).to_pylist()):
            if reasons[i] is None and rules.blocks_subreddit(name):
                reasons[i], notes[i] = Reason.BLOCKED_SUBREDDIT, name
    for i, problem in problems.items():
        reasons[i], notes[i] = Reason.BAD_LINE, problem
    columns = {
        "line": pa.array(lines),
        "url": _urls(records, full, reasons, notes),
        "score": _scores(records, full, reasons, notes),
        "reason": pa.array(reasons, pa.string()),
        "note": pa.array(notes, pa.string()),
        "submission_id": texts([s.id for s in records]),
        "subreddit": texts([s.subreddit for s in records]),
        "title": texts([s.title for s in records]),
        "created_utc": integers([s.created_utc for s in records]),
        "num_comments": integers([s.num_comments for s in records]),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SUBMISSIONS.names], schema=SUBMISSIONS)


def _looks_like_self_post(s: FullSubmission) -> bool:
    """For dumps without `is_self`: the domain is `self.SUBREDDIT`, or the URL is the submission's own page."""
    if isinstance(s.domain, str) and s.domain:
        return s.domain.startswith("self.")
    if not (isinstance(s.permalink, str) and len(s.permalink) > 1 and isinstance(s.url, str)):
        return False
    return "reddit.com/" in s.url and s.url.rstrip("/").endswith(s.permalink.rstrip("/"))


def _urls(
    records: Sequence[Submission],
    full: Callable[[], Sequence[FullSubmission]],
    reasons: list[str | None],
    notes: list[str | None],
) -> pa.StringArray:
    """The URLs; the submission's own page, and a reason, where it has none."""
    url = texts([s.url for s in records])
    incomplete = pc.or_(pc.starts_with(url, "/"), pc.equal(url, "")).fill_null(True)
    if not pc.any(incomplete).as_py():
        return url
    urls = url.to_pylist()
    for i in np.flatnonzero(incomplete.to_numpy(zero_copy_only=False)).tolist():
        if urls[i]:  # newer dumps have crossposts and galleries relative to Reddit
            urls[i] = _REDDIT + urls[i]
            continue
        permalink = full()[i].permalink
        urls[i] = _REDDIT + permalink if isinstance(permalink, str) and permalink else None
        if reasons[i] is None:
            reasons[i] = Reason.NO_URL
            if records[i].id is None:
                reasons[i], notes[i] = Reason.BAD_LINE, "neither id nor url: not a submission"
            elif full()[i].link_id is not None and full()[i].body is not None:
                reasons[i], notes[i] = Reason.BAD_LINE, "a comment, not a submission"
    return pa.array(urls, pa.string())


def _scores(
    records: Sequence[Submission],
    full: Callable[[], Sequence[FullSubmission]],
    reasons: list[str | None],
    notes: list[str | None],
) -> pa.Array:
    """The scores; a reason where there is none."""
    score = integers([s.score for s in records])
    if not score.null_count:
        return score
    scores = score.to_pylist()
    for i in np.flatnonzero(score.is_null().to_numpy(zero_copy_only=False)).tolist():
        ups, downs = integer(full()[i].ups), integer(full()[i].downs)
        if ups is not None:
            scores[i] = ups - (downs or 0)
        elif reasons[i] != Reason.BAD_LINE:
            reasons[i], notes[i] = Reason.BAD_LINE, "no score"
    return pa.array(scores, pa.int64())


_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

S = TypeVar("S", bound=Submission)


def decode_block(block: Block, kind: type[S]) -> tuple[list[S], np.ndarray, dict[int, str]]:
    """(submissions, number of the line of each, problems) of a block; blank lines are left out.

    A line that is no JSON object is an empty submission, and `problems` says why at its index.
    """
    lines = np.arange(block.first_line, block.first_line + block.num_lines)
    try:
        submissions = _decoder(kind).decode_lines(block.data)
        if len(submissions) == block.num_lines:
            return submissions, lines, {}
    except _UNDECODABLE:
        pass
    # There is a bad line, a blank one, or one with two objects: take them one by one.
    texts = bytes(block.data).split(b"\n")
    kept = [i for i, text in enumerate(texts) if text and not text.isspace()]
    submissions, problems = [], {}
    for i, text in enumerate(texts[i] for i in kept):
        submission = _decode_any(text, kind)
        if isinstance(submission, str):
            problems[i] = submission
            submission = kind()
        submissions.append(submission)
    return submissions, lines[kept], problems


def integers(values: Sequence[Any]) -> pa.Array:
    """Whole numbers from numbers and strings; null for anything else, and beyond 64 bits."""
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowException, OverflowError):
        return pa.array([integer(value) for value in values], pa.int64())


def integer(value: Any) -> int | None:
    """As `integers`."""
    if isinstance(value, str):
        try:
            value = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if -(2**63) <= value < 2**63 else None  # which infinities and NaN are not


def texts(values: Sequence[Any]) -> pa.StringArray:
    """Strings, and whole numbers as strings; null for anything else."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, UnicodeError):
        return pa.array([_text(value) for value in values], pa.string())


def is_true(flag: Any) -> bool:
    """Whether a flag is set, be it a boolean, a number or a string."""
    return flag is True or flag == 1 or (isinstance(flag, str) and flag.lower() in ("true", "1"))


@cache
def _decoder(kind: type[S]) -> msgspec.json.Decoder[S]:
    return msgspec.json.Decoder(kind)


def _decode_any(text: bytes, kind: type[S]) -> S | str:
    """A submission from a line that strict decoding may refuse, or why it is none."""
    try:
        return _decoder(kind).decode(text)
    except _UNDECODABLE as problem:
        try:  # the standard library reads what other writers of JSON let through: lone surrogates, NaN, a BOM
            fields = json.loads(text.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            return f"not JSON: {problem}"
    if not isinstance(fields, dict):
        return "not a JSON object"
    for name in fields.keys() & {"id", "url", "permalink", "domain", "subreddit", "title"}:
        fields[name] = _text(fields[name])
    return kind(**{name: fields.get(name) for name in kind.__struct_fields__})


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
