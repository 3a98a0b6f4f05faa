"""Serves the pages of `demo.warc.gz` over real HTTP on loopback; hosts are distinguished by `Host`.

The names below `demo.test` do not resolve: a client connects to the server's address and sends the
name, as `--resolve` does. A few URLs fail in ways that a WARC file cannot hold.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlencode

from owt_pipeline.formats.captures import Capture, captures
from owt_pipeline.formats.warc import read_record

ROBOTS = {"private.demo.test": "/members/", "hermit.demo.test": "/", "garden.demo.test": "/admin/"}
"""What each host's robots.txt disallows."""
STALLS = ("waiting.demo.test", "/room")
"""A page whose server sends the headers and then nothing."""
ENDLESS = ("attic.demo.test", "/logbook")
"""A page whose body is beyond any limit."""
RESETS = ("slammed.demo.test", "/door")
"""A page whose server resets the connection before it responds."""

_ENDLESS_BYTES = 200 << 20
_STALL_SECONDS = 60.0
# A fixed date, so that equal responses give equal bytes whenever they are sent.
_DATE = "Wed, 01 Jan 2020 00:00:00 GMT"
# With this value of SO_LINGER, close() sends RST.
_LINGER_0 = struct.pack("ii", 1, 0)
_HTML = "text/html; charset=utf-8"

Page = tuple[str, str]
"""(host, path) of a page."""
Response = tuple[int, dict[str, str], bytes]
"""(status, headers, body)."""

_NOT_FOUND: Response = (404, {"Content-Type": "text/plain"}, b"nothing here")


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serve the demo's web while the context lasts; yield its `address:port`."""
    warc = resources.files("owt_pipeline.demo") / "demo.warc.gz"
    Handler.response_by_page = responses_of(warc.read_bytes())
    with _Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, name="demo's web", daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class _Server(ThreadingHTTPServer):
    """A server with a thread per connection."""

    daemon_threads = True
    # Closing would otherwise wait for the response that stalls.
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error as the base class does, except for connections that the client reset."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def responses_of(warc: bytes) -> dict[Page, Response]:
    """Return the WARC file's responses, and the robots.txt of the hosts that have one."""
    response_by_page: dict[Page, Response] = {}
    for capture in captures(io.BytesIO(warc), len(warc)):
        assert isinstance(capture, Capture)
        response = read_record(warc[capture.offset : capture.offset + capture.length])
        host, _, path = response.url.removeprefix("http://").partition("/")
        sent_headers = dict(response.headers)
        headers: dict[str, str] = {}
        for name in ("Content-Type", "Location"):
            if name in sent_headers:
                headers[name] = sent_headers[name]
        page = host, page_path(f"/{path}")
        response_by_page[page] = (response.status, headers, response.body)
    for host, path in ROBOTS.items():
        rules = f"User-agent: *\nDisallow: {path}\n".encode()
        response_by_page[host, "/robots.txt"] = (200, {"Content-Type": "text/plain"}, rules)
    return response_by_page


def page_path(path: str) -> str:
    """Return a page's path: decoded, without tracking parameters and a slash at its end."""
    path, _, query = path.partition("?")
    decoded_path = unquote(path).rstrip("/") or "/"
    parameters = []
    for name, value in parse_qsl(query):
        if not name.startswith(("utm_", "fbclid")):
            parameters.append((name, value))
    if not parameters:
        return decoded_path
    return f"{decoded_path}?{urlencode(parameters)}"


class Handler(BaseHTTPRequestHandler):
    """Responds to the requests of one connection."""

    protocol_version = "HTTP/1.1"
    response_by_page: ClassVar[dict[Page, Response]] = {}

    def do_GET(self) -> None:
        """Send the response of the requested page, or fail as the page is to fail."""
        host, _, _ = self.headers.get("Host", "").partition(":")
        page = host.lower().removeprefix("www."), page_path(self.path)
        if page == RESETS:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
            self.close_connection = True
        elif page == STALLS:
            self._begin(200, {"Content-Type": _HTML, "Content-Length": "1000"})
            self.wfile.flush()
            time.sleep(_STALL_SECONDS)
            self.close_connection = True
        elif page == ENDLESS:
            self._endless()
        else:
            status, headers, body = self.response_by_page.get(page, _NOT_FOUND)
            headers = {**headers, "Content-Length": str(len(body))}
            if status in (429, 503):
                headers["Retry-After"] = "1"
            self._begin(status, headers)
            self.wfile.write(body)

    def _endless(self) -> None:
        """Send a page that is larger than any limit."""
        self.close_connection = True
        self._begin(200, {"Content-Type": _HTML, "Connection": "close"})
        paragraph = (
            b"<p>And so it went on, entry after entry, for there was no one to close the "
            b"book.</p>\n" * 1024
        )
        # The client closes the connection when the page exceeds its size limit.
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
