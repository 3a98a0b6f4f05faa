"""A web archive on loopback like Common Crawl, whose files are read by range."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit


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
    """Serves `/data/FILE`, of which it counts the bytes sent.

    Attributes:
      files: the archive files.
      way: asked for every answer first.
      requests: how often each path was asked for, that of an index with the URL; agents: the User-Agents.
      seen: when each request came, and its path with the query.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.way: Way = lambda path, count: None
        self.requests: Counter[str] = Counter()
        self.agents: set[str] = set()
        self.seen: list[tuple[float, str]] = []
        self.slowness = 0.0
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _usual(self, target: str, url: str, span: str) -> Answer:
        return self._part(self.files.get(urlsplit(target).path.removeprefix("/data/")), span)

    def _part(self, content: bytes | None, span: str) -> Answer:
        if content is None:
            return Answer(404, b"no such file")
        match = re.fullmatch(r"bytes=(\d*)-(\d+)", span)
        if match is None:
            return Answer(200, content)
        first = int(match[1]) if match[1] else max(len(content) - int(match[2]), 0)
        last = min(int(match[2]), len(content) - 1) if match[1] else len(content) - 1
        if first > last:
            return Answer(416)
        about = {"Content-Range": f"bytes {first}-{last}/{len(content)}", "Content-Type": "application/octet-stream"}
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
                time.sleep(archive.slowness)
                answer = archive.way(path, count) or archive._usual(self.path, url, self.headers.get("Range", ""))
                with archive._lock:
                    archive.sent[path] += len(answer.body)
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):  # the client need not read it all
                    self.wfile.write(answer.body[: answer.sent])
                self.close_connection = answer.sent is not None

            def log_message(self, *arguments: object) -> None: ...

        return Handler
