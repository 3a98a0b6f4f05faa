"""export: write the corpus, the clean documents without duplicates and takedowns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.stage import Stage, StageRun, Step, rows_of_input
from owt_pipeline.formats.takedowns import Takedowns, takedowns_of_chain
from owt_pipeline.ledger.bases import FORGOTTEN, folders_of_chain
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader, Outcome, read_manifest, rejects_batch
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.export.card import LANGUAGE, card
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, REJECTS, Reason, option
from schemas.manifest import Counts, ShardRecord
from schemas.settings import shaping_options


@dataclass(frozen=True)
class ExportOptions:
    rules: tuple[str, ...] = option(("exact", "near"), "rules whose decisions apply", choices=("exact", "near", "none"))
    min_similarity: float = option(0.0, "apply decisions of at least this similarity", minimum=0.0, maximum=1.0)


def export(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write one shard of the corpus. The shard's decisions and rejects are held in memory; the rejects are ordered by
    url_id."""
    takedowns = takedowns_of_chain(run.workdir, [base.workdir for base in run.bases])
    chosen = chosen_decisions(run.inputs["duplicates"].table(shard), run.options)
    rejects: list[pa.RecordBatch] = []
    for batch in run.inputs["clean"].batches(shard, rows=1024):
        documents, forgotten = forget(batch, takedowns)
        kept, repeated = apply_decisions(documents, chosen)
        rejects += [forgotten, repeated]
        writer.add(batch.num_rows, Outcome(kept, stats=_sizes(kept)))
    for batch in pa.Table.from_batches(rejects, REJECTS).sort_by("url_id").combine_chunks().to_batches():
        writer.reject(batch)


class Export(Stage):
    """Write the corpus: the clean documents without those that duplicates/ removes. After a change of these
    options, only export runs again. Documents named in forgotten.jsonl (owt forget) are left out.
    ledger/corpus/README.md is the dataset card.
    """

    name = "export"
    inputs = ("clean", "duplicates")
    bases = (FORGOTTEN,)
    lists = (FORGOTTEN,)
    output = "corpus"
    options = ExportOptions
    version = 5
    libraries = ("jinja2",)
    steps = (Step(export, rows=rows_of_input, spread="shards"),)
    shard_local = True
    example = "owt export --workdir runs/2013 --rules exact --min_similarity 0.9"

    def listed(self, workdir: Storage, inputs: Mapping[str, DatasetReader]) -> Callable[[int], list[tuple[int, str]]]:
        return forgotten_in_shards(workdir, inputs)

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> None:
        before = {name: read_manifest(run.workdir, name) for name in DATASETS if name not in ("corpus", "tokens")}
        stats: Counter[str] = Counter()
        for record in records:
            stats.update(record.stats)
        text = card(
            {name: manifest for name, manifest in before.items() if manifest is not None},
            sum((record.counts for record in records), Counts()),
            stats,
            shaping_options(run.options),
            sum(file.bytes for record in records for file in record.files if file.kind == "data"),
            run.num_shards,
        )
        run.write_asset("README.md", text.encode())


STAGE = Export()


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


def chosen_decisions(decisions: pa.Table, options: ExportOptions) -> pa.Table:
    """The rows of `decisions` (dataset `duplicates`) that the options apply."""
    of_rule = pc.is_in(decisions["rule"], pa.array(options.rules, pa.string()))
    return decisions.filter(pc.and_(of_rule, pc.greater_equal(decisions["similarity"], options.min_similarity)))


def forget(documents: pa.RecordBatch, takedowns: Takedowns) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(documents that `takedowns` does not name, rejects for the others)."""
    named = dict(takedowns.of(documents["url_id"].to_numpy(), documents["url"]))
    gone = np.zeros(documents.num_rows, bool)
    gone[list(named)] = True
    ids, urls = documents["url_id"], documents["url"]
    rejects = ((ids[row].as_py(), urls[row].as_py(), Reason.FORGOTTEN, named[row]) for row in named)
    return documents.filter(pa.array(~gone)), rejects_batch(rejects)


def apply_decisions(documents: pa.RecordBatch, decisions: pa.Table) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(documents that `decisions`, rows of the dataset `duplicates`, does not remove; rejects for the others)."""
    position = pc.index_in(documents["url_id"], decisions["url_id"].combine_chunks())
    gone = pc.is_valid(position)
    rejected, why = documents.filter(gone), decisions.take(position.filter(gone))
    columns = [rejected["url_id"], rejected["url"], why["rule"], why["kept_url_id"], why["similarity"]]
    rejects = (
        (url_id, url, _REASONS[rule], f"kept {kept} similarity {similarity:.4f}")
        for url_id, url, rule, kept, similarity in zip(*(column.to_pylist() for column in columns), strict=True)
    )
    return documents.filter(pc.invert(gone)), rejects_batch(rejects)


def forgotten_in_shards(
    workdir: Storage, inputs: Mapping[str, DatasetReader]
) -> Callable[[int], list[tuple[int, str]]]:
    """A function from a shard to the (url_id, detail) of its clean documents that export would forget."""
    takedowns = takedowns_of_chain(workdir, folders_of_chain(workdir))

    def named(shard: int) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        if takedowns.ids or takedowns.domains:
            for batch in inputs["clean"].batches(shard, columns=["url_id", "url"], rows=1 << 16):
                ids = batch["url_id"].to_numpy()
                found += [(int(ids[row]), detail) for row, detail in takedowns.of(ids, batch["url"])]
        return sorted(found)

    return named
