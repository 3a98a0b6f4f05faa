"""Web archives on loopback: one like Common Crawl, whose files are read by range, and one like the Wayback Machine."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from owt_pipeline.stages.fetch.surt import surt_key

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
            names, statuses, by_prefix = asked["fl"].split(","), asked["filter"], asked.get("matchType") == "prefix"
            assert (asked["output"], statuses[:11]) == ("json", "statuscode:")
            known = [
                (u, m) for u, m in self.captures
                if re.fullmatch(statuses[11:], str(self.statuses.get((u, m), (200, ""))[0]))
                and (_surt(u).startswith(_surt(url)) if by_prefix else _surt(u) == _surt(url))
            ]  # fmt: skip
            if not by_prefix:
                known.sort(key=lambda one: abs(int(asked["closest"]) - int(timestamp(one[1]))))
            found = []
            for u, m in known[: int(asked["limit"])]:
                status = str(self.statuses.get((u, m), (200, ""))[0])
                about = {"timestamp": timestamp(m), "original": u, "mimetype": "text/html", "statuscode": status}
                found.append([about[name] for name in names])
            return Answer(body=json.dumps([names, *found] if found else []).encode())
        if parts.path.startswith("/data/"):
            return super()._usual(target, url, span)
        moment, _, original = target.removeprefix("/web/").partition("id_/")
        for (archived, at), body in self.captures.items():
            if (archived, timestamp(at)) == (original, moment):
                headers = {
                    "Content-Type": "text/html; charset=utf-8", "x-archive-orig-content-type": "text/html",
                    "x-archive-orig-server": "Apache", "x-archive-orig-content-length": "9999",
                    "x-archive-src": "some-crawl/some.warc.gz", "Memento-Datetime": formatdate(at, usegmt=True),
                    "Link": "<http://a.example>; rel=original",
                }  # fmt: skip
                status, location = self.statuses.get((archived, at), (200, ""))
                if location:
                    headers["Location"] = f"{self.url}/web/{moment}id_/{location}"
                return Answer(status, body, headers)
        return Answer(404, b"not in the archive")

    def asked_for(self) -> list[str]:
        """The path of each request, in order; of lookups, the URL."""
        return [parse_qs(urlsplit(path).query).get("url", [path])[0] for _, path in self.seen]
