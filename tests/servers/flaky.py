"""A way to a server that can be cut, as a network is."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator

_RESET = struct.pack("ii", 1, 0)


class FlakyWay:
    """Passes connections on to a port of this machine, unless it is down; going down cuts those
    that are open.

    While it is down, the connections that are opened are in turn reset after a request, closed
    after one, and closed at once.

    Attributes:
      port: where it listens.
      answers_to_lose: how many of the server's next answers are dropped, with their connection.
    """

    def __init__(self, server_port: int):
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._down = False
        self._refusals = itertools.count()
        self.answers_to_lose = 0
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def down_for(self, seconds: float) -> Iterator[None]:
        """Go down now, for some seconds."""
        self._refusals = itertools.count()
        self._down = True
        self._cut(list(self._open))
        timer = threading.Timer(seconds, self._up)
        timer.start()
        yield
        timer.join()

    def close(self) -> None:
        self._listener.close()
        self._cut(list(self._open))

    def _up(self) -> None:
        self._down = False

    def _cut(self, connections: list[socket.socket]) -> None:
        for connection in connections:
            self._open.discard(connection)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                if self._down:
                    self._refuse(client, next(self._refusals) % 3)
                    continue
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._open |= {client, server}
                threading.Thread(
                    target=self._pass, args=(client, server, False), daemon=True
                ).start()
                threading.Thread(
                    target=self._pass, args=(server, client, True), daemon=True
                ).start()

    def _refuse(self, client: socket.socket, kind: int) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(1)
            # Clients differ in what they retry: a reset, a closed connection, or none at all.
            if kind < 2:
                client.recv(1 << 16)
            if kind == 0:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self.answers_to_lose:
                    self.answers_to_lose -= 1
                    break
                target.sendall(data)
        self._cut([source, target])
