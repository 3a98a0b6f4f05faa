"""What the report gathers of each dataset, batch by batch, and how what was gathered apart is put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.report.sketches import Candidates, Frequencies, LogHistogram, Sample
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import DatasetReader

SCORE_EDGES = (0, 1, 2, 3, 4, 5, 7, 10, 15, 25, 50, 100, 250, 500, 1000, 2500, 5000)
"""Scores are counted in bins that start at these; the first one holds all below 0 too."""

SIMILARITY_BINS = 50
EXCERPT_CHARACTERS = 3000
_CLUSTERS, _CLUSTER_MEMBERS = 20, 5


@dataclass(frozen=True)
class Part:
    """A piece of work: one shard of a dataset, its `data` or its `rejects`."""

    dataset: str
    kind: str
    shard: int


@dataclass(frozen=True)
class Sizes:
    """How many rows are shown of each kind: URLs a reject reason, documents of the corpus."""

    urls: int
    documents: int


@dataclass
class Summary:
    """What the first pass gathers; `dataset/column` names each statistic.

    Attributes:
      counters: how often each of a few keys occurs.
      histograms: distributions of numbers.
      frequencies: how often each of many keys occurs.
      samples: rows at random.
      clusters: the largest clusters of duplicates: size and some members, by the id of the document that stays.
      vocabulary: how often each token id occurs.
    """

    counters: dict[str, Counter] = field(default_factory=dict)
    histograms: dict[str, LogHistogram] = field(default_factory=dict)
    frequencies: dict[str, Frequencies] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    clusters: dict[int, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    vocabulary: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def merge(self, other: Summary) -> None:
        for name, counter in other.counters.items():
            self.counters.setdefault(name, Counter()).update(counter)
        for name, histogram in other.histograms.items():
            self.histograms.setdefault(name, LogHistogram()).merge(histogram)
        for name, frequencies in other.frequencies.items():
            self.frequencies.setdefault(name, Frequencies()).merge(frequencies)
        for name, sample in other.samples.items():
            self.samples.setdefault(name, Sample(sample.size)).merge(sample)
        for kept, (size, members) in other.clusters.items():
            self.add_cluster(kept, size, members)
        self.add_vocabulary(other.vocabulary)

    def add_cluster(self, kept: int, size: int, members: list[dict[str, Any]]) -> None:
        """Members of a cluster; of all clusters, the largest ones stay, and of each, the members of least id."""
        known = self.clusters.get(kept, (size, []))[1]
        self.clusters[kept] = (size, sorted(known + members, key=lambda m: m["url_id"])[:_CLUSTER_MEMBERS])
        if len(self.clusters) > _CLUSTERS:
            # A cluster's size is in each of its rows, so one that falls out could never have come back.
            del self.clusters[min(self.clusters, key=lambda k: (self.clusters[k][0], -k))]

    def clustered_ids(self) -> set[int]:
        """The documents of `clusters`."""
        return set(self.clusters) | {member["url_id"] for _, members in self.clusters.values() for member in members}

    def add_vocabulary(self, counts: np.ndarray) -> None:
        if len(counts) > len(self.vocabulary):
            self.vocabulary = np.pad(self.vocabulary, (0, len(counts) - len(self.vocabulary)))
        self.vocabulary[: len(counts)] += counts

    def _count(self, name: str, keys: pa.Array | pa.ChunkedArray) -> None:
        counted = pc.value_counts(keys.drop_null())
        counts = dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
        self.counters.setdefault(name, Counter()).update(counts)

    def _measure(self, name: str, values: pa.Array) -> None:
        self.histograms.setdefault(name, LogHistogram()).add(values.to_numpy(zero_copy_only=False))

    def _tally(self, name: str, keys: pa.Array) -> None:
        self.frequencies.setdefault(name, Frequencies()).add(keys)


@dataclass
class Details:
    """What the second pass gathers: exact counts of the keys that the first found frequent, and URLs of some ids."""

    counts: dict[str, Counter] = field(default_factory=dict)
    urls: dict[int, str | None] = field(default_factory=dict)

    def merge(self, other: Details) -> None:
        for name, counter in other.counts.items():
            self.counts.setdefault(name, Counter()).update(counter)
        self.urls.update(other.urls)


def summarize(part: Part, readers: Mapping[str, DatasetReader], sizes: Sizes) -> Summary:
    """The first pass over one part."""
    summary = Summary()
    if part.kind == "rejects":
        columns, add = ["url_id", "url", "reason", "detail"], _rejects_adder(part.dataset, sizes.urls)
    else:
        columns, add = _ADDERS[part.dataset]
        if part.dataset == "corpus":
            add = _corpus_adder(sizes.documents)
    for batch in readers[part.dataset].batches(part.shard, kind=part.kind, columns=columns, rows=2048):
        add(summary, batch)
        progress.advance(batch.num_rows)
    progress.shard_done()
    return summary


def look_up(
    part: Part, readers: Mapping[str, DatasetReader], candidates: Mapping[str, Candidates], url_ids: set[int]
) -> Details:
    """The second pass over one part: of urls/ and corpus/ counts of the candidates, of clean/ the URLs of ids."""
    details = Details()
    reader = readers[part.dataset]
    if part.dataset == "clean":
        wanted = pa.array(sorted(url_ids), pa.uint64())
        for batch in reader.batches(part.shard, columns=["url_id", "url"], rows=1 << 14):
            found = batch.filter(pc.is_in(batch["url_id"], wanted))
            details.urls.update(zip(found["url_id"].to_pylist(), found["url"].to_pylist(), strict=True))
        return details
    column = "host" if part.dataset == "urls" else "url"
    for batch in reader.batches(part.shard, columns=[column, "subreddits"], rows=1 << 14):
        for name, keys in _keys(part.dataset, batch).items():
            details.counts.setdefault(name, Counter()).update(candidates[name].count(keys))
    return details


def parts_of_second_pass(readers: Mapping[str, DatasetReader]) -> list[Part]:
    """The shards that `look_up` is to read."""
    return [Part(name, "data", k) for name in ("urls", "corpus", "clean") if name in readers
            for k in range(readers[name].num_shards)]  # fmt: skip


def parts_of_first_pass(readers: Mapping[str, DatasetReader]) -> list[Part]:
    """The shards that `summarize` is to read."""
    parts = []
    for name, reader in readers.items():
        kinds = [kind for kind in ("data", "rejects") if kind == "rejects" or name in _ADDERS]
        parts += [Part(name, kind, k) for kind in kinds for k in range(reader.num_shards)]
    return parts


def host_of(urls: pa.Array) -> pa.Array:
    """The hosts of canonical URLs."""
    return pc.struct_field(pc.extract_regex(urls, r"^https://(?P<host>\[[^\]]*\]|[^/:]*)"), "host")


def _keys(dataset: str, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The keys of which there may be many."""
    hosts = batch["host"] if dataset == "urls" else host_of(batch["url"])
    return {f"{dataset}/domain": hosts, f"{dataset}/subreddit": pc.list_flatten(batch["subreddits"])}


def _add_posted(summary: Summary, dataset: str, batch: pa.RecordBatch) -> None:
    """What Reddit said."""
    summary._count(f"{dataset}/year", pc.year(pc.cast(batch["created_utc"], pa.timestamp("s"))))
    scores = batch["score"].drop_null().to_numpy(zero_copy_only=False)
    bins = np.maximum(np.searchsorted(SCORE_EDGES, scores, side="right") - 1, 0)
    summary._count(f"{dataset}/score", pa.array(bins))


def _add_urls(summary: Summary, batch: pa.RecordBatch) -> None:
    _add_posted(summary, "urls", batch)
    for name, keys in _keys("urls", batch).items():
        summary._tally(name, keys)


def _add_pages(summary: Summary, batch: pa.RecordBatch) -> None:
    _add_posted(summary, "pages", batch)
    for column in ("status", "source"):
        summary._count(f"pages/{column}", batch[column])
    summary._measure("pages/body_bytes", batch["body_bytes"])
    summary._measure("pages/fetch_ms", batch.filter(pc.equal(batch["source"], "live"))["fetch_ms"])


def _add_documents(summary: Summary, batch: pa.RecordBatch) -> None:
    summary._count("documents/language", pc.fill_null(batch["language"], "none"))


def _add_clean(summary: Summary, batch: pa.RecordBatch) -> None:
    summary._count("clean/language", pc.fill_null(batch["language"], "none"))


def _add_duplicates(summary: Summary, batch: pa.RecordBatch) -> None:
    summary._count("duplicates/rule", batch["rule"])
    summary._count("duplicates/cluster_size", batch["cluster_size"])
    near = batch.filter(pc.equal(batch["rule"], "near"))
    similarity = near["similarity"].to_numpy().astype(np.float64)
    bins = np.minimum((similarity * SIMILARITY_BINS + 1e-4).astype(np.int64), SIMILARITY_BINS - 1)
    summary._count("duplicates/similarity", pa.array(bins))
    bands = summary.counters.setdefault("duplicates/shared_bands", Counter())
    for index, shared in zip(bins.tolist(), near["shared_bands"].to_pylist(), strict=True):
        bands[index] += shared
    columns = ("kept_url_id", "cluster_size", "url_id", "rule", "similarity")
    for kept, size, url_id, rule, similar in zip(*(batch[name].to_pylist() for name in columns), strict=True):
        summary.add_cluster(kept, size, [{"url_id": url_id, "rule": rule, "similarity": round(similar, 4)}])


def _corpus_adder(documents: int) -> Callable[[Summary, pa.RecordBatch], None]:
    def add(summary: Summary, batch: pa.RecordBatch) -> None:
        _add_posted(summary, "corpus", batch)
        for name, keys in _keys("corpus", batch).items():
            summary._tally(name, keys)
        summary._count("corpus/language", pc.fill_null(batch["language"], "none"))
        summary._measure("corpus/characters", pc.utf8_length(batch["text"]))
        summary._measure("corpus/bytes", pc.binary_length(batch["text"]))
        summary._measure("corpus/words", batch["n_words"])
        sample = summary.samples.setdefault("corpus/documents", Sample(documents))
        sample.add(batch["url_id"].to_numpy(), partial(_document, batch))

    return add


def _document(rows: pa.RecordBatch, k: int) -> dict[str, Any]:
    row = rows.slice(k, 1).to_pylist()[0]
    shown = {name: row[name] for name in ("url_id", "url", "title", "score", "language", "n_words")}
    return {**shown, "characters": len(row["text"]), "text": row["text"][:EXCERPT_CHARACTERS]}


def _add_tokens(summary: Summary, batch: pa.RecordBatch) -> None:
    summary._measure("tokens/n_tokens", batch["n_tokens"])
    ids = batch["tokens"].flatten().to_numpy()
    summary.add_vocabulary(np.bincount(ids))


def _rejects_adder(dataset: str, urls: int) -> Callable[[Summary, pa.RecordBatch], None]:
    def add(summary: Summary, batch: pa.RecordBatch) -> None:
        for reason in batch["reason"].unique().to_pylist():
            rows = batch.filter(pc.equal(batch["reason"], reason))
            sample = summary.samples.setdefault(f"{dataset}/{reason}", Sample(urls))
            sample.add(rows["url_id"].to_numpy(), partial(_reject, rows))

    return add


def _reject(rows: pa.RecordBatch, k: int) -> dict[str, Any]:
    return {name: rows[name][k].as_py() for name in ("url_id", "url", "detail")}


_ADDERS: dict[str, tuple[list[str], Callable[[Summary, pa.RecordBatch], None]]] = {
    "urls": (["host", "subreddits", "created_utc", "score"], _add_urls),
    "pages": (["status", "source", "fetch_ms", "body_bytes", "created_utc", "score"], _add_pages),
    "documents": (["language"], _add_documents),
    "clean": (["language"], _add_clean),
    "duplicates": (
        ["url_id", "kept_url_id", "rule", "similarity", "shared_bands", "cluster_size"],
        _add_duplicates,
    ),
    "corpus": (
        ["url_id", "url", "title", "score", "created_utc", "subreddits", "language", "text", "n_words"],
        _corpus_adder(0),
    ),
    "tokens": (["n_tokens", "tokens"], _add_tokens),
}
