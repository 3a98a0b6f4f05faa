"""verify finds whatever is done to a run."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from owt_pipeline.commands.verify import verify
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime, Stage, StageRun, Step
from owt_pipeline.errors import command
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ROOT, FileTable
from tests.owt_pipeline.making import add_rows, write_dataset
from tests.owt_pipeline.runs import manifest_of, root_of, shard_file, table_of


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of a stage that has none."""


def write_urls(shard: int, writer: ShardWriter) -> None:
    """Write 40 URLs of a shard."""
    rows = [
        {"url_id": shard * 100 + number, "url": f"http://h{shard}/{number}"} for number in range(40)
    ]
    add_rows(writer, "urls", rows)


def fetch_shard(run: StageRun, shard: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    """Write the pages of a shard. Every fourth URL is rejected."""
    ids = range(shard * 100, shard * 100 + 40)
    rejects = [{"url_id": url_id, "reason": "robots"} for url_id in ids if url_id % 4 == 0]
    pages = [{"url_id": url_id} for url_id in ids if url_id % 4]
    add_rows(writer, "pages", pages, rejects)


class Fetching(Stage):
    """A stage in place of fetch, which makes its pages up."""

    name = "fetch"
    inputs = ("urls",)
    output = "pages"
    options = NoOptions
    version = 1
    steps = (Step(fetch_shard),)


FETCH = Fetching()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the datasets urls and pages in two shards."""
    runtime = Runtime(Storage(str(tmp_path)))
    write_dataset(runtime.workdir, "urls", write_urls, 2)
    run_stage(FETCH, NoOptions(), runtime)
    return tmp_path


def problems(folder: Path) -> str:
    """Return the problems that verify finds, a line each."""
    return "\n".join(line for finding in verify(Storage(str(folder))) for line in finding.problems)


def test_a_file_of_another_program_is_moved_out(run: Path) -> None:
    (run / "pages/.part.crc").write_bytes(b"hidden")
    (run / "pages/part-00001-0123abcd.parquet").write_bytes(b"of an interrupted run")
    foreign = run / "pages/copy of part.parquet"
    shutil.copyfile(shard_file(run, "pages", 0), foreign)
    (found,) = problems(run).splitlines()
    assert found.startswith(f"{foreign} does not belong to pages/")
    assert found.endswith("move it to another folder")
    shutil.move(foreign, run.parent / "copy.parquet")
    assert problems(run) == ""


def test_an_undamaged_run_verifies(run: Path) -> None:
    findings = verify(Storage(str(run)))
    results = [(finding.name, finding.problems, finding.notes) for finding in findings]
    assert results == [("urls", [], []), ("pages", [], [])]


@pytest.mark.parametrize(
    ("dataset", "shard", "kind"), [("urls", 1, "data"), ("pages", 0, "rejects")]
)
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_flipped_byte_is_found(
    run: Path, dataset: str, shard: int, kind: str, place: float
) -> None:
    path = shard_file(run, dataset, shard, kind)
    content = bytearray(path.read_bytes())
    content[round(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)
    assert f"{path} was changed after it was written" in problems(run)


def test_a_truncated_file_is_found_and_a_missing_one_noted(run: Path) -> None:
    truncated = shard_file(run, "pages", 0)
    missing = shard_file(run, "urls", 0)
    size = truncated.stat().st_size
    truncated.write_bytes(truncated.read_bytes()[:-1])
    missing.unlink()
    assert f"{truncated} has {size - 1:,} bytes, but its manifest records {size:,}" in problems(run)
    (urls, _) = verify(Storage(str(run)))
    assert urls.notes == ["1 of 4 files missing; a later run rebuilds them if it needs them"]


def rewrite(run: Path, path: Path, rows: pa.Table) -> None:
    """Replace a file, and make its manifest agree with its length and digest.

    Only its ids can show then that it was replaced.
    """
    pq.write_table(rows, path)
    content = path.read_bytes()
    name = path.relative_to(run)
    dataset = name.parts[0]
    records = []
    for record in table_of(run, dataset).records:
        files = []
        for file in record.files:
            if file.path == str(name):
                digest = hashlib.sha256(content).hexdigest()
                file = replace(file, bytes=len(content), sha256=digest)
            files.append(file)
        records.append(replace(record, files=files))
    table = FileTable(records)
    listed = table.to_parquet()
    manifest = manifest_of(run, dataset)
    (run / manifest.files.path).write_bytes(listed)
    file_list = replace(
        manifest.files, bytes=len(listed), sha256=hashlib.sha256(listed).hexdigest()
    )
    manifest = replace(manifest, files=file_list, digest=table.digest, totals=table.totals)
    root = root_of(run)
    (run / ROOT).write_bytes(replace(root, datasets={**root.datasets, dataset: manifest}).to_json())


@pytest.mark.parametrize(
    ("swapped", "problem"),
    [
        ({3: 999}, "shard 1: pages/ and its rejects lack 1 id of urls/, such as 105"),
        ({3: 999}, "shard 1: pages/ and its rejects have 1 id that urls/ lacks, such as 999"),
        ({1: 101}, "pages/ and its rejects have 1 id more than once, such as 101"),
    ],
)
def test_an_id_that_was_swapped_for_another_is_found(
    run: Path, swapped: dict[int, int], problem: str
) -> None:
    rows = pq.read_table(shard_file(run, "pages", 1))
    ids = rows["url_id"].to_pylist()
    for position, url_id in swapped.items():
        ids[position] = url_id
    rows = rows.set_column(0, rows.schema.field("url_id"), pa.array(ids, pa.uint64()))
    rewrite(run, shard_file(run, "pages", 1), rows)
    assert problem in problems(run)


def test_a_file_of_another_schema_is_found(run: Path) -> None:
    rows = pq.read_table(shard_file(run, "pages", 1))
    rewrite(run, shard_file(run, "pages", 1), rows.drop_columns(["status"]))
    assert f"{shard_file(run, 'pages', 1)} does not have the schema of" in problems(run)


def test_an_output_older_than_its_input_is_found(run: Path) -> None:
    rewrite(run, shard_file(run, "urls", 0), pq.read_table(shard_file(run, "urls", 0)))
    advice = f"urls/ changed since pages/ was built: run {command('owt', 'run', run)}"
    assert advice in problems(run)
