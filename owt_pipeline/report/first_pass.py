"""The report's first pass: every dataset, piece by piece and batch by batch, into a Summary."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine import progress
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.formats import encoding
from owt_pipeline.report.sketches import MOST_REMOVALS, SCORE_EDGES, SIMILARITY_BINS, Summary, sums_of
from schemas import Reason

EXCERPT_CHARACTERS = 3000

MOST_PARTS = 1 << 12
"""Parts of a pass: enough to keep a cluster busy, few enough that their summaries merge in two rounds of 64."""

FAN_IN = 64
"""Summaries that are merged by one part."""

_DROPPED_BY = {"documents": "clean", "clean": "corpus"}
"""The dataset whose rejects are rows of this one, so that its texts are those that were lost."""


@dataclass(frozen=True)
class Piece:
    """One shard of a dataset: its `data`, its `rejects`, or of its rows those `dropped` thereafter."""

    dataset: str
    kind: str
    shard: int


@dataclass(frozen=True)
class Sizes:
    """How many rows are shown of each kind: URLs a reject reason, documents kept and dropped by each filter."""

    urls: int
    documents: int


def kinds_of_first_pass(readers: Mapping[str, DatasetReader]) -> list[tuple[str, str]]:
    """(dataset, kind) of what `summarize` is to read: of each shard its `data`, its `rejects`, and of its rows those
    `dropped` thereafter."""
    kinds = []
    for name in readers:
        kinds += [(name, "data")] if name in _ADDERS else []
        kinds += [(name, "rejects")]
        kinds += [(name, "dropped")] if _DROPPED_BY.get(name) in readers else []
    return kinds


def parts(readers: Mapping[str, DatasetReader], kinds: Sequence[tuple[str, str]]) -> range:
    """The parts that the pieces of these kinds are dealt out to."""
    return range(min(MOST_PARTS, sum(readers[name].num_shards for name, _ in kinds)))


def pieces_of(part: int, readers: Mapping[str, DatasetReader], kinds: Sequence[tuple[str, str]]) -> Iterator[Piece]:
    """The pieces of one part: each `MOST_PARTS`-th of all."""
    before = 0
    for name, kind in kinds:
        shards = readers[name].num_shards
        for shard in range((part - before) % MOST_PARTS, shards, MOST_PARTS):
            yield Piece(name, kind, shard)
        before += shards


def rows_of_parts(readers: Mapping[str, DatasetReader], kinds: Sequence[tuple[str, str]]) -> list[int]:
    """Rows that each part reads."""
    rows = [0] * len(parts(readers, kinds))
    before = 0
    for name, kind in kinds:
        for file in readers[name].files("rejects" if kind == "rejects" else "data"):
            rows[(before + file.shard) % MOST_PARTS] += file.rows
        before += readers[name].num_shards
    return rows


def summarize(summary: Summary, piece: Piece, readers: Mapping[str, DatasetReader], sizes: Sizes) -> None:
    """Add the first pass over one piece to the summary."""
    for rows in _READ[piece.kind](summary, piece, readers, sizes):
        progress.advance(rows)


def _data(summary: Summary, piece: Piece, readers: Mapping[str, DatasetReader], sizes: Sizes) -> Iterator[int]:
    columns, add = _ADDERS[piece.dataset]
    forgotten = _forgotten(readers, piece.shard) if piece.dataset == "duplicates" else None
    for batch in readers[piece.dataset].batches(piece.shard, columns=columns, rows=2048):
        add(summary, batch, sizes)
        if forgotten is not None:
            _sample_decisions(summary, batch.filter(pc.invert(pc.is_in(batch["url_id"], forgotten))))
        yield batch.num_rows


def _forgotten(readers: Mapping[str, DatasetReader], shard: int) -> pa.Array:
    """Documents of a shard that were taken down, and those that repeat them: their texts are not to be shown."""
    if "corpus" not in readers:
        return pa.array([], pa.uint64())
    rejects = readers["corpus"].table(shard, kind="rejects", columns=["url_id", "reason"])
    return rejects.filter(pc.equal(rejects["reason"], str(Reason.FORGOTTEN)))["url_id"].combine_chunks()


def _rejects(summary: Summary, piece: Piece, readers: Mapping[str, DatasetReader], sizes: Sizes) -> Iterator[int]:
    posted = _posted_months(readers["urls"], piece.shard) if piece.dataset == "pages" and "urls" in readers else None
    for batch in readers[piece.dataset].batches(piece.shard, kind="rejects", rows=2048):
        for reason in batch["reason"].unique().to_pylist():
            rows = batch.filter(pc.equal(batch["reason"], reason))
            summary.sample(f"{piece.dataset}/{reason}", sizes.urls).add(rows.select(["url_id", "url", "detail"]))
            if posted is not None:
                summary.count(f"pages/{reason}/month", posted(rows["url_id"]))
        if piece.dataset == "corpus":
            summary.tally("removed/domain", host_of(batch["url"]))
        yield batch.num_rows


def _dropped(summary: Summary, piece: Piece, readers: Mapping[str, DatasetReader], sizes: Sizes) -> Iterator[int]:
    """The texts that a later stage rejected: what was lost with them, and some to read."""
    rejects = readers[_DROPPED_BY[piece.dataset]].table(
        piece.shard, kind="rejects", columns=["url_id", "reason", "detail"]
    )
    ids = rejects["url_id"].combine_chunks()
    if not len(ids):
        return
    tokenizer = _tokenizer(readers["tokens"])
    columns = ["url_id", "url", "title", "text"]
    for batch in readers[piece.dataset].batches(piece.shard, columns=columns, rows=512):
        position = pc.index_in(batch["url_id"], ids)
        lost = batch.filter(pc.is_valid(position))
        why = rejects.take(position.drop_null())
        lost = lost.append_column("detail", why["detail"].combine_chunks())
        reasons = why["reason"].combine_chunks()
        for reason in reasons.unique().to_pylist():
            rows = lost.filter(pc.equal(reasons, reason))
            _add_lost(summary, str(reason), rows, tokenizer)
            if piece.dataset == "documents":
                shown = rows.select(["url_id", "url", "title", "detail", "text"])
                summary.sample(f"dropped/{reason}", sizes.documents).add(shown, _excerpt)
        yield batch.num_rows


def _add_lost(summary: Summary, reason: str, rows: pa.RecordBatch, tokenizer: encoding.Encoding) -> None:
    lost = summary.counter(f"lost/{reason}")
    lost["documents"] += rows.num_rows
    lost["characters"] += pc.sum(pc.utf8_length(rows["text"])).as_py() or 0
    lost["bytes"] += pc.sum(pc.binary_length(rows["text"])).as_py() or 0
    lost["tokens"] += int(tokenizer.count(rows["text"].to_pylist()).sum())


def _tokenizer(tokens: DatasetReader) -> encoding.Encoding:
    """The tokenizer of the run's tokens, from the copy that is next to them."""
    about = tokens.manifest.properties["tokenizer"]
    if about["name"] == "gpt2":
        return encoding.load("gpt2")
    return encoding.load(tokens.workdir.path(about["file"]), tokens.manifest.options["eot_token"])


def _posted_months(urls: DatasetReader, shard: int) -> Callable[[pa.Array], pa.Array]:
    """Gives the months in which URLs of a shard were first posted, by their ids; 12 bytes a URL of one shard."""
    found = urls.table(shard, columns=["url_id", "created_utc"])
    ids = found["url_id"].combine_chunks()
    months = month_of(found["created_utc"].combine_chunks())
    return lambda wanted: months.take(pc.index_in(wanted, ids))


def month_of(seconds: pa.Array) -> pa.Array:
    """Months since year 0 of times in seconds since 1970."""
    moment = pc.cast(seconds, pa.timestamp("s"))
    return pc.cast(pc.add(pc.multiply(pc.year(moment), 12), pc.subtract(pc.month(moment), 1)), pa.int32())


def _add_posted(summary: Summary, dataset: str, batch: pa.RecordBatch) -> None:
    summary.count(f"{dataset}/year", pc.year(pc.cast(batch["created_utc"], pa.timestamp("s"))))
    scores = batch["score"].drop_null().to_numpy(zero_copy_only=False)
    bins = np.maximum(np.searchsorted(SCORE_EDGES, scores, side="right") - 1, 0)
    summary.count(f"{dataset}/score", pa.array(bins))


def _add_urls(summary: Summary, batch: pa.RecordBatch, sizes: Sizes) -> None:
    _add_posted(summary, "urls", batch)
    for name, keys in keys_of("urls", batch).items():
        summary.tally(name, keys)


def _add_pages(summary: Summary, batch: pa.RecordBatch, sizes: Sizes) -> None:
    _add_posted(summary, "pages", batch)
    for column in ("status", "source"):
        summary.count(f"pages/{column}", batch[column])
    months, live = month_of(batch["created_utc"]), pc.equal(batch["source"], "live")
    summary.count("pages/month", months)
    summary.count("pages/live/month", months.filter(live))
    summary.counter("pages/bytes/month").update(sums_of(months, batch["body_bytes"]))
    summary.counter("pages/milliseconds/month").update(sums_of(months.filter(live), batch["fetch_ms"].filter(live)))
    summary.captured = max(summary.captured, pc.max(month_of(batch["fetched_at"])).as_py() or 0)
    days = batch["days_after_submission"]
    for source in batch["source"].unique().to_pylist():
        known = days.filter(pc.equal(batch["source"], source)).drop_null()
        summary.measure(f"pages/days/{source}", pc.abs(known))
        summary.counter("pages/before")[source] += pc.sum(pc.less(known, 0)).as_py() or 0
    summary.measure("pages/body_bytes", batch["body_bytes"])
    summary.measure("pages/fetch_ms", batch["fetch_ms"].filter(live))


def _add_languages(dataset: str, summary: Summary, batch: pa.RecordBatch, sizes: Sizes) -> None:
    summary.count(f"{dataset}/language", pc.fill_null(batch["language"], "none"))


def _add_duplicates(summary: Summary, batch: pa.RecordBatch, sizes: Sizes) -> None:
    summary.count("duplicates/rule", batch["rule"])
    summary.count("duplicates/cluster_size", batch["cluster_size"])
    near = batch.filter(pc.equal(batch["rule"], "near"))
    similarity = near["similarity"].to_numpy().astype(np.float64)
    bins = np.minimum((similarity * SIMILARITY_BINS + 1e-4).astype(np.int64), SIMILARITY_BINS - 1)
    summary.count("duplicates/similarity", pa.array(bins))
    bands = summary.counter("duplicates/shared_bands")
    for index, shared in zip(bins.tolist(), near["shared_bands"].to_pylist(), strict=True):
        bands[index] += shared
    columns = ("kept_url_id", "cluster_size", "url_id", "rule", "similarity")
    for kept, size, url_id, rule, similar in zip(*(batch[name].to_pylist() for name in columns), strict=True):
        summary.add_cluster(kept, size, [{"url_id": url_id, "rule": rule, "similarity": round(similar, 4)}])


def _sample_decisions(summary: Summary, batch: pa.RecordBatch) -> None:
    shown = batch.select(["url_id", "kept_url_id", "rule", "similarity", "shared_bands"])
    for rule in ("near", "exact"):
        rows = shown.filter(pc.equal(shown["rule"], rule))
        summary.sample(f"duplicates/{rule}", MOST_REMOVALS).add(rows, _rounded)


def _add_corpus(summary: Summary, batch: pa.RecordBatch, sizes: Sizes) -> None:
    _add_posted(summary, "corpus", batch)
    for name, keys in keys_of("corpus", batch).items():
        summary.tally(name, keys)
    _add_languages("corpus", summary, batch, sizes)
    summary.measure("corpus/characters", pc.utf8_length(batch["text"]))
    summary.measure("corpus/bytes", pc.binary_length(batch["text"]))
    summary.measure("corpus/words", batch["n_words"])
    shown = batch.select(["url_id", "url", "title", "score", "language", "n_words", "text"])
    summary.sample("corpus/documents", sizes.documents).add(shown, _excerpt)


def _add_tokens(summary: Summary, batch: pa.RecordBatch, sizes: Sizes) -> None:
    summary.measure("tokens/n_tokens", batch["n_tokens"])
    summary.add_vocabulary(np.bincount(batch["tokens"].flatten().to_numpy()))


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "similarity": round(row["similarity"], 4)}


def _excerpt(row: dict[str, Any]) -> dict[str, Any]:
    text = row.pop("text")
    return {**row, "characters": len(text), "text": text[:EXCERPT_CHARACTERS]}


def host_of(urls: pa.Array) -> pa.Array:
    """The hosts of canonical URLs; null where there is none."""
    return pc.struct_field(pc.extract_regex(urls, r"^https://(?P<host>\[[^\]]*\]|[^/:]*)"), "host")


def keys_of(dataset: str, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The domains and subreddits of rows of urls/ or corpus/."""
    hosts = batch["host"] if dataset == "urls" else host_of(batch["url"])
    return {f"{dataset}/domain": hosts, f"{dataset}/subreddit": pc.list_flatten(batch["subreddits"])}


@functools.lru_cache(maxsize=1 << 16)
def site_of(host: str) -> str | None:
    """What a host is called before its public suffix: `bbc` of news.bbc.co.uk; None of an address, or a single name.

    That is how OpenAI's list of WebText's domains names them. The suffixes are those of the Public Suffix List
    that comes with the package tld; where it knows none, the last label counts as one, as the list's rules say.
    """
    from tld import get_tld

    found = get_tld(f"https://{host}", as_object=True, fail_silently=True, search_private=False)
    if found is not None:
        return getattr(found, "domain", None) or None
    labels = host.split(".")
    return labels[-2] if len(labels) > 1 and not labels[-1].isdigit() else None


_ADDERS: dict[str, tuple[list[str], Callable[[Summary, pa.RecordBatch, Sizes], None]]] = {
    "urls": (["host", "subreddits", "created_utc", "score"], _add_urls),
    "pages": (
        "status source fetched_at days_after_submission fetch_ms body_bytes created_utc score".split(),
        _add_pages,
    ),
    "documents": (["language"], partial(_add_languages, "documents")),
    "clean": (["language"], partial(_add_languages, "clean")),
    "duplicates": (["url_id", "kept_url_id", "rule", "similarity", "shared_bands", "cluster_size"], _add_duplicates),
    "corpus": (
        ["url_id", "url", "title", "score", "created_utc", "subreddits", "language", "text", "n_words"],
        _add_corpus,
    ),
    "tokens": (["n_tokens", "tokens"], _add_tokens),
}

_READ = {"data": _data, "rejects": _rejects, "dropped": _dropped}
