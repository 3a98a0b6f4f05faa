"""dedupe: which documents repeat which, each case proven."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from owt_pipeline.engine import progress
from owt_pipeline.engine.commit import ShardWriter, record_name
from owt_pipeline.engine.dataset import DatasetReader, require_manifest
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.pipeline import beam_spreads, runs_locally
from owt_pipeline.engine.stage import Stage, StageRun, read_records
from owt_pipeline.engine.storage import Storage
from owt_pipeline.stage_command import main
from schemas import Reason, option
from schemas.manifest import Counts, ShardRecord

if TYPE_CHECKING:
    from owt_pipeline.dedupe.collection import Collection
    from owt_pipeline.dedupe.sketches import Sketcher

_PARTITION_ROWS = 1 << 21  # of what is brought together: hashes of documents, or edges
_LOCAL_ROWS = 1 << 23  # that one local pipeline groups, in memory: 16 bytes each, a few times over
_MOST_ROUNDS = 40
_SHINGLE_BYTES = {"words": 2.5, "characters": 0.4}  # of a compressed file, more or less


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
    against: tuple[str, ...] = option(
        (),
        "working directories of earlier runs, deduped with --keep_sketches: what repeats a document of theirs goes too",
        shapes_bytes=False,  # what is in them does, and is among the sources
        metavar="DIR",
    )
    keep_sketches: bool = option(False, "keep the sketches, some 210 bytes a document, for a later run's --against")
    max_comparisons: int = option(
        64, "documents each one is compared with, at most; those that share most rare n-grams first", minimum=1
    )
    oversized_bucket: int = option(1000, "buckets of more documents are counted as oversized", minimum=2)
    components: str = option(
        "one_worker",
        "how candidates are joined: in one process, 40 bytes an edge; or distributed, in rounds over all workers",
        choices=("one_worker", "distributed"),
        shapes_bytes=False,
    )
    max_cluster_share: float = option(
        0.05, "share of the corpus that may repeat one document", minimum=0.0, maximum=1.0, shapes_bytes=False
    )
    max_host_share: float = option(
        0.1, "share of the corpus that may be duplicates of one host", minimum=0.0, maximum=1.0, shapes_bytes=False
    )


def sources(options: DedupeOptions) -> list[dict[str, Any]]:
    """The corpora compared with, as their digests; raises UserError for options that cannot be, and for corpora that
    cannot be compared with, before an earlier run's decisions are deleted."""
    from owt_pipeline.dedupe.collection import open_corpus

    if options.against or options.bands is not None or options.rows is not None:
        made_with = _made_with(_sketcher(options))
        for workdir in options.against:
            open_corpus(workdir, made_with)
    return [
        {name: require_manifest(Storage(workdir), name).digest for name in ("clean", "duplicates")}
        for workdir in options.against
    ]


def run(run: StageRun) -> None:
    import numpy as np

    from owt_pipeline.dedupe.decisions import CLUSTERS
    from owt_pipeline.dedupe.exact import HASHED, PLACED
    from owt_pipeline.dedupe.step_files import NOTHING, read_step
    from owt_pipeline.dedupe.steps import components, decisions, edges, exact, hashes, proofs, shingles, sketches
    from owt_pipeline.dedupe.verification import PROVEN, Verifier, candidates_schema

    options: DedupeOptions = run.options
    work = run.work
    sketcher = _sketcher(options)
    collection = _collection(run, sketcher)
    compiled = _worth_compiling(options, run.inputs["clean"], run.runtime.workers)
    sketcher = replace(sketcher, compiled=compiled)
    nearby = collection.is_local and not beam_spreads(run.runtime.beam_flags)
    bring_together = partial(_gather if nearby else _shuffle, run)
    shards = range(collection.num_shards)
    partitions = range(_partitions(collection.documents))
    bands = sketcher.banding.bands

    write_step = partial(run.write_step, file_format="arrow", named_by_content=False)
    spread = partial(write_step, spread="shards")
    own_parts, part_rows = range(len(collection.parts)), [part.rows for part in collection.parts]
    hash_texts = partial(hashes.hash_part, collection=collection, survivor=options.survivor)
    spread("hashes", own_parts, hash_texts, HASHED, rows=part_rows)
    read = partial(exact.read_text_hashes, collection=collection, partitions=len(partitions))
    find_exact = partial(exact.find_exact, first_standing=collection.first_standing)
    bring_together("exact", shards, read, partitions, find_exact, PLACED)
    split = partial(exact.split_exact, exact=work / "exact", partitions=partitions, by_shard=work / "exact_rows")
    split = partial(split, num_shards=len(shards))
    write_step("exact_split", [0], split, NOTHING)

    sketch = partial(sketches.sketch_part, collection=collection, exact_rows=work / "exact_rows", sketcher=sketcher)
    sketched = spread("sketches", own_parts, sketch, sketcher.stored_schema, rows=part_rows)

    read = partial(edges.read_bands, collection=collection, partitions=len(partitions))
    keys = range(bands * len(partitions))
    find_edges = partial(edges.find_edges, oversized=options.oversized_bucket)
    found = bring_together("edges", shards, read, keys, find_edges, edges.EDGES, "parquet")
    edge_files = (work / "edges", keys)
    if options.components == "distributed":
        edge_files = _contract(run.work, bring_together, *edge_files, _partitions(_summed(found)["edges"]))
    join = partial(components.join_components, collection=collection, by_shard=work / "candidates")
    join = partial(join, edges=edge_files[0], keys=edge_files[1])
    joined = write_step("components", [0], join, components.GROUP_PARTS)

    where = read_step(work / "components", [0])
    collection = collection.with_texts_of(np.unique(where["shard"].to_numpy()).tolist())
    of_part, of_group = (components.documents_by(where, column) for column in ("part", "group"))
    with_candidates, groups = [part for part, count in enumerate(of_part) if count], range(len(of_group))
    shingle = partial(shingles.shingle_candidates, collection=collection, candidates=work / "candidates")
    shingle = partial(shingle, sketcher=sketcher)
    spread("shingles", with_candidates, shingle, candidates_schema(bands), rows=of_part)
    verifier = Verifier(options.threshold, options.similarity, options.max_comparisons, int(collection.first_standing))
    verify = partial(proofs.verify_group, shingles=work / "shingles", components=work / "components")
    verify = partial(verify, verifier=verifier)
    proven = spread("proofs", groups, verify, PROVEN, rows=of_group)

    settle = partial(decisions.decide_all, partitions=partitions, groups=groups, work=work)
    settle = partial(settle, by_shard=work / "decided", num_shards=run.num_shards)
    write_step("decisions", [0], settle, CLUSTERS)
    clusters = _raise_alarm(run, collection)
    write = partial(decisions.write_decisions, decisions=work / "decided", collection=collection)
    written = _summed(run.write_shards(partial(write, keep_sketches=options.keep_sketches), spread="shards"))

    rejected = {str(Reason.EXACT_DUPLICATE): written["exact"], str(Reason.NEAR_DUPLICATE): written["near"]}
    run.counts = Counts(sum(part_rows), written["stay"], {reason: count for reason, count in rejected.items() if count})
    run.stats = _summed([*sketched, *found, *joined, *proven])
    run.properties.update(
        threshold=options.threshold,
        num_perm=options.num_perm,
        bands=bands,
        rows=sketcher.banding.rows,
        curve=sketcher.banding.curve(),
        largest_clusters=clusters,
        against=list(options.against),
        standing_shards=[corpus.clean.num_shards for corpus in collection.others],
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
    return Sketcher(banding, options.ngram, options.shingles)


def _made_with(sketcher: Sketcher) -> dict[str, object]:
    """What sketches that are to be compared must have in common."""
    return {
        "ngram": sketcher.n,
        "shingles": sketcher.kind,
        "bands": sketcher.banding.bands,
        "rows": sketcher.banding.rows,
        "stage_version": STAGE.version,
    }


def _collection(run: StageRun, sketcher: Sketcher) -> Collection:
    from owt_pipeline.dedupe.collection import Corpus, collect, open_corpus

    for workdir in run.options.against:
        if require_manifest(Storage(workdir), "clean").digest == run.inputs["clean"].manifest.digest:
            raise UserError(f"--against names this very run, or one of the same documents: {workdir}")
    others = tuple(open_corpus(workdir, _made_with(sketcher)) for workdir in run.options.against)
    return collect(Corpus(run.inputs["clean"], run.work / "hashes", run.work / "sketches"), others)


def _worth_compiling(options: DedupeOptions, clean: DatasetReader, workers: int) -> bool:
    """Whether each worker has so much to sign that it should begin with numba's compiler."""
    from owt_pipeline.dedupe.minhash import COMPILED_FROM

    shingles = clean.manifest.total("data").bytes / _SHINGLE_BYTES[options.shingles]
    return shingles >= COMPILED_FROM * workers


def _preload(options: DedupeOptions, inputs: Mapping[str, DatasetReader], workers: int) -> list[str]:
    modules = ["owt_pipeline.dedupe.steps.sketches"]
    if _worth_compiling(options, inputs["clean"], workers):
        modules.append("owt_pipeline.dedupe.minhash_compiled")
    return modules


def _partitions(rows: int) -> int:
    return max(1, rows // _PARTITION_ROWS)


def _gather(
    run: StageRun,
    name: str,
    over: Sequence[int],
    read: Callable[..., Any],
    keys: range,
    reduce: Callable[[int, list[pa.RecordBatch], ShardWriter], None],
    schema: pa.Schema,
    file_format: str = "arrow",
) -> list[ShardRecord]:
    """Write a step whose keys each take rows from all that is read: whoever writes a key picks its rows there.

    For files on this machine, which are mapped into memory: no row travels between processes.
    """
    from owt_pipeline.dedupe.steps.partitions import gather

    work = partial(gather, over=over, read=read, reduce=reduce)
    return run.write_step(name, keys, work, schema, file_format=file_format, named_by_content=False, spread="shards")


def _shuffle(
    run: StageRun,
    name: str,
    over: Sequence[int],
    read: Callable[..., Any],
    keys: range,
    reduce: Callable[[int, list[pa.RecordBatch], ShardWriter], None],
    schema: pa.Schema,
    file_format: str = "arrow",
) -> list[ShardRecord]:
    """As `_gather`, where Beam brings the rows together, in as many pipelines as bound what one machine holds."""
    from owt_pipeline.dedupe.step_files import reduce_to_file
    from owt_pipeline.transforms.dedupe import ReducePartitions

    folder, records = run.work / name, run.work / name / "records"
    write = partial(reduce_to_file, folder=folder, records=records, schema=schema, reduce=reduce)
    write = partial(write, file_format=file_format)
    rows_of_key = min(run.inputs["clean"].rows() or 1, 2 * _PARTITION_ROWS)
    together = max(1, _LOCAL_ROWS // rows_of_key) if runs_locally(run.runtime.beam_flags) else len(keys)
    with progress.step(f"dedupe ({name})", shards=len(keys)):
        for start in range(0, len(keys), together):
            some = keys[start : start + together]
            if not all(records.exists(record_name(key)) for key in some):
                run.pipeline(partial(_build, ReducePartitions(over, partial(read, keys=some), write)))
    return read_records(records, keys)


def _build(transform: Any, pipeline: Any) -> None:
    _ = pipeline | transform


def _contract(
    work: Storage, bring_together: Callable[..., list[ShardRecord]], folder: Storage, files: range, partitions: int
) -> tuple[Storage, range]:
    """Contract components to stars, round by round, until a round changes nothing; raises UserError where none does."""
    from owt_pipeline.dedupe.steps import stars
    from owt_pipeline.dedupe.steps.edges import EDGES

    before: dict[str, int] = {}
    for number in range(_MOST_ROUNDS):
        for large in (True, False):
            name = f"stars_{number}_{'large' if large else 'small'}"
            read = partial(stars.read_by_center, edges=folder, both_directions=large, partitions=partitions)
            contract = partial(stars.contract, large=large)
            records = bring_together(name, files, read, range(partitions), contract, EDGES, "parquet")
            folder, files = work / name, range(partitions)
        after = _summed(records)
        if after["edges"] == before.get("edges") and (after["checksum"] - before["checksum"]) % stars.MODULUS == 0:
            return folder, files
        before = after
    raise UserError(f"dedupe: components have not converged after {_MOST_ROUNDS} rounds; use --components one_worker")


def _raise_alarm(run: StageRun, collection: Collection) -> list[dict[str, int]]:
    """The largest clusters, for the manifest; raises UserError where a cluster or a host exceeds its share."""
    from owt_pipeline.dedupe import alarm
    from owt_pipeline.dedupe.step_files import read_step
    from owt_pipeline.dedupe.steps import hosts

    options: DedupeOptions = run.options
    source = collection.own.clean
    clusters = read_step(run.work / "decisions", [0]).to_pylist()
    for cluster in clusters[:1]:
        what, documents = f"the cluster of url_id {cluster['kept_url_id']}", cluster["documents"] - 1
        shown = partial(hosts.read_documents, collection, cluster["sample"])
        alarm.check(what, "max_cluster_share", documents, source.rows(), options.max_cluster_share, shown)
    shards = range(run.num_shards)
    count = partial(hosts.count_hosts, decisions=run.work / "decided", source=source)
    run.write_step("hosts", shards, count, hosts.HOSTS, file_format="arrow", named_by_content=False, spread="shards")
    for host, documents, sample in hosts.most(read_step(run.work / "hosts", shards))[:1]:
        shown = partial(hosts.read_documents, collection, sample)
        alarm.check(f"the host {host}", "max_host_share", documents, source.rows(), options.max_host_share, shown)
    return [{name: cluster[name] for name in ("kept_url_id", "kept_shard", "documents")} for cluster in clusters]


def _summed(records: Sequence[ShardRecord]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for record in records:
        total.update(record.stats)
    return dict(total)


STAGE = Stage(
    name="dedupe",
    output="duplicates",
    inputs=("clean",),
    options=DedupeOptions,
    version=3,
    run=run,
    sources=sources,
    preload=_preload,
    help="Decide which documents repeat which: exact copies by a hash of the normalised text, then near-duplicates:\n"
    "candidates by MinHash LSH, each verified by the exact similarity of the shingle sets. Nothing is deleted:\n"
    "duplicates/ names each document to remove, the one that stays, and how similar they are; export applies it.",
    libraries=("numpy", "datasketch", "xxhash"),
    example="owt dedupe --workdir runs/2013 --threshold 0.85 --survivor highest_score",
)

if __name__ == "__main__":
    sys.exit(main(STAGE))
