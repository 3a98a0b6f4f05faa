"""A web server on loopback, whose behaviours are looked up by host and path.

    with WebServer({"slow": answer(wait=3.0), "/data/": send_file, "": forward(port)}) as server:

A key is the first label of a host below `bad.test`, or else the beginning of a path. The longest
beginning counts, and the empty one takes all other requests. A host has no robots.txt, unless its
name begins with `robots-`.

A behaviour is a coroutine function of a Request. These make one:

    answer       an answer with any status and headers: late, endless, or cut off by FIN or RST
    raw          bytes as they are, for answers that are not valid
    redirect     a redirect, whose target may depend on the path
    once         a behaviour for the first request for a path, and pages for later ones
    at_robots    a behaviour for robots.txt, and another one for pages
    forward      passes requests on to other ports, as a proxy or a load balancer does

The server also has a port whose certificate nobody has signed (`tls_port`), and one that accepts no
connection (`full_port`).

Other modules have what is not the web: flaky.py cuts connections of any protocol, and emulators of
buckets are programs or translate between two interfaces of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

DOMAIN = "bad.test"
ROBOTS = "/robots.txt"

PAGE = (
    b"<!doctype html><html><head><title>A page</title></head><body><p>"
    + b"Some words. " * 50
    + b"</p></body></html>"
)

# The first byte of a TLS handshake.
_HANDSHAKE = b"\x16"
_RESET = struct.pack("ii", 1, 0)
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


@dataclass
class Request:
    """A request, and the connection to answer on.

    Attributes:
      host: the host without the domain and the port.
      path: the target as it was sent: with the query, and for a proxy with the host.
      count: the number of requests of this path of the host, this one included.
      writer: the connection to the client.
      method: GET, CONNECT and so on.
      headers: values by names in lower case; the last one of those that are sent twice.
      body: the body, without its chunks.
      reader: the other direction of the connection; None for no valid request.
    """

    host: str
    path: str
    count: int
    writer: asyncio.StreamWriter
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    reader: asyncio.StreamReader | None = None

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self, body: bytes = PAGE, status: int | str = "200 OK", **headers: str
    ) -> None:
        """Send a correct answer, without the body to a HEAD request.

        Names of `headers` may have `_` for `-`. An empty header removes the default.
        """
        if isinstance(status, int):
            status = f"{status} {http.client.responses.get(status, '')}"
        fields = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(body)),
        }
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{name}: {value}\r\n" for name, value in fields.items() if value]
        head = f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode()
        await self.send(head if self.method == "HEAD" else head + body)

    async def answer_json(self, content: Any, status: int = 200, **headers: str) -> None:
        """Send an answer with JSON."""
        body = json.dumps(content).encode()
        await self.answer(body, status, Content_Type="application/json", **headers)

    async def redirect(self, location: str) -> None:
        """Send a redirect."""
        await self.answer(b"", "302 Found", Location=location)

    def close(self) -> None:
        """End the connection with a FIN, once all that was sent has left."""
        self.writer.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()


W = TypeVar("W", bound="WebServer")

Behaviour = Callable[[Request], Awaitable[None]]


def answer(
    body: bytes = PAGE,
    status: str = "200 OK",
    *,
    wait: float = 0,
    then: float | str = 0,
    endless: bytes = b"",
    interval: float = 0,
    **headers: str,
) -> Behaviour:
    """Return a behaviour that answers after `wait` seconds; see `raw` for the other arguments."""

    async def behave(request: Request) -> None:
        await asyncio.sleep(wait)
        await request.answer(body, status, **headers)
        await _end(request, then, endless, interval)

    return behave


def raw(
    data: bytes, *, then: float | str = 0, endless: bytes = b"", interval: float = 0
) -> Behaviour:
    """Return a behaviour that sends bytes as they are.

    Args:
      then: seconds of silence after them, or the end of the connection: "close" or "reset".
      more: bytes that follow without end.
      every: seconds between two of these.
    """

    async def behave(request: Request) -> None:
        await request.send(data)
        await _end(request, then, endless, interval)

    return behave


async def _end(request: Request, then: float | str, endless: bytes, interval: float) -> None:
    with contextlib.suppress(OSError):
        while endless:
            await request.send(endless)
            await asyncio.sleep(interval)
    if isinstance(then, float):
        await asyncio.sleep(then)
    elif then == "reset":
        # A reset at once would also drop the bytes that the client has not read yet.
        await asyncio.sleep(0.05)
        request.reset()
    elif then:
        request.close()


def redirect(location: str, wait: float = 0) -> Behaviour:
    """Return a behaviour that redirects; `{path}` in its target is the path that was requested."""

    async def behave(request: Request) -> None:
        await asyncio.sleep(wait)
        await request.redirect(location.replace("{path}", request.path))

    return behave


def once(first: Behaviour, num_times: int = 1) -> Behaviour:
    """Return a behaviour that is `first` for the first requests for a path, and then a page."""
    return lambda request: first(request) if request.count <= num_times else request.answer()


def at_robots(robots: Behaviour, page: Behaviour | None = None) -> Behaviour:
    """Return a behaviour that is `robots` for robots.txt, and `page` for pages.

    Without `page`, they must not be requested.
    """

    def behave(request: Request) -> Any:
        if request.path.startswith(ROBOTS):
            return robots(request)
        assert page is not None
        return page(request)

    return behave


def forward(port: int, tls_port: int = 0) -> Behaviour:
    """Return a behaviour that passes requests on to `port`, and CONNECT's bytes to `tls_port`."""

    async def behave(request: Request) -> None:
        if request.method != "CONNECT":
            await request.send(await response_to(request, port))
            request.close()
            return
        assert request.reader is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", tls_port)
        await request.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_relay(request.reader, writer), _relay(reader, request.writer))

    return behave


async def response_to(request: Request, port: int) -> bytes:
    """Return all bytes with which the server at `port` responds to a request."""
    headers = {name: text for name, text in request.headers.items() if name not in _HOP_BY_HOP}
    headers["connection"] = "close"
    if request.body:
        headers["content-length"] = str(len(request.body))
    path = request.path
    if not path.startswith("/"):
        # To a proxy, the target is a complete URL.
        path = f"/{path.split('/', 3)[3]}"
    lines = [f"{request.method} {path} HTTP/1.1"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        writer.write(head + request.body)
        return await reader.read()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


class WebServer:
    """Serves behaviours on loopback in a thread, until it is closed.

    Attributes:
      behaviours: the behaviours, by host or by the beginning of the path.
      requests: the number of requests of each host and path.
      num_open: connections that are open; `max_open`: the most at once so far.
      port: the port for HTTP.
      tls_port: the port for TLS, with a certificate that nobody has signed.
      full_port: a port that accepts no connection.
    """

    def __init__(self, behaviours: Mapping[str, Behaviour]):
        self.behaviours = behaviours
        self.requests: Counter[tuple[str, str]] = Counter()
        self.num_open = 0
        self.max_open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
        self.port, self.tls_port = starting.result(10)
        self._full = [socket.socket()]
        self._full[0].bind(("127.0.0.1", 0))
        self._full[0].listen(0)
        self.full_port = self._full[0].getsockname()[1]
        # These fill its queue of connections, so that the kernel drops the packets of others.
        for _ in range(3):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", self.full_port))
            self._full.append(client)

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        for connection in self._full:
            connection.close()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Return the URL of the HTTP server, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the rules of `--resolve` by which hosts below `bad.test` are here."""
        return (
            f"self-signed.{DOMAIN}=127.0.0.1:{self.tls_port}",
            f"takes-no-connection.{DOMAIN}=127.0.0.1:{self.full_port}",
            f"refused.{DOMAIN}=127.0.0.1:1",
            f"*.{DOMAIN}=127.0.0.1:{self.port}",
        )

    async def _start(self) -> tuple[int, int]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Path(__file__).with_name("self_signed.pem"))
        self._servers = [
            await asyncio.start_server(self._serve, "127.0.0.1", 0),
            await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context),
        ]
        plain, tls = (server.sockets[0].getsockname()[1] for server in self._servers)
        return plain, tls

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            while not writer.is_closing():
                start = await reader.readexactly(1)
                if start == _HANDSHAKE:
                    # The client speaks TLS, and this port does not.
                    await Request("", "", 0, writer).answer(b"", 400)
                    break
                request = await self._read_request(start, reader, writer)
                await self._behaviour_for(request)(request)
                if request.headers.get("connection") == "close":
                    break
        self.num_open -= 1
        writer.close()

    async def _read_request(
        self, start: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Request:
        """Read a request whose first byte is `start`."""
        head = (start + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        method, path, _ = request_line.split(" ")
        fields = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await _read_chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length") or 0))
        host = headers["host"].partition(":")[0].lower().removesuffix(f".{DOMAIN}")
        self.requests[host, path] += 1
        count = self.requests[host, path]
        return Request(host, path, count, writer, method, headers, body, reader)

    def _behaviour_for(self, request: Request) -> Behaviour:
        if request.path == ROBOTS and not request.host.startswith("robots-"):
            return answer(b"", "404 Not Found")
        if request.host in self.behaviours:
            return self.behaviours[request.host]
        return self.behaviours[max(filter(request.path.startswith, self.behaviours), key=len)]


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Read a body that is sent in chunks."""
    chunks = []
    while size := int((await reader.readline()).partition(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(chunks)
