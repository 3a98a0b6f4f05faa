"""Kinds of archive files: the one that the documentation adds reads pages next to WARC files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.errors import UserError
from owt_pipeline.formats.warc import response_record
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import reader, rejects, responses
from tests.owt_pipeline.packages import install_documented, installed_packages
from tests.owt_pipeline.remedies import attempt
from tests.owt_pipeline.runs import manifest_of

HTML = [("Content-Type", "text/html")]


@pytest.fixture(autouse=True)
def _documented_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package of the documentation."""
    site = tmp_path / "site"
    site.mkdir()
    install_documented(site, "new-archive.md")
    with installed_packages(site, monkeypatch):
        yield


def saved(url: str, text: str) -> bytes:
    mark = f"<!-- saved from url=({len(url):04}){url} -->"
    return f"<!DOCTYPE html>\n{mark}\n<p>{text}</p>".encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a saved page and a WARC file."""
    folder = tmp_path / "archive"
    folder.mkdir()
    page = saved("http://a.example/saved", "kept in a browser")
    (folder / "Saved.HTML").write_bytes(page)
    record = response_record(
        "http://a.example/w", 5, "HTTP/1.1 200 OK", HTML, b"<p>kept in a WARC file</p>"
    )
    (folder / "w.warc.gz").write_bytes(record)
    return folder


def test_pages_of_another_kind_are_read_next_to_warc_files(folder: Path, write_urls: Write) -> None:
    runtime = write_urls([f"http://a.example/{name}" for name in ("saved", "w", "neither")])
    manifest, _ = run_stage(STAGE, Options(pages_from=(str(folder),)), runtime)

    bodies = {url: page.body for url, page in responses(runtime, manifest).items()}
    assert bodies["https://a.example/saved"] == (folder / "Saved.HTML").read_bytes()
    assert bodies["https://a.example/w"] == b"<p>kept in a WARC file</p>"
    files = {
        row["url"]: row["archive_file"] for row in reader(runtime, manifest).table().to_pylist()
    }
    assert files["https://a.example/saved"] == "Saved.HTML"
    assert list(rejects(runtime, manifest)) == ["https://a.example/neither"]


def test_a_file_that_its_kind_cannot_read_is_named_or_counted(
    folder: Path, write_urls: Write
) -> None:
    (folder / "bare.htm").write_bytes(b"<p>from nowhere</p>")
    runtime = write_urls(["http://a.example/saved"])
    with pytest.raises(UserError, match=r"bare\.htm.*no address of a page; save the page"):
        run_stage(STAGE, Options(pages_from=(str(folder),)), runtime)

    options = Options(pages_from=(str(folder),), allow_damaged=True)
    manifest, _ = run_stage(STAGE, options, runtime)
    assert "https://a.example/saved" in responses(runtime, manifest)
    (damaged,) = [file for file in manifest.properties["archives"] if file["broken"]]
    assert damaged["name"] == "bare.htm"


def test_both_options_of_archives_read_the_added_kind(folder: Path, tmp_path: Path) -> None:
    """A kind that one option takes must not be "not a WARC file" for the other."""
    run = tmp_path / "run"
    assert attempt(["run", run, "--warcs", folder, "--until", "collect"])[0] == 0
    assert manifest_of(run, "urls").counts.left == 2
