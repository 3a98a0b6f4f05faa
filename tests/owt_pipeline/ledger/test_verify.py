"""verify finds whatever is done to a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.ledger.verify import verify
from owt_pipeline.runtime.batches import Outcome, rejects_batch
from owt_pipeline.runtime.shards import ShardWriter
from owt_pipeline.runtime.stage import Runtime, Stage, run_stage
from owt_pipeline.runtime.storage import Storage
from schemas import DATASETS, Reason


@dataclasses.dataclass(frozen=True)
class NoOptions:
    pass


def write_urls(shard: int, writer: ShardWriter) -> None:
    rows = [
        {
            "url_id": shard * 100 + i,
            "url": f"http://h{shard}/{i}",
            "posted_url": f"http://h{shard}/{i}",
            "host": f"h{shard}",
            "host_shards": 1,
            "subreddits": [],
            "submission_ids": [],
        }
        for i in range(40)
    ]
    writer.add(40, Outcome(pa.RecordBatch.from_pylist(rows, DATASETS["urls"].schema)))


def fetch_urls(batch: pa.RecordBatch) -> Outcome:
    ids = batch["url_id"].to_pylist()
    page = {"source": "live", "status": 200, "fetched_at": 0, "fetch_ms": 0, "body_bytes": 0, "payload_digest": "",
            "warc_offset": 0, "warc_length": 0, "subreddits": []}  # fmt: skip
    kept = [{**page, "url_id": i, "url": str(i), "final_url": str(i)} for i in ids if i % 4]
    return Outcome(
        pa.RecordBatch.from_pylist(kept, DATASETS["pages"].schema),
        rejects_batch((i, str(i), Reason.ROBOTS, None) for i in ids if i % 4 == 0),
    )


COLLECT = Stage("collect", "urls", (), NoOptions, 1, lambda run: run.write_shards(write_urls) and None, "",
                num_shards=lambda options: 2)  # fmt: skip
FETCH = Stage("fetch", "pages", ("urls",), NoOptions, 1, lambda run: run.map_batches(fetch_urls), "")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    runtime = Runtime(Storage(str(tmp_path)))
    run_stage(COLLECT, NoOptions(), runtime)
    run_stage(FETCH, NoOptions(), runtime)
    return tmp_path


def problems(folder: Path) -> str:
    return "\n".join(line for _, lines in verify(Storage(str(folder))) for line in lines)


def test_an_undisturbed_run_holds(run: Path) -> None:
    assert [(name, lines) for name, lines in verify(Storage(str(run)))] == [("urls", []), ("pages", [])]


@pytest.mark.parametrize("name", ["urls/part-00001.parquet", "pages/rejects/part-00000.parquet"])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_flipped_byte_is_found(run: Path, name: str, place: float) -> None:
    content = bytearray((run / name).read_bytes())
    content[round(place * (len(content) - 1))] ^= 1
    (run / name).write_bytes(content)
    assert f"{name} has other bytes than were written" in problems(run)


def test_a_truncated_a_missing_and_a_foreign_file_are_found(run: Path) -> None:
    path = run / "pages/part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    (run / "urls/part-00000.parquet").unlink()
    (run / "urls/part-00007.parquet").write_bytes(b"")
    found = problems(run)
    assert "pages/part-00000.parquet has" in found
    assert "urls/part-00000.parquet is missing" in found
    assert "urls/part-00007.parquet is not in the manifest" in found


def rewrite(run: Path, name: str, rows: pa.Table) -> None:
    """Replace a file and make its manifest agree in length and digest: only the ids can tell."""
    from schemas import Manifest

    pq.write_table(rows, run / name)
    dataset, path = name.split("/", 1)
    storage = Storage(str(run / dataset))
    manifest = Manifest.from_json(storage.read("manifest.json"))
    files = [
        dataclasses.replace(f, bytes=storage.size(path), sha256=storage.sha256(path)) if f.path == path else f
        for f in manifest.files
    ]
    storage.write("manifest.json", dataclasses.replace(manifest, files=files).to_json().encode())


def test_an_id_that_was_swapped_for_another_is_found(run: Path) -> None:
    rows = pq.read_table(run / "pages/part-00000.parquet")
    ids = rows["url_id"].to_pylist()
    ids[3] = 999
    rows = rows.set_column(0, rows.schema.field("url_id"), pa.array(ids, pa.uint64()))
    rewrite(run, "pages/part-00000.parquet", rows)
    found = problems(run)
    assert "shard 0: 1 ids neither left nor were rejected, such as 5" in found
    assert "shard 0: 1 ids never entered, such as 999" in found


def test_an_id_that_left_twice_is_found(run: Path) -> None:
    rows = pq.read_table(run / "pages/part-00001.parquet")
    ids = rows["url_id"].to_pylist()
    ids[1] = ids[0]
    rows = rows.set_column(0, rows.schema.field("url_id"), pa.array(ids, pa.uint64()))
    rewrite(run, "pages/part-00001.parquet", rows)
    assert "1 ids left or were rejected more than once, such as 101" in problems(run)


def test_a_file_of_another_schema_is_found(run: Path) -> None:
    rows = pq.read_table(run / "pages/part-00001.parquet")
    rewrite(run, "pages/part-00001.parquet", rows.drop_columns(["status"]))
    assert "pages/part-00001.parquet has another schema" in problems(run)


def test_an_output_older_than_its_input_is_found(run: Path) -> None:
    rewrite(run, "urls/part-00000.parquet", pq.read_table(run / "urls/part-00000.parquet"))
    assert "urls/ has changed since this was made from it: run fetch again" in problems(run)


def test_a_broken_off_stage_is_found(run: Path) -> None:
    (run / "pages/manifest.json").unlink()
    assert "its stage was broken off" in problems(run)
