"""A submission as a dump or the API has it: fields that come and go, of types that change with the years."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline.collect.lines import Block


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


class WholeSubmission(Submission, gc=False):
    """With the fields that stand in for others: read where one of those is missing."""

    permalink: Any = None
    domain: Any = None
    ups: Any = None
    downs: Any = None


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
