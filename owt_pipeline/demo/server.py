"""Serves the pages of `demo.warc.gz` over real HTTP on loopback; hosts are distinguished by `Host`.

The names below `demo.test` do not resolve: a client connects to the server's address and sends the
name, as `--resolve` does. A few URLs fail in ways that a WARC file cannot hold.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import IO, Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlencode

from fastwarc.warc import ArchiveIterator, WarcRecordType

ROBOTS = {"private.demo.test": "/members/", "hermit.demo.test": "/", "garden.demo.test": "/admin/"}
"""What each host's robots.txt disallows."""
STALLS = ("waiting.demo.test", "/room")  # headers, and then silence
ENDLESS = ("attic.demo.test", "/logbook")  # a body beyond any limit
RESETS = ("slammed.demo.test", "/door")  # the connection is reset before an answer

_ENDLESS_BYTES = 200 << 20
_STALL_SECONDS = 60.0
_DATE = "Wed, 01 Jan 2020 00:00:00 GMT"  # equal responses give equal bytes, whenever they are sent
_LINGER_0 = struct.pack("ii", 1, 0)  # close() then sends RST
_HTML = "text/html; charset=utf-8"

Key = tuple[str, str]
"""(host, path) of a page."""
Answer = tuple[int, dict[str, str], bytes]
"""(status, headers, body)."""


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The demo's web, while the context lasts; gives its `address:port`."""
    Handler.answers = answers_of((resources.files("owt_pipeline.demo") / "demo.warc.gz").open("rb"))
    with _Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, name="demo's web", daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # an answer that stalls would be waited for
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """As in the base class, but silent for a connection that the client has reset."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def answers_of(warc: IO[bytes]) -> dict[Key, Answer]:
    """Return the WARC file's responses, and the robots.txt of the hosts that have one."""
    answers: dict[Key, Answer] = {}
    with warc:
        for record in ArchiveIterator(warc, record_types=WarcRecordType.response):
            host, _, path = record.headers["WARC-Target-URI"].removeprefix("http://").partition("/")
            sent = record.http_headers
            headers = {name: sent[name] for name in ("Content-Type", "Location") if name in sent}
            body = record.reader.read()
            answers[host, page_path(f"/{path}")] = (sent.status_code or 0, headers, body)
    for host, path in ROBOTS.items():
        rules = f"User-agent: *\nDisallow: {path}\n".encode()
        answers[host, "/robots.txt"] = (200, {"Content-Type": "text/plain"}, rules)
    return answers


def page_path(path: str) -> str:
    """Return a page's path: decoded, without tracking parameters and a slash at its end."""
    path, _, query = path.partition("?")
    page = unquote(path).rstrip("/") or "/"
    parameters = [
        (name, value) for name, value in parse_qsl(query) if not name.startswith(("utm_", "fbclid"))
    ]
    return f"{page}?{urlencode(parameters)}" if parameters else page


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[dict[Key, Answer]] = {}

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").partition(":")[0].lower().removeprefix("www.")
        key = host, page_path(self.path)
        if key == RESETS:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
            self.close_connection = True
        elif key == STALLS:
            self._begin(200, {"Content-Type": _HTML, "Content-Length": "1000"})
            self.wfile.flush()
            time.sleep(_STALL_SECONDS)
            self.close_connection = True
        elif key == ENDLESS:
            self._endless()
        else:
            status, headers, body = self.answers.get(
                key, (404, {"Content-Type": "text/plain"}, b"nothing here")
            )
            more = {"Retry-After": "1"} if status in (429, 503) else {}
            self._begin(status, {**headers, **more, "Content-Length": str(len(body))})
            self.wfile.write(body)

    def _endless(self) -> None:
        """Send a page that is larger than any limit."""
        self.close_connection = True
        self._begin(200, {"Content-Type": _HTML, "Connection": "close"})
        paragraph = (
            b"<p>And so it went on, entry after entry, for there was no one to close the "
            b"book.</p>\n" * 1024
        )
        # The client closes the connection at its limit, which this page is to show.
        with contextlib.suppress(OSError):
            for _ in range(_ENDLESS_BYTES // len(paragraph) + 1):
                self.wfile.write(paragraph)

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        """Send the head of a response."""
        self.send_response_only(status)
        for name, value in {"Date": _DATE, "Server": "demo", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...
