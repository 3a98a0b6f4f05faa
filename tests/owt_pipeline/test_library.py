"""The library's functions: their results, that the stages agree, and how they treat bad input."""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tqdm import tqdm

import owt_pipeline as owt
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.clean.documents import clean_batch
from owt_pipeline.stages.clean.options import Options as CleanOptions
from owt_pipeline.stages.extract.extractor import Page, Settings
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.conftest import REPOSITORY
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies, dedupe, write_clean

PROSE = (
    "This sentence is prose, and long enough to be taken for a part of an article about something. "
    * 6
)
HTML = f"""<html lang=en><head><title>A page</title><meta name=author content="Ada Writer"></head><body>
<nav><a href=/>Home</a> <a href=/x>More</a></nav><article><h1>A page</h1><p>{PROSE}</p></article></body></html>"""


def in_new_process(code: str) -> str:
    """Return what Python code prints in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_is_quick_and_loads_no_part_of_the_pipeline() -> None:
    code = "import sys, owt_pipeline; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = in_new_process(code)
    for library in ("apache_beam", "lxml", "pyarrow", "numpy", "msgspec", "schemas"):
        assert f"'{library}'" not in loaded


def test_no_function_loads_beam() -> None:
    code = f"""
import sys, owt_pipeline as owt
owt.canonical_url("http://a.example/"); owt.url_id("http://a.example/")
owt.extract({HTML!r}); owt.clean("a text"); owt.near_duplicates(["a", "b"], workers=1)
print("apache_beam" in sys.modules)"""
    assert in_new_process(code).split() == ["False"]


def test_public_names_are_in_all_and_documented() -> None:
    for name in owt.__all__:
        assert getattr(owt, name) is not None
        assert name in dir(owt)
    page = (Path(__file__).resolve().parents[2] / "docs" / "library.md").read_text()
    assert [name for name in owt.__all__ if name not in page] == []
    with pytest.raises(AttributeError):
        _ = owt.extraction


def test_extract_finds_text_and_metadata() -> None:
    extraction = owt.extract(HTML, "https://www.example.org/2021/03/04/a-page")
    assert extraction is not None
    assert PROSE.strip() in extraction.text
    assert "Home" not in extraction.text
    assert (extraction.title, extraction.author, extraction.date, extraction.language) == (
        "A page",
        "Ada Writer",
        "2021-03-04",
        "en",
    )
    longer = HTML.replace("</article>", f"<h2>Further prose</h2><p>{PROSE}</p></article>")
    in_markdown = owt.extract(longer, text_format="markdown")
    assert in_markdown is not None
    assert "\n\n## Further prose\n\n" in in_markdown.text


def test_extract_decodes_bytes_as_the_stage_does() -> None:
    text = HTML.replace("prose", "prosé").replace("<head>", "<head><meta charset=windows-1252>")
    assert owt.extract(text.encode("cp1252")) == owt.extract(text)


@pytest.mark.parametrize("page", ["", b"", b"%PDF-1.7 and so on", "<p></p>", b"\x00\x01\x02" * 100])
def test_extract_returns_none_for_a_page_without_text(page: str | bytes) -> None:
    assert owt.extract(page) is None


@pytest.mark.parametrize("page", [None, ["<p>"], bytearray(b"<p>")])
def test_page_of_another_type_is_a_type_error(page: object) -> None:
    with pytest.raises(TypeError, match="a page is text or bytes"):
        owt.extract(page)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a page is text or bytes"):
        list(owt.Extractor().map([HTML, page]))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: owt.extract(HTML, favour="precision"), "did you mean 'favor'"),
        (lambda: owt.Extractor(extractor="nope"), "is not one of blocks, trafilatura"),
        (lambda: owt.clean("a text", min_token=3), "did you mean 'min_tokens'"),
        (lambda: owt.Cleaner(languages=("xx",)), "is not a known language"),
        (lambda: owt.near_duplicates(["a"], treshold=0.5), "did you mean 'threshold'"),
    ],
)
def test_unknown_options_suggest_the_right_one(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def hostile(settings: Settings):  # type: ignore[no-untyped-def]
    """Return an extractor that does what the page demands: it dies, hangs or uses up memory."""

    def extract(page: Page) -> owt.Extracted | None:
        if page.html == "die":
            os._exit(9)
        if page.html == "hang":
            while True:
                pass
        if page.html == "eat":
            blocks = [bytes(1 << 20) for _ in range(4096)]
            return owt.Extracted(str(len(blocks)))
        return owt.Extracted(page.html)

    return extract


@pytest.mark.slow
def test_a_hostile_page_costs_only_that_page() -> None:
    pages = ["one", "die", "two", "hang", "eat", ("three", "https://example.org/"), ""]
    extractor = owt.Extractor(
        isolated=True,
        workers=2,
        extractor=f"{__name__}:hostile",
        page_cpu_seconds=0.5,
        page_memory_mb=256,
    )
    results = []
    for result in extractor.map(pages):
        is_extracted = isinstance(result, owt.Extracted)
        results.append(result.text if is_extracted else str(result.reason))
    assert results == [
        "one",
        "extract_crash",
        "two",
        "extract_timeout",
        "extract_memory",
        "three",
        "no_text",
    ]


def test_isolated_and_plain_extraction_find_the_same(testdata: Path) -> None:
    with gzip.open(testdata / "web" / "readability-pages.jsonl.gz") as file:
        pages = [json.loads(line)["html"] for _, line in zip(range(20), file, strict=False)]
    plain = owt.Extractor()
    isolated = owt.Extractor(isolated=True, workers=2)
    assert list(isolated.map(pages)) == list(plain.map(pages))
    assert [owt.extract(page) for page in pages] == list(plain.map(pages))


def test_clean_decides_as_the_stage() -> None:
    texts = [
        Path(owt.__file__).with_name("library.py").read_text(),
        "short",
        "Das ist ein deutscher Text, der lang genug ist. " * 30,
        "same words " * 300,
    ]
    options = {"filters": ("gopher_repetition",)}
    cleaner = owt.Cleaner(**options)
    results = [cleaner(text) for text in texts]
    reasons = [result.reason for result in results]
    assert reasons == [None, "too_short", "wrong_language", "gopher_repetition"]
    assert results[3].detail
    assert results[0].signals["gopher_quality"]["stop_words"] >= 2
    schema = DATASETS["documents"].schema
    rows = schema.empty_table().to_pandas().reindex(range(len(texts)))
    rows["text"] = texts
    rows["url_id"] = range(len(texts))
    rows["subreddits"] = [[] for _ in texts]
    batch = pa.RecordBatch.from_pandas(rows, schema, preserve_index=False)
    outcome = clean_batch(batch, CleanOptions(**options))  # type: ignore[arg-type]
    assert outcome.kept["text"].to_pylist() == [results[0].text]
    assert outcome.rejects["reason"].to_pylist() == reasons[1:]
    assert outcome.rejects["detail"].to_pylist() == [result.detail for result in results[1:]]


@pytest.mark.parametrize("text", [None, b"bytes", float("nan")])
def test_another_type_than_text_is_a_type_error(text: object) -> None:
    with pytest.raises(TypeError, match="a text is a str"):
        owt.clean(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_near_duplicates_decides_as_the_stage(tmp_path: Path, workers: int) -> None:
    texts = corpus_with_copies(seed=5, documents=300)
    write_clean(tmp_path, texts, url_id=range(len(texts)))
    dedupe(tmp_path)
    stage = DatasetReader.open(Storage(str(tmp_path)), "duplicates").table().sort_by("url_id")
    removed = owt.near_duplicates(texts, workers=workers)
    assert removed["row"].to_pylist() == stage["url_id"].to_pylist()
    assert removed["kept_row"].to_pylist() == stage["kept_url_id"].to_pylist()
    assert removed["similarity"].equals(stage["similarity"])
    assert removed["rule"].to_pylist() == stage["rule"].to_pylist()
    # A cluster has one kept row, and a kept row one cluster.
    pairs = {(row["kept_row"], row["cluster"]) for row in removed.to_pylist()}
    kept_rows = {kept_row for kept_row, _ in pairs}
    clusters = {cluster for _, cluster in pairs}
    assert len(pairs) == len(kept_rows) == len(clusters)


def test_near_duplicates_takes_columns_and_files_of_any_kind(tmp_path: Path) -> None:
    texts: list[str | None] = [*corpus_with_copies(seed=6, documents=60)]
    texts[7] = None
    expected = owt.near_duplicates(texts, workers=1)
    assert len(expected) > 5
    table = pa.table({"body": texts})
    pq.write_table(table.slice(0, 20), tmp_path / "a.parquet", row_group_size=7)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in texts[20:])
    columns = (
        tuple(texts),
        pa.array(texts),
        pa.array(texts, pa.large_string()),
        pa.array(texts).dictionary_encode(),
        table["body"],
        pa.chunked_array([pa.array(texts[:11]), pa.array(texts[11:])]),
        pd.Series(texts),
        pl.Series(texts),
        pl.Series(texts, dtype=pl.Categorical),
        np.array(texts, dtype=object),
        pd.Index(texts),
        deque(texts),
        (text for text in texts),
    )
    for column in columns:
        assert owt.near_duplicates(column, workers=1).equals(expected), type(column)
    files = [tmp_path / "a.parquet", tmp_path / "b.jsonl.gz"]
    assert owt.near_duplicates(files, text_field="body", workers=1).equals(expected)


def test_progress_is_shown_by_those_who_wrap_the_texts(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # Logging is as in a new program, also after a test that called `owt` in this process.
    caplog.set_level(logging.WARNING, "owt")
    texts = ["one two three four five six"] * 3 + ["seven eight nine ten eleven twelve"]
    pages = [(HTML, "https://example.org/a")] * 2
    expected = owt.near_duplicates(texts, workers=1)
    found = list(owt.Extractor().map(pages))
    assert capsys.readouterr() == ("", ""), "the library prints nothing by itself"
    assert owt.near_duplicates(tqdm(texts), workers=1).equals(expected)
    assert "4/4" in capsys.readouterr().err
    assert list(tqdm(owt.Extractor().map(pages), total=len(pages))) == found
    assert "2/2" in capsys.readouterr().err


def test_near_duplicates_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owt.near_duplicates(["a text", "a text"], workers=1)
    with pytest.raises(ValueError, match="no field 'text'"):
        (tmp_path / "x.jsonl").write_text('{"body": "a"}\n')
        owt.near_duplicates(tmp_path / "x.jsonl", workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_near_duplicates_without_texts_are_an_empty_table() -> None:
    for texts in ([], [None], pa.array([], pa.string()), [""]):
        assert owt.near_duplicates(texts, workers=1).num_rows == 0
    assert owt.near_duplicates([]).schema.names == [
        "row",
        "kept_row",
        "cluster",
        "similarity",
        "rule",
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "texts is str"),
        ({"text": "a"}, "texts is dict"),
        (["a", 7], r"texts\[1\] is int"),
        (["a", float("nan")], r"texts\[1\] is float"),
        (pa.array([1, 2]), "a column of int64"),
    ],
)
def test_another_type_than_texts_is_a_type_error(texts: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        owt.near_duplicates(texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": 7}', "a.jsonl:1: 'text' is int"),
        ("a.jsonl", '{"text": "a"}\n{"text"', "a.jsonl:2: not JSON"),
        ("a.parquet", "no parquet", "cannot be read as Parquet"),
        ("a.doc", "text", "unknown extension"),
    ],
)
def test_file_that_cannot_be_read_is_a_value_error(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        owt.near_duplicates(tmp_path / name)


def test_half_of_a_surrogate_pair_is_a_text_like_any_other() -> None:
    removed = owt.near_duplicates(["a \ud800 b c", "a \ud800 b c"], workers=1)
    assert removed["kept_row"].to_pylist() == [0]


def test_a_url_has_a_canonical_form_and_an_id() -> None:
    url = "HTTP://www.Example.com:80/a/../b%7e/?utm_source=x&id=1#top"
    assert owt.canonical_url(url) == "https://example.com/b~?id=1"
    assert owt.url_id(url) == owt.url_id("https://example.com/b~?id=1")
    with pytest.raises(owt.BadURL, match="neither http nor https"):
        owt.canonical_url("ftp://example.org/")
    with pytest.raises(TypeError):
        owt.url_id(None)  # type: ignore[arg-type]


def test_extraction_of_one_page_does_not_wait_for_others() -> None:
    started = time.monotonic()

    def pages():  # type: ignore[no-untyped-def]
        yield HTML
        raise RuntimeError(f"drawn after {time.monotonic() - started:.0f} s")

    results = owt.Extractor().map(pages())
    assert isinstance(next(results), owt.Extracted)


def test_line_ends_of_windows_change_nothing() -> None:
    assert owt.extract(HTML.replace("\n", "\r\n")) == owt.extract(HTML)
    text = (PROSE + "\n" + PROSE) * 2
    assert owt.clean(text.replace("\n", "\r\n")).text == owt.clean(text).text
    removed = owt.near_duplicates([text, text.replace("\n", "\r\n")], workers=1)
    assert removed["rule"].to_pylist() == ["exact"]


def test_threads_and_a_forked_process_share_the_library(tmp_path: Path) -> None:
    """The test has a process of its own, since it forks."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import os
from concurrent.futures import ThreadPoolExecutor
import owt_pipeline as owt

def work(number):
    isolated = owt.Extractor(isolated=True, workers=1)
    titles = [page.title for page in isolated.map([{HTML!r}])]
    return owt.near_duplicates(["a b c"] * 3, workers=1).num_rows, titles

with ThreadPoolExecutor(2) as pool:
    results = list(pool.map(work, range(2)))
if (child := os.fork()) == 0:
    os._exit(0 if work(0) == results[0] else 1)
print(results, os.waitpid(child, 0)[1])
""")
    process = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, timeout=120
    )
    assert process.stdout.strip() == "[(2, ['A page']), (2, ['A page'])] 0"


@pytest.mark.parametrize("place", ["schemas.py", "schemas/__init__.py"])
def test_a_schemas_module_of_the_program_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("class User: pass\n")
    code = "import schemas\nimport owt_pipeline as owt\nowt.canonical_url('http://example.org/')"
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    last_line = process.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ImportError: owt_pipeline needs its package `schemas`, but this")
    assert str(tmp_path / place) in last_line
