"""The work of each of dedupe's steps on one key: a shard, a partition or a group of components.

sketch      a shard's texts            -> sketches
exact       a partition's text hashes  -> which document repeats which, and per shard the rows that go
edges       a band's bucket partition  -> edges between candidates
components  all edges                  -> per shard the rows that are candidates, their component and group
shingles    a shard's candidates       -> their shingle sets, by group
proven      a group of components      -> which document repeats which, verified
decided     all of both                -> per shard the decisions
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from owt_pipeline.dedupe.components import connected_components
from owt_pipeline.dedupe.decisions import decide
from owt_pipeline.dedupe.exact import exact_duplicates
from owt_pipeline.dedupe.lsh import partition_of, star_edges
from owt_pipeline.dedupe.places import places, row_of, shard_of
from owt_pipeline.dedupe.sketches import COLUMNS, Sketcher
from owt_pipeline.dedupe.step_files import open_step, read_step, scatter
from owt_pipeline.dedupe.verification import Verifier, candidates_schema
from owt_pipeline.runtime import progress
from owt_pipeline.runtime.shards import DatasetReader, ShardWriter, reading
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.runtime.workers import map_batches
from schemas import DATASETS

TEXT_HASHES = ("text_high", "text_low", "precedence", "url_id")

NOTHING = pa.schema([])
"""Of a step that writes a file for each shard beside its own."""

EDGES = pa.schema([("a", pa.uint64()), ("b", pa.uint64())])

GROUP_SHARDS = pa.schema([("group", pa.uint32()), ("shard", pa.uint32()), ("batch", pa.uint32())])
"""Where a group's candidates are: the number of their record batch in the shard's file of shingles."""

_GROUP_SHINGLES = 1 << 23  # of the components verified together: 64 MB of hashes
_CHUNK_SHINGLES = 1 << 19  # of those sent to a worker at once


# --- sketch


def sketch_shard(shard: int, writer: ShardWriter, *, source: DatasetReader, sketcher: Sketcher, workers: int) -> None:
    """Workers are told which row groups to read: no text passes from process to process."""
    tasks = (_task(path, group) for path, group, _ in row_groups(source, shard))
    work = partial(_sketch_row_group, folder=source.folder, sketcher=sketcher)
    for _, sketches in map_batches(work, tasks, workers):
        writer.write(sketches)
        progress.advance(sketches.num_rows)


def _sketch_row_group(task: pa.RecordBatch, folder: Storage, sketcher: Sketcher) -> pa.RecordBatch:
    sketches = [sketcher.sketch(batch) for batch in _read_row_group(task, folder, COLUMNS)]
    return _one_batch(sketches, sketcher.schema)


def row_groups(source: DatasetReader, shard: int) -> Iterator[tuple[str, int, int]]:
    """(file, number, first row in the shard) of each Parquet row group of a shard."""
    first = 0
    for file in source.files("data", shard):
        with reading(source.folder.path(file.path)), source.folder.open(file.path) as opened:
            metadata = pq.ParquetFile(opened).metadata
        for group in range(metadata.num_row_groups):
            yield file.path, group, first
            first += metadata.row_group(group).num_rows


def _task(path: str, group: int, rows: Sequence[int] | np.ndarray = ()) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"path": [path], "group": [group], "rows": pa.array([rows], pa.list_(pa.int64()))}
    )


def _read_row_group(task: pa.RecordBatch, folder: Storage, columns: list[str]) -> Iterator[pa.RecordBatch]:
    path = task["path"][0].as_py()
    with reading(folder.path(path)), folder.open(path) as file:
        yield from pq.ParquetFile(file).iter_batches(1024, row_groups=[task["group"][0].as_py()], columns=columns)


# --- exact


def read_text_hashes(shard: int, *, sketches: Storage, partitions: int, keys: range) -> Iterator[tuple[int, Any]]:
    """(partition, text hashes of the shard's documents) for each of `keys`."""
    documents = read_step(sketches, [shard], list(TEXT_HASHES))
    documents = documents.append_column("place", pa.array(places(shard, np.arange(len(documents)))))
    yield from _partitioned(_one_batch(documents.to_batches(), documents.schema), "text_high", partitions, keys)


def find_exact(partition: int, batches: list[pa.RecordBatch], writer: ShardWriter) -> None:
    rows = _one_batch(batches, batches[0].schema)
    writer.write(exact_duplicates(rows))


def scatter_exact(
    key: int, writer: ShardWriter, *, exact: Storage, partitions: int, by_shard: Storage, num_shards: int
) -> None:
    """Tell each shard which of its rows repeat another document exactly."""
    gone = np.sort(read_step(exact, range(partitions), ["place"])["place"].to_numpy())
    rows = pa.table({"row": pa.array(row_of(gone))})
    scatter(by_shard, rows, shard_of(gone), num_shards)
    writer.count({"exact_duplicates": len(gone)})


# --- edges


def read_bands(
    shard: int, *, sketches: Storage, exact_rows: Storage, partitions: int, keys: range
) -> Iterator[tuple[int, Any]]:
    """(band * partitions + partition, band hashes of the shard's documents) for each of `keys`."""
    bands = range(keys.start // partitions, (keys.stop - 1) // partitions + 1)
    rows = read_step(sketches, [shard], ["n_shingles", *(f"band_{band}" for band in bands)])
    stays = rows["n_shingles"].to_numpy() > 0
    stays[read_step(exact_rows, [shard])["row"].to_numpy()] = False
    kept = np.flatnonzero(stays)
    place = pa.array(places(shard, kept))
    for band in bands:
        batch = pa.RecordBatch.from_arrays([pa.array(rows[f"band_{band}"].to_numpy()[kept]), place], ["hash", "place"])
        of_band = range(band * partitions, (band + 1) * partitions)
        wanted = range(max(of_band.start, keys.start), min(of_band.stop, keys.stop))
        for partition, part in _partitioned(
            batch, "hash", partitions, range(wanted.start - of_band.start, wanted.stop - of_band.start)
        ):
            yield of_band.start + partition, part


def find_edges(key: int, batches: list[pa.RecordBatch], writer: ShardWriter, *, oversized: int) -> None:
    hashes = np.concatenate([batch["hash"].to_numpy() for batch in batches])
    place = np.concatenate([batch["place"].to_numpy() for batch in batches])
    edges, counts = star_edges(hashes, place, oversized)
    writer.write(pa.RecordBatch.from_arrays([pa.array(edges[:, 0]), pa.array(edges[:, 1])], schema=EDGES))
    writer.count({**counts, "edges": len(edges)})


def _partitioned(
    batch: pa.RecordBatch, column: str, partitions: int, keys: range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch's rows of each partition in `keys`: a batch for each, if only an empty one."""
    if partitions == 1:
        yield 0, batch
        return
    partition = partition_of(batch[column].to_numpy(), partitions)
    order = np.argsort(partition, kind="stable")
    bounds = np.searchsorted(partition[order], np.arange(partitions + 1))
    for key in keys:
        yield key, batch.take(pa.array(order[bounds[key] : bounds[key + 1]]))


# --- components


def join_components(
    key: int, writer: ShardWriter, *, edges: Storage, keys: range, sketches: Storage, by_shard: Storage, num_shards: int
) -> None:
    """Tell each shard which of its rows are candidates, of which component, verified in which group."""
    place, component = connected_components(_edge_arrays(edges, keys))
    shards = shard_of(place)
    bounds = np.searchsorted(shards, np.arange(num_shards + 1))
    size = np.zeros(len(place), np.int64)
    for shard in range(num_shards):
        mine = slice(bounds[shard], bounds[shard + 1])
        size[mine] = read_step(sketches, [shard], ["n_shingles"])["n_shingles"].to_numpy()[row_of(place[mine])]
    group = _groups(component, size)
    rows = pa.table({"row": pa.array(row_of(place)), "component": pa.array(component), "group": pa.array(group)})
    scatter(by_shard, rows, shards, num_shards)
    # A shard's file of shingles holds one record batch a group, in the order of the groups.
    pairs = np.unique(shards << 32 | group)
    shard_of_pair = pairs >> 32
    first = np.searchsorted(shard_of_pair, shard_of_pair)
    batch = np.arange(len(pairs)) - first
    table = [pa.array(values.astype(np.uint32)) for values in (pairs & 0xFFFFFFFF, shard_of_pair, batch)]
    writer.write(pa.RecordBatch.from_arrays(table, schema=GROUP_SHARDS))
    sizes = np.unique(component, return_counts=True)[1]
    writer.count(
        {
            "candidates": len(place),
            "components": len(sizes),
            "largest_component": int(sizes.max(initial=0)),
            "groups": int(group.max(initial=-1)) + 1,
        }
    )


def _edge_arrays(edges: Storage, keys: range) -> Iterator[np.ndarray]:
    for key in keys:
        table = read_step(edges, [key])
        yield np.column_stack([table["a"].to_numpy(), table["b"].to_numpy()])


def _groups(component: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The group of each candidate: whole components in their order, of some _GROUP_SHINGLES each."""
    _, index = np.unique(component, return_inverse=True)
    total = np.cumsum(np.bincount(index, weights=size))
    _, group = np.unique((total // _GROUP_SHINGLES).astype(np.int64), return_inverse=True)
    return group[index] if len(index) else np.empty(0, np.int64)


# --- shingles


def shingle_candidates(
    shard: int,
    writer: ShardWriter,
    *,
    source: DatasetReader,
    sketches: Storage,
    candidates: Storage,
    sketcher: Sketcher,
    workers: int,
) -> None:
    """Read the shard's candidates again; write their shingle sets, one record batch a group."""
    mine = read_step(candidates, [shard])
    rows = mine["row"].to_numpy()
    if not len(rows):
        return
    known = read_step(sketches, [shard])
    with tempfile.TemporaryFile() as spool:  # the sets come in the order of rows, and go in that of groups
        lengths = []
        work = partial(_shingle_rows, folder=source.folder, sketcher=sketcher)
        for _, sets in map_batches(work, _candidate_tasks(source, shard, rows), workers):
            column = sets["shingles"]
            lengths.append(np.diff(column.offsets.to_numpy()))
            spool.write(memoryview(column.flatten().to_numpy()).cast("B") if len(column.flatten()) else b"")
            progress.advance(sets.num_rows)
        spool.flush()
        ends = np.cumsum(np.concatenate(lengths).astype(np.int64))
        values = np.memmap(spool, np.uint64, "r") if ends[-1] else np.empty(0, np.uint64)
        group = mine["group"].to_numpy()
        order = np.argsort(group, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            pieces = [values[ends[i - 1] if i else 0 : ends[i]] for i in members.tolist()]
            sizes = np.array([len(piece) for piece in pieces])
            bands = np.column_stack([known[name].to_numpy()[rows[members]] for name in sketcher.band_columns])
            offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
            arrays = [
                pa.array(mine["component"].to_numpy()[members]),
                pa.array(known["precedence"].to_numpy()[rows[members]]),
                pa.array(known["url_id"].to_numpy()[rows[members]]),
                pa.array(places(shard, rows[members])),
                pa.FixedSizeListArray.from_arrays(pa.array(bands.ravel()), sketcher.banding.bands),
                pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(pieces))),
            ]
            schema = candidates_schema(sketcher.banding.bands)
            writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
            writer.flush()


def _candidate_tasks(source: DatasetReader, shard: int, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
    groups = list(row_groups(source, shard))
    firsts = [first for _, _, first in groups]
    bounds = [*np.searchsorted(rows, firsts).tolist(), len(rows)]
    for (path, group, first), start, end in zip(groups, bounds[:-1], bounds[1:], strict=True):
        if end > start:
            yield _task(path, group, rows[start:end] - first)


def _shingle_rows(task: pa.RecordBatch, folder: Storage, sketcher: Sketcher) -> pa.RecordBatch:
    rows = task["rows"].flatten().to_numpy()
    sets: list[np.ndarray] = []
    first = 0
    for batch in _read_row_group(task, folder, ["text"]):
        mine = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + batch.num_rows)] - first
        first += batch.num_rows
        sets.extend(sketcher.shingle_sets(batch["text"].take(pa.array(mine))))
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int32)
    return pa.RecordBatch.from_arrays(
        [pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(sets)))], ["shingles"]
    )


# --- proven


def verify_group(
    group: int, writer: ShardWriter, *, shingles: Storage, components: Storage, verifier: Verifier, workers: int
) -> None:
    where = read_step(components, [0])
    mine = np.flatnonzero(where["group"].to_numpy() == group)
    batches = []
    for shard, index in zip(where["shard"].to_numpy()[mine], where["batch"].to_numpy()[mine], strict=True):
        with open_step(shingles, int(shard)) as reader:
            batches.append(reader.get_batch(int(index)))
    for _, (proven, counts) in map_batches(verifier.verify, _whole_components(batches), workers):
        writer.write(proven)
        writer.count(counts)


def _whole_components(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of `batches` in chunks of some _CHUNK_SHINGLES that cut no component."""
    rows = _one_batch(batches, batches[0].schema)
    component = rows["component"].to_numpy()
    order = np.argsort(component, kind="stable")
    component = component[order]
    size = np.cumsum(rows["shingles"].value_lengths().to_numpy()[order].astype(np.int64))
    is_last = np.concatenate([component[1:] != component[:-1], [True]])
    ends = np.flatnonzero(is_last) + 1
    chunk = size[ends - 1] // _CHUNK_SHINGLES
    cuts = ends[:-1][chunk[1:] != chunk[:-1]]
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(order)], strict=True):
        yield rows.take(pa.array(order[start:end]))


# --- decided


def decide_all(
    key: int, writer: ShardWriter, *, exact: range, proven: range, work: Storage, by_shard: Storage, num_shards: int
) -> None:
    decided = decide(read_step(work / "exact", exact), _proven(work / "proven", proven))
    scatter(by_shard, decided, shard_of(decided["place"].to_numpy()), num_shards)


def _proven(folder: Storage, keys: range) -> pa.Table:
    from owt_pipeline.dedupe.verification import PROVEN

    return read_step(folder, keys) if len(keys) else PROVEN.empty_table()


def write_decisions(shard: int, writer: ShardWriter, *, decided: Storage, source: DatasetReader) -> None:
    """The shard's decisions by url_id; and, counted by themselves, its documents that none of them names."""
    schema = DATASETS["duplicates"].schema
    rows = read_step(decided, [shard]).select(schema.names).cast(schema).sort_by("url_id")
    documents = source.table(shard, columns=["url_id"])["url_id"].to_numpy()
    writer.enter(len(rows))
    writer.write(_one_batch(rows.to_batches(), schema))
    rules = rows["rule"].to_pylist()
    writer.count(
        {
            "exact": rules.count("exact"),
            "near": rules.count("near"),
            "stay": int((~np.isin(documents, rows["url_id"].to_numpy())).sum()),
        }
    )


def _one_batch(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    table = pa.Table.from_batches(list(batches), schema).combine_chunks()
    whole = table.to_batches()
    return whole[0] if whole else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
