"""One row a submission (or line of a URL list): judged by itself, before URLs are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.collect.blocklists import extension_of
from owt_pipeline.collect.records import Submission, integers, texts
from owt_pipeline.collect.rules import Rules
from owt_pipeline.collect.spread import home_bucket
from owt_pipeline.collect.url_columns import canonicalize_column
from owt_pipeline.collect.urls import SPACE
from schemas import Reason

ROWS = pa.schema(
    [
        pa.field("bucket", pa.uint32(), nullable=False),  # hash of the host, modulo the number of shards
        pa.field("url_id", pa.uint64(), nullable=False),
        pa.field("url", pa.string()),  # canonical; as posted where it has no canonical form
        pa.field("posted_url", pa.string()),
        pa.field("host", pa.string()),
        pa.field("reason", pa.string()),  # null while the submission is wanted
        pa.field("note", pa.string()),  # more about the reason
        pa.field("submission_id", pa.string()),
        pa.field("subreddit", pa.string()),
        pa.field("title", pa.string()),
        pa.field("score", pa.int64()),
        pa.field("created_utc", pa.int64()),
        pa.field("num_comments", pa.int64()),
        pa.field("source", pa.int32(), nullable=False),  # number of the file
        pa.field("line", pa.int64(), nullable=False),  # its line there, or record of a WARC file
    ]
)


@dataclass(frozen=True)
class Submissions:
    """Submissions by column, all of one length; `reason` and `note` are None for those that are wanted so far.

    The rest is in `records`, for those that will still be wanted; None where only the URLs are known.
    """

    line: pa.Array
    url: pa.StringArray
    reason: list[str | None]
    note: list[str | None]
    submission_id: pa.StringArray
    score: pa.Array
    records: Sequence[Submission] | None

    @classmethod
    def of_urls(cls, urls: list[str | None], lines: list[int]) -> Submissions:
        """URLs of which no submission is known."""
        reasons: list[str | None] = [None] * len(urls)
        line, url = pa.array(lines, pa.int64()), pa.array(urls, pa.string())
        unknown_id, unknown_score = pa.nulls(len(urls), pa.string()), pa.nulls(len(urls), pa.int64())
        return cls(line, url, reasons, reasons.copy(), unknown_id, unknown_score, None)


class RowMaker:
    """Judges submissions by their URL and makes rows of them; remembers the hosts it has seen."""

    def __init__(self, rules: Rules, num_buckets: int):
        self._num_buckets = num_buckets
        self._domains, self._extensions = rules.domains, rules.blocked_extensions
        self._hosts: dict[str | None, tuple[int, str | None]] = {None: (0, None)}

    def rows(self, submissions: Submissions, source: int, source_name: str) -> pa.RecordBatch:
        """Rows of schema ROWS; a submission that has a reason keeps it."""
        urls, lines = _unescaped(submissions.url), submissions.line
        reasons, notes = submissions.reason, submissions.note
        canonical, host, problems = canonicalize_column(urls)
        buckets, blocked = self._of_hosts(host)
        digest = xxhash.xxh3_64_intdigest
        ids = np.array([digest(url) if url else 0 for url in canonical.cast(pa.binary()).to_pylist()], np.uint64)
        for i, problem in problems.items():
            ids[i] = digest((urls[i].as_py() or f"{source_name}:{lines[i]}").encode())
            buckets[i] = ids[i] % np.uint64(self._num_buckets)
            if reasons[i] is None:
                reasons[i], notes[i] = Reason.BAD_URL, problem
        reason, note = pa.array(reasons, pa.string()), pa.array(notes, pa.string())
        reason, note = _mark(reason, note, pc.is_valid(blocked), Reason.BLOCKED_DOMAIN, blocked)
        reason, note = _mark(reason, note, *self._extension(canonical, reason))
        wanted = pc.is_null(reason)
        columns = {
            "bucket": pa.array(buckets),
            "url_id": pa.array(ids),
            "url": pc.coalesce(canonical, urls),
            "posted_url": pc.if_else(wanted, urls, None),
            "host": host,
            "reason": reason,
            "note": note,
            "submission_id": submissions.submission_id,
            "score": submissions.score,
            "source": pa.repeat(pa.scalar(source, pa.int32()), len(urls)),
            "line": lines,
            **_details(submissions.records, wanted),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in ROWS.names], schema=ROWS)

    def _of_hosts(self, hosts: pa.StringArray) -> tuple[np.ndarray, pa.StringArray]:
        """(bucket, domain on a blocklist) of each host."""
        if len(self._hosts) >= 1 << 18:
            self._hosts = {None: (0, None)}
        encoded = pc.dictionary_encode(hosts, null_encoding="encode")
        about = [self._hosts.get(host) or self._look_up(host) for host in encoded.dictionary.to_pylist()]
        buckets = np.array([bucket for bucket, _ in about], np.uint32)[encoded.indices.to_numpy()]
        return buckets, pa.array([domain for _, domain in about], pa.string()).take(encoded.indices)

    def _look_up(self, host: str) -> tuple[int, str | None]:
        about = home_bucket(host, self._num_buckets), self._domains.match(host)
        self._hosts[host] = about
        return about

    def _extension(self, canonical: pa.StringArray, reason: pa.StringArray) -> tuple[pa.Array, Reason, pa.Array]:
        """Which URLs without a reason end in a blocked extension, for `_mark`."""
        places = np.flatnonzero(pc.and_(pc.is_null(reason), pc.is_valid(canonical)).to_numpy(zero_copy_only=False))
        urls = canonical.take(pa.array(places))
        dotted = pc.match_substring_regex(urls, r"\.[^/?]+(?:\?|$)")  # the others have none
        places = places[dotted.to_numpy(zero_copy_only=False)]
        extensions = [extension_of(url) for url in urls.filter(dotted).to_pylist()]
        notes: list[str | None] = [None] * len(reason)
        for i, extension in zip(places.tolist(), extensions, strict=True):
            if extension in self._extensions:
                notes[i] = f".{extension}"
        note = pa.array(notes, pa.string())
        return pc.is_valid(note), Reason.BLOCKED_EXTENSION, note


def _details(records: Sequence[Submission] | None, wanted: pa.BooleanArray) -> dict[str, pa.Array]:
    """What is kept of wanted submissions only; null for the others."""
    mask = wanted.to_numpy(zero_copy_only=False)
    if records is None:
        numbers, strings = pa.nulls(len(mask), pa.int64()), pa.nulls(len(mask), pa.string())
        return {"subreddit": strings, "title": strings, "created_utc": numbers, "num_comments": numbers}
    chosen = [records[i] for i in np.flatnonzero(mask).tolist()]
    places = pa.array(np.cumsum(mask) - 1, mask=~mask)
    return {
        "subreddit": texts([s.subreddit for s in chosen]).take(places),
        "title": texts([s.title for s in chosen]).take(places),
        "created_utc": integers([s.created_utc for s in chosen]).take(places),
        "num_comments": integers([s.num_comments for s in chosen]).take(places),
    }


def _mark(
    reason: pa.StringArray, note: pa.StringArray, where: pa.BooleanArray, new: Reason, new_note: pa.StringArray
) -> tuple[pa.StringArray, pa.StringArray]:
    """Give the reason `new` where there is none yet."""
    where = pc.and_(where, pc.is_null(reason))
    return pc.if_else(where, str(new), reason), pc.if_else(where, new_note, note)


def _unescaped(urls: pa.StringArray) -> pa.StringArray:
    """As `urls.unescaped`."""
    return pc.replace_substring_regex(pc.utf8_trim(urls, SPACE), "&(?:amp;)+", "&")
