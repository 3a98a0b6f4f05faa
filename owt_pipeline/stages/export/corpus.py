"""Rows of the corpus from those of clean/, without duplicates, takedowns and other licences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.stage import StageRun
from owt_pipeline.formats.forgotten_texts import ForgottenTexts, read_forgotten
from owt_pipeline.formats.takedowns import (
    ShardTakedowns,
    Takedowns,
    digest_of_shard,
    takedowns_of_shard,
)
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import (
    DatasetReader,
    Outcome,
    empty,
    rejects_batch,
    replace_columns,
)
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.export.card import LANGUAGE
from owt_pipeline.stages.export.options import Options
from schemas import DATASETS, REJECTS, Reason
from schemas.manifest import Root


def export_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write one shard of the corpus from clean/, or from the published corpus.

    The published corpus is enough if only takedowns were added. The shard's decisions and rejects
    are held in memory. Rejects are ordered by url_id.
    """
    listed = takedowns_in(run.root, run.inputs, shard)
    takedowns = listed.takedowns
    texts = read_forgotten(run.workdir, listed.fingerprint_paths)
    before = _corpus_without_takedowns(run, shard)
    rejects: list[pa.RecordBatch] = []
    if before is None:
        decisions = run.inputs["duplicates"]
        chosen = chosen_decisions(decisions.table(shard), run.options)
        of_kept = chosen_decisions(decisions.table(shard, kind="kept"), run.options)[
            "kept_url_id"
        ].value_counts()
    for batch in (before or run.inputs["clean"]).batches(shard, rows=1024):
        # Takedowns come before decisions, so a named duplicate is rejected as forgotten. A shard
        # that is made from the corpus has the same rejects.
        documents, forgotten = forget(batch, takedowns)
        rejects.append(forgotten)
        if before is None:
            documents, repeated = apply_decisions(documents, chosen)
            rejects.append(as_forgotten(repeated, takedowns))
            documents, unlicensed = licensed(documents, run.options.licenses)
            rejects.append(unlicensed)
            documents = with_copies(documents, of_kept)
        # Only texts that every other rule keeps are compared with forgotten ones, since the
        # published corpus has no other texts.
        documents, repeated = forget_copies(documents, texts)
        rejects.append(repeated)
        writer.add(batch.num_rows, Outcome(documents, stats=_sizes(documents)))
    for batch in before.batches(shard, kind="rejects", rows=1024) if before else ():
        # The corpus and its rejects make up the rows of clean/, so both count as entered.
        others, forgotten = forget(batch, takedowns)
        rejects += [as_forgotten(others, takedowns), forgotten]
        writer.enter(batch.num_rows)
    for batch in (
        pa.Table.from_batches(rejects, REJECTS).sort_by("url_id").combine_chunks().to_batches()
    ):
        writer.reject(batch)


def _corpus_without_takedowns(run: StageRun, shard: int) -> DatasetReader | None:
    """Return the corpus as it was, if its shard differs from the wanted one by takedowns only."""
    if run.published is None or shard not in run.plan.patched:
        return None
    return DatasetReader(run.workdir, run.published)


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
    listed = pa.array(map(str, takedowns.ids), pa.string())
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


def takedowns_in(root: Root, inputs: Mapping[str, DatasetReader], shard: int) -> ShardTakedowns:
    """Return the takedowns that concern a shard.

    The digest of the shard's file of clean/ selects them, so the file itself may be missing.
    """
    if not root.takedowns or "clean" not in inputs:
        return ShardTakedowns(Takedowns(), (), None)
    clean = inputs["clean"]
    return takedowns_of_shard(clean.workdir, root, shard, digest_of_shard(clean, shard))
