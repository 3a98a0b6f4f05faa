"""A way to an HTTP server on which every so many requests fail."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_RESET = struct.pack("ii", 1, 0)
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}

FAILURES = ("500", "503", "reset", "lost response")
"""What happens to a request that fails: the server has an error, or has too much to do; the
connection is reset before the request arrives, or after it was carried out."""


class FailingWay(ThreadingHTTPServer):
    """Passes HTTP requests on to a port of this machine; every `period`-th one fails.

    Attributes:
      period: how many requests there are for each that fails.
      failures: what happens to those that fail, in turn.
      num_requests: requests so far.
      goes_down_at: the request from which on every one fails.
      is_down: whether every request fails.
    """

    daemon_threads = True

    def __init__(self, server_port: int, period: int, failures: tuple[str, ...] = FAILURES):
        super().__init__(("127.0.0.1", 0), _Handler)
        self._target_port = server_port
        self.period = period
        self.failures = failures
        self.num_requests = 0
        self.goes_down_at = 1 << 30
        self.is_down = False
        self._failed = itertools.count()
        self._lock = threading.Lock()

    def next_failure(self) -> str | None:
        """Count a request, and return how it fails; None for one that is passed on."""
        with self._lock:
            self.num_requests += 1
            self.is_down = self.is_down or self.num_requests >= self.goes_down_at
            if not self.is_down and self.num_requests % self.period:
                return None
            return self.failures[next(self._failed) % len(self.failures)]

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> _Response:
        """Return the server's response to a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self._target_port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()

    @contextlib.contextmanager
    def serving(self) -> Iterator[FailingWay]:
        """Serve in a thread until the block ends."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()


_Response = tuple[int, list[tuple[str, str]], bytes]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FailingWay

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        failure = self.server.next_failure()
        if failure in ("500", "503"):
            self._respond(int(failure), [], b"<Error><Code>InternalError</Code></Error>")
            return
        if failure == "reset":
            self._reset()
            return
        headers = {
            name: text for name, text in self.headers.items() if name.lower() != "connection"
        }
        status, response_headers, content = self.server.forward(
            self.command, self.path, headers, body
        )
        if failure == "lost response":
            self._reset()
            return
        self._respond(status, response_headers, content)

    def _respond(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        has_length = False
        for name, text in headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, text)
                has_length = has_length or name.lower() == "content-length"
        if not has_length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr."""
