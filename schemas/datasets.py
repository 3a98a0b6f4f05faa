"""The Arrow schema of every dataset, with a description of each field.

Also the split of documents into training and validation. Descriptions are part of the files, so a
changed one changes the bytes of a dataset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.filters import BUILT_IN

SCHEMA_VERSION = 3
"""Raised whenever a field's name, type or meaning changes; readers refuse a version they do not
know."""

LEDGER = "ledger"
"""Folder of a working directory for manifests, lists of files and rejects of its datasets."""


@dataclass(frozen=True)
class Dataset:
    """A folder of shards that one stage writes.

    Attributes:
      name: the folder below the working directory.
      stage: the stage that writes it.
      row: what one row is.
      schema: the Arrow schema; every field carries a `description` in its metadata.
      format: `parquet`, or `arrow` (the IPC file format).
    """

    name: str
    stage: str
    row: str
    schema: pa.Schema
    format: str = "parquet"


def field(name: str, kind: pa.DataType, description: str, *, nullable: bool = False) -> pa.Field:
    """Return a field with its description in its metadata."""
    return pa.field(name, kind, nullable=nullable, metadata={"description": description})


def _list_of(kind: pa.DataType) -> pa.DataType:
    # Without a field of its own, Arrow allows null items.
    return pa.list_(pa.field("item", kind, nullable=False))


_URL_ID = field(
    "url_id",
    pa.uint64(),
    "XXH3-64 of the canonical URL (of the text, for imported text without a URL)",
)
_URL = field("url", pa.string(), "canonical URL; null for imported text without one", nullable=True)

# Every dataset up to the corpus has Reddit's metadata, so that no later stage needs a join.
_POSTED = [
    field(
        "score",
        pa.int32(),
        "Reddit score by the run's policy; null without a submission",
        nullable=True,
    ),
    field(
        "created_utc",
        pa.int64(),
        "earliest submission, seconds since 1970 in UTC; null without one",
        nullable=True,
    ),
    field("subreddits", _list_of(pa.string()), "distinct subreddits that posted the URL, sorted"),
]

_DOCUMENT = [
    _URL_ID,
    _URL,
    field("title", pa.string(), "title of the page", nullable=True),
    field("author", pa.string(), "author of the page", nullable=True),
    field("date", pa.string(), "date of publication, YYYY-MM-DD", nullable=True),
    field("site_name", pa.string(), "name of the site, as the page gives it", nullable=True),
    field(
        "language",
        pa.string(),
        "ISO 639-1 code: in documents/ as the page declares it, from clean/ on as detected",
        nullable=True,
    ),
    field(
        "license",
        pa.string(),
        "licence the page declares: SPDX identifier, URL or name",
        nullable=True,
    ),
    field(
        "reserved",
        pa.string(),
        "what the page says against its use: noai, noimageai, tdm-reservation, with commas; null "
        "for nothing",
        nullable=True,
    ),
    field("text", pa.string(), "main text, paragraphs separated by newlines"),
    field(
        "source",
        pa.string(),
        "where the page came from, as in pages/; null for imported text",
        nullable=True,
    ),
    field(
        "fetched_at",
        pa.int64(),
        "time of the page's capture, as in pages/; null for imported text",
        nullable=True,
    ),
    *_POSTED,
]

_CLEAN = [
    *_DOCUMENT,
    field("language_score", pa.float32(), "confidence of the detected language, 0 to 1"),
    field("n_words", pa.uint32(), "words of the text, split at white space"),
    field("n_chars", pa.uint32(), "characters of the text"),
    field("n_bytes", pa.uint32(), "bytes of the text in UTF-8"),
    # A filter that limits the signals of another one (`measured_by`) has none of its own.
    field(
        "signals",
        pa.struct(
            {
                name: pa.struct(dict.fromkeys(thresholds.signals(), pa.float64()))
                for name, thresholds in BUILT_IN.items()
                if not thresholds.measured_by
            }
        ),
        "what each filter measures: max_X and min_X of [clean.FILTER] limit signals.FILTER.X",
        nullable=True,
    ),
    field(
        "own_signals",
        _list_of(
            pa.struct(
                [pa.field("name", pa.string(), False), pa.field("value", pa.float64(), False)]
            )
        ),
        "what the functions in [clean] signals return: `module:function` and its number; null "
        "without any",
        nullable=True,
    ),
]

PLACES = pa.schema(
    [
        _URL_ID,
        field("segment", pa.string(), "path of the WARC file in the run's folder"),
        field(
            "offset", pa.uint64(), "first byte of the page's record, a gzip member, in that file"
        ),
        field("length", pa.uint64(), "bytes of that gzip member"),
    ]
)
"""The range of bytes of a page. It depends on how often fetching was interrupted, so it is not a
column of pages/."""

REJECTS = pa.schema(
    [
        _URL_ID,
        field(
            "url", pa.string(), "canonical URL, or the URL as posted if it has none", nullable=True
        ),
        field("reason", pa.string(), "a member of schemas.Reason"),
        field("detail", pa.string(), "what was found, in words", nullable=True),
    ]
)
"""One row for each id that entered a stage and did not leave it, in `ledger/DATASET/rejects/`."""


def _dataset(
    name: str, stage: str, row: str, fields: list[pa.Field], format: str = "parquet"
) -> Dataset:
    return Dataset(name, stage, row, pa.schema(fields), format)


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in [
        _dataset(
            "urls",
            "collect",
            "a canonical URL with Reddit's metadata",
            [
                _URL_ID,
                field("url", pa.string(), "canonical URL"),
                field(
                    "posted_url", pa.string(), "the URL as first posted, which is the one fetched"
                ),
                field("host", pa.string(), "host of the canonical URL; decides the shard"),
                field(
                    "title",
                    pa.string(),
                    "title of the submission with the highest score",
                    nullable=True,
                ),
                *_POSTED,
                field(
                    "num_comments",
                    pa.int32(),
                    "comments over all submissions; null without one",
                    nullable=True,
                ),
                field(
                    "submission_ids",
                    _list_of(pa.string()),
                    "Reddit ids of the accepted submissions, sorted",
                ),
                field(
                    "link_sources",
                    _list_of(pa.string()),
                    "where the link was found, sorted: `reddit`, `warc`, or a link table's "
                    "`source` (`links` without)",
                ),
            ],
        ),
        _dataset(
            "pages",
            "fetch",
            "a fetched response; `ledger/pages/places/` has the place of its bytes in `warc/`",
            [
                _URL_ID,
                field("url", pa.string(), "canonical URL"),
                field(
                    "source",
                    pa.string(),
                    "where the response came from: live, archive, commoncrawl or wayback",
                ),
                field(
                    "crawl",
                    pa.string(),
                    "the archive's collection, such as CC-MAIN-2014-20",
                    nullable=True,
                ),
                field(
                    "archive_file",
                    pa.string(),
                    "the archive's WARC file that the record is from",
                    nullable=True,
                ),
                field(
                    "archive_offset",
                    pa.uint64(),
                    "first byte of the record in archive_file; null if unknown",
                    nullable=True,
                ),
                field("final_url", pa.string(), "URL that answered, after redirects"),
                field("status", pa.uint16(), "HTTP status code of the final response"),
                field("content_type", pa.string(), "Content-Type header as sent", nullable=True),
                field("fetched_at", pa.int64(), "time of capture, seconds since 1970 in UTC"),
                field(
                    "days_after_submission",
                    pa.int32(),
                    "from the earliest submission to the capture, rounded; negative before it; "
                    "null without a date",
                    nullable=True,
                ),
                field(
                    "fetch_ms",
                    pa.uint32(),
                    "milliseconds from request to last byte; 0 from archive files",
                ),
                field("body_bytes", pa.uint64(), "bytes of the decoded body"),
                field(
                    "payload_digest",
                    pa.string(),
                    "SHA-1 of the decoded body, Base32: the same for a page from the web and from "
                    "an archive",
                ),
                *_POSTED,
            ],
        ),
        _dataset(
            "documents",
            "extract",
            "a page's main text, title, author, date, language",
            [
                *_DOCUMENT,
                field(
                    "blocks_left_out",
                    pa.int32(),
                    "blocks after the page's first 50,000, which were left out; null if there are "
                    "none",
                    nullable=True,
                ),
            ],
        ),
        _dataset(
            "clean", "clean", "a document that passes the filters, with repaired text", _CLEAN
        ),
        _dataset(
            "duplicates",
            "dedupe",
            "a document to remove, with the document that is kept in its place and their "
            "similarity",
            [
                field("url_id", pa.uint64(), "the document to remove"),
                field("kept_url_id", pa.uint64(), "the document that is kept in its place"),
                field("kept_shard", pa.uint32(), "shard of the kept document"),
                field(
                    "rule",
                    pa.string(),
                    "exact (same normalised text) or near (verified near-duplicate)",
                ),
                field(
                    "similarity",
                    pa.float32(),
                    "exact Jaccard similarity of the two documents' shingle sets",
                ),
                field(
                    "contained",
                    pa.float32(),
                    "share of the removed document's shingles that the kept one has",
                ),
                field(
                    "shared_bands",
                    pa.uint16(),
                    "LSH bands in which the two agree; 0 for rule exact",
                ),
                field(
                    "cluster_size", pa.uint32(), "documents in the cluster, including the kept one"
                ),
            ],
        ),
        _dataset(
            "corpus",
            "export",
            "a document of the finished corpus",
            [
                *_CLEAN,
                field(
                    "copies",
                    pa.uint32(),
                    "documents that this one represents: itself, and those of its generation that "
                    "were left out as its "
                    "duplicates; a later takedown of one of them does not change it",
                ),
            ],
        ),
        _dataset(
            "tokens",
            "tokenize",
            "a document's token ids",
            [
                _URL_ID,
                field("n_tokens", pa.uint32(), "length of tokens"),
                field(
                    "tokens",
                    _list_of(pa.uint16()),
                    "token ids without end-of-text (uint32 for vocabularies over 65,536)",
                ),
            ],
            format="arrow",
        ),
    ]
}
"""Every dataset of a run, by folder, in the order in which the stages write them."""


def is_validation(url_ids: np.ndarray, fraction: float) -> np.ndarray:
    """Return whether each document is in the validation split, bool (n,).

    It depends only on the id: a document never moves between the splits, whatever other documents
    the corpus has, and a larger fraction only adds documents.

    Args:
      url_ids: uint64 (n,), the documents.
      fraction: the share of documents in the validation split, from 0 to 1.
    """
    # An id's bits also decide its shard, and imported text may have ids of any kind. So the bits
    # are mixed first, by the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
    mixed = url_ids.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    # The upper 53 bits, which a float64 holds exactly, as a number from 0 to 1.
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction
