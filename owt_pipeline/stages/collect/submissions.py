"""Rows from submissions of dumps or the API, and from tables of links, before they are merged by
URL.

A submission is judged by its own fields, then by its URL. In the dumps, fields come and go and
change their type over the years.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.formats.lines import Block
from owt_pipeline.formats.records import parse_json
from owt_pipeline.formats.urls import canonical_column, host_hash, id_of, unescaped_column
from owt_pipeline.stages.collect.rules import Rules, blocked_domains, blocked_extension
from schemas import Reason

ROWS = pa.schema(
    [
        # Hash of the host: modulo a generation's number of shards, it is the shard there.
        pa.field("home", pa.uint64(), nullable=False),
        pa.field("url_id", pa.uint64(), nullable=False),
        # Canonical; as posted if it has no canonical form.
        pa.field("url", pa.string()),
        pa.field("posted_url", pa.string()),
        pa.field("host", pa.string()),
        # Null while nothing rejects the submission.
        pa.field("reason", pa.string()),
        # Details of the reject.
        pa.field("note", pa.string()),
        pa.field("submission_id", pa.string()),
        pa.field("subreddits", pa.list_(pa.string())),
        pa.field("title", pa.string()),
        pa.field("score", pa.int64()),
        pa.field("created_utc", pa.int64()),
        pa.field("num_comments", pa.int64()),
        # From a table of links. If it is null, the kind of the source counts.
        pa.field("link_sources", pa.list_(pa.string())),
        # Number of the file.
        pa.field("source", pa.int32(), nullable=False),
        # Line of a dump, row of a table, or HTML response of a WARC file.
        pa.field("line", pa.int64(), nullable=False),
    ]
)


SUBMISSIONS = pa.schema(
    [
        field
        for field in ROWS
        if field.name not in ("home", "url_id", "posted_url", "host", "source")
    ]
)
"""A submission before its URL, still as posted, is judged; `reason` is from its own fields."""

# Kept only of submissions without a reason.
_OF_WANTED = ("subreddits", "title", "created_utc", "num_comments", "link_sources")

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


_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NEWLINE, _OPEN, _CLOSE = b"\n{}"

_decoder = msgspec.json.Decoder(Submission)


def submissions(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch of schema SUBMISSIONS; columns that are not given are null."""
    num_rows = len(columns["line"])
    arrays = []
    for field in SUBMISSIONS:
        values = columns.get(field.name)
        if values is None:
            values = pa.nulls(num_rows, field.type)
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SUBMISSIONS)


def read_block(block: Block, rules: Rules) -> pa.RecordBatch:
    """Return the submissions of a block, of schema SUBMISSIONS; blank lines are skipped.

    A line gets the reason `bad_line` if it is not a JSON object, has neither id nor URL, or has no
    score.
    """
    line_numbers, decoded = _decode_block(block)
    records = [Submission() if isinstance(entry, str) else entry for entry in decoded]
    reason: list[str | None] = [None] * len(records)
    note = reason.copy()
    judges_subreddits = bool(rules.allow_subreddits or rules.deny_subreddits)
    for row, entry in enumerate(decoded):
        if isinstance(entry, str):
            reason[row] = Reason.BAD_LINE
            note[row] = entry
        elif judges_subreddits or not _is_usual(entry):
            reason[row], note[row] = _judge_alone(entry, rules)
    subreddits = _column([s.subreddit for s in records], pa.string(), as_text)
    columns = {
        "line": line_numbers,
        "url": _column([s.url for s in records], pa.string(), as_text),
        "score": _column([s.score for s in records], pa.int64(), integer),
        "reason": reason,
        "note": note,
        "submission_id": _column([s.id for s in records], pa.string(), as_text),
        "subreddits": pa.ListArray.from_arrays(
            np.arange(len(records) + 1, dtype=np.int32), subreddits
        ),
        "title": _column([s.title for s in records], pa.string(), as_text),
        "created_utc": _column([s.created_utc for s in records], pa.int64(), integer),
        "num_comments": _column([s.num_comments for s in records], pa.int64(), integer),
    }
    return submissions(columns)


def _decode_block(block: Block) -> tuple[Sequence[int], Sequence[Submission | str]]:
    """Return the numbers of the lines that are not blank, and what `decode` returns for each."""
    num_objects = _count_object_lines(block.data)
    if num_objects:
        with contextlib.suppress(*_UNDECODABLE):
            records = _decoder.decode_lines(block.data)
            # There are more if a line has two objects, which is one malformed line.
            if len(records) == num_objects:
                return range(block.first_line, block.first_line + len(records)), records
    line_numbers = []
    decoded = []
    for number, text in enumerate(block.data.split(b"\n"), block.first_line):
        if text.strip():
            line_numbers.append(number)
            decoded.append(decode(text))
    return line_numbers, decoded


def _count_object_lines(data: bytes) -> int:
    """Return the number of lines if every line begins and ends with a brace, else 0.

    Then no JSON value goes on after the end of a line, since none has `}` and `{` in it with only
    white space between them.
    """
    if not (data.startswith(b"{") and data.endswith(b"}")):
        return 0
    content = np.frombuffer(data, np.uint8)
    line_ends = np.flatnonzero(content == _NEWLINE)
    is_closed = content[line_ends - 1] == _CLOSE
    is_opened = content[line_ends + 1] == _OPEN
    if not (is_closed.all() and is_opened.all()):
        return 0
    return len(line_ends) + 1


def _column(values: list[Any], kind: pa.DataType, convert: Callable[[Any], Any]) -> pa.Array:
    """Return values as an array; each is converted only if one is of another type."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return pa.array(map(convert, values), kind)


def _is_usual(s: Submission) -> bool:
    """Return whether nothing about a submission needs a closer look.

    Most submissions in the dumps since 2011 are usual.
    """
    return (
        s.is_self is False
        and not s.over_18
        and type(s.score) is int
        and -(1 << 31) < s.score < 1 << 31
        and type(s.url) is str
        and s.url.startswith("http")
    )


def _judge_alone(s: Submission, rules: Rules) -> tuple[str | None, str | None]:
    """Return (reason, note) of a submission by its own fields.

    Sets a missing URL and a missing score from other fields.
    """
    reason: Reason | None = None
    note = None
    if is_true(s.is_self) or (s.is_self is None and _looks_like_self_post(s)):
        reason = Reason.SELF_POST
    elif is_true(s.over_18) and not rules.over_18:
        reason = Reason.OVER_18
    elif rules.blocks_subreddit(as_text(s.subreddit)):
        reason = Reason.BLOCKED_SUBREDDIT
        note = as_text(s.subreddit)
    s.url = as_text(s.url)
    s.score = integer(s.score)
    if not s.url:
        has_permalink = isinstance(s.permalink, str) and s.permalink
        s.url = _REDDIT + s.permalink if has_permalink else None
        if reason is None and s.id is None:
            reason = Reason.BAD_LINE
            note = "neither id nor url: not a submission"
        elif reason is None and s.link_id is not None and s.body is not None:
            reason = Reason.BAD_LINE
            note = "a comment, not a submission"
        reason = reason or Reason.NO_URL
    elif s.url.startswith("/"):
        # In newer dumps, URLs of crossposts and galleries are relative to Reddit.
        s.url = _REDDIT + s.url
    ups = integer(s.ups)
    if s.score is None and ups is not None:
        s.score = integer(ups - (integer(s.downs) or 0))
    if s.score is None and reason != Reason.BAD_LINE:
        reason = Reason.BAD_LINE
        note = "no score"
    return reason, note


def _looks_like_self_post(s: Submission) -> bool:
    """Return whether a submission of a dump without `is_self` is a self post.

    Its domain is `self.SUBREDDIT`, or its URL is the submission's own page.
    """
    if isinstance(s.domain, str) and s.domain:
        return s.domain.startswith("self.")
    if not (isinstance(s.permalink, str) and len(s.permalink) > 1 and isinstance(s.url, str)):
        return False
    return "reddit.com/" in s.url and s.url.rstrip("/").endswith(s.permalink.rstrip("/"))


def decode(line: bytes) -> Submission | str:
    """Return the submission in a line, decoded leniently if necessary, or why there is none."""
    try:
        return _decoder.decode(line)
    except _UNDECODABLE as problem:
        # msgspec rejects byte order marks, NaN, lone surrogates and bytes that are not UTF-8. Such
        # a line may still be a submission.
        try:
            fields = parse_json(line.decode("utf-8-sig", "replace").encode())
        except ValueError:
            return f"not JSON: {problem}"
    if not isinstance(fields, dict):
        return "not a JSON object"
    for name in fields.keys() & {"id", "url", "permalink", "domain", "subreddit", "title"}:
        fields[name] = as_text(fields[name])
    return Submission(**{name: fields.get(name) for name in Submission.__struct_fields__})


def integer(value: Any) -> int | None:
    """Return an integer from a number or a string; None from anything else, and beyond 64 bits."""
    if isinstance(value, str):
        try:
            value = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    is_within_64_bits = -(2**63) <= value < 2**63  # infinities and NaN are not
    return int(value) if is_within_64_bits else None


def as_text(value: Any) -> str | None:
    """Return a string, or an integer as a string; None from anything else."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return str(value)


def is_true(flag: Any) -> bool:
    """Return whether a flag is set, as a boolean, a number or a string."""
    return flag is True or flag == 1 or (isinstance(flag, str) and flag.lower() in ("true", "1"))


def rows_of(
    submissions: pa.RecordBatch, source: int, source_name: str, rules: Rules
) -> pa.RecordBatch:
    """Return rows of schema ROWS from rows of schema SUBMISSIONS, judged by their URLs.

    A row that has a reason keeps it.
    """
    known = {name: submissions[name] for name in SUBMISSIONS.names}
    posted = unescaped_column(known["url"])
    canonical, host, problem = canonical_column(posted)
    places = pc.binary_join_element_wise(f"{source_name}:", known["line"].cast(pa.string()), "")
    named = pc.coalesce(canonical, pc.if_else(pc.equal(posted, ""), None, posted), places)
    # A row without a canonical URL has the hash of its posted URL as its id, or of its place.
    ids = pa.array([id_of(text) for text in named.to_pylist()], pa.uint64())
    # A host is judged once for all of its rows.
    hosts = host.dictionary_encode()
    judged_hosts = list(map(_host_judge(rules).judge, hosts.dictionary.to_pylist()))
    home = pa.array([host_hash for host_hash, _ in judged_hosts], pa.uint64())
    entry = pa.array([entry for _, entry in judged_hosts], pa.string())
    domain = entry.take(hosts.indices)
    # An extension decides only about rows that nothing else rejects, so only these are searched.
    is_undecided = pc.and_(pc.is_null(known["reason"]), pc.is_null(domain))
    undecided = pc.if_else(is_undecided, canonical, None).to_pylist()
    extension = pa.array([url and blocked_extension(url) for url in undecided], pa.string())
    note_by_reason = {
        Reason.BAD_URL: problem,
        Reason.BLOCKED_DOMAIN: domain,
        Reason.BLOCKED_EXTENSION: pc.binary_join_element_wise(".", extension, ""),
    }
    reasons = [known["reason"]]
    for url_reason, note in note_by_reason.items():
        reasons.append(pc.if_else(pc.is_valid(note), str(url_reason), None))
    reason = pc.coalesce(*reasons)
    note_of_url = pc.coalesce(*note_by_reason.values())
    is_wanted = pc.is_null(reason)
    wanted_columns = {name: pc.if_else(is_wanted, known[name], None) for name in _OF_WANTED}
    columns = {
        **known,
        **wanted_columns,
        # A row without a host goes to a shard by its id.
        "home": pc.coalesce(home.take(hosts.indices), ids),
        "url_id": ids,
        "url": pc.coalesce(canonical, posted),
        "posted_url": pc.if_else(is_wanted, posted, None),
        "host": host,
        "reason": reason,
        "note": pc.if_else(pc.is_valid(known["reason"]), known["note"], note_of_url),
        "source": pa.array([source] * len(posted), pa.int32()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)


class _HostJudge:
    """The hash of a host, and the entry of a blocklist that matches it, for one set of rules."""

    def __init__(self, rules: Rules):
        self._domains = blocked_domains(rules.domain_files, rules.domains)
        self.judge = lru_cache(1 << 18)(self._judge)

    def _judge(self, host: str) -> tuple[int, str | None]:
        return host_hash(host), self._domains.match(host)


@lru_cache(2)  # it remembers hosts from block to block
def _host_judge(rules: Rules) -> _HostJudge:
    return _HostJudge(rules)
