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
    """Write one shard of the corpus, from clean/, or from the corpus itself if only takedowns
    were added.

    Texts are compared with forgotten ones last, so that a shard made from the corpus has the same
    rejects. The shard's decisions and rejects are held in memory, ordered by url_id.
    """
    listed = takedowns_in(run.root, run.inputs, shard)
    takedowns = listed.takedowns
    texts = read_forgotten(run.workdir, listed.texts)
    before = _corpus_without_takedowns(run, shard)
    rejects: list[pa.RecordBatch] = []
    if before is None:
        decisions = run.inputs["duplicates"]
        chosen = chosen_decisions(decisions.table(shard), run.options)
        of_kept = chosen_decisions(decisions.table(shard, kind="kept"), run.options)[
            "kept_url_id"
        ].value_counts()
    for batch in (before or run.inputs["clean"]).batches(shard, rows=1024):
        documents, forgotten = forget(batch, takedowns)
        rejects.append(forgotten)
        if before is None:
            documents, repeated = apply_decisions(documents, chosen)
            rejects.append(as_forgotten(repeated, takedowns))
            documents, unlicensed = licensed(documents, run.options.licenses)
            rejects.append(unlicensed)
            documents = with_copies(documents, of_kept)
        documents, repeated = forget_copies(documents, texts)
        rejects.append(repeated)
        writer.add(batch.num_rows, Outcome(documents, stats=_sizes(documents)))
    for batch in before.batches(shard, kind="rejects", rows=1024) if before else ():
        others, forgotten = forget(batch, takedowns)
        rejects += [as_forgotten(others, takedowns), forgotten]
        writer.enter(batch.num_rows)
    for batch in (
        pa.Table.from_batches(rejects, REJECTS).sort_by("url_id").combine_chunks().to_batches()
    ):
        writer.reject(batch)


def _corpus_without_takedowns(run: StageRun, shard: int) -> DatasetReader | None:
    """The corpus as it was, if its shard differs from the wanted one by takedowns alone."""
    if run.published is None or shard in run.plan.lost:
        return None
    corpus = DatasetReader(run.workdir, run.published)
    rows = {record.shard: record for record in corpus.table_of_files.records}
    is_same = shard in rows and rows[shard].made_from == run.plan.made_from[shard]
    return corpus if is_same else None


def _sizes(documents: pa.RecordBatch) -> dict[str, int]:
    """Counts of these documents for the dataset card."""
    languages = Counter(documents["language"].to_pylist())
    return {
        "characters": pc.sum(pc.utf8_length(documents["text"])).as_py() or 0,
        "text_bytes": pc.sum(pc.binary_length(documents["text"])).as_py() or 0,
        "words": pc.sum(documents["n_words"]).as_py() or 0,
        **{f"{LANGUAGE}{code}": count for code, count in languages.items() if code},
    }


_REASONS = {"exact": Reason.EXACT_DUPLICATE, "near": Reason.NEAR_DUPLICATE}


def chosen_decisions(decisions: pa.Table, options: Options) -> pa.Table:
    """The rows of `decisions` (dataset `duplicates`) that the options apply."""
    chosen = pc.is_in(decisions["rule"], pa.array(options.rules, pa.string()))
    for column, least in (
        ("similarity", options.min_similarity),
        ("contained", options.min_contained),
    ):
        # Rounded as the column is, so that a share of 9/10 reaches 0.9.
        chosen = pc.and_(
            chosen, pc.greater_equal(decisions[column], pa.scalar(least, pa.float32()))
        )
    return decisions.filter(chosen)


def forget(
    documents: pa.RecordBatch, takedowns: Takedowns
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(documents that `takedowns` does not name, rejects for the others)."""
    named = dict(takedowns.of(documents["url_id"].to_numpy(), documents["url"]))
    gone = np.zeros(documents.num_rows, bool)
    gone[list(named)] = True
    ids, urls = documents["url_id"], documents["url"]
    rejects = ((ids[row].as_py(), urls[row].as_py(), Reason.FORGOTTEN, named[row]) for row in named)
    return documents.filter(pa.array(~gone)), rejects_batch(rejects)


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
    """(documents whose text repeats none of `texts`, rejects for the others)."""
    gone = np.zeros(documents.num_rows, bool)
    gone[[match.row for match in texts.matches(documents["text"])]] = True
    rejected = documents.filter(pa.array(gone))
    pairs = zip(rejected["url_id"].to_pylist(), rejected["url"].to_pylist(), strict=True)
    rejects = ((key, url, Reason.FORGOTTEN, _REPEATS) for key, url in pairs)
    return documents.filter(pa.array(~gone)), rejects_batch(rejects)


def apply_decisions(
    documents: pa.RecordBatch, decisions: pa.Table
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(documents that `decisions`, rows of the dataset `duplicates`, does not remove; rejects
    for the others)."""
    position = pc.index_in(documents["url_id"], decisions["url_id"].combine_chunks())
    gone = pc.is_valid(position)
    rejected, why = documents.filter(gone), decisions.take(position.filter(gone))
    columns = [
        rejected["url_id"],
        rejected["url"],
        why["rule"],
        why["kept_url_id"],
        why["similarity"],
    ]
    rejects = (
        (url_id, url, _REASONS[rule], f"kept {kept} similarity {similarity:.4f}")
        for url_id, url, rule, kept, similarity in zip(
            *(column.to_pylist() for column in columns), strict=True
        )
    )
    return documents.filter(pc.invert(gone)), rejects_batch(rejects)


def licensed(
    documents: pa.RecordBatch, licenses: Sequence[str]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(documents under one of `licenses`, in any case; rejects for the others); all documents if
    it is empty."""
    if not licenses:
        return documents, empty(REJECTS)
    allowed = pa.array([name.lower() for name in licenses])
    holds = pc.is_in(pc.utf8_lower(documents["license"]), allowed)
    others = documents.filter(pc.invert(holds))
    rows = zip(*(others[name].to_pylist() for name in ("url_id", "url", "license")), strict=True)
    rejects = rejects_batch(
        (key, url, Reason.LICENSE, name or "the page declares none") for key, url, name in rows
    )
    return documents.filter(holds), rejects


def with_copies(documents: pa.RecordBatch, of_kept: pa.StructArray) -> pa.RecordBatch:
    """Rows of the corpus from rows of clean/: with the number of documents that each represents.

    `of_kept` counts the decisions that apply: `values`, the ids of kept documents, and `counts`.
    """
    others = of_kept.field("counts").take(pc.index_in(documents["url_id"], of_kept.field("values")))
    copies = pc.add(pc.fill_null(others, 0), 1).cast(pa.uint32())
    return replace_columns(documents, DATASETS["corpus"].schema, copies=copies)


def takedowns_in(root: Root, inputs: Mapping[str, DatasetReader], shard: int) -> ShardTakedowns:
    """Return what the list of takedowns says of a shard.

    The digest of the shard's file of clean/ decides; the file may be gone.
    """
    if not root.takedowns or "clean" not in inputs:
        return ShardTakedowns(Takedowns(), (), None)
    clean = inputs["clean"]
    return takedowns_of_shard(clean.workdir, root, shard, digest_of_shard(clean, shard))
