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
        pa.field(
            "home", pa.uint64(), nullable=False
        ),  # hash of the host: modulo the number of shards, the shard
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
        pa.field(
            "link_sources", pa.list_(pa.string())
        ),  # as a table of links has them; null: the kind of the source
        pa.field("source", pa.int32(), nullable=False),  # number of the file
        pa.field(
            "line", pa.int64(), nullable=False
        ),  # its line or row there, or response of a WARC file
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
    """A batch of schema SUBMISSIONS; columns that are not given are null."""
    rows = len(columns["line"])
    arrays = [
        pa.array(columns.get(field.name, pa.nulls(rows, field.type)), field.type)
        for field in SUBMISSIONS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SUBMISSIONS)


def read_block(block: Block, rules: Rules) -> pa.RecordBatch:
    """The submissions of a block, of schema SUBMISSIONS; blank lines are skipped.

    A line that is no JSON object, has neither id nor URL, or has no score, gets the reason
    `bad_line`.
    """
    line_numbers, decoded = _decode_block(block)
    records = [Submission() if isinstance(found, str) else found for found in decoded]
    reason: list[str | None] = [None] * len(records)
    note = reason.copy()
    for row, found in enumerate(decoded):
        if isinstance(found, str):
            reason[row], note[row] = Reason.BAD_LINE, found
        elif not _is_usual(found) or rules.allow_subreddits or rules.deny_subreddits:
            reason[row], note[row] = _judged_alone(found, rules)
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
    if num_objects := _objects_of_lines(block.data):
        with contextlib.suppress(*_UNDECODABLE):
            records = _decoder.decode_lines(block.data)
            # There are more if a line has two objects, which is one malformed line.
            if len(records) == num_objects:
                return range(block.first_line, block.first_line + len(records)), records
    texts = {
        number: text
        for number, text in enumerate(block.data.split(b"\n"), block.first_line)
        if text.strip()
    }
    return list(texts), list(map(decode, texts.values()))


def _objects_of_lines(data: bytes) -> int:
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
    return len(line_ends) + 1 if is_closed.all() and is_opened.all() else 0


def _column(values: list[Any], kind: pa.DataType, convert: Callable[[Any], Any]) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return pa.array(map(convert, values), kind)


def _is_usual(s: Submission) -> bool:
    """Whether nothing about a submission needs a closer look: that of most in the dumps since
    2011."""
    return (
        s.is_self is False
        and not s.over_18
        and type(s.score) is int
        and -(1 << 31) < s.score < 1 << 31
        and type(s.url) is str
        and s.url.startswith("http")
    )


def _judged_alone(s: Submission, rules: Rules) -> tuple[str | None, str | None]:
    """(reason, note) of a submission by its own fields; it gets a URL and a score from others
    where it has none."""
    reason: Reason | None = None
    note = None
    if is_true(s.is_self) or (s.is_self is None and _looks_like_self_post(s)):
        reason = Reason.SELF_POST
    elif is_true(s.over_18) and not rules.over_18:
        reason = Reason.OVER_18
    elif rules.blocks_subreddit(as_text(s.subreddit)):
        reason, note = Reason.BLOCKED_SUBREDDIT, as_text(s.subreddit)
    s.url, s.score = as_text(s.url), integer(s.score)
    if not s.url:
        s.url = _REDDIT + s.permalink if isinstance(s.permalink, str) and s.permalink else None
        if reason is None and s.id is None:
            reason, note = Reason.BAD_LINE, "neither id nor url: not a submission"
        elif reason is None and s.link_id is not None and s.body is not None:
            reason, note = Reason.BAD_LINE, "a comment, not a submission"
        reason = reason or Reason.NO_URL
    elif s.url.startswith(
        "/"
    ):  # in newer dumps, URLs of crossposts and galleries are relative to Reddit
        s.url = _REDDIT + s.url
    if s.score is None and (ups := integer(s.ups)) is not None:
        s.score = integer(ups - (integer(s.downs) or 0))
    if s.score is None and reason != Reason.BAD_LINE:
        reason, note = Reason.BAD_LINE, "no score"
    return reason, note


def _looks_like_self_post(s: Submission) -> bool:
    """For dumps without `is_self`: the domain is `self.SUBREDDIT`, or the URL is the
    submission's own page."""
    if isinstance(s.domain, str) and s.domain:
        return s.domain.startswith("self.")
    if not (isinstance(s.permalink, str) and len(s.permalink) > 1 and isinstance(s.url, str)):
        return False
    return "reddit.com/" in s.url and s.url.rstrip("/").endswith(s.permalink.rstrip("/"))


def decode(line: bytes) -> Submission | str:
    """The submission in a line, decoded leniently if necessary, or why there is none."""
    try:
        return _decoder.decode(line)
    except _UNDECODABLE as problem:
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
    """An integer from a number or a string; None from anything else, and beyond 64 bits."""
    if isinstance(value, str):
        try:
            value = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if -(2**63) <= value < 2**63 else None  # which infinities and NaN are not


def as_text(value: Any) -> str | None:
    """A string, or an integer as a string; None from anything else."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def is_true(flag: Any) -> bool:
    """Whether a flag is set, as a boolean, a number or a string."""
    return flag is True or flag == 1 or (isinstance(flag, str) and flag.lower() in ("true", "1"))


def rows_of(
    submissions: pa.RecordBatch, source: int, source_name: str, rules: Rules
) -> pa.RecordBatch:
    """Rows of schema ROWS from rows of schema SUBMISSIONS, judged by their URLs; one with a
    reason keeps it."""
    known = {name: submissions[name] for name in SUBMISSIONS.names}
    posted = unescaped_column(known["url"])
    canonical, host, problem = canonical_column(posted)
    places = pc.binary_join_element_wise(f"{source_name}:", known["line"].cast(pa.string()), "")
    named = pc.coalesce(canonical, pc.if_else(pc.equal(posted, ""), None, posted), places)
    ids = pa.array([id_of(text) for text in named.to_pylist()], pa.uint64())
    hosts = host.dictionary_encode()
    about = list(map(_about_hosts(rules), hosts.dictionary.to_pylist()))
    home, domain = (
        pa.array([each[i] for each in about], kind)
        for i, kind in enumerate((pa.uint64(), pa.string()))
    )
    domain = domain.take(hosts.indices)
    asked = pc.if_else(
        pc.and_(pc.is_null(known["reason"]), pc.is_null(domain)), canonical, None
    ).to_pylist()
    extension = pa.array([url and blocked_extension(url) for url in asked], pa.string())
    found = [  # each with its note
        (Reason.BAD_URL, problem),
        (Reason.BLOCKED_DOMAIN, domain),
        (Reason.BLOCKED_EXTENSION, pc.binary_join_element_wise(".", extension, "")),
    ]
    reason = pc.coalesce(
        known["reason"],
        *(pc.if_else(pc.is_valid(note), str(reason), None) for reason, note in found),
    )
    wanted = pc.is_null(reason)
    columns = {
        **known,
        **{name: pc.if_else(wanted, known[name], None) for name in _OF_WANTED},
        "home": pc.coalesce(home.take(hosts.indices), ids),
        "url_id": ids,
        "url": pc.coalesce(canonical, posted),
        "posted_url": pc.if_else(wanted, posted, None),
        "host": host,
        "reason": reason,
        "note": pc.if_else(
            pc.is_valid(known["reason"]), known["note"], pc.coalesce(*(note for _, note in found))
        ),
        "source": pa.array([source] * len(posted), pa.int32()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)


@lru_cache(2)  # it remembers hosts from block to block
def _about_hosts(rules: Rules) -> Callable[[str], tuple[int, str | None]]:
    """(hash, matching entry of a blocklist) of a host."""
    domains = blocked_domains(rules.domain_files, rules.domains)
    return lru_cache(1 << 18)(lambda host: (host_hash(host), domains.match(host)))
