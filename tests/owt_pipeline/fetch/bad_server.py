"""A server for hosts below `bad.test`, all on one loopback address: each host answers as its
function says."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DOMAIN = "bad.test"

PAGE = (
    b"<!doctype html><html><head><title>A page</title></head><body><p>"
    + b"Some words. " * 50
    + b"</p></body></html>"
)


@dataclass
class Request:
    """A request, and the connection to answer on."""

    host: str
    path: str
    count: int  # how often this host was asked for this path, this time included
    writer: asyncio.StreamWriter
    headers: Mapping[str, str] = field(default_factory=dict)  # by names in lower case

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes = PAGE, status: str = "200 OK", **headers: str) -> None:
        """A correct answer; `headers` have `_` for `-`, and an empty one removes the default."""
        fields = {
            "Content_Type": "text/html; charset=utf-8",
            "Content_Length": str(len(body)),
            **headers,
        }
        lines = [
            f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items() if value
        ]
        await self.send(f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode() + body)

    async def redirect(self, location: str) -> None:
        await self.answer(b"", "302 Found", Location=location)

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Way = Callable[[Request], Awaitable[None]]


class BadServer:
    """Serves on loopback, in a thread, over HTTP at `port` and over TLS with a bad certificate
    at `tls_port`.

    `ways` are the hosts' answers, by first label. robots.txt is absent, but for hosts named
    `robots-…`, whose function answers for it too. `requests` counts (host, path); `full_port`
    belongs to a socket that takes no more connections.
    """

    def __init__(self, ways: Mapping[str, Way]) -> None:
        self.ways = ways
        self.requests: Counter[tuple[str, str]] = Counter()
        self.open = self.most_open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port, self.tls_port = asyncio.run_coroutine_threadsafe(
            self._start(), self._loop
        ).result(10)
        self._full = [socket.socket()]
        self._full[0].bind(("127.0.0.1", 0))
        self._full[0].listen(0)
        self.full_port = self._full[0].getsockname()[1]
        for _ in range(3):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", self.full_port))
            self._full.append(client)

    def close(self) -> None:
        for sock in self._full:
            sock.close()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def rules(self) -> tuple[str, ...]:
        """For `--resolve`."""
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
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            while start := await reader.read(1):
                if start == b"\x16":  # a TLS handshake, and this speaks plain HTTP
                    await Request("", "", 0, writer).answer(b"", "400 Bad Request")
                    break
                lines = (
                    (start + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                )
                host = next(
                    line[6:] for line in lines if line.lower().startswith("host: ")
                ).partition(":")[0]
                name, path = host.removesuffix(f".{DOMAIN}"), lines[0].split(" ")[1]
                self.requests[name, path] += 1
                fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                request = Request(name, path, self.requests[name, path], writer, fields)
                if path == "/robots.txt" and not name.startswith("robots-"):
                    await request.answer(b"", "404 Not Found")
                else:
                    await self.ways[name](request)
                if writer.is_closing():
                    break
        self.open -= 1
        writer.close()


Serve = Callable[..., BadServer]
"""Starts a server with the answers of hosts."""


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server with the answers of these hosts."""
    servers: list[BadServer] = []

    def start(ways: Mapping[str, Way]) -> BadServer:
        servers.append(BadServer(ways))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
