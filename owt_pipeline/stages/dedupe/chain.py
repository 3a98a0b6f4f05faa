"""The steps of dedupe: what each part receives and what it sends on.

    sketch      a part's texts       -> hashes of texts and of bands, by hash range
    buckets     a range of hashes    -> edges from each bucket's lowest-numbered document to the others in it and to
                                        matching documents of earlier corpora
    forests     edges of some ranges -> a forest of them; exact copies are passed through
    join        all forests          -> a part's documents that have candidates, with their groups
    shingle     a part's candidates  -> their shingle sets, by group
    verify      a group's candidates -> decisions, by the shard of the removed document
    shards      a shard's decisions  -> duplicates/

Only `sketch` and `shingle` read text, `shingle` that of candidates alone. Only `join` has a single part. Documents are
identified by number (`collection.py`). `buckets` looks hashes up in the sketches that earlier corpora keep (`past.py`);
only the matching documents enter the later steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.ledger.exchange import Slice, gather, partition_of, read_slices
from owt_pipeline.stages.dedupe.collection import Collection, read_collection
from owt_pipeline.stages.dedupe.components import find_candidates, forest_of
from owt_pipeline.stages.dedupe.past import NOBODY, SKETCHES, Ranges, keep_sketches, write_section
from owt_pipeline.stages.dedupe.sketches import COLUMNS, COMPILED_FROM, Banding, Sketcher, choose_banding, star_edges
from owt_pipeline.stages.dedupe.verification import CANDIDATES, Verifier, find_largest, host_of
from schemas import DATASETS

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.commit import ShardWriter
    from owt_pipeline.ledger.dataset import DatasetReader
    from owt_pipeline.stages.dedupe.options import Options

LARGEST = "largest"
"""Kind of the files with the largest clusters and hosts of a group."""

_SENT_TEXTS = pa.schema([("hash", pa.uint64()), ("low", pa.uint64()), ("document", pa.uint32())])
_SENT_BANDS = pa.schema([("hash", pa.uint64()), ("document", pa.uint32())])
_COPIES = pa.schema([("copy", pa.uint32()), ("text", pa.uint32())])
_EDGES = pa.schema([("document", pa.uint32()), ("root", pa.uint32())])
_PAST = pa.schema([("document", pa.uint32()), ("past", pa.uint32())])  # candidates of earlier corpora
_PLANNED = pa.schema(
    [
        ("document", pa.uint32()),
        ("text", pa.uint32()),
        ("component", pa.uint32()),
        ("compared", pa.bool_()),
        ("group", pa.uint32()),
    ]
)
_DECISIONS = DATASETS["duplicates"].schema
_SENT_DECISIONS = pa.schema([*_DECISIONS, ("document", pa.uint32()), ("kept_document", pa.uint32())])

_FORESTS = 4  # number of forests that `join` reads
_GROUP_SHINGLES = 1 << 23  # most shingles of components verified together: 64 MB of hashes
_LEAST_SHINGLES = 1 << 20  # fewest shingles of a group that is worth a file
_GROUPS = 16  # target number of groups, to occupy several workers
_SHINGLE_BYTES = {"words": 2.5, "characters": 0.4}  # approximate bytes of compressed file per shingle
_EVERYTHING = 0  # key of the single part of `join`; in `forests`, of what is passed through


def sketcher_of(options: Options) -> Sketcher:
    """The sketcher of these options; raises UserError for invalid options."""
    return Sketcher(banding_of(options), options.ngram, options.shingles)


def banding_of(options: Options) -> Banding:
    return choose_banding(
        options.threshold, options.num_perm, options.false_negative_weight, options.bands, options.rows
    )


def worth_compiling(options: Options, clean: DatasetReader, workers: int) -> bool:
    """Whether each worker has enough to sign to make up for numba's compile time."""
    return _shingles(options, clean) >= COMPILED_FROM * workers


def sketch(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Sketch a part's texts and send their hashes to the parts of `buckets`, by hash range.

    Among exact copies within the part, only one sends band hashes; the text hash finds the others.
    """
    options: Options = run.options
    collection, sketcher = read_collection(run), sketcher_of(options)
    sketcher = replace(sketcher, compiled=worth_compiling(options, run.inputs["clean"], run.runtime.workers))
    rows, first = sketcher.sketch(_advancing(collection.read(number, COLUMNS)), options.survivor)
    file = writer.open_file(".arrow", SKETCHES)
    with pa.ipc.new_file(file, rows.schema) as arrow:
        arrow.write_batch(rows)
    file.rows = rows.num_rows
    writer.count({"sketched": len(first)})
    start = collection.parts[number].first
    document = pa.array(np.arange(start, start + rows.num_rows, dtype=np.uint32))
    send_hashes(rows, document, first, collection.corpora[0].ranges, writer)


def send_hashes(
    sketches: pa.RecordBatch, document: pa.Array, first: np.ndarray, ranges: Ranges, writer: ShardWriter
) -> None:
    """Send the text hashes of all documents and the band hashes of those at `first` to their ranges."""
    high = sketches["text_high"]
    texts = pa.RecordBatch.from_arrays([high, sketches["text_low"], document], schema=_SENT_TEXTS)
    writer.send(partition_of(high.to_numpy(), ranges.of_band), texts)
    rows = pa.array(first[sketches["n_shingles"].to_numpy()[first] > 0])
    document = document.take(rows)
    for band in range(ranges.bands):
        hashes = sketches[f"band_{band}"].take(rows)
        batch = pa.RecordBatch.from_arrays([hashes, document], schema=_SENT_BANDS)
        writer.send(ranges.first_of(band) + partition_of(hashes.to_numpy(), ranges.of_band).astype(np.int64), batch)


def find_edges(run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the edges within the buckets of a hash range, count the buckets and write the range for later runs."""
    options: Options = run.options
    collection = read_collection(run)
    ranges = collection.corpora[0].ranges
    of_texts = ranges.is_of_texts(key)
    schema = _SENT_TEXTS if of_texts else _SENT_BANDS
    rows = gather(run.work, slices, schema)
    columns = {name: rows[name].to_numpy() for name in schema.names}
    hashes, documents, further = columns["hash"], columns["document"], columns.get("low")
    others, least, counts = star_edges(hashes, documents, options.oversized_bucket, further)
    if of_texts:
        writer.send(_EVERYTHING, _pairs(others, least, _COPIES))
    else:
        writer.send(forest_key(ranges, key), _pairs(others, least, _EDGES))
        writer.count({**counts, "edges": len(others)})
    for asked, past in collection.find_past(key, hashes, further):
        own = documents[asked]
        if of_texts:
            _send_copies(own, past, others, least, writer)
        else:
            writer.send(_EVERYTHING, _pairs(own, past, _PAST))
    file = writer.open_file(".sketches", SKETCHES)
    write_section(file, ranges.span(key), hashes, documents, further)
    file.rows = len(rows)
    progress.advance(len(rows))


def forest_key(ranges: Ranges, key: int) -> int:
    """The key of the forest that receives the edges of a hash range."""
    number, of_all = key - ranges.of_band, ranges.keys - ranges.of_band
    return 1 + number * min(_FORESTS, of_all) // of_all


def _send_copies(own: np.ndarray, past: np.ndarray, others: np.ndarray, least: np.ndarray, writer: ShardWriter) -> None:
    """Send documents of earlier corpora as copies of the run's lowest-numbered document with the same text."""
    order, is_copy = np.argsort(others), np.isin(own, others)
    own[is_copy] = least[order[np.searchsorted(others, own[is_copy], sorter=order)]]
    _, first = np.unique(past, return_index=True)
    writer.send(_EVERYTHING, _pairs(past[first], own[first], _COPIES))


def merge_forests(run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send a forest of the edges; pass on exact copies, which form one already, and pairs with earlier corpora."""
    if key == _EVERYTHING:
        for slice in slices:
            writer.forward(_EVERYTHING, slice)
    else:
        edges = (_ends(table) for table in read_slices(run.work, slices))
        documents, roots = forest_of(read_collection(run).own_documents, edges)
        writer.send(_EVERYTHING, _pairs(documents, roots, _EDGES))
    progress.advance(sum(slice.rows for slice in slices))


def join_components(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send each part its documents that have candidates, each with the group that verifies it.

    Only matching documents of earlier corpora get numbers here, directly after the run's own, so memory does not grow
    with the size of earlier corpora.
    """
    collection = read_collection(run)
    own = collection.own_documents
    tables = list(read_slices(run.work, slices))
    copies, forests, repeats = (
        [_ends(table) for table in tables if table.schema.names == schema.names] for schema in (_COPIES, _EDGES, _PAST)
    )
    copies, repeats, past = _join_past(collection, copies, repeats)
    found = find_candidates(own + len(past), own, copies, forests, repeats)
    mean = _shingles(run.options, run.inputs["clean"]) / max(own, 1)
    group = found.groups(mean, _GROUP_SHINGLES, _LEAST_SHINGLES, _GROUPS).astype(np.uint32)
    of_component = (found.compared[found.component], group[found.component])
    is_past = found.document >= own
    document = found.document.copy()
    document[is_past] = past[found.document[is_past] - own]
    columns = (document, found.text, found.component, *of_component)
    rows = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=_PLANNED)
    bounds = np.searchsorted(document, [part.first for part in collection.parts])
    for number, (start, end) in enumerate(zip(bounds, [*bounds[1:], len(rows)], strict=True)):
        writer.send(number, rows.slice(start, end - start))
    writer.count({**found.counts, "groups": int(group[-1]) + 1 if len(group) else 0, "past_candidates": len(past)})
    progress.advance(sum(slice.rows for slice in slices))


_Ends: TypeAlias = tuple[np.ndarray, np.ndarray]


def _join_past(
    collection: Collection, copies: Sequence[_Ends], repeats: Sequence[_Ends]
) -> tuple[list[_Ends], list[_Ends], np.ndarray]:
    """(copies, edges, documents of earlier corpora): copies and edges number the latter directly after the run's own.

    A removed document is replaced by the one kept in its place: what resembles the former may resemble the latter.
    """
    own = collection.own_documents
    own_copies = [(copy[copy < own], text[copy < own]) for copy, text in copies]
    past_copies = [(copy[copy >= own], text[copy >= own]) for copy, text in copies]
    named = [copy for copy, _ in past_copies] + [past for _, past in repeats]
    documents = np.unique(np.concatenate([np.empty(0, np.uint32), *named]))
    stays = collection.who_stays(documents)
    past = np.unique(stays[stays >= 0]).astype(np.uint32)
    number = np.searchsorted(past, np.maximum(stays, 0)).astype(np.uint32) + np.uint32(own)
    edges = []
    for copy, text in past_copies:
        at = np.searchsorted(documents, copy)
        same, instead = stays[at] == copy, (stays[at] != copy) & (stays[at] >= 0)
        own_copies.append((number[at[same]], text[same]))
        edges.append((text[instead], number[at[instead]]))
    for document, other in repeats:
        at = np.searchsorted(documents, other)
        edges.append((document[stays[at] >= 0], number[at[stays[at] >= 0]]))
    return own_copies, edges, past


def shingle(run: StageRun, number: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send a part's candidates to their groups, with shingle sets where a comparison may be needed."""
    planned = gather(run.work, slices, _PLANNED)
    if read_collection(run).parts[number].corpus:
        _shingle_past(run, number, planned, writer)
    else:
        _shingle_own(run, number, planned, writer)


def _shingle_own(run: StageRun, number: int, planned: pa.Table, writer: ShardWriter) -> None:
    """Among copies of one text, only the first by precedence within the part is compared."""
    collection, sketcher = read_collection(run), sketcher_of(run.options)
    documents = planned["document"].to_numpy()
    known = collection.sketches(run, number, ["url_id", "precedence", *sketcher.band_columns])
    known = known.take(pa.array(np.searchsorted(known["document"].to_numpy(), documents)))
    order = np.lexsort([known["url_id"].to_numpy(), known["precedence"].to_numpy()])
    first = np.zeros(len(order), bool)
    first[order[np.unique(planned["text"].to_numpy()[order], return_index=True)[1]]] = True
    urls = (url for batch in collection.read(number, ["url"], documents) for url in batch["url"].to_pylist())
    hosts = pa.array([host_of(url) for url in urls], pa.string())
    planned = planned.append_column("host", hosts)
    for name in ("url_id", "precedence"):
        planned = planned.append_column(name, known[name])
    bands = np.column_stack([known[name].to_numpy() for name in sketcher.band_columns])
    compared = planned["compared"].to_numpy() & first
    _send_candidates(planned.filter(pa.array(~compared)), None, None, writer)
    progress.advance(int((~compared).sum()))
    rows = np.flatnonzero(compared)
    for batch in _advancing(collection.read(number, ["text"], documents[rows])) if len(rows) else ():
        mine, rows = np.split(rows, [batch.num_rows])
        sets = sketcher.shingle_sets(batch["text"])
        _send_candidates(planned.take(pa.array(mine)), list(bands[mine]), sets, writer)


def _shingle_past(run: StageRun, number: int, planned: pa.Table, writer: ShardWriter) -> None:
    """Texts are signed again: what a corpus keeps of its sketches is in the order of the hashes. They stay whatever
    their precedence."""
    collection, sketcher = read_collection(run), sketcher_of(run.options)
    planned = planned.append_column("host", pa.nulls(len(planned), pa.string()))
    compared = planned["compared"].to_numpy()
    for is_compared, columns in ((False, ["url_id"]), (True, ["url_id", "text"])):
        left = planned.filter(pa.array(compared == is_compared))
        documents = left["document"].to_numpy()
        for batch in _advancing(collection.read(number, columns, documents)) if len(left) else ():
            mine, left = left.slice(0, batch.num_rows), left.slice(batch.num_rows)
            zeros = pa.array(np.zeros(batch.num_rows, np.int64))
            mine = mine.append_column("url_id", batch["url_id"])
            mine = mine.append_column("precedence", zeros)
            bands = list(sketcher.bands(batch["text"])) if is_compared else None
            sets = sketcher.shingle_sets(batch["text"]) if is_compared else None
            _send_candidates(mine, bands, sets, writer)


def _send_candidates(
    known: pa.Table, bands: Sequence[np.ndarray] | None, sets: Sequence[np.ndarray] | None, writer: ShardWriter
) -> None:
    """Send rows to their groups, with band hashes and shingle sets for documents to compare."""
    if not len(known):
        return
    nothing = [np.empty(0, np.uint64)] * len(known)
    table = known.append_column("bands", _lists(bands or nothing)).append_column("shingles", _lists(sets or nothing))
    (rows,) = table.select(CANDIDATES.names).combine_chunks().to_batches()
    writer.send(known["group"].to_numpy(), rows)


def verify(run: StageRun, group: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Decide on the components of a group; send each shard its decisions."""
    options: Options = run.options
    collection = read_collection(run)
    verifier = Verifier(options.threshold, options.similarity, options.max_comparisons, collection.own_documents)
    candidates = gather(run.work, slices, CANDIDATES)
    decisions, counts = verifier.decide(candidates)
    writer.count(counts)
    document, url_id = candidates["document"].to_numpy(), candidates["url_id"].to_numpy()
    gone, kept = decisions.gone, decisions.kept
    columns = (
        url_id[gone],
        url_id[kept],
        collection.shard_of(document[kept]).astype(np.uint32),
        np.where(decisions.near, "near", "exact").tolist(),
        decisions.similarity,
        decisions.shared_bands,
        decisions.cluster_size,
        document[gone],
        document[kept],
    )
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _SENT_DECISIONS.types, strict=True)]
    order = np.argsort(document[gone])
    rows = pa.RecordBatch.from_arrays(arrays, schema=_SENT_DECISIONS).take(pa.array(order))
    gone = gone[order]
    writer.send(collection.shard_of(document[gone]), rows)
    hosts = candidates["host"].take(pa.array(gone)).to_pylist()
    largest = find_largest(document[gone], hosts, rows["kept_url_id"].to_numpy(), rows["kept_shard"].to_numpy())
    writer.open_file(".json", LARGEST).write(msgspec.json.encode(largest))
    progress.advance(len(candidates))


def write_decisions(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard's decisions, sorted by url_id, count its remaining documents and write its sketches for later
    runs."""
    collection = read_collection(run)
    sent = gather(run.work, slices, _SENT_DECISIONS).sort_by("url_id").combine_chunks()
    rows = sent.select(_DECISIONS.names)
    documents = run.inputs["clean"].table(shard, columns=["url_id"])["url_id"].to_numpy()
    writer.enter(len(rows))
    for batch in rows.to_batches():
        writer.write(batch)
    stay = int((~np.isin(documents, rows["url_id"].to_numpy())).sum())
    counts = {"stay": stay}
    is_past = sent["kept_document"].to_numpy() >= collection.own_documents
    is_near = np.array(rows["rule"].to_pylist(), object) == "near"
    for rule, of_rule in (("exact", ~is_near), ("near", is_near)):
        counts[rule] = int(of_rule.sum())
        if len(collection.corpora) > 1:
            counts[f"past_{rule}"] = int((of_rule & is_past).sum())
    writer.count(counts)
    sent = sent.sort_by("document")
    gone = sent["document"].to_numpy() - np.uint32(collection.first_of_shard[shard])
    kept = sent["kept_document"].to_numpy()
    kept = np.where(kept < collection.own_documents, kept, NOBODY)
    keep_sketches(run, shard, writer, collection.corpora[0].ranges, gone, kept)
    progress.advance(len(documents))


def _shingles(options: Options, clean: DatasetReader) -> float:
    """An estimate of the shingles in the run's own texts."""
    return clean.manifest.total("data").bytes / _SHINGLE_BYTES[options.shingles]


def _advancing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        progress.advance(batch.num_rows)


def _pairs(left: np.ndarray, right: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array(values.astype(np.uint32, copy=False)) for values in (left, right)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _ends(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The two columns of a table of edges."""
    return table.column(0).to_numpy(), table.column(1).to_numpy()


def _lists(items: Sequence[np.ndarray]) -> pa.ListArray:
    """A column of lists of uint64."""
    offsets = np.concatenate([[0], np.cumsum([len(item) for item in items])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(items)))
