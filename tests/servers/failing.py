"""A way to an HTTP server on which some of the requests fail."""

from __future__ import annotations

import itertools

from tests.servers.web import Request, WebServer, response_to

FAILURES = ("500", "503", "reset", "lost response")
"""How a request fails. The server has an error or too much to do, or the connection is reset
before the request arrives or after it was carried out."""


class FailingWay(WebServer):
    """Passes HTTP requests on to a port of this machine; every `period`-th one fails.

    Attributes:
      period: how many requests there are for each that fails.
      failures: what happens to those that fail, in turn.
      num_requests: requests so far.
      goes_down_at: the request from which on every one fails.
      is_down: whether every request fails.
    """

    def __init__(self, server_port: int, period: int, failures: tuple[str, ...] = FAILURES):
        super().__init__({"": self._pass_on})
        self._server_port = server_port
        self.period = period
        self.failures = failures
        self.num_requests = 0
        self.goes_down_at = 1 << 30
        self.is_down = False
        self._num_failed = itertools.count()

    def _next_failure(self) -> str | None:
        """Count a request, and return how it fails; None for one that is passed on."""
        self.num_requests += 1
        self.is_down = self.is_down or self.num_requests >= self.goes_down_at
        if not self.is_down and self.num_requests % self.period:
            return None
        return self.failures[next(self._num_failed) % len(self.failures)]

    async def _pass_on(self, request: Request) -> None:
        failure = self._next_failure()
        if failure in ("500", "503"):
            await request.answer(b"<Error><Code>InternalError</Code></Error>", int(failure))
            return
        if failure == "reset":
            request.reset()
            return
        response = await response_to(request, self._server_port)
        if failure == "lost response":
            request.reset()
            return
        await request.send(_without_close(response))


def _without_close(response: bytes) -> bytes:
    """Return a response after which the connection stays open.

    A client whose connections end all the time would retry more often than with a real bucket.
    """
    head, end, body = response.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    names = {line.partition(b":")[0].lower() for line in lines}
    if not names & {b"content-length", b"transfer-encoding"}:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + end + body
