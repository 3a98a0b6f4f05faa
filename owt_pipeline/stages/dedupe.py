"""dedupe: which documents repeat which, each case proven."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from owt_pipeline.runtime import progress
from owt_pipeline.runtime.errors import UserError
from owt_pipeline.runtime.shards import ShardRecord, ShardWriter, shard_name
from owt_pipeline.runtime.stage import Stage, StageRun
from owt_pipeline.stages.command import main
from schemas import Counts, Reason, option

if TYPE_CHECKING:
    from owt_pipeline.dedupe.sketches import Sketcher

_PARTITION_DOCUMENTS = 1 << 20  # of a partition of the hash space
_LOCAL_ROWS = 1 << 23  # that one local pipeline groups, in memory: 16 bytes each, a few times over


@dataclass(frozen=True)
class DedupeOptions:
    threshold: float = option(
        0.8, "exact similarity from which a document is removed", minimum=0.05, maximum=1.0, metavar="S"
    )
    similarity: str = option(
        "jaccard",
        "jaccard, |A & B| / |A | B|; or containment, the share of the removed document that the kept one holds",
        choices=("jaccard", "containment"),
    )
    shingles: str = option("words", "what n-grams are made of", choices=("words", "characters"))
    ngram: int = option(5, "words, or characters, in an n-gram", minimum=1, maximum=1000)
    survivor: str = option(
        "longest", "which of several duplicates stays; ties by url_id", choices=("longest", "highest_score", "earliest")
    )
    num_perm: int = option(128, "MinHash permutations to spend", minimum=1, maximum=4096)
    bands: int | None = option(None, "LSH bands; with --rows, in place of the optimiser's choice", minimum=1)
    rows: int | None = option(None, "MinHash values in a band", minimum=1)
    false_negative_weight: float = option(
        0.999,
        "what a missed pair weighs when bands and rows are chosen; a candidate in vain, which costs only its "
        "verification, weighs the rest",
        minimum=0.0,
        maximum=1.0,
    )
    oversized_bucket: int = option(1000, "buckets of more documents are counted as oversized", minimum=2)
    max_comparisons: int = option(
        64, "documents each one is compared with, at most; those that share most rare n-grams first", minimum=1
    )


def run(run: StageRun) -> None:
    from owt_pipeline.dedupe import exact, steps
    from owt_pipeline.dedupe.verification import PROVEN, Verifier, candidates_schema

    options: DedupeOptions = run.options
    source, work, shards = run.inputs["clean"], run.work, range(run.num_shards)
    sketcher = _sketcher(options)
    verifier = Verifier(options.threshold, options.similarity, options.max_comparisons)
    in_workers: dict[str, Any] = {"workers": run.runtime.workers}
    all_shards: dict[str, Any] = {"num_shards": run.num_shards}
    partitions = max(1, source.rows() // _PARTITION_DOCUMENTS)

    sketch = partial(steps.sketch_shard, source=source, sketcher=sketcher, **in_workers)
    run.write_step("sketches", shards, sketch, sketcher.schema, rows=source.rows(), file_format="arrow")

    hashed: dict[str, Any] = {"sketches": work / "sketches", "partitions": partitions}
    hashes = partial(steps.read_text_hashes, **hashed)
    _shuffle(run, "exact", range(partitions), hashes, steps.find_exact, exact.PLACED)
    split = partial(steps.scatter_exact, exact=work / "exact", partitions=partitions, by_shard=work / "exact_rows")
    run.write_step("exact_split", [0], partial(split, **all_shards), steps.NOTHING, file_format="arrow")

    keys = range(sketcher.banding.bands * partitions)
    bands = partial(steps.read_bands, **hashed, exact_rows=work / "exact_rows")
    find_edges = partial(steps.find_edges, oversized=options.oversized_bucket)
    edges = _shuffle(run, "edges", keys, bands, find_edges, steps.EDGES)
    join = partial(steps.join_components, edges=work / "edges", keys=keys, sketches=work / "sketches")
    join = partial(join, by_shard=work / "candidates", **all_shards)
    components = run.write_step("components", [0], join, steps.GROUP_SHARDS, file_format="arrow")

    shingle = partial(steps.shingle_candidates, source=source, sketches=work / "sketches", sketcher=sketcher)
    shingle = partial(shingle, candidates=work / "candidates", **in_workers)
    schema = candidates_schema(sketcher.banding.bands)
    run.write_step("shingles", shards, shingle, schema, file_format="arrow")
    groups = range(components[0].stats["groups"])
    verify = partial(steps.verify_group, shingles=work / "shingles", components=work / "components", verifier=verifier)
    proven = run.write_step("proven", groups, partial(verify, **in_workers), PROVEN, file_format="arrow")

    settle = partial(steps.decide_all, exact=range(partitions), proven=groups, work=work, by_shard=work / "decided")
    run.write_step("settled", [0], partial(settle, **all_shards), steps.NOTHING, file_format="arrow")
    decided = run.write_shards(partial(steps.write_decisions, decided=work / "decided", source=source))

    total = _summed(decided)
    run.counts = Counts(
        source.rows(),
        total["stay"],
        {str(Reason.EXACT_DUPLICATE): total["exact"], str(Reason.NEAR_DUPLICATE): total["near"]},
    )
    run.stats = _summed([*edges, *components, *proven])
    run.properties.update(
        threshold=options.threshold,
        num_perm=options.num_perm,
        bands=sketcher.banding.bands,
        rows=sketcher.banding.rows,
        curve=sketcher.banding.curve(),
    )


def _sketcher(options: DedupeOptions) -> Sketcher:
    from owt_pipeline.dedupe.lsh import choose_banding
    from owt_pipeline.dedupe.sketches import Sketcher

    try:
        banding = choose_banding(
            options.threshold, options.num_perm, options.false_negative_weight, options.bands, options.rows
        )
    except ValueError as error:
        raise UserError(f"dedupe: {error}") from error
    return Sketcher(banding, options.ngram, options.shingles, options.survivor)


def _shuffle(
    run: StageRun,
    name: str,
    keys: range,
    read: Callable[..., Any],
    reduce: Callable[[int, list[pa.RecordBatch], ShardWriter], None],
    schema: pa.Schema,
) -> list[ShardRecord]:
    """Write a step whose key's rows come from all shards, in as many pipelines as bound what a local one holds."""
    from owt_pipeline.dedupe.step_files import reduce_to_file
    from owt_pipeline.runtime.pipeline import runs_locally
    from owt_pipeline.transforms.dedupe import ReducePartitions

    folder, records = run.work / name, run.work / name / "records"
    write = partial(reduce_to_file, folder=folder, records=records, schema=schema, reduce=reduce)
    rows_of_key = min(run.inputs["clean"].rows(), 2 * _PARTITION_DOCUMENTS) or 1
    together = max(1, _LOCAL_ROWS // rows_of_key) if runs_locally(run.runtime.beam_flags) else len(keys)
    with progress.step(f"dedupe ({name})", shards=len(keys)):
        for start in range(0, len(keys), together):
            some = keys[start : start + together]
            if not all(records.exists(f"{shard_name(key)}.json") for key in some):
                transform = ReducePartitions(range(run.num_shards), partial(read, keys=some), write)
                run.pipeline(partial(_build, transform))
    return [ShardRecord.from_json(records.read(f"{shard_name(key)}.json")) for key in keys]


def _build(transform: Any, pipeline: Any) -> None:
    _ = pipeline | transform


def _summed(records: list[ShardRecord]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.stats)
    return dict(total)


STAGE = Stage(
    name="dedupe",
    output="duplicates",
    inputs=("clean",),
    options=DedupeOptions,
    version=1,
    run=run,
    help="Decide which documents repeat which: exact copies by a hash of the normalised text, then near-duplicates:\n"
    "candidates by MinHash LSH, each verified by the exact similarity of the shingle sets. Nothing is deleted:\n"
    "duplicates/ names each document to remove, the one that stays, and how similar they are; export applies it.",
    libraries=("numpy", "scipy", "datasketch", "xxhash"),
    example="owt dedupe --workdir runs/2013 --threshold 0.85 --survivor highest_score",
)

if __name__ == "__main__":
    sys.exit(main(STAGE))
