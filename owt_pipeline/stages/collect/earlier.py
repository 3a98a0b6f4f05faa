"""What the bases, the earlier runs that this one builds on, know about URLs: ids, scores and outcomes.

A URL that a base accepted is not collected again; one whose score was too low there is judged by its submissions in all
runs. URLs that failed temporarily (a timeout, a server error) can be collected again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.formats.urls import host_of
from owt_pipeline.ledger.bases import Base
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.collect.spread import Spread, home_bucket
from schemas import DATASETS, Reason
from schemas.manifest import Manifest
from schemas.reasons import TEMPORARY

KNOWN = pa.schema(
    [
        pa.field("bucket", pa.uint32(), nullable=False),
        pa.field("url_id", pa.uint64(), nullable=False),
        pa.field("host", pa.string()),
        pa.field("base", pa.int32(), nullable=False),  # its place in the chain
        pa.field("outcome", pa.string()),  # of a URL that was accepted there; null if its score was too low
        pa.field("again", pa.bool_(), nullable=False),  # whether it is collected again
        pa.field("submission_id", pa.string()),  # of a submission with too low a score
        pa.field("score", pa.int64()),
    ]
)
"""What a base knows about a URL."""

AGAIN = pa.schema([KNOWN.field("bucket"), KNOWN.field("base"), *DATASETS["urls"].schema])
"""A row of a base's `urls/` that is collected again."""

KEPT = "kept"

_LOW = r"^score (?P<score>-?[0-9]+)(?:, -?[0-9]+ with earlier runs)?; (?:submission (?P<id>[^,]+), )?"
_DUPLICATES = {"exact": Reason.EXACT_DUPLICATE, "near": Reason.NEAR_DUPLICATE}
_ROWS = 1 << 16


@dataclass(frozen=True)
class BaseReader:
    """Reads what a base knows about URLs.

    Attributes:
      base: the base.
      number: its place in the chain.
      num_buckets: number of buckets of this run.
      failed_before: URLs that failed temporarily before this time, in seconds since 1970, are collected again; None: no
        URLs are.
    """

    base: Base
    number: int
    num_buckets: int
    failed_before: float | None = None

    def known(self, shard: int) -> Iterator[tuple[bool, pa.RecordBatch]]:
        """(whether they are collected again, rows) of one of the base's shards: of schema AGAIN, else of KNOWN.

        Raises UserError if the base's URLs are damaged.
        """
        accepted = self.base.reader(accepted_by(self.base).dataset)
        ids = accepted.ids(shard)
        outcomes = self._outcomes(shard, ids)
        again = self._again(shard, outcomes)
        start = 0
        names = ["url_id", "host" if accepted.name == "urls" else "url"]  # URLs are only read if there is no host
        for batch in accepted.batches(shard, columns=names, rows=_ROWS):
            some = slice(start, start + batch.num_rows)
            start += batch.num_rows
            rows = {**self._keys(batch), "outcome": outcomes[some].cast(pa.string()), "again": pa.array(again[some])}
            yield False, self._batch(KNOWN, rows)
        if again.any():
            yield from self._rows_again(shard, ids[again])
        if accepted.name == "urls":
            yield from self._low_scores(shard)

    def _outcomes(self, shard: int, ids: np.ndarray) -> pa.DictionaryArray:
        """The outcome of URLs: `kept`, or which stage rejected them and why."""
        order = np.argsort(ids)
        texts, codes = [KEPT], np.zeros(len(ids), np.int32)

        def mark(theirs: np.ndarray, outcome: str) -> None:
            places = np.searchsorted(ids, theirs, sorter=order)
            places = order[places[places < len(ids)]]
            codes[places[np.isin(ids[places], theirs)]] = len(texts)
            texts.append(outcome)

        for name in ("pages", "documents", "clean"):
            manifest = self.base.manifests.get(name)
            if manifest is not None and manifest.stage != "import":
                reader = DatasetReader(self.base.workdir, manifest)
                for reason, theirs in _by_value(reader, shard, "rejects", "reason"):
                    mark(theirs, f"rejected by {manifest.stage}: {reason}")
        for rule, theirs in _by_value(self.base.reader("duplicates"), shard, "data", "rule"):
            mark(theirs, f"rejected by dedupe: {_DUPLICATES[rule]}")
        return pa.DictionaryArray.from_arrays(codes, texts)

    def _again(self, shard: int, outcomes: pa.DictionaryArray) -> np.ndarray:
        """Which URLs are collected again."""
        temporary = {f"rejected by fetch: {reason}" for reason in TEMPORARY}
        wanted = [text in temporary for text in outcomes.dictionary.to_pylist()]
        again = np.array(wanted)[outcomes.indices.to_numpy()]
        if self.failed_before is None or not again.any() or self._asked_last(shard) >= self.failed_before:
            return np.zeros(len(outcomes), bool)
        return again

    def _asked_last(self, shard: int) -> float:
        """About when the base fetched a shard's URLs from the live web; 0 if unknown."""
        if "pages" not in self.base.manifests:
            return 0.0
        last = 0.0
        for batch in self.base.reader("pages").batches(shard, columns=["source", "fetched_at"], rows=_ROWS):
            live = batch["fetched_at"].filter(pc.equal(batch["source"], "live"))
            last = max(last, pc.max(live).as_py() or 0.0)
        return last

    def _rows_again(self, shard: int, ids: np.ndarray) -> Iterator[tuple[bool, pa.RecordBatch]]:
        for batch in self.base.reader("urls").batches(shard, rows=_ROWS):
            mine = batch.filter(pa.array(np.isin(batch["url_id"].to_numpy(), ids)))
            if mine.num_rows:
                columns = {name: mine[name] for name in DATASETS["urls"].schema.names}
                yield True, self._batch(AGAIN, {**columns, **self._keys(mine)})

    def _low_scores(self, shard: int) -> Iterator[tuple[bool, pa.RecordBatch]]:
        columns = ["url_id", "url", "reason", "detail"]
        for batch in self.base.reader("urls").batches(shard, kind="rejects", columns=columns, rows=_ROWS):
            low = batch.filter(pc.equal(batch["reason"], str(Reason.LOW_SCORE)))
            if low.num_rows:
                found = pc.extract_regex(low["detail"], _LOW)
                identifier = found.field("id")
                rows = {
                    **self._keys(low),
                    "again": pa.array(np.zeros(low.num_rows, bool)),
                    "submission_id": pc.if_else(pc.equal(identifier, ""), None, identifier),
                    "score": found.field("score").cast(pa.int64()),
                }
                yield False, self._batch(KNOWN, rows)

    def _keys(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """`url_id`, `url` and `host` of URLs."""
        known = {name: batch[name] for name in ("url_id", "url", "host") if name in batch.schema.names}
        return known if "host" in known else {**known, "host": _hosts(batch["url"])}

    def _batch(self, schema: pa.Schema, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        rows = len(columns["url_id"])
        hosts = columns["host"].dictionary_encode(null_encoding="encode")
        buckets = [home_bucket(host, self.num_buckets) if host else 0 for host in hosts.dictionary.to_pylist()]
        columns["bucket"] = pa.array(np.array(buckets, np.uint32)[hosts.indices.to_numpy()])
        columns["base"] = pa.array(np.full(rows, self.number, np.int32))
        arrays = [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class Earlier:
    """What the bases know about the URLs of one shard.

    Attributes:
      seen: `url_id` and `note` of the accepted URLs; the note names the run and the outcome there.
      scores: `url_id`, `submission_id` and `score` of submissions of other URLs.
      again: rows of `urls/` that are collected again, ordered by url_id.
    """

    seen: pa.Table
    scores: pa.Table
    again: pa.Table

    @classmethod
    def of(cls, known: pa.Table, again: pa.Table, names: Sequence[str], spread: Spread) -> Earlier:
        """From rows of schemas KNOWN and AGAIN in any order; `names` are those of the bases in the chain's order.

        If several bases accepted a URL, the last one has its outcome.
        """
        is_accepted = known["outcome"].is_valid()
        scores = known.filter(pc.invert(is_accepted)).select(["url_id", "submission_id", "score"])
        accepted = known.filter(is_accepted).sort_by([("url_id", "ascending"), ("base", "ascending")])
        ids = accepted["url_id"].to_numpy()
        is_last = np.ones(len(ids), bool)
        is_last[:-1] = ids[1:] != ids[:-1]
        accepted = accepted.filter(pa.array(is_last))
        note = pc.binary_join_element_wise(
            pa.array(names, pa.string()).take(accepted["base"]), accepted["outcome"], ": "
        )
        note = pc.if_else(accepted["again"], pc.binary_join_element_wise(note, "taken up again", "; "), note)
        seen = pa.table({"url_id": accepted["url_id"], "note": note})
        taken = accepted.filter(accepted["again"])
        base = taken["base"].take(pc.index_in(again["url_id"], value_set=taken["url_id"].combine_chunks()))
        rows = again.filter(pc.fill_null(pc.equal(base, again["base"]), False)).sort_by("url_id")
        urls = rows.select(DATASETS["urls"].schema.names).cast(DATASETS["urls"].schema)
        place = urls.schema.get_field_index("host_shards")
        host_shards = spread.host_shards(urls["host"].combine_chunks())
        return cls(seen, scores, urls.set_column(place, urls.schema.field(place), host_shards))


def accepted_by(base: Base) -> Manifest:
    """The manifest of the URLs that a base accepted: of `urls/`, or of `documents/` if text was imported."""
    return base.manifests["urls" if "urls" in base.manifests else "documents"]


def _by_value(reader: DatasetReader, shard: int, kind: str, column: str) -> Iterator[tuple[str, np.ndarray]]:
    """(value of a column, the ids that have it) of a shard's rows."""
    for batch in reader.batches(shard, kind=kind, columns=["url_id", column], rows=_ROWS):
        ids, values = batch["url_id"].to_numpy(), batch[column]
        for value in pc.unique(values).to_pylist():
            yield value, ids[pc.equal(values, value).to_numpy(zero_copy_only=False)]


def _hosts(urls: pa.StringArray) -> pa.StringArray:
    """The hosts of canonical URLs; null for a null one."""
    netloc = pc.list_element(pc.split_pattern(pc.coalesce(urls, "https:///"), "/", max_splits=3), 2).dictionary_encode()
    hosts = pa.array([host_of(f"https://{text}/") or None for text in netloc.dictionary.to_pylist()], pa.string())
    return hosts.take(netloc.indices)
