"""Lines of a monthly dump as submissions, from every era of the dumps: fields come and go, and so do their types."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.collect.lines import Block
from owt_pipeline.collect.rows import Submissions
from owt_pipeline.collect.rules import Rules
from schemas import Reason

_REDDIT = "https://www.reddit.com"


class Submission(msgspec.Struct, gc=False):
    """The fields of a submission that are read, of whatever type; the others are skipped unparsed."""

    id: Any = None
    url: Any = None
    permalink: Any = None
    domain: Any = None
    is_self: Any = None
    over_18: Any = None
    subreddit: Any = None
    title: Any = None
    score: Any = None
    ups: Any = None
    downs: Any = None
    created_utc: Any = None
    num_comments: Any = None


_decoder = msgspec.json.Decoder(Submission)


def read_block(block: Block, rules: Rules) -> Submissions:
    """The submissions of a block, judged by what they say of themselves; blank lines are none.

    A line that is no JSON object, or has neither id nor URL, or no score, has the reason `bad_line`.
    """
    lines = np.arange(block.first_line, block.first_line + block.num_lines)
    problems: dict[int, str] = {}
    try:
        submissions = _decoder.decode_lines(block.data)
    except (msgspec.MsgspecError, RecursionError):
        submissions = []
    if len(submissions) != block.num_lines:  # a bad or a blank line, or one with two objects: find it
        texts = bytes(block.data).split(b"\n")
        kept = [i for i, text in enumerate(texts) if text and not text.isspace()]
        lines = lines[kept]
        submissions = []
        for i, text in enumerate(texts[i] for i in kept):
            submission = _decode_any(text)
            if isinstance(submission, str):
                problems[i] = submission
                submission = _NONE
            submissions.append(submission)
    return _columns(submissions, problems, lines, rules)


def _columns(submissions: list[Submission], problems: dict[int, str], lines: np.ndarray, rules: Rules) -> Submissions:
    reasons: list[str | None] = [None] * len(submissions)
    notes: list[str | None] = [None] * len(submissions)
    url = _texts([s.url for s in submissions])
    for i, s in enumerate(submissions):
        if s.is_self is True:
            reasons[i] = Reason.SELF_POST
        elif s.is_self is not False or s.over_18 is not False:
            reasons[i] = _own_reason(s, rules)
    subreddit = _texts([s.subreddit for s in submissions])
    if rules.allow_subreddits or rules.deny_subreddits:
        for i, name in enumerate(subreddit.to_pylist()):
            if reasons[i] is None and rules.blocks_subreddit(name):
                reasons[i], notes[i] = Reason.BLOCKED_SUBREDDIT, name
    incomplete = pc.or_(pc.starts_with(url, "/"), pc.equal(url, "")).fill_null(True)
    if pc.any(incomplete).as_py():
        urls = url.to_pylist()
        for i in np.flatnonzero(incomplete.to_numpy(zero_copy_only=False)).tolist():
            s = submissions[i]
            if urls[i]:  # newer dumps have crossposts and galleries relative to Reddit
                urls[i] = _REDDIT + urls[i]
                continue
            urls[i] = _REDDIT + s.permalink if isinstance(s.permalink, str) and s.permalink else None
            if s.id is None:
                reasons[i], notes[i] = Reason.BAD_LINE, problems.get(i, "neither id nor url: not a submission")
            elif reasons[i] is None:
                reasons[i] = Reason.NO_URL
        url = pa.array(urls, pa.string())
    score = _integers([s.score for s in submissions])
    if score.null_count:
        score = pa.array([_score(s) for s in submissions], pa.int64())
        for i in np.flatnonzero(score.is_null().to_numpy(zero_copy_only=False)).tolist():
            if reasons[i] != Reason.BAD_LINE:
                reasons[i], notes[i] = Reason.BAD_LINE, "no score"
    return Submissions(
        pa.array(lines),
        url,
        reasons,
        notes,
        _texts([s.id for s in submissions]),
        subreddit,
        _texts([s.title for s in submissions]),
        score,
        _integers([s.created_utc for s in submissions]),
        _integers([s.num_comments for s in submissions]),
    )


_NONE = Submission()


def _own_reason(s: Submission, rules: Rules) -> str | None:
    if _true(s.is_self) or (s.is_self is None and _looks_like_self_post(s)):
        return Reason.SELF_POST
    if _true(s.over_18) and not rules.over_18:
        return Reason.OVER_18
    return None


def _looks_like_self_post(s: Submission) -> bool:
    """For dumps without `is_self`: the domain is `self.SUBREDDIT`, or the URL is the submission's own page."""
    if isinstance(s.domain, str) and s.domain:
        return s.domain.startswith("self.")
    if not (isinstance(s.permalink, str) and len(s.permalink) > 1 and isinstance(s.url, str)):
        return False
    return "reddit.com/" in s.url and s.url.rstrip("/").endswith(s.permalink.rstrip("/"))


def _decode_any(text: bytes) -> Submission | str:
    """A submission from a line that strict decoding in bulk may have refused, or why it is none."""
    try:
        record = _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as problem:
        try:  # the standard library reads what other writers of JSON let through: lone surrogates, NaN, a BOM
            fields = json.loads(text.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            return f"not JSON: {problem}"
        if not isinstance(fields, dict):
            return "not a JSON object"
        record = Submission(**{name: fields.get(name) for name in Submission.__struct_fields__})
        for name in ("id", "url", "permalink", "domain", "subreddit", "title"):
            setattr(record, name, _text(getattr(record, name)))
    return record


def _score(s: Submission) -> int | None:
    score = _integer(s.score)
    if score is None and (ups := _integer(s.ups)) is not None:
        score = ups - (_integer(s.downs) or 0)
    return score


def _true(flag: Any) -> bool:
    return flag is True or flag == 1 or (isinstance(flag, str) and flag.lower() in ("true", "1"))


def _integers(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowException, OverflowError):
        return pa.array([_integer(value) for value in values], pa.int64())


def _integer(value: Any) -> int | None:
    """A whole number from a number or a string; None for anything else, and beyond 64 bits."""
    if isinstance(value, str):
        try:
            value = float(value) if not value.lstrip("-").isdigit() else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return int(value) if -(2**63) <= value < 2**63 else None


def _texts(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, UnicodeError):
        return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
