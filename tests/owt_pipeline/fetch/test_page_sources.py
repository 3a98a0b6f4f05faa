"""Sources of pages: the one that the documentation adds is queried in its place."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.stages.fetch.options import shaping_of
from owt_pipeline.stages.fetch.page_sources import PAGE_SOURCES, PageSource
from owt_pipeline.stages.fetch.stage import STAGE
from tests.owt_pipeline.fetch.archive_server import (  # noqa: F401
    AT,
    HOST,
    Answer,
    ArchiveServer,
    Wayback,
    timestamp,
    wayback,
)
from tests.owt_pipeline.fetch.conftest import Write
from tests.owt_pipeline.fetch.reading import reader, rejects
from tests.servers.web import Request

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "new-archive.md"
NAME = "owt_pipeline.stages.fetch.archives.library"


class Library(ArchiveServer):
    """A pywb's collection `all`.

    Attributes:
      pages: the body of each URL's only capture.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[str, bytes] = {}

    def _usual(self, request: Request, queried_url: str) -> Answer:
        if not request.path.startswith("/all/cdx?"):
            _, _, archived = request.path.partition("id_/")
            headers = {"Content-Type": "text/html", "x-archive-orig-content-type": "text/html"}
            return Answer(200, self.pages[archived], headers)
        # The index is asked for the canonical URL, which lacks `www.`.
        path = queried_url.rpartition("/")[2]
        captured_urls = [archived for archived in self.pages if archived.endswith(f"/{path}")]
        captures = [
            {"timestamp": timestamp(AT), "url": archived, "mime": "text/html", "status": "200"}
            for archived in captured_urls
        ]
        return Answer(body="\n".join(map(json.dumps, captures)).encode())


def add_library(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Add the source as the documentation does, with the address of a collection of pywb."""
    *_, client, entry = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    module = ModuleType(NAME)
    exec(compile(client, str(GUIDE), "exec"), module.__dict__)
    monkeypatch.setattr(module, "PYWB", address, raising=True)
    monkeypatch.setitem(sys.modules, NAME, module)
    sources = dict(PAGE_SOURCES)
    exec(compile(entry, str(GUIDE), "exec"), {"PAGE_SOURCES": sources, "PageSource": PageSource})
    monkeypatch.setitem(PAGE_SOURCES, "library", sources["library"])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """Add the source, with the address of a server."""
    server = Library()
    add_library(monkeypatch, f"{server.url}/all")
    yield server
    server.close()


@pytest.mark.parametrize("order", [("library", "wayback"), ("wayback", "library"), ("library",)])
def test_a_source_of_your_own_is_queried_in_its_place(
    library: Library,
    wayback: Wayback,  # noqa: F811
    write_urls: Write,
    order: tuple[str, ...],
) -> None:
    wayback.add("both", body=b"<p>of the Machine")
    wayback.add("machine", body=b"<p>of the Machine")
    library.pages = {
        f"{HOST}/both": b"<p>of the library",
        f"{HOST}/shelf": b"<p>of the library",
    }
    runtime = write_urls([f"{HOST}/{name}" for name in ("both", "machine", "shelf", "neither")])
    manifest, _ = run_stage(STAGE, wayback.options(sources=order), runtime)

    rows = reader(runtime, manifest).table().to_pylist()
    expected = {"both": order[0], "shelf": "library"}
    if "wayback" in order:
        expected["machine"] = "wayback"
    assert {row["url"].rpartition("/")[2]: row["source"] for row in rows} == expected
    assert len(rejects(runtime, manifest)) == 4 - len(expected)
    # A finished shard asks for nothing again.
    library.num_by_path.clear()
    assert run_stage(STAGE, wayback.options(sources=order), runtime)[1] is False
    assert not library.num_by_path


def test_options_of_other_sources_do_not_shape_the_pages_of_a_source(library: Library) -> None:
    own_words = {"live": {"allow", "allowed"}, "archive": {"archive"}, "library": {"archive"}}
    own_words |= {"commoncrawl": {"archive", "cc"}, "wayback": {"archive", "wayback"}}
    all_words = set().union(*own_words.values())
    for name, words in own_words.items():
        shaping = {option.split("_")[0] for option in shaping_of(STAGE.options(), [name])}
        assert shaping & all_words == words
        assert {"max", "verify", "sources"} <= shaping
