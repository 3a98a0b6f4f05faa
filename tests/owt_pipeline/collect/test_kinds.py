"""Kinds of sources: the one that the documentation adds is collected next to the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.collect import sources
from owt_pipeline.stages.collect.dumps import Dump
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.stages.collect.stage import STAGE
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.packages import install_documented, installed_packages

BOOKMARKS = """<!DOCTYPE NETSCAPE-Bookmark-file-1>
<DL><p>
<DT><A HREF="http://a.example/x?a=1&amp;b=2" ADD_DATE="1300000000">Fish &amp; chips</A>
<DT><A HREF="http://b.example/" ICON="data:">No date</A>
<DT><A HREF="javascript:void(0)">No page</A>
"""


@pytest.fixture
def _documented_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package of the documentation."""
    site = tmp_path / "site"
    site.mkdir()
    install_documented(site, "new-source.md")
    with installed_packages(site, monkeypatch):
        yield


@pytest.mark.usefixtures("_documented_kind")
def test_sources_of_another_kind_are_collected_next_to_tables(tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text(BOOKMARKS)
    (tmp_path / "links.csv").write_text("url,source\nhttp://c.example/,hn\n")
    options = Options(links=(str(tmp_path / "mine.html"), str(tmp_path / "links.csv")))
    runtime = Runtime(Storage(str(tmp_path / "run")))
    manifest, _ = run_stage(STAGE, options, runtime)

    rows = DatasetReader(runtime.workdir, manifest).table().to_pylist()
    fields_by_url = {
        row["url"]: (row["title"], row["created_utc"], row["link_sources"])
        for row in sorted(rows, key=lambda row: row["url"])
    }
    assert fields_by_url == {
        "https://a.example/x?a=1&b=2": ("Fish & chips", 1_300_000_000, ["bookmarks"]),
        "https://b.example/": ("No date", None, ["bookmarks"]),
        "https://c.example/": (None, None, ["hn"]),
    }
    assert [source["kind"] for source in manifest.sources] == ["bookmarks", "links"]
    assert manifest.sources[0]["package"] == "owt-bookmarks 1.0"


def test_a_message_names_the_flag_of_each_kind() -> None:
    assert STAGE.flags == {kind.name: f"--{kind.option}" for kind in sources.kinds()}
    assert all(hasattr(Options(), kind.option) for kind in sources.kinds())


@pytest.mark.parametrize("attribute", ['name = "links"', 'option = "bookmarks"'])
def test_a_kind_that_cannot_be_told_apart_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    install_documented(tmp_path, "new-source.md")
    module = tmp_path / "owt_bookmarks.py"
    name = attribute.split()[0]
    module.write_text(re.sub(rf"\b{name} = .*", attribute, module.read_text(), count=1))
    with installed_packages(tmp_path, monkeypatch), pytest.raises(UserError, match="expected an"):
        sources.kinds()


def test_two_packages_with_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_documented(tmp_path, "new-source.md")
    (info,) = tmp_path.glob("*.dist-info")
    other = tmp_path / "other-1.0.dist-info"
    other.mkdir()
    for file in info.iterdir():
        (other / file.name).write_text(file.read_text().replace("owt-bookmarks", "other"))
    with installed_packages(tmp_path, monkeypatch), pytest.raises(UserError, match="both add"):
        sources.kinds()


def test_a_file_is_of_the_first_kind_that_matches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OldDump(Dump):
        name = "old_dump"

        def matches(self, name: str, start: bytes) -> bool:
            return name.startswith("old")

    monkeypatch.setattr(sources, "kinds", lambda: (OldDump(), *sources.KINDS))
    for name in ("old.ndjson", "new.ndjson"):
        (tmp_path / name).write_text("{}\n")
    listed = sources.list_sources(Options(dumps=(str(tmp_path),)), ())
    assert [(source["kind"], source["name"]) for source in listed] == [
        ("old_dump", "old.ndjson"),
        ("dump", "new.ndjson"),
    ]
    with pytest.raises(UserError, match="no file matches"):
        sources.list_sources(Options(dumps=(str(tmp_path / "none"),)), ())
