"""Serve web archives on loopback: one like Common Crawl, whose files are read by range, and one
like the Wayback Machine."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.warc import response_record
from owt_pipeline.stages.fetch.archives.surt import surt_key
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from schemas.manifest import Manifest
from tests.owt_pipeline.fetch.columnar import INDEX, publish, row, table
from tests.owt_pipeline.fetch.constants import constants
from tests.servers.web import Request, WebServer

AGENT = "TestBot/1.0 (+mailto:test@bad.test)"
HTML = [("Content-Type", "text/html")]
CRAWLS = ("CC-MAIN-2014-10", "CC-MAIN-2014-41")
DAY = 86_400
AT = 15_000 * DAY
HOST = "http://www.a.example"


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
      sent: the number of bytes of the body after which the connection ends; None for all of it.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    sent: int | None = None


Way = Callable[[str, int], Answer | None]
"""Returns the answer to a request by its path and count; None for the usual answer.

To an index, the path has the URL after a blank.
"""


def timestamp(seconds: int) -> str:
    """Return a time as archives write it."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y%m%d%H%M%S")


class ArchiveServer(WebServer):
    """Serves `/data/FILE`, whole or a range of bytes.

    Attributes:
      files: the archive files by name.
      way: decides about each answer first.
      num_by_path: how often each path was requested, in the form of `Way`.
      agents: the User-Agents of all requests.
      seen: when each request came, and its path with the query.
    """

    def __init__(self) -> None:
        super().__init__({"/": self._behave})
        self.files: dict[str, bytes] = {}
        self.way: Way = lambda path, count: None
        self.num_by_path: Counter[str] = Counter()
        self.agents: set[str] = set()
        self.seen: list[tuple[float, str]] = []

    def options(self, **changed: Any) -> Options:
        """Return options by which this archive is the source."""
        return Options(**{"user_agent": AGENT, **changed})

    def fetch(self, runtime: Runtime, **changed: Any) -> Manifest:
        """Fetch the run's pages from this archive.

        Failed requests are repeated after some hundredths of a second.
        """
        with constants({"archive_retry_wait": 0.02, **changed}) as options:
            return run_stage(STAGE, self.options(**options), runtime)[0]

    async def _behave(self, request: Request) -> None:
        url = urlsplit(request.path)
        queried_url = parse_qs(url.query).get("url", [""])[0]
        path = f"{url.path} {queried_url}".strip()
        self.num_by_path[path] += 1
        self.agents.add(request.headers["user-agent"])
        self.seen.append((time.monotonic(), request.path))
        answer = self.way(path, self.num_by_path[path])
        if answer is None:
            answer = self._usual(request, queried_url)
        headers = {
            "Content-Type": "",
            "Content-Length": str(len(answer.body)),
            **answer.headers,
        }
        await request.answer(answer.body[: answer.sent], answer.status, **headers)
        if answer.sent is not None:
            request.close()

    def _usual(self, request: Request, queried_url: str) -> Answer:
        """Return a file, or the range of bytes of it that is requested."""
        content = self.files.get(urlsplit(request.path).path.removeprefix("/data/"))
        if content is None:
            return Answer(404, b"no such file")
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if match is None:
            return Answer(200, content)
        first = int(match[1])
        last = min(int(match[2]), len(content) - 1)
        if first > last:
            return Answer(416)
        headers = {
            "Content-Range": f"bytes {first}-{last}/{len(content)}",
            "Content-Type": "application/octet-stream",
        }
        return Answer(206, content[first : last + 1], headers)


class CommonCrawl(ArchiveServer):
    """Serves crawls, and has a folder with their index.

    The index is published before the first fetch, unless a test has published another one.

    Attributes:
      rows: the rows of the index, by crawl; an unknown crawl has none.
      folder: the folder of the index's files.
    """

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory(prefix="cc-index-")
        self.folder = Path(self._temporary.name)
        self.rows: dict[str, list[dict[str, Any]]] = {CRAWLS[0]: []}

    def add(
        self, pages: Mapping[str, int], crawl: str = CRAWLS[0], **fields: Any
    ) -> list[dict[str, Any]]:
        """Put a page for each URL and time into one WARC file of a crawl; returns their rows of
        the index."""
        name = f"crawl-data/{crawl}/warc/{len(self.files)}.warc.gz"
        content = b""
        rows = []
        for url, seconds in pages.items():
            body = f"<p>{url} at {seconds}".encode()
            record = response_record(url, seconds, "HTTP/1.1 200 OK", HTML, body)
            rows.append(row(url, seconds, name, len(content), len(record), **fields))
            content += record
        self.files[name] = content
        self.rows.setdefault(crawl, []).extend(rows)
        return rows

    def options(self, **changed: Any) -> Options:
        for name in filter(re.compile(INDEX).match, self.files):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.files[name])
        options = {
            "sources": ("commoncrawl",),
            "cc_index": f"{self.folder}/{INDEX}",
            "cc_crawls": CRAWLS[:1],
            "cc_data": f"{self.url}/data",
            "cc_delay": 0.0,
        }
        return super().options(**{**options, **changed})

    def close(self) -> None:
        super().close()
        self._temporary.cleanup()

    def fetch(self, runtime: Runtime, **changed: Any) -> Manifest:
        if not any(INDEX in name for name in self.files):
            self.publish()
        return super().fetch(runtime, **changed)

    def publish(self, num_files: int = 1) -> None:
        """Publish the index of each crawl in `num_files` files."""
        publish(self.files, {crawl: table(rows) for crawl, rows in self.rows.items()}, num_files)


@pytest.fixture
def commoncrawl() -> Iterator[CommonCrawl]:
    """Serve a Common Crawl without pages."""
    with CommonCrawl() as server:
        yield server


class Wayback(ArchiveServer):
    """Serves the index and the captures of a Wayback Machine, and Common Crawl's files.

    Attributes:
      captures: the body of each capture, by URL and time.
      statuses: status and target of the captures that are not pages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.captures: dict[tuple[str, int], bytes] = {}
        self.statuses: dict[tuple[str, int], tuple[int, str]] = {}

    def add(self, path: str, seconds: int = AT, body: bytes = b"<p>page") -> None:
        """Add a capture of a page of HOST."""
        self.captures[f"{HOST}/{path}", seconds] = body

    def _usual(self, request: Request, queried_url: str) -> Answer:
        if request.path.startswith("/cdx/search/cdx?"):
            return self._search(queried_url, parse_qs(urlsplit(request.path).query))
        if request.path.startswith("/data/"):
            return super()._usual(request, queried_url)
        moment, _, original = request.path.removeprefix("/web/").partition("id_/")
        for (url, seconds), body in self.captures.items():
            if (url, timestamp(seconds)) == (original, moment):
                return self._replay(url, seconds, body)
        return Answer(404, b"not in the archive")

    def _status(self, url: str, seconds: int) -> tuple[int, str]:
        """Return the status of a capture, and where it redirects to."""
        return self.statuses.get((url, seconds), (200, ""))

    def _search(self, queried_url: str, query: dict[str, list[str]]) -> Answer:
        """Return the captures of a URL that are closest to a time, as the CDX server does."""
        (names,) = query["fl"]
        assert query["output"] == ["json"]
        (statuses,) = query["filter"]
        assert statuses.startswith("statuscode:")
        is_wanted = re.compile(statuses.removeprefix("statuscode:")).fullmatch
        captures = []
        for url, seconds in self.captures:
            status = str(self._status(url, seconds)[0])
            if not is_wanted(status) or surt_key(url) != surt_key(queried_url):
                continue
            captures.append(
                {
                    "timestamp": timestamp(seconds),
                    "original": url,
                    "mimetype": "text/html",
                    "statuscode": status,
                }
            )
        closest = int(query["closest"][0])
        captures.sort(key=lambda capture: abs(closest - int(capture["timestamp"])))
        rows = [
            [capture[name] for name in names.split(",")]
            for capture in captures[: int(query["limit"][0])]
        ]
        # Without a capture, not even the header is sent.
        return Answer(body=json.dumps([names.split(","), *rows] if rows else []).encode())

    def _replay(self, url: str, seconds: int, body: bytes) -> Answer:
        """Return a capture with the headers that the Wayback Machine adds."""
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "x-archive-orig-content-type": "text/html",
            "x-archive-orig-server": "Apache",
            "x-archive-orig-content-length": "9999",
            "x-archive-src": "some-crawl/some.warc.gz",
            "Memento-Datetime": formatdate(seconds, usegmt=True),
            "Link": "<http://a.example>; rel=original",
        }
        status, target = self._status(url, seconds)
        if target:
            headers["Location"] = f"{self.url}/web/{timestamp(seconds)}id_/{target}"
        return Answer(status, body, headers)

    def options(self, **changed: Any) -> Options:
        options = {
            "sources": ("wayback",),
            "wayback_cdx": f"{self.url}/cdx/search/cdx",
            "wayback_pages": f"{self.url}/web",
            "wayback_delay": 0.0,
        }
        return super().options(**{**options, **changed})


@pytest.fixture
def wayback() -> Iterator[Wayback]:
    """Serve a Wayback Machine without captures."""
    with Wayback() as server:
        yield server
