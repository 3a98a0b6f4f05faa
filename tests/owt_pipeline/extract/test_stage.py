"""The stage `extract` on real pages writes the same bytes however it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import owt_pipeline as owt
from owt_pipeline.cli import main
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.extract.built_in import BUILT_IN, BuiltIn, Settings, TextFunction
from owt_pipeline.stages.extract.content.model import digest
from owt_pipeline.stages.extract.extractor import sources
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.stage import STAGE
from owt_pipeline.storage.folder import Storage
from schemas.settings import describe
from tests.owt_pipeline.runs import differing

Pages = dict[str, tuple[bytes, str]]


def documents(workdir: Path) -> dict[str, dict]:
    """Return the documents of a run by their URLs."""
    reader = DatasetReader.open(Storage(str(workdir)), "documents")
    return {row["url"]: row for row in reader.table().to_pylist()}


def test_workers_batches_and_shards_change_no_document(
    tmp_path: Path, real_pages: Pages, pages_writer: Callable[..., None]
) -> None:
    pages = dict(list(real_pages.items())[:60])
    documents_of_runs = []
    for name, workers, shards in (("one", 1, 2), ("two", 2, 2), ("other", 2, 3)):
        order = pages if name != "other" else dict(reversed(pages.items()))
        pages_writer(tmp_path / name, order, shards)
        run_stage(STAGE, Options(), Runtime(Storage(str(tmp_path / name)), workers))
        documents_of_runs.append(documents(tmp_path / name))
    first, second, third = documents_of_runs
    assert first == second == third
    assert len(first) > 55
    assert differing(tmp_path / "one", tmp_path / "two") == []


@pytest.mark.parametrize("extractor", ["blocks", "trafilatura"])
def test_a_row_has_markdown_and_metadata_of_its_submission(
    tmp_path: Path, pages_writer: Callable[..., None], extractor: str
) -> None:
    body = (
        "<html lang=de><meta "
        "charset=windows-1252><title>Größe</title><body><article><h2>Füchse</h2><p>"
        + "Dieser Satz ist lang genug, um für den Teil eines Artikels gehalten zu werden. " * 5
        + "<ul><li>Ein Punkt.<li>Noch einer.</ul>"
    ).encode("cp1252")
    pages_writer(
        tmp_path, {"http://h/a": (body, "text/html"), "http://h/b": (b"<p>", "text/html")}, 1
    )
    manifest, _ = run_stage(
        STAGE, Options(extractor=extractor, text_format="markdown"), Runtime(Storage(str(tmp_path)))
    )
    (row,) = documents(tmp_path).values()
    assert row["text"].startswith("## Füchse\n\nDieser Satz ist lang genug, um für den Teil")
    assert row["text"].rstrip().endswith("\n\n- Ein Punkt.\n- Noch einer.")
    assert (row["title"], row["language"], row["score"], row["subreddits"]) == (
        "Größe",
        "de",
        3,
        ["a", "b"],
    )
    assert str(manifest.counts) == "2 in = 1 out + 1 no_text"
    assert manifest.stats == {"charset_cp1252": 1}
    assert [source["sha256"] for source in manifest.sources] == [digest()] * (extractor == "blocks")


def test_an_entry_is_all_that_a_built_in_extractor_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = BuiltIn("the longest line", make_text_function=longest_line, preload=("difflib",))
    monkeypatch.setitem(BUILT_IN, "longest", entry)
    page = "<title>Foxes</title>\n<p>Short.</p>\n<p>A line that is longer than the others.</p>\n"
    document = owt.extract(page, extractor="longest")
    assert document is not None
    assert (document.text, document.title) == ("A line that is longer than the others.", "Foxes")
    assert owt.extract("\n", extractor="longest") is None
    assert sources("longest") == []
    assert STAGE.preload(Options(extractor="longest"))[-1] == "difflib"


def longest_line(settings: Settings) -> TextFunction:
    return lambda html, url: max(html.split("\n"), key=len).strip("</p>")


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_extractor_is_in_the_help(name: str) -> None:
    (help_text,) = (help_ for field, _, _, help_ in describe(Options) if field == "extractor")
    assert f"{name} ({BUILT_IN[name].description})" in help_text


def test_blocks_left_out_of_a_very_long_page_are_counted(
    tmp_path: Path, pages_writer: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    body = "<html><body><article>" + "".join(
        f"<p>A sentence, number {n}, of many." for n in range(50_003)
    )
    short = (
        b"<article>"
        + b"<p>A sentence that is long enough to be taken for a part of an article.</p>" * 5
    )
    pages = {
        "https://h.example/a": (body.encode(), "text/html"),
        "https://h.example/b": (short, "text/html"),
    }
    pages_writer(tmp_path, pages, 1)
    manifest, _ = run_stage(STAGE, Options(), Runtime(Storage(str(tmp_path))))
    rows = documents(tmp_path)
    assert [row["blocks_left_out"] for row in rows.values()] == [3, None]
    assert manifest.stats["pages_cut"] == 1
    assert main(["why", str(tmp_path), "https://h.example/a"]) == 0
    assert "  blocks_left_out: 3\n" in capsys.readouterr().out
