"""Rows of the corpus from those of clean/, without duplicates, takedowns and other licences."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline import progress
from owt_pipeline.engine.stage import StageRun
from owt_pipeline.engine.takedowns import Takedowns, read_takedowns
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import (
    DatasetReader,
    Outcome,
    empty,
    rejects_batch,
    replace_columns,
)
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.export.forgotten_texts import ForgottenTexts
from owt_pipeline.stages.export.options import Options
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, REJECTS, Reason
from schemas.manifest import Manifest, ShardRecord

LANGUAGE = "language_"
"""Prefix of the per-language document counts in `stats`."""


def export_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write one shard of the corpus from clean/, or from the published corpus.

    The published corpus is enough if only takedowns were added. The shard's decisions and rejects
    are held in memory. Rejects are ordered by url_id.
    """
    published = _published_shard(run, shard)
    if published is None:
        _export_clean(run, shard, writer)
    else:
        _apply_takedowns(run, published, writer)


def _export_clean(run: StageRun, shard: int, writer: ShardWriter) -> None:
    """Write a shard from clean/."""
    takedowns = read_takedowns(run.workdir, run.root.takedowns)
    texts = _forgotten_texts(run.workdir, tuple(run.root.takedowns), ())
    decisions = run.inputs["duplicates"]
    chosen = chosen_decisions(decisions.table(shard), run.options)
    of_kept = chosen_decisions(decisions.table(shard, kind="kept"), run.options)[
        "kept_url_id"
    ].value_counts()
    rejects: list[pa.RecordBatch] = []
    for batch in run.inputs["clean"].batches(shard, rows=1024):
        # Takedowns come before decisions, so a named duplicate is rejected as forgotten. A shard
        # that is made from the corpus has the same rejects.
        documents, forgotten = forget(batch, takedowns)
        documents, repeated = apply_decisions(documents, chosen)
        documents, unlicensed = licensed(documents, run.options.licenses)
        documents = with_copies(documents, of_kept)
        # Only texts that every other rule keeps are compared with forgotten ones, since the
        # published corpus has no other texts.
        documents, copies = forget_copies(documents, texts)
        rejects += [forgotten, as_forgotten(repeated, takedowns), unlicensed, copies]
        writer.add(batch.num_rows, Outcome(documents, stats=_sizes(documents)))
    _reject_in_order(rejects, writer)


class _PublishedShard(NamedTuple):
    """A shard of the published corpus: its reader, its record, and the takedowns that it lacks no
    document of."""

    corpus: DatasetReader
    record: ShardRecord
    applied: tuple[str, ...]


def _published_shard(run: StageRun, shard: int) -> _PublishedShard | None:
    """Return the published shard if it differs from the wanted one by takedowns only."""
    if run.published is None or shard not in run.plan.patched:
        return None
    corpus = DatasetReader(run.workdir, run.published)
    records = {record.shard: record for record in corpus.table_of_files.records}
    return _PublishedShard(corpus, records[shard], tuple(applied_takedowns(run.published)))


def _apply_takedowns(run: StageRun, published: _PublishedShard, writer: ShardWriter) -> None:
    """Write a shard from the published one without the documents of new takedowns.

    If it has none of them, the published files are kept.
    """
    corpus, record, applied = published
    takedowns = read_takedowns(run.workdir, run.root.takedowns)
    texts = _forgotten_texts(run.workdir, tuple(run.root.takedowns), applied)
    removed: list[pa.RecordBatch] = []
    for batch in corpus.batches(record.shard, rows=1024):
        documents, forgotten = forget(batch, takedowns)
        _, copies = forget_copies(documents, texts)
        removed += [forgotten, copies]
        progress.advance(batch.num_rows)
    rejects_before = corpus.table(record.shard, kind="rejects")
    rejects: list[pa.RecordBatch] = []
    for batch in rejects_before.to_batches():
        others, forgotten = forget(batch, takedowns)
        rejects += [as_forgotten(others, takedowns), forgotten]
    removed_ids = pa.Table.from_batches(removed, REJECTS)["url_id"]
    if not len(removed_ids) and _sorted(rejects).equals(_sorted(rejects_before.to_batches())):
        writer.keep(record)
        return
    # The corpus and its rejects make up the rows of clean/, so both count as entered.
    writer.enter(rejects_before.num_rows)
    for batch in corpus.batches(record.shard, rows=1024):
        documents = batch.filter(pc.invert(pc.is_in(batch["url_id"], removed_ids)))
        writer.enter(batch.num_rows)
        writer.write(documents)
        writer.count(_sizes(documents))
    _reject_in_order([*removed, *rejects], writer)


def _sorted(rejects: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return rejects as a table sorted by url_id."""
    return pa.Table.from_batches(rejects, REJECTS).sort_by("url_id").combine_chunks()


def _reject_in_order(rejects: Sequence[pa.RecordBatch], writer: ShardWriter) -> None:
    for batch in _sorted(rejects).to_batches():
        writer.reject(batch)


# A process needs the search for every shard.
@functools.lru_cache(maxsize=2)
def _forgotten_texts(
    workdir: Storage, names: tuple[str, ...], applied: tuple[str, ...]
) -> ForgottenTexts:
    """Return the texts of some files of takedowns, except of those that are applied already."""
    return ForgottenTexts(read_takedowns(workdir, names).texts(without=applied))


APPLIED_TAKEDOWNS = "takedowns"
"""The property of the corpus' manifest with the names of the files of takedowns that it was built
with."""


def applied_takedowns(corpus: Manifest) -> list[str]:
    """Return the names of the files of takedowns that a published corpus was built with."""
    return list(corpus.properties.get(APPLIED_TAKEDOWNS, ()))


def _sizes(documents: pa.RecordBatch) -> dict[str, int]:
    """Return counts of these documents for the dataset card."""
    languages = Counter(documents["language"].to_pylist())
    return {
        "characters": pc.sum(pc.utf8_length(documents["text"])).as_py() or 0,
        "text_bytes": pc.sum(pc.binary_length(documents["text"])).as_py() or 0,
        "words": pc.sum(documents["n_words"]).as_py() or 0,
        **{f"{LANGUAGE}{code}": count for code, count in languages.items() if code},
    }


_REASONS = {"exact": Reason.EXACT_DUPLICATE, "near": Reason.NEAR_DUPLICATE}


def chosen_decisions(decisions: pa.Table, options: Options) -> pa.Table:
    """Return the rows of `decisions` (dataset `duplicates`) that the options apply."""
    is_applied = pc.is_in(decisions["rule"], pa.array(options.rules, pa.string()))
    minimum_by_column = {
        "similarity": options.min_similarity,
        "contained": options.min_contained,
    }
    for column, minimum in minimum_by_column.items():
        # Rounded as the column is, so that a share of 9/10 reaches 0.9.
        rounded = pa.scalar(minimum, pa.float32())
        is_applied = pc.and_(is_applied, pc.greater_equal(decisions[column], rounded))
    return decisions.filter(is_applied)


def forget(
    documents: pa.RecordBatch, takedowns: Takedowns
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the documents that `takedowns` does not name, and rejects for the others."""
    ids = documents["url_id"]
    urls = documents["url"]
    detail_by_row = dict(takedowns.rows_to_forget(ids.to_numpy(), urls))
    is_removed = np.zeros(documents.num_rows, bool)
    is_removed[list(detail_by_row)] = True
    rejects = []
    for row, detail in detail_by_row.items():
        rejects.append((ids[row].as_py(), urls[row].as_py(), Reason.FORGOTTEN, detail))
    return documents.filter(pa.array(~is_removed)), rejects_batch(rejects)


def as_forgotten(rejects: pa.RecordBatch, takedowns: Takedowns) -> pa.RecordBatch:
    """Return rejects with the reason `forgotten` for duplicates of a document of the list."""
    kept = pc.struct_field(pc.extract_regex(rejects["detail"], _KEPT), "kept")
    listed = pa.array(map(str, takedowns.detail_by_id), pa.string())
    repeats = pc.and_(
        pc.is_in(rejects["reason"], pa.array(list(map(str, _REASONS.values())))),
        pc.is_in(kept, listed),
    )
    return replace_columns(
        rejects,
        REJECTS,
        reason=pc.if_else(repeats, str(Reason.FORGOTTEN), rejects["reason"]),
        detail=pc.if_else(repeats, _REPEATS, rejects["detail"]),
    )


_KEPT = r"^kept (?P<kept>\d+) similarity"
_REPEATS = "repeats a text that was taken down"


def forget_copies(
    documents: pa.RecordBatch, texts: ForgottenTexts
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the documents that do not repeat one of `texts`, and rejects for the others."""
    is_removed = np.zeros(documents.num_rows, bool)
    is_removed[[match.row for match in texts.matches(documents["text"])]] = True
    rejected = documents.filter(pa.array(is_removed))
    pairs = zip(rejected["url_id"].to_pylist(), rejected["url"].to_pylist(), strict=True)
    rejects = [(url_id, url, Reason.FORGOTTEN, _REPEATS) for url_id, url in pairs]
    return documents.filter(pa.array(~is_removed)), rejects_batch(rejects)


def apply_decisions(
    documents: pa.RecordBatch, decisions: pa.Table
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the documents that `decisions` does not remove, and rejects for the others.

    `decisions` are rows of the dataset `duplicates`.
    """
    position = pc.index_in(documents["url_id"], decisions["url_id"].combine_chunks())
    is_removed = pc.is_valid(position)
    rejected = documents.filter(is_removed)
    decided = decisions.take(position.filter(is_removed))
    columns = [
        rejected["url_id"],
        rejected["url"],
        decided["rule"],
        decided["kept_url_id"],
        decided["similarity"],
    ]
    values = [column.to_pylist() for column in columns]
    rejects = []
    for url_id, url, rule, kept, similarity in zip(*values, strict=True):
        detail = f"kept {kept} similarity {similarity:.4f}"
        rejects.append((url_id, url, _REASONS[rule], detail))
    return documents.filter(pc.invert(is_removed)), rejects_batch(rejects)


def licensed(
    documents: pa.RecordBatch, licenses: Sequence[str]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the documents under one of `licenses`, in any case, and rejects for the others.

    Without `licenses` these are all documents.
    """
    if not licenses:
        return documents, empty(REJECTS)
    allowed = pa.array([name.lower() for name in licenses])
    is_allowed = pc.is_in(pc.utf8_lower(documents["license"]), allowed)
    others = documents.filter(pc.invert(is_allowed))
    rejects = []
    for row in others.select(["url_id", "url", "license"]).to_pylist():
        detail = row["license"] or "the page declares none"
        rejects.append((row["url_id"], row["url"], Reason.LICENSE, detail))
    return documents.filter(is_allowed), rejects_batch(rejects)


def with_copies(documents: pa.RecordBatch, of_kept: pa.StructArray) -> pa.RecordBatch:
    """Return rows of the corpus from rows of clean/, with the documents that each represents.

    `of_kept` counts the decisions that apply: `values`, the ids of kept documents, and `counts`.
    """
    position = pc.index_in(documents["url_id"], of_kept.field("values"))
    # A document that no decision keeps represents only itself.
    num_others = pc.fill_null(of_kept.field("counts").take(position), 0)
    copies = pc.add(num_others, 1).cast(pa.uint32())
    return replace_columns(documents, DATASETS["corpus"].schema, copies=copies)
