"""Lines of a dump as submissions, judged by what they say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.collect.lines import Block
from owt_pipeline.collect.records import Submission, WholeSubmission, decode_block, integer, integers, is_true, texts
from owt_pipeline.collect.rows import SUBMISSIONS
from owt_pipeline.collect.rules import Rules
from schemas import Reason

_REDDIT = "https://www.reddit.com"


def read_block(block: Block, rules: Rules) -> pa.Table:
    """The submissions of a block, of schema SUBMISSIONS; blank lines are none.

    A line that is no JSON object, or has neither id nor URL, or no score, has the reason `bad_line`.
    """
    return pa.Table.from_batches([_read_piece(piece, rules) for piece in block.pieces()])


def _read_piece(block: Block, rules: Rules) -> pa.RecordBatch:
    records, lines, problems = decode_block(block, Submission)
    whole = cache(lambda: decode_block(block, WholeSubmission)[0])
    reasons: list[str | None] = [None] * len(records)
    notes: list[str | None] = [None] * len(records)
    for i in [i for i, s in enumerate(records) if s.is_self is not False or s.over_18 is not False]:
        s = records[i]
        if s.is_self is True or is_true(s.is_self) or (s.is_self is None and _looks_like_self_post(whole()[i])):
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
        "url": _urls(records, whole, reasons, notes),
        "score": _scores(records, whole, reasons, notes),
        "reason": pa.array(reasons, pa.string()),
        "note": pa.array(notes, pa.string()),
        "submission_id": texts([s.id for s in records]),
        "subreddit": texts([s.subreddit for s in records]),
        "title": texts([s.title for s in records]),
        "created_utc": integers([s.created_utc for s in records]),
        "num_comments": integers([s.num_comments for s in records]),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SUBMISSIONS.names], schema=SUBMISSIONS)


def _looks_like_self_post(s: WholeSubmission) -> bool:
    """For dumps without `is_self`: the domain is `self.SUBREDDIT`, or the URL is the submission's own page."""
    if isinstance(s.domain, str) and s.domain:
        return s.domain.startswith("self.")
    if not (isinstance(s.permalink, str) and len(s.permalink) > 1 and isinstance(s.url, str)):
        return False
    return "reddit.com/" in s.url and s.url.rstrip("/").endswith(s.permalink.rstrip("/"))


def _urls(
    records: Sequence[Submission],
    whole: Callable[[], Sequence[WholeSubmission]],
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
        permalink = whole()[i].permalink
        urls[i] = _REDDIT + permalink if isinstance(permalink, str) and permalink else None
        if reasons[i] is None:
            reasons[i] = Reason.NO_URL
            if records[i].id is None:
                reasons[i], notes[i] = Reason.BAD_LINE, "neither id nor url: not a submission"
    return pa.array(urls, pa.string())


def _scores(
    records: Sequence[Submission],
    whole: Callable[[], Sequence[WholeSubmission]],
    reasons: list[str | None],
    notes: list[str | None],
) -> pa.Array:
    """The scores; a reason where there is none."""
    score = integers([s.score for s in records])
    if not score.null_count:
        return score
    scores = score.to_pylist()
    for i in np.flatnonzero(score.is_null().to_numpy(zero_copy_only=False)).tolist():
        ups, downs = integer(whole()[i].ups), integer(whole()[i].downs)
        if ups is not None:
            scores[i] = ups - (downs or 0)
        elif reasons[i] != Reason.BAD_LINE:
            reasons[i], notes[i] = Reason.BAD_LINE, "no score"
    return pa.array(scores, pa.int64())
