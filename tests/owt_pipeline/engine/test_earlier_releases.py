"""What a release without some fields or options wrote is read, verified and finished for this one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import schemas
from owt_pipeline.clean.stage import STAGE as CLEAN
from owt_pipeline.clean.stage import Options as CleanOptions
from owt_pipeline.commands.verify import verify
from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.plan import Plan, difference
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.engine.storage import Storage
from schemas import DATASETS, option
from schemas.settings import shaping_options
from tests.owt_pipeline.making import write_dataset

TEXT = "All of this text stays as it was when it was written by an earlier release. " * 30


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A run whose documents/ have the fields of an earlier release."""
    now = DATASETS["documents"]
    before = dataclasses.replace(
        now, schema=pa.schema([field for field in now.schema if field.name not in now.added]), added=frozenset()
    )

    def write(shard: int, writer: ShardWriter) -> None:
        rows = [{"url_id": i, "url": f"https://a.example/{i}", "text": TEXT, "subreddits": []} for i in range(3)]
        writer.enter(len(rows))
        writer.write(pa.RecordBatch.from_pylist(rows, before.schema))

    with monkeypatch.context() as patch:
        patch.setitem(schemas.DATASETS, "documents", before)
        write_dataset(Storage(str(tmp_path)), "documents", write)
    return Runtime(Storage(str(tmp_path)))


def test_fields_that_an_earlier_release_lacks_are_read_as_nulls(earlier: Runtime) -> None:
    reader = DatasetReader.open(earlier.workdir, "documents")
    assert "source" not in reader.schema(reader.files("data")[0]).names
    table = reader.table()
    assert table.schema == DATASETS["documents"].schema
    assert table["source"].null_count == table["fetched_at"].null_count == 3
    assert table["url_id"].to_pylist() == [0, 1, 2]
    for columns in (["source"], ["source", "url_id"], ["url", "fetched_at", "text"]):
        batches = list(reader.batches(columns=columns, rows=2))
        assert [batch.num_rows for batch in batches] == [2, 1]
        assert all(batch.schema.names == columns for batch in batches)
        assert reader.table(columns=columns).equals(table.select(columns))


def test_an_earlier_release_s_dataset_is_verified_and_the_next_stage_made_from_it(earlier: Runtime) -> None:
    assert [finding.problems for finding in verify(earlier.workdir)] == [[]]
    manifest = run_stage(CLEAN, CleanOptions(), earlier)[0]
    assert manifest.counts.left == 3
    made = DatasetReader(earlier.workdir, manifest)
    assert made.schema(made.files("data")[0]) == DATASETS["clean"].schema
    assert [finding.problems for finding in verify(earlier.workdir)] == [[], []]


@dataclass(frozen=True)
class Options:
    delay: float = option(1.0, "an option that always was")
    choice: str = option("nearest", "an option that came later", added=True)


def test_an_option_that_was_added_is_in_the_fingerprint_only_where_it_is_not_the_default() -> None:
    assert shaping_options(Options()) == {"delay": 1.0}
    assert shaping_options(Options(choice="latest")) == {"delay": 1.0, "choice": "latest"}
    before, later = (Plan("fetch", 1, shaping_options(options), {}, [], {}) for options in
                     (Options(), Options(choice="latest")))  # fmt: skip
    assert difference(before, later) == "choice is 'latest', was None"
    assert difference(later, before) == "choice is None, was 'latest'"
