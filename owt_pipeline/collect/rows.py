"""One row a submission (or line of a URL list): judged by itself, before URLs are merged."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.collect.blocklists import extension_of
from owt_pipeline.collect.rules import Rules
from owt_pipeline.collect.urls import BadURL, canonicalize
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


@dataclass
class Submissions:
    """Submissions by column, all of one length; reasons and notes are None for those that are wanted so far."""

    line: list[int] | range
    url: list[str | None]
    reason: list[str | None]
    note: list[str | None]
    submission_id: pa.Array
    subreddit: pa.Array
    title: pa.Array
    score: pa.Array
    created_utc: pa.Array
    num_comments: pa.Array

    @classmethod
    def of_urls(cls, urls: list[str | None], lines: list[int] | range) -> Submissions:
        """URLs of which no submission is known."""
        texts, numbers = pa.nulls(len(urls), pa.string()), pa.nulls(len(urls), pa.int64())
        none: list[str | None] = [None] * len(urls)
        return cls(lines, urls, none, none.copy(), texts, texts, texts, numbers, numbers, numbers)


class RowMaker:
    """Judges submissions by their URL and makes rows of them; remembers the hosts it has seen."""

    def __init__(self, rules: Rules, num_buckets: int):
        self._num_buckets = num_buckets
        self._domains, self._extensions = rules.domains, rules.blocked_extensions
        self._hosts: dict[str, tuple[int, str | None]] = {}

    def rows(self, submissions: Submissions, source: int, source_name: str) -> pa.RecordBatch:
        """Rows of schema ROWS; a submission that has a reason keeps it."""
        reasons, notes, lines = submissions.reason, submissions.note, submissions.line
        known, digest, blocked = self._hosts, xxhash.xxh3_64_intdigest, self._extensions
        identifiers: list[int] = []
        buckets: list[int] = []
        canonicals: list[str | None] = []
        hosts: list[str | None] = []
        for i, url in enumerate(submissions.url):
            try:
                canonical, host = canonicalize(url or "")
            except BadURL as error:
                if reasons[i] is None:
                    reasons[i], notes[i] = str(Reason.BAD_URL), str(error)
                identifier = digest((url or f"{source_name}:{lines[i]}").encode("utf-8", "replace"))
                identifiers.append(identifier)
                buckets.append(identifier % self._num_buckets)
                canonicals.append(url)
                hosts.append(None)
                continue
            about = known.get(host)
            if about is None:
                about = self._look_up(host)
            identifiers.append(digest(canonical.encode()))
            buckets.append(about[0])
            canonicals.append(canonical)
            hosts.append(host)
            if reasons[i] is None:
                if about[1] is not None:
                    reasons[i], notes[i] = "blocked_domain", about[1]
                elif (extension := extension_of(canonical)) in blocked:
                    reasons[i], notes[i] = "blocked_extension", f".{extension}"
        reason = pa.array(reasons, pa.string())
        posted = pc.utf8_trim_whitespace(pa.array(submissions.url, pa.string()))
        while pc.any(pc.match_substring(posted, "&amp;")).as_py():
            posted = pc.replace_substring(posted, "&amp;", "&")
        columns = [
            pa.array(buckets, pa.uint32()),
            pa.array(identifiers, pa.uint64()),
            pa.array(canonicals, pa.string()),
            posted,
            pa.array(hosts, pa.string()),
            reason,
            pa.array(notes, pa.string()),
            submissions.submission_id,
            submissions.subreddit,
            pc.if_else(reason.is_null(), submissions.title, None),
            submissions.score,
            submissions.created_utc,
            submissions.num_comments,
            pa.repeat(pa.scalar(source, pa.int32()), len(reasons)),
            pa.array(lines, pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ROWS)

    def _look_up(self, host: str) -> tuple[int, str | None]:
        """(bucket, domain on a blocklist) of a host."""
        if len(self._hosts) >= 1 << 18:
            self._hosts.clear()
        about = xxhash.xxh3_64_intdigest(host.encode()) % self._num_buckets, self._domains.match(host)
        self._hosts[host] = about
        return about
