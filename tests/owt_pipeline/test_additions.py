"""Installed packages add sources, archives, filters and extractors by entry points."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.owt_pipeline.packages import install, install_documented, uninstall
from tests.owt_pipeline.runs import run_owt

REPOSITORY = Path(__file__).resolve().parents[2]
URL = "http://a.example/river"
TEXT = "The river has frozen for the first time in eleven years, from the mill to the harbour."
PAGE = f"""<!DOCTYPE html>
<!-- saved from url=({len(URL):04}){URL} -->
<html><body><p>{TEXT}</p></body></html>
"""
TINY = """
[project]
name = "owt-tiny"
version = "{}"

[project.entry-points."owt_pipeline.filters"]
letters = "owt_tiny:count_letters"

[project.entry-points."owt_pipeline.extractors"]
paragraphs = "owt_tiny:paragraphs"
"""
TINY_MODULE = """
from owt_pipeline import Extracted

def count_letters(text):
    return sum(map(str.isalpha, text))

def paragraphs(settings):
    def extract(page):
        parts = [part.partition("</p>")[0] for part in page.html.split("<p>")[1:]]
        return Extracted("\\n".join(parts)) if parts else None
    return extract
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the search path with the documented packages and one of a test."""
    site = tmp_path / "site"
    site.mkdir()
    install_documented(site, "new-source.md")
    install_documented(site, "new-archive.md")
    install(site, TINY.format("1.0"), TINY_MODULE)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{REPOSITORY}")
    return site


def test_a_run_uses_the_kinds_and_functions_of_packages(site: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text(f'<DL><p>\n<DT><A HREF="{URL}">River</A>\n')
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/river.html").write_text(PAGE)
    run = tmp_path / "run"
    words = ["run", run, "--until", "clean", "--workers", 2]
    sources = ["--links", tmp_path / "mine.html", "--pages_from", tmp_path / "saved"]
    functions = ["--extractor", "paragraphs", "--signals", "letters>=10"]
    limits = ["--num_shards", 1, "--min_tokens", 1, "--languages", "all"]
    run_owt(*words, *sources, *functions, *limits)
    (row,) = pq.read_table(run / "clean").to_pylist()
    assert row["text"] == TEXT
    num_letters = sum(map(str.isalpha, TEXT))
    assert row["own_signals"] == [{"name": "letters", "value": num_letters}]

    # Another version of a package runs what it shapes.
    assert " of 1 " not in run_owt(*words, "--dry_run")
    install(site, TINY.format("1.1"), TINY_MODULE)
    plan = run_owt(*words, "--dry_run")
    assert re.search(
        r"fetch +finished +pages.*\nextract +finished +1 of 1 .* paragraphs changed", plan
    ), plan
    install_documented(site, "new-archive.md", "1.1")
    assert re.search(
        r"collect +finished +urls.*\nfetch +finished +1 of 1 ", run_owt(*words, "--dry_run")
    )
    install_documented(site, "new-source.md", "1.1")
    assert re.search(r"collect +finished +1 of 1 ", run_owt(*words, "--dry_run"))
    uninstall(site, "owt-tiny")
    assert "'paragraphs' is not one of blocks, trafilatura" in run_owt(*words, code=1)


def test_a_package_that_cannot_be_loaded_is_named(site: Path, tmp_path: Path) -> None:
    project = TINY.format("1.0").replace("owt_pipeline.filters", "owt_pipeline.archives")
    install(site, project, TINY_MODULE)
    (tmp_path / "links.txt").write_text("http://a.example/\n")
    (tmp_path / "w.warc.gz").write_bytes(b"")
    words = ["run", tmp_path / "run", "--warcs", tmp_path / "w.warc.gz", "--until", "collect"]
    output = run_owt(*words, code=1)
    assert "owt-tiny 1.0 adds letters to owt_pipeline.archives, which cannot be loaded" in output
    assert "install another version of the package, or uninstall it" in output
    uninstall(site, "owt-tiny")
    run_owt("run", tmp_path / "run", "--links", tmp_path / "links.txt", "--until", "collect")
