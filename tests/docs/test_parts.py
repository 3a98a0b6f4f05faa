"""The examples of "Use the parts in your code" and "Coming from" run as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import owt_pipeline as owt
from schemas import DATASETS
from tests.owt_pipeline.conftest import small_config, small_run  # noqa: F401

# `make test-parts` runs them.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def example(title: str, page: str) -> str:
    """Return the code of a section of a page."""
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with texts and pages as JSON lines. Five texts nearly repeat others."""
    texts = [
        path.read_text()[:3000].replace("<", "")
        for path in sorted((ROOT / "docs" / "how-to").glob("*.md"))[:12]
    ]
    texts += [f"{text} And more." for text in texts[:5]]
    (tmp_path / "posts.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    urls = [f"https://example.org/2020/01/{i % 9 + 1:02}/x" for i in range(len(texts))]
    pages = [{"url": url, "html": f"<p>{text}</p>"} for url, text in zip(urls, texts, strict=True)]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    return tmp_path


def run(
    folder: Path,
    title: str,
    then: str,
    python: str = sys.executable,
    page: str = "parts.md",
    **environment: str,
) -> str:
    """Run an example in a folder with its input; return the printed value of `then`.

    The example is a file without a main guard, as a user may write it.
    """
    (folder / "example.py").write_text(f"{example(title, page)}\nprint('RESULT', {then})\n")
    variables = {
        **os.environ,
        "HF_HOME": str(folder / "hf"),
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    command = [python, "example.py"]
    process = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.rpartition("RESULT ")[2].strip()


def texts_of(folder: Path) -> list[str]:
    """Return the texts of a folder's posts."""
    return [json.loads(line)["text"] for line in (folder / "posts.jsonl").read_text().splitlines()]


def test_datasets_polars_and_pandas(folder: Path) -> None:
    texts = texts_of(folder)
    cleaned = [result.text for text in texts if not (result := owt.clean(text)).reason]
    unique = len(cleaned) - len(owt.near_duplicates(cleaned, workers=1))
    assert 0 < unique < len(cleaned)
    assert run(folder, "Hugging Face datasets", "len(dataset)") == str(unique)
    duplicates = owt.near_duplicates(texts, workers=1)
    num_unique = len(texts) - len(duplicates)
    num_clusters = len(set(duplicates["kept_row"].to_pylist()))
    assert run(folder, "Polars", "len(unique), len(clusters)") == f"{num_unique} {num_clusters}"
    assert run(folder, "pandas", "len(pages), pages['date'].iloc[0]").startswith(
        f"{num_unique} 2020-01-0"
    )


def test_beam(folder: Path) -> None:
    pages = [json.loads(line) for line in (folder / "pages.jsonl").read_text().splitlines()]
    extracted = [owt.extract(page["html"], page["url"]) for page in pages]
    texts = [page.text for page in extracted if page]
    kept_texts = [text for text in texts if owt.clean(text, min_tokens=50).reason is None]
    counted = "[open(name).read().count(chr(10)) for name in ('texts.jsonl', 'rejects.txt')]"
    num_kept = len(kept_texts)
    assert num_kept > 0
    assert run(folder, "Beam", counted) == str([num_kept, len(pages) - num_kept])


@pytest.fixture(scope="module")
def parts() -> dict[str, str]:
    """The Python that has the frameworks, and what the library needs; not Beam."""
    python = ROOT / ".venv-parts" / "bin" / "python"
    if not (ROOT / ".venv-parts" / "installed").exists():
        pytest.skip("no .venv-parts: make test-parts")
    return {"python": str(python), "RAY_USAGE_STATS_ENABLED": "0", "SPARK_LOCAL_IP": "127.0.0.1"}


def test_datatrove(folder: Path, parts: dict[str, str], small_run: Path) -> None:  # noqa: F811
    text = texts_of(folder)[0]
    (folder / "documents.py").write_text(
        f"from datatrove.data import Document\nBOTH = [Document(t, '') for t in ('short', "
        f"{text!r})]"
    )
    judged = "[OwtFilter().filter(document) for document in __import__('documents').BOTH]"
    assert run(folder, "datatrove", judged, **parts) == "[(False, 'too_short'), True]"
    (folder / "run").symlink_to(small_run)
    num_rows = count_rows(small_run / "corpus")
    counted = "len(documents), len({document.id for document in documents})"
    printed = run(folder, "datatrove", counted, page="coming-from.md", **parts)
    assert printed == f"{num_rows} {num_rows}"


def count_rows(folder: Path) -> int:
    """Return the number of rows in a folder of Parquet files."""
    return sum(pq.ParquetFile(file).metadata.num_rows for file in folder.iterdir())


def test_pyspark(folder: Path, parts: dict[str, str], small_run: Path) -> None:  # noqa: F811
    """The example works, and Spark reads every dataset of a run as a folder."""
    if shutil.which("java") is None:
        pytest.skip("no java: Spark needs 17 or later")
    datasets = [
        small_run / name for name, dataset in DATASETS.items() if dataset.format == "parquet"
    ]
    num_rows = [count_rows(dataset) for dataset in datasets]
    counted = (
        f"[texts.count(), *(spark.read.parquet(name).count() for name in "
        f"{list(map(str, datasets))})]"
    )
    assert run(folder, "PySpark", counted, **parts) == str([len(texts_of(folder)), *num_rows])


def test_ray_data(folder: Path, parts: dict[str, str]) -> None:
    num_kept = sum(owt.clean(text, min_tokens=50).reason is None for text in texts_of(folder))
    assert num_kept > 0
    assert run(folder, "Ray Data", "kept.count()", **parts) == str(num_kept)


NOTEBOOK = ROOT / "docs" / "notebooks" / "parts.ipynb"
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def test_notebook(tmp_path: Path, small_run: Path, parts: dict[str, str]) -> None:  # noqa: F811
    (tmp_path / "demo-run" / "report").mkdir(parents=True)
    shutil.copy(small_run / "report" / "stats.json", tmp_path / "demo-run" / "report")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
    command = [parts["python"], "-c", EXECUTE, str(NOTEBOOK), "executed.ipynb"]
    process = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    for path in (tmp_path / "executed.ipynb", NOTEBOOK):
        notebook = json.loads(path.read_text())
        outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
        streams = [output for output in outputs if output["output_type"] == "stream"]
        printed = "".join("".join(stream["text"]) for stream in streams)
        assert printed.startswith("A docstring | Ada Writer | 2021-03-04 | en\n")
        assert re.search(r"^\d+ texts, of which \d+ repeat another$", printed, re.MULTILINE)
        pictures = [output for output in outputs if "image/png" in output.get("data", {})]
        assert len(pictures) == 2
    assert len(NOTEBOOK.read_bytes()) < 100_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", NOTEBOOK.read_text())
