"""The chain of dedupe's steps: what each part does with what was sent to it, and to whom it sends what it finds.

    sketch      a part's texts       -> hashes of texts and of bands, by ranges of the hashes
    buckets     a range of hashes    -> edges from the least document of each bucket to its others
    forests     edges of some ranges -> a forest of them; exact copies pass as they are
    join        all forests          -> a part's documents that have candidates, and the groups they are decided on in
    shingle     a part's candidates  -> their shingle sets, by group
    verify      a group's candidates -> decisions, by the shard of the document that goes
    shards      a shard's decisions  -> duplicates/

Text is read in two of them: `sketch`, and of candidates alone `shingle`. Only `join` has one part. Documents go
by their numbers (`collection.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.dedupe.alarm import find_largest, host_of
from owt_pipeline.dedupe.collection import SKETCHES, Collection, read_collection
from owt_pipeline.dedupe.components import find_candidates, forest_of
from owt_pipeline.dedupe.lsh import Banding, choose_banding, star_edges
from owt_pipeline.dedupe.minhash import COMPILED_FROM
from owt_pipeline.dedupe.sketches import COLUMNS, Sketcher
from owt_pipeline.dedupe.verification import CANDIDATES, Verifier
from owt_pipeline.engine import progress
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.exchange import Slice, by_partition, gather, read_slices
from schemas import DATASETS

if TYPE_CHECKING:
    from owt_pipeline.dedupe.stage import Options
    from owt_pipeline.engine.commit import ShardWriter
    from owt_pipeline.engine.dataset import DatasetReader
    from owt_pipeline.engine.stage import StageRun

LARGEST = "largest"
"""Kind of the files with the largest clusters and hosts of a group."""

_SENT_TEXTS = pa.schema([("hash", pa.uint64()), ("low", pa.uint64()), ("document", pa.uint32())])
_SENT_BANDS = pa.schema([("hash", pa.uint64()), ("document", pa.uint32())])
_COPIES = pa.schema([("copy", pa.uint32()), ("text", pa.uint32())])
_EDGES = pa.schema([("document", pa.uint32()), ("root", pa.uint32())])
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

_RANGE_ROWS = 1 << 21  # of one range of a band's hashes, of which one worker holds a few at 16 bytes a row
_LEAST_RANGE_ROWS = 1 << 18  # bands of fewer go to one part together
_FORESTS = 4  # that the one worker of `join` reads
_GROUP_SHINGLES = 1 << 23  # at most, of the components verified together: 64 MB of hashes
_LEAST_SHINGLES = 1 << 20  # of a group that is worth a file
_GROUPS = 16  # or fewer, smaller groups: for more workers than one
_SHINGLE_BYTES = {"words": 2.5, "characters": 0.4}  # of a compressed file, more or less
_EVERYTHING = 0  # the key of the one part of `join`; before it, of the exact copies


@dataclass(frozen=True)
class Ranges:
    """The parts of `buckets`: ranges of the hashes of texts come first, then those of one band, or of several together.

    Attributes:
      documents: how many there are.
      bands: of a sketch.
    """

    documents: int
    bands: int

    @property
    def of_band(self) -> int:
        """Ranges of the hashes of each band."""
        return max(1, self.documents // _RANGE_ROWS)

    @property
    def together(self) -> int:
        """Bands whose hashes are looked at together."""
        return min(self.bands, max(1, _LEAST_RANGE_ROWS // max(self.documents, 1)))

    def first_of(self, band: int) -> int:
        """The key of a band's first range."""
        return self.of_band * (1 + band // self.together)

    def forest_of(self, key: int) -> int:
        """The key of the forest that the edges of a range go to."""
        ranges = self.first_of(self.bands - 1)
        return 1 + (key - self.of_band) * min(_FORESTS, ranges) // ranges


def sketcher_of(options: Options) -> Sketcher:
    """How documents are sketched; raises UserError for options that cannot be."""
    return Sketcher(banding_of(options), options.ngram, options.shingles)


def banding_of(options: Options) -> Banding:
    try:
        return choose_banding(
            options.threshold, options.num_perm, options.false_negative_weight, options.bands, options.rows
        )
    except ValueError as error:
        raise UserError(f"dedupe: {error}") from error


def worth_compiling(options: Options, clean: DatasetReader, workers: int) -> bool:
    """Whether each worker has so much to sign that it should begin with numba's compiler."""
    return _shingles(options, clean) >= COMPILED_FROM * workers


def sketch(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Sketch a part's texts, and send their hashes to the ranges they are in.

    Of copies within the part, one sends the hashes of its bands: the others are found by the hash of their text.
    """
    options: Options = run.options
    collection, sketcher = read_collection(run), sketcher_of(options)
    if collection.parts[number].corpus:
        sketches = collection.sketches(run, number).to_batches()
        rows = pa.concat_batches(sketches) if sketches else None
        if rows is None:
            return
        document, first = rows["document"], np.arange(rows.num_rows)
    else:
        compiled = worth_compiling(options, run.inputs["clean"], run.runtime.workers)
        rows, first = _compiled(sketcher, compiled).sketch(
            _advancing(collection.read(number, COLUMNS)), options.survivor
        )
        file, count = writer.open_file(".arrow", SKETCHES)
        with pa.ipc.new_file(file, rows.schema) as arrow:
            arrow.write_batch(rows)
        count[0] = rows.num_rows
        writer.count({"sketched": len(first)})
        start = collection.parts[number].first
        document = pa.array(np.arange(start, start + rows.num_rows, dtype=np.uint32))
    send_hashes(rows, document, first, Ranges(collection.documents, sketcher.banding.bands), writer)


def send_hashes(
    sketches: pa.RecordBatch, document: pa.Array, first: np.ndarray, ranges: Ranges, writer: ShardWriter
) -> None:
    """Send the hashes of documents to the ranges they are in: of their texts, and of the bands of those at `first`."""
    high = sketches["text_high"]
    texts = pa.RecordBatch.from_arrays([high, sketches["text_low"], document], schema=_SENT_TEXTS)
    for key, some in by_partition(texts, high.to_numpy(), ranges.of_band):
        writer.send(key, some)
    rows = pa.array(first[sketches["n_shingles"].to_numpy()[first] > 0])
    document = document.take(rows)
    for band in range(ranges.bands):
        hashes = sketches[f"band_{band}"].take(rows)
        batch = pa.RecordBatch.from_arrays([hashes, document], schema=_SENT_BANDS)
        for key, some in by_partition(batch, hashes.to_numpy(), ranges.of_band):
            writer.send(ranges.first_of(band) + key, some)


def find_edges(run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the edges that the buckets of a range give, and count the buckets."""
    options: Options = run.options
    ranges = Ranges(read_collection(run).documents, banding_of(options).bands)
    if key < ranges.of_band:
        rows = gather(run.work, slices, _SENT_TEXTS)
        hashes, low, documents = (rows[name].to_numpy() for name in _SENT_TEXTS.names)
        copies, texts, _ = star_edges(hashes, documents, options.oversized_bucket, low)
        writer.send(_EVERYTHING, pa.RecordBatch.from_arrays([pa.array(copies), pa.array(texts)], schema=_COPIES))
    else:
        rows = gather(run.work, slices, _SENT_BANDS)
        hashes, documents = (rows[name].to_numpy() for name in _SENT_BANDS.names)
        others, least, counts = star_edges(hashes, documents, options.oversized_bucket)
        writer.send(ranges.forest_of(key), _edges(others, least))
        writer.count({**counts, "edges": len(others)})
    progress.advance(len(rows))


def merge_forests(run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send a forest of edges; pass on the exact copies, which are one already."""
    if key == _EVERYTHING:
        for slice in slices:
            writer.forward(_EVERYTHING, slice)
    else:
        edges = (_ends(table) for table in read_slices(run.work, slices))
        writer.send(_EVERYTHING, _edges(*forest_of(read_collection(run).documents, edges)))
    progress.advance(sum(slice.rows for slice in slices))


def join_components(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send each part its documents that have candidates, and the group that each is decided on in."""
    collection = read_collection(run)
    tables = list(read_slices(run.work, slices))
    copies, forests = (
        [_ends(table) for table in tables if table.schema.names == schema.names] for schema in (_COPIES, _EDGES)
    )
    found = find_candidates(collection.documents, collection.own_documents, copies, forests)
    mean = _shingles(run.options, run.inputs["clean"]) / max(collection.own_documents, 1)
    group = found.groups(mean, _GROUP_SHINGLES, _LEAST_SHINGLES, _GROUPS).astype(np.uint32)
    of_component = (found.compared[found.component], group[found.component])
    columns = (found.document, found.text, found.component, *of_component)
    rows = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=_PLANNED)
    bounds = np.searchsorted(found.document, [part.first for part in collection.parts])
    for number, (start, end) in enumerate(zip(bounds, [*bounds[1:], len(rows)], strict=True)):
        writer.send(number, rows.slice(start, end - start))
    writer.count({**found.counts, "groups": int(group[-1]) + 1 if len(group) else 0})
    progress.advance(sum(slice.rows for slice in slices))


def shingle(run: StageRun, number: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send a part's candidates to their groups, with the shingle sets of those that may have to be compared.

    Of the copies of one text, that is the first by precedence, which no other of this part can be before.
    """
    collection, sketcher = read_collection(run), sketcher_of(run.options)
    planned = gather(run.work, slices, _PLANNED)
    documents = planned["document"].to_numpy()
    known = collection.sketches(run, number, ["url_id", "precedence", *sketcher.band_columns])
    known = known.take(pa.array(np.searchsorted(known["document"].to_numpy(), documents)))
    is_own = not collection.parts[number].corpus
    compared = planned["compared"].to_numpy()
    if is_own:
        order = np.lexsort([known["url_id"].to_numpy(), known["precedence"].to_numpy()])
        first = np.zeros(len(order), bool)
        first[order[np.unique(planned["text"].to_numpy()[order], return_index=True)[1]]] = True
        compared = compared & first
        urls = (url for batch in collection.read(number, ["url"], documents) for url in batch["url"].to_pylist())
        hosts = pa.array([host_of(url) for url in urls], pa.string())
    else:
        hosts = pa.nulls(len(planned), pa.string())
    columns = {
        **{name: planned[name] for name in ("component", "text", "document")},
        **{name: known[name] for name in ("url_id", "precedence")},
        "host": hosts,
    }
    bands = np.column_stack([known[name].to_numpy() for name in sketcher.band_columns])
    groups = planned["group"].to_numpy()

    def send(rows: np.ndarray, of_bands: Sequence[np.ndarray], sets: Sequence[np.ndarray]) -> None:
        table = pa.table({**columns, "group": planned["group"]}).take(pa.array(rows)).combine_chunks()
        table = table.append_column("bands", _lists(of_bands)).append_column("shingles", _lists(sets))
        order = np.argsort(groups[rows], kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(groups[rows][order])) + 1):
            batch = table.select(CANDIDATES.names).take(pa.array(members)).combine_chunks().to_batches()[0]
            writer.send(int(groups[rows[members[0]]]), batch)

    others = np.flatnonzero(~compared)
    if len(others):
        send(others, [bands[0, :0]] * len(others), [bands[0, :0]] * len(others))
    rows = np.flatnonzero(compared)
    for batch in _advancing(collection.read(number, ["text"], documents[rows])) if len(rows) else ():
        mine, rows = np.split(rows, [batch.num_rows])
        send(mine, list(bands[mine]), sketcher.shingle_sets(batch["text"]))
    progress.advance(len(others))


def verify(run: StageRun, group: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the shards their decisions on a group of components."""
    options: Options = run.options
    collection = read_collection(run)
    verifier = Verifier(options.threshold, options.similarity, options.max_comparisons, collection.own_documents)
    candidates = gather(run.work, slices, CANDIDATES)
    decisions, counts = verifier.decide(candidates)
    writer.count(counts)
    document, url_id = candidates["document"].to_numpy(), candidates["url_id"].to_numpy()
    kept_shard = collection.shard_of(document[decisions.kept]).astype(np.uint32)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(url_id[decisions.gone]),
            pa.array(url_id[decisions.kept]),
            pa.array(kept_shard),
            pa.array(np.where(decisions.near, "near", "exact").tolist(), pa.string()),
            pa.array(decisions.similarity),
            pa.array(decisions.shared_bands),
            pa.array(decisions.cluster_size),
        ],
        schema=_DECISIONS,
    )
    order = np.argsort(document[decisions.gone])
    gone = document[decisions.gone][order]
    rows = rows.take(pa.array(order))
    shards = collection.shard_of(gone)
    for some in np.split(np.arange(len(shards)), np.flatnonzero(np.diff(shards)) + 1):
        if len(some):
            writer.send(int(shards[some[0]]), rows.slice(some[0], len(some)))
    hosts = candidates["host"].take(pa.array(decisions.gone[order])).to_pylist()
    largest = find_largest(gone, hosts, rows["kept_url_id"].to_numpy(), rows["kept_shard"].to_numpy())
    writer.open_file(".json", LARGEST)[0].write(msgspec.json.encode(largest))
    progress.advance(len(candidates))


def write_decisions(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard's decisions by url_id; and count, by themselves, its documents that none of them names."""
    rows = gather(run.work, slices, _DECISIONS).sort_by("url_id").combine_chunks()
    documents = run.inputs["clean"].table(shard, columns=["url_id"])["url_id"].to_numpy()
    writer.enter(len(rows))
    for batch in rows.to_batches():
        writer.write(batch)
    rules = rows["rule"].to_pylist()
    stay = int((~np.isin(documents, rows["url_id"].to_numpy())).sum())
    writer.count({"exact": rules.count("exact"), "near": rules.count("near"), "stay": stay})
    if run.options.keep_sketches:
        _keep_sketches(run, read_collection(run), shard, rows["url_id"], writer)
    progress.advance(len(documents))


def _keep_sketches(
    run: StageRun, collection: Collection, shard: int, gone: pa.ChunkedArray, writer: ShardWriter
) -> None:
    """Write the sketches of the shard's documents that stay, by row."""
    first, last = collection.first_of_shard[shard : shard + 2]
    schema = pa.schema([("row", pa.uint32()), *sketcher_of(run.options).schema])
    file, count = writer.open_file(".arrow", SKETCHES)
    with pa.ipc.new_file(file, schema) as kept:
        for number in collection.parts_of_shard(shard):
            sketches = collection.sketches(run, number)
            row = pc.cast(pc.subtract(pc.cast(sketches["document"], pa.int64()), first), pa.int64())
            inside = pc.and_(pc.greater_equal(row, 0), pc.less(row, last - first))
            stay = pc.and_(inside, pc.invert(pc.is_in(sketches["url_id"], gone.combine_chunks())))
            sketches = sketches.drop_columns("document").add_column(0, "row", row).filter(stay).cast(schema)
            kept.write_table(sketches.combine_chunks())
            count[0] += len(sketches)


def _compiled(sketcher: Sketcher, compiled: bool) -> Sketcher:
    return Sketcher(sketcher.banding, sketcher.n, sketcher.kind, compiled)


def _shingles(options: Options, clean: DatasetReader) -> float:
    """Shingles of the run's own texts, more or less."""
    return clean.manifest.total("data").bytes / _SHINGLE_BYTES[options.shingles]


def _advancing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        progress.advance(batch.num_rows)


def _edges(documents: np.ndarray, roots: np.ndarray) -> pa.RecordBatch:
    columns = [pa.array(values.astype(np.uint32, copy=False)) for values in (documents, roots)]
    return pa.RecordBatch.from_arrays(columns, schema=_EDGES)


def _ends(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the edges of a table."""
    return table.column(0).to_numpy(), table.column(1).to_numpy()


def _lists(items: Sequence[np.ndarray]) -> pa.ListArray:
    """A column of lists of uint64."""
    offsets = np.concatenate([[0], np.cumsum([len(item) for item in items])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(items)))
