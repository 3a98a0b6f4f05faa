"""A web archive on loopback like Common Crawl: a list of collections, their indexes, and files read by range."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from surt import surt


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


def capture_row(url: str, moment: int, file: str, offset: int, length: int, **fields: str) -> dict[str, str]:
    """A capture as Common Crawl's index has it."""
    row = {"urlkey": "", "timestamp": timestamp(moment), "url": url, "mime": "text/html", "mime-detected": "text/html",
           "status": "200", "digest": "", "length": str(length), "offset": str(offset), "filename": file}  # fmt: skip
    return {**row, **fields}


class ArchiveServer:
    """Serves `/collinfo.json`, `/COLLECTION-index?url=...` and `/data/FILE`, of which it counts the bytes sent.

    Attributes:
      collections: the span of each, as two times.
      rows: the captures of each.
      files: the archive files.
      way: asked for every answer first.
      requests: how often each path was asked for, that of an index with the URL; agents: the User-Agents.
      most_open: requests at once, at most; times: when requests to an index came.
      seen: when each request came, and its path with the query.
    """

    def __init__(self) -> None:
        self.collections: dict[str, tuple[int, int]] = {}
        self.rows: dict[str, list[dict[str, str]]] = {}
        self.files: dict[str, bytes] = {}
        self.way: Way = lambda path, count: None
        self.requests: Counter[str] = Counter()
        self.agents: set[str] = set()
        self.times: list[float] = []
        self.seen: list[tuple[float, str]] = []
        self.slowness = 0.0
        self.open = self.most_open = 0
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

    @property
    def asked(self) -> int:
        """Requests to indexes."""
        return sum(count for path, count in self.requests.items() if "-index" in path)

    def _usual(self, target: str, url: str, span: str) -> Answer:
        path = urlsplit(target).path
        if path == "/collinfo.json":
            return Answer(body=json.dumps([self._about(name) for name in self.collections]).encode())
        if path.startswith("/data/"):
            return self._part(self.files.get(path.removeprefix("/data/")), span)
        key, by_prefix = surt(url), "matchType=prefix" in target
        rows = [
            json.dumps(row)
            for row in self.rows.get(path.strip("/").removesuffix("-index"), [])
            if (surt(row["url"]).startswith(key) if by_prefix else surt(row["url"]) == key)
        ]
        if not rows:
            message = json.dumps({"message": f"No Captures found for: {url}"})
            return Answer(404, message.encode(), {"Content-Type": "application/json"})
        return Answer(body="\n".join([*rows, ""]).encode(), headers={"Content-Type": "text/x-ndjson"})

    def _about(self, name: str) -> dict[str, str]:
        begins, ends = (
            datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
            for moment in self.collections[name]
        )
        return {"id": name, "name": name, "cdx-api": f"{self.url}/{name}-index", "from": begins, "to": ends}

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
                    archive.open += 1
                    archive.most_open = max(archive.most_open, archive.open)
                    if "-index" in path:
                        archive.times.append(time.monotonic())
                time.sleep(archive.slowness)
                answer = archive.way(path, count) or archive._usual(self.path, url, self.headers.get("Range", ""))
                with archive._lock:
                    archive.open -= 1
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
