"""The part of Reddit's API that PRAW uses, on loopback: the top of recorded submissions, by the
100."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 100


class RedditServer(ThreadingHTTPServer):
    """Serves `submissions` (records of the API) by subreddit.

    Attributes:
      times: when listings were asked for, in order.
      fail_after: listings after which the server answers 500 only; None for never.
      refusals: the next so many requests are answered 429, with a Retry-After of 1 second.
    """

    daemon_threads = True

    def __init__(self, submissions: list[dict[str, Any]]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.by_subreddit: dict[str, list[dict[str, Any]]] = {}
        for record in submissions:
            self.by_subreddit.setdefault(record["subreddit"].lower(), []).append(record)
        self.times: list[float] = []
        self.remaining, self.reset = (
            95,
            1,
        )  # requests that are left, and seconds until there are more
        self.fail_after: int | None = None
        self.refusals = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def top(self, subreddit: str, query: dict[str, list[str]]) -> dict[str, Any] | None:
        if (records := self.by_subreddit.get(subreddit.lower())) is None:
            return None
        records = sorted(records, key=lambda r: -r["score"])
        names = [r["name"] for r in records]
        start = names.index(query["after"][0]) + 1 if "after" in query else 0
        page = records[start : start + min(PAGE, int(query["limit"][0]))]
        after = page[-1]["name"] if start + len(page) < len(records) and page else None
        children = [{"kind": "t3", "data": record} for record in page]
        return {
            "kind": "Listing",
            "data": {"after": after, "before": None, "dist": len(page), "children": children},
        }


class _Handler(BaseHTTPRequestHandler):
    server: RedditServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        assert self.path == "/api/v1/access_token"
        assert self.headers["Authorization"].startswith("Basic ")
        self._answer(
            200,
            {"access_token": "token", "token_type": "bearer", "expires_in": 86400, "scope": "*"},
        )

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.times.append(time.monotonic())
        assert self.headers["Authorization"] == "bearer token"
        if self.server.fail_after is not None and len(self.server.times) > self.server.fail_after:
            self._answer(500, {"message": "Internal Server Error", "error": 500})
            return
        if self.server.refusals:
            self.server.refusals -= 1
            self._answer(429, {"message": "Too Many Requests", "error": 429}, {"Retry-After": "1"})
            return
        _, _, subreddit, sort = parts.path.rstrip("/").split("/")
        assert sort == "top"
        listing = self.server.top(subreddit, parse_qs(parts.query))
        self._answer(200, listing) if listing else self._answer(
            404, {"message": "Not Found", "error": 404}
        )

    def _answer(
        self, status: int, content: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        limits = {
            "remaining": f"{self.server.remaining}.0",
            "used": "5",
            "reset": str(self.server.reset),
        }
        about = {f"x-ratelimit-{name}": value for name, value in limits.items()} | {
            "Content-Length": str(len(body))
        }
        for name, value in {**about, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(submissions: list[dict[str, Any]]) -> Iterator[RedditServer]:
    server = RedditServer(submissions)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
