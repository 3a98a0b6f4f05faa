"""The folder of a dataset opens directly in common readers, since it holds nothing but rows."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.conftest import REPOSITORY
from tests.owt_pipeline.making import publish_rows
from tests.owt_pipeline.runs import manifest_of

datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
pandas = pytest.importorskip("pandas", reason="pandas is not installed")

PARQUET = [name for name, dataset in DATASETS.items() if dataset.format == "parquet"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package datasets uses no network, and a cache of the test."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


READERS: dict[str, Callable[[str], int]] = {
    "pyarrow": lambda folder: pq.read_table(folder).num_rows,
    "pandas": lambda folder: len(pandas.read_parquet(folder)),
    "polars": lambda folder: polars.scan_parquet(folder).collect().height,
    "duckdb, folder": lambda folder: len(
        duckdb.sql(f"select * from read_parquet('{folder}')").fetchall()
    ),
    "duckdb, glob": lambda folder: len(
        duckdb.sql(f"select * from '{folder}/**/*.parquet'").fetchall()
    ),
    "datasets": lambda folder: datasets.load_dataset(folder, split="train").num_rows,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", PARQUET)
def test_every_parquet_dataset_opens_as_a_folder(small_run: Path, name: str, reader: str) -> None:
    assert READERS[reader](str(small_run / name)) == manifest_of(small_run, name).total("data").rows


@pytest.mark.parametrize("name", [*PARQUET, "tokens"])
def test_the_rejects_open_as_a_folder(small_run: Path, name: str) -> None:
    rejects = manifest_of(small_run, name).total("rejects").rows
    assert polars.scan_parquet(small_run / "ledger" / name / "rejects").collect().height == rejects


def test_arrow_readers_open_the_tokens_as_a_folder(small_run: Path) -> None:
    rows = manifest_of(small_run, "tokens").total("data").rows
    folder = str(small_run / "tokens")
    assert pyarrow.dataset.dataset(folder, format="ipc").count_rows() == rows
    assert polars.scan_ipc(folder).collect().height == rows
    splits = datasets.load_dataset(folder)
    stats = manifest_of(small_run, "tokens").stats
    assert {name: split.num_rows for name, split in splits.items()} == {
        "train": stats["documents_train"],
        "validation": stats["documents_val"],
    }


def blocks_of(page: str) -> dict[str, str]:
    """Return the Python blocks of a page by their section and number."""
    text = (REPOSITORY / "docs/how-to" / page).read_text()
    section = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    block = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    code_by_name = {}
    for heading, body in section.findall(text):
        for number, code in enumerate(block.findall(body), 1):
            code_by_name[f"{heading}, {number}"] = code
    return code_by_name


def texts_of(run: Path) -> list[list[str]]:
    """Return the texts of each file of the corpus."""
    return [pq.read_table(file)["text"].to_pylist() for file in sorted((run / "corpus").iterdir())]


OPENING = blocks_of("opening-tokens.md")
COMING = blocks_of("coming-from.md")
READS: dict[str, Callable[[dict[str, Any], Path], bool]] = {
    "nanochat, 1": lambda names, run: names["texts"] == [*itertools.chain(*texts_of(run)[:-1])],
    "nanoGPT, 1": lambda names, run: (
        names["ends"] == manifest_of(run, "tokens").stats["documents_train"]
    ),
    "NeMo Curator, 1": lambda names, run: len(names["frame"]) == sum(map(len, texts_of(run))),
}


@pytest.mark.parametrize("name", [*OPENING, *READS])
def test_the_guides_to_reading_a_result_work_as_written(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code = OPENING.get(name) or COMING[name]
    if "torch" in code or "trainer" in code:
        pytest.importorskip("torch", reason="training needs torch")
    (tmp_path / "run").symlink_to(small_run)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, name, "exec"), names)
    if "rows" in names:
        assert names["rows"] == manifest_of(small_run, "tokens").stats["documents_train"]
    assert name not in READS or READS[name](names, small_run)


def test_the_ranks_of_nanochat_share_each_file(tmp_path: Path) -> None:
    """Each of eight ranks has row groups of every file. Together they read each document once."""
    rng = random.Random(1)
    # These are 10 MB of text, so that the file has many row groups.
    rows = [
        {"url_id": number, "text": rng.randbytes(2000).hex(), "n_words": 1}
        for number in range(2500)
    ]
    publish_rows(Storage(str(tmp_path)), "corpus", rows)
    (file,) = map(pq.ParquetFile, (tmp_path / "corpus").iterdir())
    all_ids = []
    for rank in range(8):
        ids_of_rank = []
        for group in range(rank, file.num_row_groups, 8):
            ids_of_rank += file.read_row_group(group)["url_id"].to_pylist()
        assert ids_of_rank
        all_ids += ids_of_rank
    assert sorted(all_ids) == list(range(2500))
