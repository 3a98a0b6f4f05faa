"""Near-duplicates, from texts to decisions: the stage's steps, in the order in which the data
meets them.

    sketch      a part's texts       -> hashes of the texts and of their bands, by range of hashes
    buckets     a range of hashes    -> edges from each bucket's lowest-numbered document
    components  all edges            -> each part's documents that have candidates, with their group
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
from owt_pipeline.stages.dedupe.verification import CANDIDATES, decide
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
        *((name, pa.uint32()) for name in ("document", "text", "component", "group")),
        ("compared", pa.bool_()),
    ]
)
_DECISIONS = DATASETS["duplicates"].schema.append(
    pa.field("shard", pa.uint32())
)  # of the removed document
KEPT = "kept"
"""Kind of the files with a shard's decisions by the document that is kept: those of its own
generation, since later ones change no file. `export` counts them."""
_OF_KEPT = ["kept_url_id", "rule", "similarity", "contained"]


def sketch(run: StageRun, part: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the hash of each of a part's texts, and of the bands of each distinct one, to the
    part of its range.

    Exact copies have the same words in the same order, and so the same 128-bit hash.
    """
    keep_freed_memory()
    options: Options = run.options
    num_bands, rows_of_band = banding(options.threshold)
    ranges, seen, number = Ranges.of(run), set[bytes](), int(first_of_parts(run)[part])
    for batch in documents_of(run, part, ["text"]):
        digests: list[bytes] = []
        signed: list[np.ndarray] = []
        new: list[int] = []  # rows whose text is new and has words
        for chunk in chunked(batch["text"]):
            words = hash_words(chunk)
            found = hash_texts(chunk, words)
            rows = []
            for i, digest in enumerate(found):
                if digest not in seen:
                    seen.add(digest)
                    rows.append(i)
            shingles = ngrams(words.take(rows), options.ngram)
            filled = np.flatnonzero(np.diff(shingles.offsets))
            signed.append(_signed(shingles, options)[:, filled])
            new += [len(digests) + rows[i] for i in filled.tolist()]
            digests += found
        documents = np.arange(number, number + len(digests), dtype=np.uint32)
        high, low = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2).T
        writer.send(partition_of(high, ranges.of_texts), _batch([high, low, documents], _TEXTS))
        bands = band_hashes(np.concatenate(signed, axis=1), rows_of_band).ravel()
        keys = partition_of(bands, ranges.of_bands) + np.uint64(ranges.of_texts)
        writer.send(keys, _batch([bands, np.tile(documents[new], num_bands)], _BANDS))
        number += len(digests)
        progress.advance(len(digests))


MOST_OF_RANGE = 1 << 21  # hashes: 60 MB while they are sorted


@dataclass(frozen=True)
class Ranges:
    """How many ranges the hashes of texts and of bands are cut into: the keys of `buckets`,
    texts first."""

    of_texts: int
    of_bands: int

    @classmethod
    def of(cls, run: StageRun) -> Ranges:
        documents = int(first_of_parts(run)[-1])
        bands, _ = banding(run.options.threshold)
        return cls(1 + documents // MOST_OF_RANGE, 1 + bands * documents // MOST_OF_RANGE)


def _signed(shingles: Hashes, options: Options) -> np.ndarray:
    """Return the MinHash signatures of the upper halves of the shingles' hashes."""
    bands, rows = banding(options.threshold)
    upper = (shingles.values >> np.uint64(32)).astype(np.uint32)
    return signatures(upper, shingles.offsets, bands * rows)


def buckets(run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send the edges within the buckets of a range: documents with the same text, or that share
    a band."""
    of_texts = key < Ranges.of(run).of_texts
    rows = gather(run.work, slices, _TEXTS if of_texts else _BANDS)
    hashes, documents = rows["hash"].to_numpy(), rows["document"].to_numpy()
    if of_texts:
        others, least = star_edges(hashes, documents, rows["low"].to_numpy())
        writer.send(0, _batch([others, least], _COPIES))
    else:
        others, least = star_edges(hashes, documents)
        edges = sorted_set(
            others.astype(np.uint64) << np.uint64(32) | least
        )  # similar documents share several bands
        writer.send(0, _batch([edges >> np.uint64(32), edges & np.uint64(0xFFFFFFFF)], _EDGES))
        writer.count({"edges": len(edges)})
    progress.advance(len(rows))


# A group's shingle sets are in memory together. It has at most the first number of shingles (64
# MB), unless a single component is larger, and at least the second, which is worth a file;
# otherwise there are about 16 groups.
_MOST_SHINGLES, _LEAST_SHINGLES, _GROUPS = 1 << 23, 1 << 20, 16
_SHINGLE_BYTES = 2.5  # approximate bytes of a compressed file per shingle
_ROW = 8  # memory of a candidate's other columns, in shingles


def components(run: StageRun, _: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send each part its documents that have candidates, each with its component and the group
    that verifies it."""
    first = first_of_parts(run)
    forest, text, concerned = (
        Forest(first[-1]),
        np.arange(first[-1], dtype=np.uint32),
        np.zeros(first[-1], bool),
    )
    for table in read_slices(run.work, slices):
        left, right = table.column(0).to_numpy(), table.column(1).to_numpy()
        forest.join(left, right)
        concerned[left] = concerned[right] = True
        if table.schema.names == _COPIES.names:
            text[left] = right
    document = np.flatnonzero(concerned).astype(np.uint32)
    root, text = forest.roots(document), text[document]
    component = np.searchsorted(document[root == document], root)
    compared = np.zeros(int(component.max(initial=-1)) + 1, bool)
    compared[component[text != root]] = True  # it has several texts
    clean = run.inputs["clean"].manifest.total("data")
    shingles = clean.bytes / _SHINGLE_BYTES / max(clean.rows, 1)
    sizes = np.cumsum(
        np.bincount(component, minlength=len(compared)) * np.where(compared, shingles + _ROW, _ROW)
    )
    each = min(_MOST_SHINGLES, max(_LEAST_SHINGLES, (sizes[-1] if len(sizes) else 0) / _GROUPS))
    group = (sizes // each).astype(np.int64)
    rows = _batch([document, text, component, group[component], compared[component]], _PLANNED)
    bounds = np.searchsorted(document, first)
    for part, (start, end) in enumerate(pairwise(bounds.tolist())):
        writer.send(part, rows.slice(start, end - start))
    texts = np.bincount(component[text == document], minlength=len(compared))[compared]
    counts = {
        "candidates": texts.sum(),
        "components": len(texts),
        "largest_component": texts.max(initial=0),
    }
    writer.count({name: int(count) for name, count in counts.items()})
    progress.advance(sum(slice.rows for slice in slices))


def candidates(run: StageRun, part: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Send a part's documents that have candidates to their groups, with bands and shingles
    where texts are compared.

    Of copies of one text, which have the same shingles, only the lowest-numbered is read.
    """
    options: Options = run.options
    planned = gather(run.work, slices, _PLANNED)
    document = planned["document"].to_numpy()
    first, start = int(first_of_parts(run)[part]), 0
    columns = ["url_id", "text", *PRECEDENCE[options.survivor]]
    for batch in documents_of(run, part, columns):
        end = int(np.searchsorted(document, first + batch.num_rows))
        if end > start:
            rows = planned.slice(start, end - start)
            found = batch.take(pa.array(document[start:end].astype(np.int64) - first))
            _send_candidates(rows, found, options, writer)
        first, start = first + batch.num_rows, end
    progress.advance(len(planned))


def _send_candidates(
    planned: pa.Table, documents: pa.RecordBatch, options: Options, writer: ShardWriter
) -> None:
    read = planned["compared"].to_numpy() & (
        planned["text"].to_numpy() == planned["document"].to_numpy()
    )
    bands, sets = [_NOTHING] * len(planned), [_NOTHING] * len(planned)
    _, rows_of_band = banding(options.threshold)
    rows = np.flatnonzero(read)
    for chunk in chunked(documents["text"].take(pa.array(rows))):
        mine, rows = np.split(rows, [len(chunk)])
        shingles = ngrams(hash_words(chunk), options.ngram)
        for row, of_text, distinct in zip(
            mine,
            band_hashes(_signed(shingles, options), rows_of_band).T,
            shingles.sets(),
            strict=True,
        ):
            bands[row], sets[row] = of_text, distinct
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
    """int64 per document: among duplicates, the one with the lowest is kept; ties by url_id.

    `longest`: most characters first; `highest_score`: highest Reddit score first, documents without
    one last; `earliest`: earliest submission first, documents without one last.
    """
    values = pc.cast(documents[PRECEDENCE[survivor][0]], pa.int64())
    return pc.fill_null(
        values if survivor == "earliest" else pc.negate(values), np.iinfo(np.int64).max
    )


def verify(run: StageRun, group: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Decide on the components of a group; send each shard its decisions."""
    first = first_of_parts(run)
    rows = gather(run.work, slices, CANDIDATES)
    found, counts = decide(
        rows, first_of_generations(run), run.options.threshold, int(first[run.num_shards])
    )
    writer.count(counts)
    document, url_id = rows["document"].to_numpy(), rows["url_id"].to_numpy()
    order = np.argsort(document[found.gone])
    gone, kept = found.gone[order], found.kept[order]
    shard, kept_shard = (
        np.searchsorted(first, document[side], side="right") - 1 for side in (gone, kept)
    )
    columns = [
        *(url_id[gone], url_id[kept], kept_shard),
        *(np.where(found.near, "near", "exact")[order].tolist(), found.similarity[order]),
        *(found.contained[order], found.shared_bands[order], found.cluster_size[order], shard),
    ]
    decided = _batch(columns, _DECISIONS)
    writer.send(shard, decided)
    generation = np.searchsorted(first_of_generations(run), document, side="right")
    also = (
        (kept_shard != shard)
        & (kept_shard < run.num_shards)
        & (generation[gone] == generation[kept])
    )
    writer.send(kept_shard[also], decided.filter(pa.array(also)))
    progress.advance(len(rows))


def write(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    """Write a shard's decisions, sorted by url_id, and those by the kept document; count the
    documents that stay."""
    sent = gather(run.work, slices, _DECISIONS).sort_by("url_id")
    rows = sent.filter(pc.equal(sent["shard"], shard)).drop_columns("shard").combine_chunks()
    writer.enter(len(rows))
    for batch in rows.to_batches():
        writer.write(batch)
    of_kept = sent.filter(pc.equal(sent["kept_shard"], shard)).select(_OF_KEPT)
    of_kept = of_kept.sort_by([(name, "ascending") for name in _OF_KEPT]).combine_chunks()
    file = writer.open_file(".parquet", KEPT)
    file.rows = len(of_kept)
    pq.write_table(of_kept, file, compression="zstd")
    documents = int(np.diff(first_of_parts(run))[shard])
    near = int(pc.sum(pc.equal(rows["rule"], "near")).as_py() or 0)
    writer.count({"stay": documents - len(rows), "exact": len(rows) - near, "near": near})
    progress.advance(documents)


def _batch(columns: Sequence[object], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        pa.array(column, field.type) if isinstance(column, np.ndarray) else pa.array(column)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _lists(items: Sequence[np.ndarray]) -> pa.ListArray:
    """A column of lists of uint64."""
    offsets = np.cumsum([0, *map(len, items)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate([*items, _NOTHING])))
