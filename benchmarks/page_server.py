"""A server of prepared pages on loopback, for `fetch.py`.

    python benchmarks/page_server.py CODING PAGE_BYTES

It runs in a process of its own, so that its CPU time is not the clients'. It does as little as
possible: every response is prepared.
"""

from __future__ import annotations

import contextlib
import gzip
import html
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pydoc_data.topics import topics

# The codings of bodies, with their description.
CODINGS = {"gzip": "in gzip", "identity": "as they are"}


@contextlib.contextmanager
def serving(page_bytes: int, coding: str) -> Iterator[tuple[int, int]]:
    """Start the server; yield its port and process id."""
    command = [sys.executable, __file__, coding, str(page_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline()), server.pid
        finally:
            server.kill()


def serve(page_bytes: int, coding: str) -> None:
    """Print the port, and respond to every request with a page.

    The response to robots.txt and to the URLs below /gone/ is 404.
    """
    pages = [make_response(body, coding) for body in make_bodies(64, page_bytes)]
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                continue
            connection = connections[fd]
            request = b""
            with contextlib.suppress(OSError):
                request = connection.recv(1 << 16)
                if request:
                    is_missing = request.startswith((b"GET /robots.txt", b"GET /gone/"))
                    connection.sendall(
                        missing if is_missing else pages[hash(request[:60]) % len(pages)]
                    )
            if not request:
                poll.unregister(fd)
                connections.pop(fd).close()


def make_response(body: bytes, coding: str) -> bytes:
    """Return a response with a body, which is compressed if the coding is gzip."""
    headers = "Content-Type: text/html; charset=utf-8\r\n"
    if coding == "gzip":
        headers += "Content-Encoding: gzip\r\n"
        # This is the usual level of servers.
        body = gzip.compress(body, 6, mtime=0)
    return f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def make_bodies(count: int, size: int) -> Iterator[bytes]:
    """Yield different pages of `size` bytes, with prose below a menu.

    They compress like real pages.
    """
    prose = " ".join(topics.values()).split("\n\n")
    text = "\n".join(f'<p class="text">{html.escape(paragraph)}</p>' for paragraph in prose)
    menu = "\n".join(
        f'<li class="menu-item"><a class="menu-link" href="/topic/{name}">{name}</a></li>'
        for name in topics
    )
    for number in range(count):
        head = f"<html><head><title>Page {number}</title></head><body><ul>{menu}</ul>"
        yield f"{head}{text[number * 5000 :]}".encode()[:size]


if __name__ == "__main__":
    serve(coding=sys.argv[1], page_bytes=int(sys.argv[2]))
