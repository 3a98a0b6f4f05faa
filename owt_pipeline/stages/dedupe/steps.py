"""Near-duplicates, from texts to decisions: the stage's steps, in the order in which the data
meets them.

    sketch      a part's texts       -> hashes of the texts and of their bands, by range of hashes
    buckets     a range of hashes    -> edges from each bucket's lowest-numbered document
    components  all edges            -> documents that may have a duplicate, with their group
    candidates  these documents      -> their bands and shingle sets, by group
    verify      a group              -> decisions, by shard of the removed and of the kept document
    write       a shard's decisions  -> duplicates/

A document is identified by its number (numbering.py). Only `sketch` and `candidates` read texts.
Memory is bounded by a part's hashes, a range, a group, and in `components` nine bytes a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline import progress
from owt_pipeline.formats.shingles import (
    Hashes,
    chunked,
    hash_texts,
    hash_words,
    ngrams,
    sorted_set,
)
from owt_pipeline.ledger.exchange import Slice, gather, partition_of, read_slices
from owt_pipeline.stages.dedupe.components import Forest, star_edges
from owt_pipeline.stages.dedupe.decisions import CANDIDATES, decide
from owt_pipeline.stages.dedupe.minhash import (
    band_hashes,
    banding,
    keep_freed_memory,
    signatures,
)
from owt_pipeline.stages.dedupe.numbering import (
    documents_of,
    first_of_generations,
    first_of_parts,
)
from schemas import DATASETS

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.ledger.commit import ShardWriter
    from owt_pipeline.stages.dedupe.options import Options

_TEXTS = pa.schema([("hash", pa.uint64()), ("low", pa.uint64()), ("document", pa.uint32())])
_BANDS = pa.schema([("hash", pa.uint64()), ("document", pa.uint32())])
_COPIES = pa.schema([("copy", pa.uint32()), ("text", pa.uint32())])
_EDGES = pa.schema([("document", pa.uint32()), ("root", pa.uint32())])
_PLANNED = pa.schema(
    [
        ("document", pa.uint32()),
        ("text", pa.uint32()),
        ("component", pa.uint32()),
        ("group", pa.uint32()),
        ("compared", pa.bool_()),
    ]
)
_DECISIONS = DATASETS["duplicates"].schema.append(pa.field("shard", pa.uint32()))
"""A decision, and the shard of the removed document."""

KEPT = "kept"
"""Kind of the files with the decisions in which a document of the shard is kept.

The removed document is of the same generation, since a later generation must not change a file.
`export` counts these decisions.
"""
_COLUMNS_OF_KEPT = ["kept_url_id", "rule", "similarity", "contained"]


def sketch(run: StageRun, part: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the hashes of a part's texts, and of the bands of each distinct text, by range.

    Exact copies have the same words in the same order, and so the same 128-bit hash.
    """
    keep_freed_memory()
    options: Options = run.options
    num_bands, rows_of_band = banding(options.threshold)
    ranges = Ranges.of(run)
    seen: set[bytes] = set()
    first = int(first_of_parts(run)[part])
    for batch in documents_of(run, part, ["text"]):
        digests: list[bytes] = []
        signature_blocks: list[np.ndarray] = []
        sketched_rows: list[int] = []
        for chunk in chunked(batch["text"]):
            words = hash_words(chunk)
            chunk_digests = hash_texts(chunk, words)
            new_rows = _add_new(chunk_digests, seen)
            shingles = ngrams(words.take(new_rows), options.ngram)
            # A text without words has no shingle, and repeats only texts without words.
            has_shingles = np.flatnonzero(np.diff(shingles.offsets))
            signature_blocks.append(_sign(shingles, options)[:, has_shingles])
            sketched_rows += [len(digests) + new_rows[i] for i in has_shingles.tolist()]
            digests += chunk_digests
        documents = np.arange(first, first + len(digests), dtype=np.uint32)
        halves = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)
        high, low = halves.T
        writer.send(partition_of(high, ranges.of_texts), _batch([high, low, documents], _TEXTS))
        bands = band_hashes(np.concatenate(signature_blocks, axis=1), rows_of_band).ravel()
        keys = partition_of(bands, ranges.of_bands) + np.uint64(ranges.of_texts)
        writer.send(keys, _batch([bands, np.tile(documents[sketched_rows], num_bands)], _BANDS))
        first += len(digests)
        progress.advance(len(digests))


def _add_new(digests: Sequence[bytes], seen: set[bytes]) -> list[int]:
    """Add digests to `seen`; return the rows of those that were not in it."""
    new_rows = []
    for row, digest in enumerate(digests):
        if digest not in seen:
            seen.add(digest)
            new_rows.append(row)
    return new_rows


def _sign(shingles: Hashes, options: Options) -> np.ndarray:
    """Return the MinHash signatures of the upper halves of the shingles' hashes."""
    num_bands, rows_of_band = banding(options.threshold)
    upper_halves = (shingles.values >> np.uint64(32)).astype(np.uint32)
    return signatures(upper_halves, shingles.offsets, num_bands * rows_of_band)


# Each part sends a handle to each range, so that handles are parts times ranges. With 128 ranges of
# bands, the documents of 100 million URLs have a million handles.
_NUM_RANGES = 128

# A range is sorted in memory: this many hashes take 60 MB, and the largest ranges 480 MB.
MIN_HASHES_OF_RANGE = 1 << 21
_MAX_HASHES_OF_RANGE = 1 << 24


@dataclass(frozen=True)
class Ranges:
    """How many ranges the hashes of texts and of bands are cut into: the keys of `buckets`,
    texts first."""

    of_texts: int
    of_bands: int

    @classmethod
    def of(cls, run: StageRun) -> Ranges:
        """Return the numbers of ranges for the documents of a run."""
        num_documents = int(first_of_parts(run)[-1])
        num_bands, _ = banding(run.options.threshold)
        return cls(num_ranges(num_documents), num_ranges(num_bands * num_documents))


def num_ranges(num_hashes: int) -> int:
    """Return the number of ranges for hashes, so that few of them stay in memory."""
    hashes_of_range = max(MIN_HASHES_OF_RANGE, num_hashes // _NUM_RANGES)
    return 1 + num_hashes // min(hashes_of_range, _MAX_HASHES_OF_RANGE)


def buckets(run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the edges within the buckets of a range.

    A bucket is the documents with the same text, or those that share a band.
    """
    is_of_texts = key < Ranges.of(run).of_texts
    rows = gather(run.work, slices, _TEXTS if is_of_texts else _BANDS)
    hashes = rows["hash"].to_numpy()
    documents = rows["document"].to_numpy()
    if is_of_texts:
        copies, texts = star_edges(hashes, documents, rows["low"].to_numpy())
        writer.send(0, _batch([copies, texts], _COPIES))
    else:
        others, lowest = star_edges(hashes, documents)
        # Similar documents share several bands, and so have the same edge several times.
        edges = sorted_set(others.astype(np.uint64) << np.uint64(32) | lowest)
        others, lowest = edges >> np.uint64(32), edges & np.uint64(0xFFFFFFFF)
        writer.send(0, _batch([others, lowest], _EDGES))
        writer.count({"edges": len(edges)})
    progress.advance(len(rows))


# The shingle sets of a group are in memory together: 64 MB, unless a single component is larger.
_MAX_SHINGLES_OF_GROUP = 1 << 23
# Fewer are not worth a file of their own.
_MIN_SHINGLES_OF_GROUP = 1 << 20
_NUM_GROUPS = 16
# Approximate bytes of a compressed file per shingle.
_BYTES_OF_SHINGLE = 2.5
# Memory of a candidate's other columns, in shingles.
_SHINGLES_OF_ROW = 8


def components(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send each part its documents that may have a duplicate.

    Each has its component, and the group that verifies it.
    """
    first = first_of_parts(run)
    forest = Forest(first[-1])
    text_by_document = np.arange(first[-1], dtype=np.uint32)
    has_candidates = np.zeros(first[-1], bool)
    for table in read_slices(run.work, slices):
        left = table.column(0).to_numpy()
        right = table.column(1).to_numpy()
        forest.join(left, right)
        has_candidates[left] = True
        has_candidates[right] = True
        if table.schema.names == _COPIES.names:
            text_by_document[left] = right
    document = np.flatnonzero(has_candidates).astype(np.uint32)
    text = text_by_document[document]
    root = forest.roots(document)
    component = np.searchsorted(document[root == document], root)
    # A component has several texts if any document has another text than the root, its
    # lowest-numbered document. Copies of one text need no comparison.
    is_compared = np.zeros(int(component.max(initial=-1)) + 1, bool)
    is_compared[component[text != root]] = True
    group = _groups(run, np.bincount(component, minlength=len(is_compared)), is_compared)
    columns = [document, text, component, group[component], is_compared[component]]
    rows = _batch(columns, _PLANNED)
    bounds = np.searchsorted(document, first)
    for part, (start, end) in enumerate(pairwise(bounds.tolist())):
        writer.send(part, rows.slice(start, end - start))
    num_texts = np.bincount(component[text == document], minlength=len(is_compared))[is_compared]
    writer.count(
        {
            "candidates": int(num_texts.sum()),
            "components": len(num_texts),
            "largest_component": int(num_texts.max(initial=0)),
        }
    )
    progress.advance(sum(slice.rows for slice in slices))


def _groups(run: StageRun, num_documents: np.ndarray, is_compared: np.ndarray) -> np.ndarray:
    """Return the group of each component, int64, from its number of documents.

    Groups have about the same number of shingles, estimated from the bytes of `clean/`.
    """
    clean = run.inputs["clean"].manifest.total("data")
    shingles_of_text = clean.bytes / _BYTES_OF_SHINGLE / max(clean.rows, 1)
    shingles_of_document = np.where(
        is_compared, shingles_of_text + _SHINGLES_OF_ROW, _SHINGLES_OF_ROW
    )
    ends = np.cumsum(num_documents * shingles_of_document)
    total = ends[-1] if len(ends) else 0
    wanted = max(_MIN_SHINGLES_OF_GROUP, total / _NUM_GROUPS)
    return (ends // min(_MAX_SHINGLES_OF_GROUP, wanted)).astype(np.int64)


def candidates(run: StageRun, part: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send a part's documents that may have a duplicate to their groups.

    Documents whose texts are compared have bands and shingles. Copies of one text have the same
    shingles, so only the lowest-numbered copy is sent with them.
    """
    options: Options = run.options
    planned = gather(run.work, slices, _PLANNED)
    document = planned["document"].to_numpy()
    first = int(first_of_parts(run)[part])
    start = 0
    columns = ["url_id", "text", *PRECEDENCE[options.survivor]]
    for batch in documents_of(run, part, columns):
        end = int(np.searchsorted(document, first + batch.num_rows))
        if end > start:
            rows_of_batch = pa.array(document[start:end].astype(np.int64) - first)
            planned_here = planned.slice(start, end - start)
            _send_candidates(planned_here, batch.take(rows_of_batch), options, writer)
        first += batch.num_rows
        start = end
    progress.advance(len(planned))


def _send_candidates(
    planned: pa.Table, documents: pa.RecordBatch, options: Options, writer: ShardWriter
) -> None:
    is_first_of_text = planned["text"].to_numpy() == planned["document"].to_numpy()
    rows = np.flatnonzero(planned["compared"].to_numpy() & is_first_of_text)
    bands = [_NOTHING] * len(planned)
    sets = [_NOTHING] * len(planned)
    _, rows_of_band = banding(options.threshold)
    for chunk in chunked(documents["text"].take(pa.array(rows))):
        rows_of_chunk, rows = np.split(rows, [len(chunk)])
        shingles = ngrams(hash_words(chunk), options.ngram)
        bands_of_chunk = band_hashes(_sign(shingles, options), rows_of_band).T
        for row, own_bands, own_set in zip(
            rows_of_chunk, bands_of_chunk, shingles.sets(), strict=True
        ):
            bands[row] = own_bands
            sets[row] = own_set
    columns = [planned[name].combine_chunks() for name in ("document", "text", "component")]
    columns += [
        documents["url_id"],
        precedence(documents, options.survivor),
        _lists(bands),
        _lists(sets),
    ]
    writer.send(planned["group"].to_numpy(), pa.RecordBatch.from_arrays(columns, schema=CANDIDATES))


_NOTHING = np.empty(0, np.uint64)

PRECEDENCE = {"longest": ["n_chars"], "highest_score": ["score"], "earliest": ["created_utc"]}
"""The column that `precedence` reads, by survivor."""


def precedence(documents: pa.RecordBatch, survivor: str) -> pa.Array:
    """Return an int64 for each document: of duplicates of one generation, the lowest is kept.

    Documents of earlier generations and texts of `against` come first (`decide`).

    Ties are broken by url_id. `longest` takes most characters first, `highest_score` the highest
    Reddit score, `earliest` the earliest submission. Documents without a score or a submission come
    last.
    """
    values = pc.cast(documents[PRECEDENCE[survivor][0]], pa.int64())
    if survivor != "earliest":
        values = pc.negate(values)
    return pc.fill_null(values, np.iinfo(np.int64).max)


def verify(run: StageRun, group: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Decide on the components of a group, and send each shard its decisions.

    A decision goes to the shard of the removed document. It also goes to the shard of the kept
    document if both are of one generation.
    """
    first = first_of_parts(run)
    first_of_each_generation = first_of_generations(run)
    rows = gather(run.work, slices, CANDIDATES)
    decisions, counts = decide(
        rows,
        first_of_each_generation,
        run.options.threshold,
        first_of_against=int(first[run.num_shards]),
    )
    writer.count(counts)
    document = rows["document"].to_numpy()
    url_id = rows["url_id"].to_numpy()
    order = np.argsort(document[decisions.removed])
    removed = decisions.removed[order]
    kept = decisions.kept[order]
    shard = np.searchsorted(first, document[removed], side="right") - 1
    kept_shard = np.searchsorted(first, document[kept], side="right") - 1
    columns = [
        url_id[removed],
        url_id[kept],
        kept_shard,
        np.where(decisions.is_near, "near", "exact")[order].tolist(),
        decisions.similarity[order],
        decisions.contained[order],
        decisions.shared_bands[order],
        decisions.cluster_size[order],
        shard,
    ]
    decided = _batch(columns, _DECISIONS)
    writer.send(shard, decided)
    generation = np.searchsorted(first_of_each_generation, document, side="right")
    is_of_one_generation = generation[removed] == generation[kept]
    is_kept_in_run = kept_shard < run.num_shards
    is_sent_to_kept = (kept_shard != shard) & is_kept_in_run & is_of_one_generation
    writer.send(kept_shard[is_sent_to_kept], decided.filter(pa.array(is_sent_to_kept)))
    progress.advance(len(rows))


def write(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard's decisions, sorted by url_id, and those by the kept document.

    Count the documents that stay.
    """
    sent = gather(run.work, slices, _DECISIONS).sort_by("url_id")
    rows = sent.filter(pc.equal(sent["shard"], shard)).drop_columns("shard").combine_chunks()
    writer.enter(len(rows))
    for batch in rows.to_batches():
        writer.write(batch)
    by_kept = sent.filter(pc.equal(sent["kept_shard"], shard)).select(_COLUMNS_OF_KEPT)
    by_kept = by_kept.sort_by([(name, "ascending") for name in _COLUMNS_OF_KEPT]).combine_chunks()
    file = writer.open_file(".parquet", KEPT)
    file.rows = len(by_kept)
    pq.write_table(by_kept, file, compression="zstd")
    num_documents = int(np.diff(first_of_parts(run))[shard])
    num_near = int(pc.sum(pc.equal(rows["rule"], "near")).as_py() or 0)
    writer.count(
        {
            "stay": num_documents - len(rows),
            "exact": len(rows) - num_near,
            "near": num_near,
        }
    )
    progress.advance(num_documents)


def _batch(columns: Sequence[object], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch from arrays of NumPy, which get the types of `schema`, and from lists."""
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        kind = field.type if isinstance(column, np.ndarray) else None
        arrays.append(pa.array(column, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _lists(items: Sequence[np.ndarray]) -> pa.ListArray:
    """Return a column of lists of uint64."""
    offsets = np.cumsum([0, *map(len, items)]).astype(np.int32)
    values = np.concatenate([*items, _NOTHING])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
