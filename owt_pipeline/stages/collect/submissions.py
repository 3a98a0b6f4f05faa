"""Rows from submissions of dumps or the API, and from tables of links, before they are merged by URL.

A submission is judged by its own fields, then by its URL. In the dumps, fields come and go and change their type over
the years.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.formats.lines import Block
from owt_pipeline.formats.records import parse_json
from owt_pipeline.formats.urls import BadURL, canonicalize, home_of, unescaped, url_id
from owt_pipeline.stages.collect.rules import Rules, blocked_domains, blocked_extension
from schemas import Reason

ROWS = pa.schema(
    [
        pa.field("home", pa.uint64(), nullable=False),  # hash of the host: modulo the number of shards, the shard
        pa.field("url_id", pa.uint64(), nullable=False),
        pa.field("url", pa.string()),  # canonical; as posted if it has no canonical form
        pa.field("posted_url", pa.string()),
        pa.field("host", pa.string()),
        pa.field("reason", pa.string()),  # null while the submission is wanted
        pa.field("note", pa.string()),  # more about the reason
        pa.field("submission_id", pa.string()),
        pa.field("subreddits", pa.list_(pa.string())),
        pa.field("title", pa.string()),
        pa.field("score", pa.int64()),
        pa.field("created_utc", pa.int64()),
        pa.field("num_comments", pa.int64()),
        pa.field("link_sources", pa.list_(pa.string())),  # as a table of links has them; null: the kind of the source
        pa.field("source", pa.int32(), nullable=False),  # number of the file
        pa.field("line", pa.int64(), nullable=False),  # its line or row there, or response of a WARC file
    ]
)


SUBMISSIONS = pa.schema(
    [field for field in ROWS if field.name not in ("home", "url_id", "posted_url", "host", "source")]
)
"""A submission before its URL, still as posted, is judged; `reason` is from its own fields."""

# Kept only of submissions without a reason.
_OF_WANTED = ("subreddits", "title", "created_utc", "num_comments", "link_sources")

_OF_URL = ("home", "url_id", "url", "host", "reason", "note")

_REDDIT = "https://www.reddit.com"


class Submission(msgspec.Struct, gc=False):
    """The fields of a submission that are read, of any type; other fields are not parsed.

    Those from `permalink` on are read where a field that they replace is missing.
    """

    id: Any = None
    url: Any = None
    is_self: Any = None
    over_18: Any = None
    subreddit: Any = None
    title: Any = None
    score: Any = None
    created_utc: Any = None
    num_comments: Any = None
    permalink: Any = None
    domain: Any = None
    ups: Any = None
    downs: Any = None
    link_id: Any = None  # of a comment
    body: Any = None


_Texts = list[str | None]  # one per record


def submissions(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """A batch of schema SUBMISSIONS; columns that are not given are null."""
    rows = len(columns["line"])
    arrays = [pa.array(columns.get(field.name, pa.nulls(rows, field.type)), field.type) for field in SUBMISSIONS]
    return pa.RecordBatch.from_arrays(arrays, schema=SUBMISSIONS)


def read_block(block: Block, rules: Rules) -> pa.Table:
    """The submissions of a block, of schema SUBMISSIONS; blank lines are skipped.

    A line that is no JSON object, has neither id nor URL, or has no score, gets the reason `bad_line`.
    """
    return pa.Table.from_batches([_read_piece(piece, rules) for piece in block.pieces()])


def _read_piece(block: Block, rules: Rules) -> pa.RecordBatch:
    records, lines, problems = decode_block(block)
    reasons: _Texts = [None] * len(records)
    notes: _Texts = [None] * len(records)
    for i in [i for i, s in enumerate(records) if s.is_self is not False or s.over_18 is not False]:
        s = records[i]
        if s.is_self is True or is_true(s.is_self) or (s.is_self is None and _looks_like_self_post(s)):
            reasons[i] = Reason.SELF_POST
        elif is_true(s.over_18) and not rules.over_18:
            reasons[i] = Reason.OVER_18
    if rules.allow_subreddits or rules.deny_subreddits:
        for i, name in enumerate(texts([s.subreddit for s in records]).to_pylist()):
            if reasons[i] is None and rules.blocks_subreddit(name):
                reasons[i], notes[i] = Reason.BLOCKED_SUBREDDIT, name
    for i, problem in problems.items():
        reasons[i], notes[i] = Reason.BAD_LINE, problem
    subreddits = texts([s.subreddit for s in records])
    columns = {
        "line": lines,
        "url": _urls(records, reasons, notes),
        "score": _scores(records, reasons, notes),
        "reason": pa.array(reasons, pa.string()),
        "note": pa.array(notes, pa.string()),
        "submission_id": texts([s.id for s in records]),
        "subreddits": pa.ListArray.from_arrays(np.arange(len(records) + 1, dtype=np.int32), subreddits),
        "title": texts([s.title for s in records]),
        "created_utc": integers([s.created_utc for s in records]),
        "num_comments": integers([s.num_comments for s in records]),
    }
    return submissions(columns)


def _looks_like_self_post(s: Submission) -> bool:
    """For dumps without `is_self`: the domain is `self.SUBREDDIT`, or the URL is the submission's own page."""
    if isinstance(s.domain, str) and s.domain:
        return s.domain.startswith("self.")
    if not (isinstance(s.permalink, str) and len(s.permalink) > 1 and isinstance(s.url, str)):
        return False
    return "reddit.com/" in s.url and s.url.rstrip("/").endswith(s.permalink.rstrip("/"))


def _urls(records: Sequence[Submission], reasons: _Texts, notes: _Texts) -> pa.StringArray:
    """The URLs; a submission without one gets its own page as URL, and a reason."""
    url = texts([s.url for s in records])
    incomplete = pc.or_(pc.starts_with(url, "/"), pc.equal(url, "")).fill_null(True)
    if not pc.any(incomplete).as_py():
        return url
    urls = url.to_pylist()
    for i in np.flatnonzero(incomplete.to_numpy(zero_copy_only=False)).tolist():
        if urls[i]:  # in newer dumps, URLs of crossposts and galleries are relative to Reddit
            urls[i] = _REDDIT + urls[i]
            continue
        permalink = records[i].permalink
        urls[i] = _REDDIT + permalink if isinstance(permalink, str) and permalink else None
        if reasons[i] is None:
            reasons[i] = Reason.NO_URL
            if records[i].id is None:
                reasons[i], notes[i] = Reason.BAD_LINE, "neither id nor url: not a submission"
            elif records[i].link_id is not None and records[i].body is not None:
                reasons[i], notes[i] = Reason.BAD_LINE, "a comment, not a submission"
    return pa.array(urls, pa.string())


def _scores(records: Sequence[Submission], reasons: _Texts, notes: _Texts) -> pa.Array:
    """The scores; a submission without one gets a reason."""
    score = integers([s.score for s in records])
    if not score.null_count:
        return score
    scores = score.to_pylist()
    for i in np.flatnonzero(score.is_null().to_numpy(zero_copy_only=False)).tolist():
        ups, downs = integer(records[i].ups), integer(records[i].downs)
        if ups is not None:
            scores[i] = ups - (downs or 0)
        elif reasons[i] != Reason.BAD_LINE:
            reasons[i], notes[i] = Reason.BAD_LINE, "no score"
    return pa.array(scores, pa.int64())


_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_decoder = msgspec.json.Decoder(Submission)


def decode_block(block: Block) -> tuple[list[Submission], np.ndarray, dict[int, str]]:
    """(submissions, line number of each, problems) of a block; blank lines are skipped.

    A line that is no JSON object gives an empty submission, with a problem at its index.
    """
    lines = np.arange(block.first_line, block.first_line + block.num_lines)
    try:
        submissions = _decoder.decode_lines(block.data)
        if len(submissions) == block.num_lines and _is_one_a_line(block.data):
            return submissions, lines, {}
    except _UNDECODABLE:
        pass
    # Some line is malformed or blank, or has two objects: decode them one by one.
    texts = bytes(block.data).split(b"\n")
    kept = [i for i, text in enumerate(texts) if text and not text.isspace()]
    submissions, problems = [], {}
    for i, text in enumerate(texts[i] for i in kept):
        submission = _decode_any(text)
        if isinstance(submission, str):
            problems[i] = submission
            submission = Submission()
        submissions.append(submission)
    return submissions, lines[kept], problems


def _is_one_a_line(data: Any) -> bool:
    """Whether every line end is between two objects: if there are as many objects as lines, each line has one."""
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text[:-1] == ord("\n"))
    before = np.where(text[ends - 1] == ord("\r"), text[ends - 2], text[ends - 1])
    return bool((before == ord("}")).all() and (text[ends + 1] == ord("{")).all() and (ends > 0).all())


def integers(values: Sequence[Any]) -> pa.Array:
    """Integers from numbers and strings; null for anything else, and beyond 64 bits."""
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
    """Strings, and integers as strings; null for anything else."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, UnicodeError):
        return pa.array([as_text(value) for value in values], pa.string())


def is_true(flag: Any) -> bool:
    """Whether a flag is set, as a boolean, a number or a string."""
    return flag is True or flag == 1 or (isinstance(flag, str) and flag.lower() in ("true", "1"))


def _decode_any(text: bytes) -> Submission | str:
    """The submission in a line, decoded leniently if necessary, or why there is none."""
    try:
        return _decoder.decode(text)
    except _UNDECODABLE as problem:
        try:
            fields = parse_json(text.decode("utf-8-sig", "replace").encode())
        except ValueError:
            return f"not JSON: {problem}"
    if not isinstance(fields, dict):
        return "not a JSON object"
    for name in fields.keys() & {"id", "url", "permalink", "domain", "subreddit", "title"}:
        fields[name] = as_text(fields[name])
    return Submission(**{name: fields.get(name) for name in Submission.__struct_fields__})


def as_text(value: Any) -> str | None:
    """As `texts`."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


class RowMaker:
    """Judges submissions by their URL and makes rows of them; remembers hosts."""

    def __init__(self, rules: Rules):
        self._domains = blocked_domains(rules.domain_files, rules.domains)
        self._about = lru_cache(1 << 18)(self._look_up)

    def rows(self, submissions: pa.Table, source: int, source_name: str) -> pa.RecordBatch:
        """Rows of schema ROWS from rows of schema SUBMISSIONS; a submission with a reason keeps it."""
        known = {name: submissions[name].combine_chunks() for name in SUBMISSIONS.names}
        urls = [None if url is None else unescaped(url) for url in known["url"].to_pylist()]
        judged = [
            self._judged(url, f"{source_name}:{line}", reason)
            for url, line, reason in zip(urls, known["line"].to_pylist(), known["reason"].to_pylist(), strict=True)
        ]
        of_url = [list(column) for column in zip(*judged, strict=True)] or [[] for _ in _OF_URL]
        found = dict(zip(_OF_URL, of_url, strict=True))
        reason = pa.array(found["reason"], pa.string())
        wanted = pc.is_null(pc.coalesce(known["reason"], reason))
        columns = {
            **known,
            **found,
            "posted_url": pc.if_else(wanted, pa.array(urls, pa.string()), None),
            "reason": pc.coalesce(known["reason"], reason),
            "note": pc.if_else(pc.is_null(reason), known["note"], pa.array(found["note"], pa.string())),
            "source": [source] * len(urls),
            **{name: pc.if_else(wanted, known[name], None) for name in _OF_WANTED},
        }
        return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in ROWS], schema=ROWS)

    def _judged(
        self, url: str | None, place: str, reason: str | None
    ) -> tuple[int, int, str | None, str | None, str | None, str | None]:
        """The values of _OF_URL for an unescaped URL; the reason, with its note, only if there was none."""
        note = None
        try:
            canonical, host = canonicalize(url or "")
        except BadURL as problem:
            identifier = xxhash.xxh3_64_intdigest((url or place).encode())
            reason, note = (Reason.BAD_URL, str(problem)) if reason is None else (None, None)
            return identifier, identifier, url, None, reason, note
        home, domain = self._about(host)
        if reason is not None:
            reason = None
        elif domain is not None:
            reason, note = Reason.BLOCKED_DOMAIN, domain
        elif extension := blocked_extension(canonical):
            reason, note = Reason.BLOCKED_EXTENSION, f".{extension}"
        return home, url_id(canonical), canonical, host, reason, note

    def _look_up(self, host: str) -> tuple[int, str | None]:
        """(hash, matching entry of a blocklist) of a host."""
        return home_of(host), self._domains.match(host)
