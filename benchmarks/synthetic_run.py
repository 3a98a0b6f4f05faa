"""Runs of any size for benchmarks: every dataset of every stage as the stages lay it out, with made-up rows.

Shards are by host and ordered by id. A tenth of the URLs have no page, a tenth are near-duplicates, a twentieth are too
short. All pages are the same record. Documents have 2,300 characters and 500 tokens on average; lengths, scores,
subreddits and times are distributed like real ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.formats.urls import home_of, url_id
from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.commit import Place, ShardWriter, publish
from owt_pipeline.ledger.dataset import rejects_batch
from owt_pipeline.ledger.root import swap_root
from owt_pipeline.stages.dedupe.minhash import BANDS, ROWS, probability
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, Reason
from schemas.manifest import Counts, Generation, Root, ShardRecord

ROWS_PER_SHARD, URLS_PER_HOST = 32_768, 50
_FAILURES = (Reason.HTTP_404, Reason.HTTP_404, Reason.TIMEOUT, Reason.DNS, Reason.NOT_HTML)
_PAGE = response_record(
    "https://example.org/", 1_600_000_000, "HTTP/1.1 200 OK", [("Content-Type", "text/html")], b"<p>A page.</p>"
)
_YEARS = 1_160_000_000, 1_600_000_000  # seconds since 1970: 2006 to 2020


def write_run(workdir: Storage, rows: int) -> tuple[str, str, str]:
    """Write a run of `rows` URLs; returns one that is kept, one removed as a duplicate, and one too short."""
    shards = max(4, rows // ROWS_PER_SHARD)
    hosts: list[list[str]] = [[] for _ in range(shards)]
    for number in range(rows // URLS_PER_HOST):
        host = f"host-{number}.example"
        hosts[home_of(host) % shards].append(host)
    texts = _texts()
    examples = [_write_shard(workdir, shard, hosts[shard], texts) for shard in range(shards)]
    _, version = swap_root(workdir, Root(generations=[Generation("collect", 0, shards)]), None, "")
    for name, dataset in DATASETS.items():
        version = _publish(workdir, name, dataset.stage, shards, version)
    return examples[0]


def _texts() -> pa.Array:
    """A thousand documents' texts, of 400 words on average."""
    rng = np.random.default_rng(1)
    words = np.array(["".join(rng.choice(list("etaoinshrdlu"), rng.integers(2, 9))) for _ in range(5000)])
    lengths = rng.lognormal(5.6, 0.87, 1000).astype(int) + 10
    return pa.array([" ".join(rng.choice(words, length)) for length in lengths])


@dataclass(frozen=True)
class _Shard:
    """The URLs of one shard, ordered by id, and random numbers for what else is said of them."""

    number: int
    ids: np.ndarray
    urls: pa.Array
    rng: np.random.Generator


def _write_shard(workdir: Storage, number: int, hosts: list[str], texts: pa.Array) -> tuple[str, str, str]:
    urls = [f"https://{host}/articles/{n}" for host in hosts for n in range(URLS_PER_HOST)]
    ids = np.array([url_id(url) for url in urls], np.uint64)
    order = np.argsort(ids)
    shard = _Shard(number, ids[order], pa.array(urls).take(pa.array(order)), np.random.default_rng(number))
    index = np.arange(len(ids))
    fetched, short, twin = index % 10 != 7, index % 20 == 3, index % 10 == 5
    left = {
        "urls": fetched | True,
        "pages": fetched,
        "documents": fetched,
        "clean": fetched & ~short,
        "duplicates": twin,
        "corpus": fetched & ~short & ~twin,
        "tokens": fetched & ~short & ~twin,
    }
    rejected = {"pages": (~fetched, _FAILURES), "clean": (short, (Reason.TOO_SHORT,)),
                "corpus": (twin, (Reason.NEAR_DUPLICATE,))}  # fmt: skip
    for name, dataset in DATASETS.items():
        outputs = {"train": dataset.schema, "val": dataset.schema} if name == "tokens" else {"": dataset.schema}
        place = _place(workdir, name, number)
        with ShardWriter(workdir, place, outputs, dataset=name, file_format=dataset.format) as writer:
            for start in range(0, len(ids), 4096):
                chosen = index[start : start + 4096][left[name][start : start + 4096]]
                writer.enter(len(chosen))
                writer.write(_rows(dataset.schema, shard, chosen, texts), next(iter(outputs)))
            if name == "pages":
                file = writer.open_file(".warc.gz", "warc")
                file.write(_PAGE)
                file.rows = int(left[name].sum())
            if name in rejected:
                gone, reasons = index[rejected[name][0]], rejected[name][1]
                urls_gone = shard.urls.take(pa.array(gone)).to_pylist()
                why = (reasons[i // 10 % len(reasons)] for i in gone)
                writer.enter(len(gone))
                writer.reject(rejects_batch(zip(shard.ids[gone], urls_gone, why, [None] * len(gone), strict=True)))
    return tuple(shard.urls[place].as_py() for place in (1, 15, 23))


def _rows(schema: pa.Schema, shard: _Shard, chosen: np.ndarray, texts: pa.Array) -> pa.RecordBatch:
    """Rows of any dataset: what the benchmarks look at is like real ones', the rest blank."""
    rows, rng = len(chosen), shard.rng
    url, text = shard.urls.take(pa.array(chosen)), texts.take(pa.array(chosen % 1000))
    made = {
        "url_id": shard.ids[chosen],
        "kept_url_id": shard.ids[chosen - 1],
        "kept_shard": np.full(rows, shard.number),
        "url": url,
        "posted_url": url,
        "final_url": url,
        "host": pc.struct_field(pc.extract_regex(url, r"^https://(?P<host>[^/]*)"), "host"),
        "text": text,
        "n_words": pc.add(pc.count_substring(text, " "), 1),
        "n_chars": pc.utf8_length(text),
        "n_bytes": pc.binary_length(text),
        "language": pa.repeat("en", rows),
        "score": rng.pareto(0.8, rows).astype(np.int32) + 3,
        "created_utc": rng.integers(*_YEARS, rows),
        "fetched_at": rng.integers(_YEARS[1], _YEARS[1] + 10_000_000, rows),
        "source": pa.repeat("live", rows),
        "days_after_submission": rng.integers(-30, 4000, rows),
        "status": np.full(rows, 200),
        "fetch_ms": rng.lognormal(6, 1, rows).astype(np.int64),
        "warc_length": np.full(rows, len(_PAGE)),
        "body_bytes": rng.lognormal(11, 1, rows).astype(np.int64),
        "rule": pa.repeat("near", rows),
        "similarity": rng.uniform(0.8, 1, rows),
        "shared_bands": rng.integers(5, 21, rows),
        "cluster_size": np.full(rows, 2),
    }
    if "subreddits" in schema.names:
        made["subreddits"] = [[f"subreddit_{number}"] for number in rng.zipf(1.3, rows) % 5000]
    if "submission_ids" in schema.names:
        made["submission_ids"] = [["abc"]] * rows
    if "tokens" in schema.names:
        lengths = rng.lognormal(5.8, 0.87, rows).astype(np.int64) + 10
        ids = (rng.pareto(0.6, int(lengths.sum())) * 5).astype(np.int64) % 50_257
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        made |= {"n_tokens": lengths, "tokens": pa.ListArray.from_arrays(offsets, pa.array(ids, pa.uint16()))}
    return pa.RecordBatch.from_arrays([_column(field, made, rows) for field in schema], schema=schema)


def _column(field: pa.Field, made: dict, rows: int) -> pa.Array:
    column = made.get(field.name)
    if column is None:
        blank = "" if pa.types.is_string(field.type) else 0
        return pa.nulls(rows, field.type) if field.nullable else pa.repeat(pa.scalar(blank, field.type), rows)
    return column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type)


def _publish(workdir: Storage, name: str, stage: str, shards: int, version: str) -> str:
    places = [_place(workdir, name, shard) for shard in range(shards)]
    records = [ShardRecord.from_json(place.records.read(place.name)) for place in places]
    lsh = {"threshold": 0.8, "bands": BANDS, "rows": ROWS, "curve": [(s / 20, probability(s / 20)) for s in range(21)]}
    tokenizer = {"name": "gpt2", "vocab_size": 50_257}
    return publish(
        workdir,
        records,
        version=version,
        dataset=name,
        stage=stage,
        stage_version=1,
        num_shards=shards,
        counts=sum((record.counts for record in records), Counts()),
        properties={"dedupe": lsh, "tokenize": {"tokenizer": tokenizer}}.get(stage, {}),
    )[1]


def _place(workdir: Storage, name: str, shard: int) -> Place:
    return Place(workdir / f"ledger/{name}/made", shard)
