"""One row a submission (or line of a URL list): judged by itself, before URLs are merged."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.collect.rules import Rules
from owt_pipeline.collect.spread import home_bucket
from owt_pipeline.formats.urls import canonicalize_column
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


SUBMISSIONS = pa.schema(
    [field for field in ROWS if field.name not in ("bucket", "url_id", "posted_url", "host", "source")]
)
"""What is known before the URL, still as posted, is looked at; `reason` is that of what a submission says itself."""

_OF_WANTED = ("subreddit", "title", "created_utc", "num_comments")  # not kept of the others, as their posted URL
_OF_ALL = tuple(name for name in SUBMISSIONS.names if name not in _OF_WANTED)


class RowMaker:
    """Judges submissions by their URL and makes rows of them; remembers the hosts it has seen."""

    def __init__(self, rules: Rules, num_buckets: int):
        self._num_buckets = num_buckets
        self._rules, self._domains = rules, rules.domains
        endings = "|".join(map(re.escape, sorted(rules.blocked_extensions)))
        self._perhaps_blocked = rf"\.(?i:{endings})(?::[^/?#]*)?(?:[?#]|$)"
        self._hosts: dict[str | None, tuple[int, str | None]] = {None: (0, None)}

    def rows(self, submissions: pa.Table, source: int, source_name: str) -> pa.RecordBatch:
        """Rows of schema ROWS of those of schema SUBMISSIONS; a submission that has a reason keeps it."""
        known = {name: submissions[name].combine_chunks() for name in _OF_ALL}
        urls, canonical, host, problems = canonicalize_column(known["url"], self._rules.url_rules)
        buckets, blocked = self._of_hosts(host)
        texts = pc.fill_null(canonical, "").cast(pa.binary()).to_numpy(zero_copy_only=False)
        ids = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
        reason, note = known["reason"], known["note"]
        if problems:
            for i in problems:
                place = urls[i].as_py() or f"{source_name}:{known['line'][i]}"
                ids[i] = xxhash.xxh3_64_intdigest(place.encode())
                buckets[i] = ids[i] % np.uint64(self._num_buckets)
            why = pa.array([problems.get(i) for i in range(len(ids))], pa.string())
            reason, note = _mark(reason, note, Reason.BAD_URL, why)
        reason, note = _mark(reason, note, Reason.BLOCKED_DOMAIN, blocked)
        reason, note = _mark(reason, note, Reason.BLOCKED_EXTENSION, self._extension(canonical, reason))
        wanted = pc.is_null(reason)
        columns = {
            **known,
            "bucket": pa.array(buckets),
            "url_id": pa.array(ids),
            "url": pc.coalesce(canonical, urls),
            "posted_url": pc.if_else(wanted, urls, None),
            "host": host,
            "reason": reason,
            "note": note,
            "source": pa.repeat(pa.scalar(source, pa.int32()), len(ids)),
        }
        for name in _OF_WANTED:
            columns[name] = pc.if_else(wanted, submissions[name], None).combine_chunks()
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

    def _extension(self, canonical: pa.StringArray, reason: pa.StringArray) -> pa.StringArray:
        """The blocked extensions of URLs without a reason; null for the others."""
        places = np.flatnonzero(pc.and_(pc.is_null(reason), pc.is_valid(canonical)).to_numpy(zero_copy_only=False))
        urls = canonical.take(pa.array(places))
        perhaps = pc.match_substring_regex(urls, self._perhaps_blocked)
        places = places[perhaps.to_numpy(zero_copy_only=False)]
        found: list[str | None] = [None] * len(reason)
        for i, url in zip(places.tolist(), urls.filter(perhaps).to_pylist(), strict=True):
            if extension := self._rules.blocked_extension(url):
                found[i] = f".{extension}"
        return pa.array(found, pa.string())


def _mark(
    reason: pa.StringArray, note: pa.StringArray, new: Reason, why: pa.StringArray
) -> tuple[pa.StringArray, pa.StringArray]:
    """Give the reason `new`, with `why` as its note, where there is a `why` and no reason yet."""
    where = pc.and_(pc.is_valid(why), pc.is_null(reason))
    return pc.if_else(where, str(new), reason), pc.if_else(where, why, note)
