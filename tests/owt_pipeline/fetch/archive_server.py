"""Web archives on loopback: one like Common Crawl, whose files are read by range, and one like
the Wayback Machine."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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

AGENT = "TestBot/1.0 (+mailto:test@bad.test)"
HTML = [("Content-Type", "text/html")]
CRAWLS = ("CC-MAIN-2014-10", "CC-MAIN-2014-41")
DAY = 86_400
AT = 15_000 * DAY
HOST = "http://www.a.example"


class Answer(NamedTuple):
    """The answer to a request; `sent` cuts the body below its Content-Length."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    sent: int | None = None


Way = Callable[[str, int], Answer | None]
"""The answer to a request by its path and by how often it was made; None for the usual answer."""


def timestamp(moment: int) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y%m%d%H%M%S")


class ArchiveServer:
    """Serves `/data/FILE`.

    Attributes:
      files: the archive files.
      way: asked for every answer first.
      requests: how often each path was asked for, that of an index with the URL; agents: the
        User-Agents.
      seen: when each request came, and its path with the query.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.way: Way = lambda path, count: None
        self.requests: Counter[str] = Counter()
        self.agents: set[str] = set()
        self.seen: list[tuple[float, str]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def options(self, **others: Any) -> Options:
        """Those by which this archive is the source."""
        return Options(**{"user_agent": AGENT, **others})

    def fetch(self, runtime: Runtime, **others: Any) -> Manifest:
        """The run's pages from this archive; failed requests are repeated after some hundredths
        of a second."""
        with constants({"archive_retry_wait": 0.02, **others}) as given:
            return run_stage(STAGE, self.options(**given), runtime)[0]

    def _usual(self, target: str, url: str, span: str) -> Answer:
        return self._part(self.files.get(urlsplit(target).path.removeprefix("/data/")), span)

    def _part(self, content: bytes | None, span: str) -> Answer:
        if content is None:
            return Answer(404, b"no such file")
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", span)
        if match is None:
            return Answer(200, content)
        first, last = int(match[1]), min(int(match[2]), len(content) - 1)
        if first > last:
            return Answer(416)
        about = {
            "Content-Range": f"bytes {first}-{last}/{len(content)}",
            "Content-Type": "application/octet-stream",
        }
        return Answer(206, content[first : last + 1], about)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        archive = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                url = parse_qs(parts.query).get("url", [""])[0]
                with archive._lock:
                    path = f"{parts.path} {url}".strip()
                    archive.requests[path] += 1
                    count = archive.requests[path]
                    archive.agents.add(self.headers["User-Agent"])
                    archive.seen.append((time.monotonic(), self.path))
                answer = archive.way(path, count) or archive._usual(
                    self.path, url, self.headers.get("Range", "")
                )
                self.send_response(answer.status)
                for name, value in {
                    "Content-Length": str(len(answer.body)),
                    **answer.headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):  # the client need not read it all
                    self.wfile.write(answer.body[: answer.sent] if self.command == "GET" else b"")
                self.close_connection = answer.sent is not None

            do_HEAD = do_GET

            def log_message(self, *arguments: object) -> None: ...

        return Handler


class CommonCrawl(ArchiveServer):
    """Crawls, and a folder with their index, which is published when it is searched first.

    Attributes:
      rows: those of the index, by crawl; an unknown crawl has none.
      folder: has the files of the index.
    """

    def __init__(self) -> None:
        super().__init__()
        self._temporary = tempfile.TemporaryDirectory(prefix="cc-index-")
        self.folder = Path(self._temporary.name)
        self.rows: dict[str, list[dict[str, Any]]] = {CRAWLS[0]: []}

    def add(
        self, pages: Mapping[str, int], crawl: str = CRAWLS[0], **fields: Any
    ) -> list[dict[str, Any]]:
        """Put a page for each URL and time into one WARC file of a crawl; its rows of the index."""
        name = f"crawl-data/{crawl}/warc/{len(self.files)}.warc.gz"
        content, rows = b"", []
        for url, moment in pages.items():
            record = response_record(
                url, moment, "HTTP/1.1 200 OK", HTML, f"<p>{url} at {moment}".encode()
            )
            rows.append(row(url, moment, name, len(content), len(record), **fields))
            content += record
        self.files[name] = content
        self.rows.setdefault(crawl, []).extend(rows)
        return rows

    def options(self, **others: Any) -> Options:
        for name in filter(re.compile(INDEX).match, self.files):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(self.files[name])
        common = {
            "sources": ("commoncrawl",),
            "cc_index": f"{self.folder}/{INDEX}",
            "cc_crawls": CRAWLS[:1],
        }
        return super().options(
            **{**common, "cc_data": f"{self.url}/data", "cc_delay": 0.0, **others}
        )

    def close(self) -> None:
        super().close()
        self._temporary.cleanup()

    def fetch(self, runtime: Runtime, **others: Any) -> Manifest:
        if not any(INDEX in name for name in self.files):
            self.publish()
        return super().fetch(runtime, **others)

    def publish(self, number: int = 1) -> None:
        """Publish the index of each crawl in `number` files."""
        publish(self.files, {crawl: table(rows) for crawl, rows in self.rows.items()}, number)


@pytest.fixture
def commoncrawl() -> Iterator[CommonCrawl]:
    server = CommonCrawl()
    yield server
    server.close()


def _surt(url: str) -> str:
    return (surt_key(url) or b"").decode()


class Wayback(ArchiveServer):
    """The Wayback Machine: its index and its captures; and Common Crawl's files.

    Attributes:
      captures: (URL, time) of each, with its body.
      statuses: of those that are no page, with where they redirect to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.captures: dict[tuple[str, int], bytes] = {}
        self.statuses: dict[tuple[str, int], tuple[int, str]] = {}

    def add(self, path: str, moment: int = AT, body: bytes = b"<p>page") -> None:
        self.captures[f"{HOST}/{path}", moment] = body

    def _usual(self, target: str, url: str, span: str) -> Answer:
        parts = urlsplit(target)
        if parts.path == "/cdx/search/cdx":
            asked = {name: value for name, (value,) in parse_qs(parts.query).items()}
            names, statuses = asked["fl"].split(","), asked["filter"]
            assert (asked["output"], statuses[:11]) == ("json", "statuscode:")
            known = [
                (u, m) for u, m in self.captures
                if re.fullmatch(statuses[11:], str(self.statuses.get((u, m), (200, ""))[0]))
                and _surt(u) == _surt(url)
            ]  # fmt: skip
            known.sort(key=lambda one: abs(int(asked["closest"]) - int(timestamp(one[1]))))
            found = []
            for u, m in known[: int(asked["limit"])]:
                status = str(self.statuses.get((u, m), (200, ""))[0])
                about = {
                    "timestamp": timestamp(m),
                    "original": u,
                    "mimetype": "text/html",
                    "statuscode": status,
                }
                found.append([about[name] for name in names])
            return Answer(body=json.dumps([names, *found] if found else []).encode())
        if parts.path.startswith("/data/"):
            return super()._usual(target, url, span)
        moment, _, original = target.removeprefix("/web/").partition("id_/")
        for (archived, at), body in self.captures.items():
            if (archived, timestamp(at)) == (original, moment):
                headers = {
                    "Content-Type": "text/html; charset=utf-8",
                    "x-archive-orig-content-type": "text/html",
                    "x-archive-orig-server": "Apache",
                    "x-archive-orig-content-length": "9999",
                    "x-archive-src": "some-crawl/some.warc.gz",
                    "Memento-Datetime": formatdate(at, usegmt=True),
                    "Link": "<http://a.example>; rel=original",
                }
                status, location = self.statuses.get((archived, at), (200, ""))
                if location:
                    headers["Location"] = f"{self.url}/web/{moment}id_/{location}"
                return Answer(status, body, headers)
        return Answer(404, b"not in the archive")

    def options(self, **others: Any) -> Options:
        cdx, pages = f"{self.url}/cdx/search/cdx", f"{self.url}/web"
        common = {
            "sources": ("wayback",),
            "wayback_cdx": cdx,
            "wayback_pages": pages,
            "wayback_delay": 0.0,
        }
        return super().options(**{**common, **others})


@pytest.fixture
def wayback() -> Iterator[Wayback]:
    server = Wayback()
    yield server
    server.close()
