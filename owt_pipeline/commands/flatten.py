"""`owt flatten`: make one run from a chain of runs, as if it had collected all their months.

the chain        2024-01  2024-02  2024-03
urls/ .. clean/  the rows of a shard in all runs, by url_id; a URL that a later run retried appears once
duplicates/      the decisions of all runs: a document that repeats one of an earlier month is removed
corpus/, tokens/ made from these by export and tokenize, with the options of the last run
"""

from __future__ import annotations

import argparse
import functools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline import progress
from owt_pipeline.command_line import Command, CommandParser, add_output_flags, at_least, configure_output
from owt_pipeline.commands.run import REMADE, check_folder, recorded_options, recorded_stages, run_stages
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step, rows_of_input
from owt_pipeline.errors import UsageError, UserError
from owt_pipeline.formats.takedowns import read_takedowns, takedowns_of_chain, write_takedowns
from owt_pipeline.ledger.bases import open_chain, place_of, relative_uri, resolve_uri
from owt_pipeline.ledger.commit import WARC, ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest, replace_columns, require_manifest, require_run
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages import load
from owt_pipeline.stages.dedupe.collection import read_collection
from owt_pipeline.stages.dedupe.options import Options
from owt_pipeline.stages.dedupe.past import NOBODY, keep_sketches
from owt_pipeline.stages.dedupe.stage import Dedupe
from owt_pipeline.stages.fetch.shards import sorted_urls
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, Reason
from schemas.manifest import Counts, Manifest, ShardRecord
from schemas.reasons import TEMPORARY

_MERGED: dict[str, tuple[str, ...]] = {"urls": (), "pages": ("urls",), "documents": ("pages",), "clean": ("documents",)}
"""The datasets that are merged row by row, with their inputs."""

_AGAIN = "again.msgpack"
_ROWS = 1 << 16
_COPY_BYTES = 1 << 20
_CACHED_SHARDS = 256


def _flags(parser: CommandParser) -> None:
    """Make one run from a chain of runs (owt run --base): the last run and all that it builds on. The
    URLs are those of one run over all their dumps. Of documents that repeat each other, the earliest month's
    is kept. The runs of the chain are only read. If the command is killed, run it again and it continues.

    example:
      owt flatten runs/2024-03 --workdir runs/2024-q1

    The runs need the same --num_shards. corpus/, tokens/ and report/ are made with the options of the last run;
    change them afterwards as in any run (owt export --workdir runs/2024-q1 --rules exact).
    """
    parser.add_argument("run", metavar="RUN", help="folder of the last run of the chain")
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run to make")
    parser.add_argument("--workers", type=at_least(1), default=os.cpu_count() or 1, metavar="N", help="processes")
    add_output_flags(parser)


@dataclass(frozen=True)
class Flattened:
    """What is merged.

    Attributes:
      runs: places of the chain's runs, the oldest first.
      dataset: whose rows they are.
    """

    runs: tuple[str, ...]
    dataset: str

    def readers(self, dataset: str | None = None) -> list[DatasetReader]:
        """A reader of the dataset, or of another one, for each run."""
        return [DatasetReader.open(Storage(place), dataset or self.dataset) for place in self.runs]

    @property
    def manifests(self) -> list[Manifest]:
        return [require_manifest(Storage(place), self.dataset) for place in self.runs]

    @property
    def names(self) -> list[str]:
        return [place.rpartition("/")[2] for place in self.runs]


def _flatten(arguments: argparse.Namespace) -> int:
    configure_output(arguments)
    workdir, last = Storage(arguments.workdir), Storage(arguments.run)
    workers = arguments.workers
    require_run(last)
    bases = [base.workdir for base in open_chain(last)]
    runs = [*bases, last]
    if not bases:
        raise UsageError(f"{last} builds on no other run (owt run --base): there is nothing to flatten")
    if place_of(workdir) in map(place_of, runs):
        raise UsageError(f"--workdir {workdir} is a run of the chain: give a new folder")
    there = read_manifest(workdir, "urls")
    if there is not None and not any(source.get("kind") == "run" for source in there.sources):
        raise UsageError(f"--workdir {workdir} holds a run already: give a new folder")
    check_folder(workdir)
    _check(runs)
    places = tuple(map(place_of, runs))
    decided = recorded_options(load("dedupe"), last)
    assert decided is not None  # `_check` has seen its output
    stages: list[tuple[Stage, Any]] = [(_Merge(dataset), Flattened(places, dataset)) for dataset in _MERGED]
    stages += [(_Decide(Flattened(places, "duplicates")), replace(decided, against=()))]
    stages += recorded_stages(REMADE, last)
    listed = read_takedowns(workdir)
    if (takedowns := listed | takedowns_of_chain(last, bases)) != listed:
        write_takedowns(workdir, takedowns)
    for result in run_stages(stages, Runtime(workdir, workers)):
        if not arguments.quiet:
            print(f"{result.stage.output}/: {result.manifest.counts}")
    return 0


def _check(runs: Sequence[Storage]) -> None:
    """Raise UserError if a run lacks a dataset, or has another number of shards than the last."""
    for run in runs:
        for dataset in (*_MERGED, "duplicates"):
            manifest, expected = require_manifest(run, dataset), require_manifest(runs[-1], dataset)
            if manifest.stage == "import":
                raise UserError(f"{run} has imported text in place of pages: only collected runs can be flattened")
            if manifest.num_shards != expected.num_shards:
                raise UserError(
                    f"{run}/{dataset} has {manifest.num_shards} shards, {runs[-1]}/{dataset} {expected.num_shards}: "
                    "only runs of the same --num_shards can be flattened"
                )


class _Merge(Stage):
    """Merge one dataset of the runs."""

    options = Flattened
    version = 1

    def __init__(self, dataset: str):
        self.name, self.inputs, self.output = DATASETS[dataset].stage, _MERGED[dataset], dataset
        self.steps = (Step(_merge_shard, rows=_rows, spread="shards"),)

    def shaping(self, options: Flattened, workdir: Storage) -> dict[str, Any]:
        return options.manifests[-1].options

    def sources(self, options: Flattened) -> list[dict[str, Any]]:
        return _sources(options)

    def num_shards(self, options: Flattened) -> int:
        return options.manifests[-1].num_shards

    def prepare(self, run: StageRun) -> None:
        """Find which URLs of each run a later run retried: their rows come from the later run."""
        run.properties.update(run.options.manifests[-1].properties, flattened=run.options.names)
        run.work.write(_AGAIN, msgspec.msgpack.encode([ids.tolist() for ids in _taken_up_again(run.options)]))


class _Decide(Dedupe):
    """Merge the decisions of the runs; the sketches are made anew, since they number documents."""

    bases = ()

    def __init__(self, runs: Flattened):
        self.runs = runs
        self.steps = (*Dedupe.steps[:3], Step(partial(_decide_shard, runs), rows=rows_of_input, spread="shards"))

    def sources(self, options: Options) -> list[dict[str, Any]]:
        return _sources(self.runs)

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> None:
        written: Counter[str] = Counter()
        for record in records:
            written.update(record.stats)
        rejected = {str(Reason.EXACT_DUPLICATE): written["exact"], str(Reason.NEAR_DUPLICATE): written["near"]}
        rejected = {reason: count for reason, count in rejected.items() if count}
        collection, others = read_collection(run), _others(self.runs)
        run.counts = Counts(collection.own_documents, written["stay"], rejected)
        run.properties.update(self.runs.manifests[-1].properties)
        run.properties.pop("bases", None)
        run.properties.update(
            flattened=self.runs.names,
            sketches=msgspec.to_builtins(collection.corpora[0].ranges),
            against=[relative_uri(run.workdir, Storage(place)) for place in others],
            against_shards=list(others.values()),
        )


def _sources(runs: Flattened) -> list[dict[str, Any]]:
    named = zip(runs.names, runs.manifests, strict=True)
    return [{"kind": "run", "name": name, runs.dataset: manifest.digest} for name, manifest in named]


def _rows(run: StageRun) -> list[int]:
    return np.sum([reader.rows_of_shards() for reader in run.options.readers()], axis=0).tolist()


def _taken_up_again(options: Flattened) -> list[np.ndarray]:
    """For each run, the URLs that failed temporarily there and that a later run retried."""
    again = []
    collected = options.readers("urls")
    for number, reader in enumerate(options.readers("pages"), start=1):
        found = [np.zeros(0, np.uint64)]
        if any(later.manifest.options.get("retry_bases") for later in collected[number:]):
            failed = found
            for batch in reader.batches(kind="rejects", columns=["url_id", "reason"], rows=_ROWS):
                temporary = pc.is_in(batch["reason"], pa.array(sorted(map(str, TEMPORARY))))
                failed = [*failed, batch["url_id"].filter(temporary).to_numpy()]
            ids = np.concatenate(failed)
            for later in collected[number:]:
                for batch in later.batches(columns=["url_id"], rows=_ROWS):
                    found.append(np.intersect1d(batch["url_id"].to_numpy(), ids))
        again.append(np.unique(np.concatenate(found)))
    return again


def _merge_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the rows that the runs have in a shard by url_id, then their rejects, run by run."""
    dataset, readers = run.options.dataset, run.options.readers()
    again = [np.array(ids, np.uint64) for ids in msgspec.msgpack.decode(run.work.read(_AGAIN))]
    offsets = _copy_warc(readers, shard, writer) if dataset == "pages" else [0] * len(readers)
    streams = [
        _rows_of(reader, shard, gone, offset) for reader, gone, offset in zip(readers, again, offsets, strict=True)
    ]
    known = [np.zeros(0, np.uint64)]
    for batch in merged(streams):
        writer.enter(batch.num_rows)
        writer.write(batch)
        if dataset == "urls":
            known.append(batch["url_id"].to_numpy())
        progress.advance(batch.num_rows)
    is_known = np.concatenate(known)
    for reader, gone in zip(readers, again, strict=True):
        for batch in reader.batches(shard, kind="rejects", rows=_ROWS):
            if dataset == "urls":
                batch = _as_repeated(batch, is_known)
            elif dataset == "pages" and len(gone):
                batch = batch.filter(pa.array(~np.isin(batch["url_id"].to_numpy(), gone)))
            writer.enter(batch.num_rows)
            writer.reject(batch)
        for record in reader.table_of_files.records:
            if record.shard == shard:
                writer.count(record.stats)


def merged(streams: Sequence[Iterator[pa.RecordBatch]], rows: int = 256) -> Iterator[pa.RecordBatch]:
    """The rows of streams that are each ordered by url_id, ordered by url_id; a batch of each is held."""
    waiting = [next(stream, None) for stream in streams]
    while heads := [batch for batch in waiting if batch is not None]:
        bound = min(batch["url_id"][-1].as_py() for batch in heads)
        taken = []
        for number, batch in enumerate(waiting):
            if batch is not None:
                end = int(np.searchsorted(batch["url_id"].to_numpy(), np.uint64(bound), side="right"))
                taken.append(batch.slice(0, end))
                waiting[number] = batch.slice(end) if end < batch.num_rows else next(streams[number], None)
        yield from pa.Table.from_batches(taken).sort_by("url_id").combine_chunks().to_batches(max_chunksize=rows)


def _rows_of(reader: DatasetReader, shard: int, gone: np.ndarray, warc_offset: int) -> Iterator[pa.RecordBatch]:
    """A shard's rows by url_id without the URLs `gone`; `warc_offset` is added to the offsets of their records."""
    for batch in sorted_urls(reader, shard, DATASETS[reader.name].schema.names):
        if reader.name == "urls" and len(gone):
            batch = batch.filter(pa.array(~np.isin(batch["url_id"].to_numpy(), gone)))
        if warc_offset:
            shifted = pc.add(batch["warc_offset"], pa.scalar(warc_offset, pa.uint64()))
            batch = replace_columns(batch, batch.schema, warc_offset=shifted)
        if batch.num_rows:
            yield batch


def _copy_warc(readers: Sequence[DatasetReader], shard: int, writer: ShardWriter) -> list[int]:
    """Write the WARC files of a shard one after the other; returns where each begins."""
    target = writer.open_file(".warc.gz", WARC)
    offsets = []
    for reader in readers:
        offsets.append(target.bytes)
        for file in reader.files(WARC, shard):
            with reader.workdir.open(file.path) as source:
                while piece := source.read(_COPY_BYTES):
                    target.write(piece)
            target.rows += file.rows
    return offsets


def _as_repeated(rejects: pa.RecordBatch, known: np.ndarray) -> pa.RecordBatch:
    """Rows rejected because another run has the URL become repeated URLs of the merged run."""
    reasons = pa.array([str(Reason.SEEN_BEFORE), str(Reason.LOW_SCORE)])
    here = pa.array(np.isin(rejects["url_id"].to_numpy(), known))
    repeated = pc.and_(here, pc.is_in(rejects["reason"], reasons))
    reason = pc.if_else(repeated, str(Reason.REPEATED_URL), rejects["reason"])
    return replace_columns(rejects, rejects.schema, reason=reason)


def _decide_shard(options: Flattened, run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the decisions that the runs have on documents of a shard, and keep the shard's sketches."""
    schema = DATASETS["duplicates"].schema
    found = [schema.empty_table()]
    for reader, shards in zip(options.readers(), _shards_of(options), strict=True):
        table = reader.table(shard)
        kept = pa.array(shards[table["kept_shard"].to_numpy()], pa.uint32())
        found.append(table.set_column(schema.get_field_index("kept_shard"), schema.field("kept_shard"), kept))
    ids = _ids(run.inputs["clean"], shard)
    rows = pa.concat_tables(found).sort_by("url_id").combine_chunks()
    writer.enter(len(rows))
    for batch in rows.to_batches():
        writer.write(batch)
    rules = Counter(rows["rule"].to_pylist())
    writer.count({"exact": rules["exact"], "near": rules["near"], "stay": len(ids) - len(rows)})
    gone = np.searchsorted(ids, rows["url_id"].to_numpy()).astype(np.uint32)
    collection = read_collection(run)
    kept = np.full(len(rows), NOBODY, np.uint32)
    kept_shards, kept_ids = rows["kept_shard"].to_numpy(), rows["kept_url_id"].to_numpy()
    for other in np.unique(kept_shards[kept_shards < run.num_shards]).tolist():
        mine = kept_shards == other
        numbers = np.searchsorted(_ids(run.inputs["clean"], other), kept_ids[mine])
        kept[mine] = numbers + collection.first_of_shard[other]
    keep_sketches(run, shard, writer, collection.corpora[0].ranges, gone, kept)
    progress.advance(len(ids))


@functools.lru_cache(maxsize=_CACHED_SHARDS)
def _ids(clean: DatasetReader, shard: int) -> np.ndarray:
    """Ids of a shard's documents, ascending; cached, since decisions of one shard name documents of many."""
    return clean.ids(shard)


def _shards_of(options: Flattened) -> list[np.ndarray]:
    """For each run, the merged run's number of each of its `kept_shard`s; other corpora come after its own shards."""
    others = _others(options)
    first = dict(zip(others, np.cumsum([0, *others.values()]).tolist(), strict=False))
    found = []
    for run, manifest in zip(options.runs, options.manifests, strict=True):
        own = manifest.num_shards
        shards = [np.arange(own) for _ in range(1 + len(manifest.properties.get("bases", [])))]
        shards += [np.arange(count) + own + first[place] for place, count in _compared(run, manifest)]
        found.append(np.concatenate(shards))
    return found


def _others(options: Flattened) -> dict[str, int]:
    """The corpora outside the chain that a run was compared with, and their numbers of shards."""
    pairs = zip(options.runs, options.manifests, strict=True)
    return dict(other for run, manifest in pairs for other in _compared(run, manifest))


def _compared(run: str, manifest: Manifest) -> Iterator[tuple[str, int]]:
    """(place, number of shards) of the corpora outside its chain that a run was compared with."""
    places = (resolve_uri(Storage(run), uri) for uri in manifest.properties.get("against", []))
    return zip(places, manifest.properties.get("against_shards", []), strict=False)


main = Command("owt flatten", _flags, _flatten)
