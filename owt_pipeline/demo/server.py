"""Serves the demo's web on one port of the loopback address, over real HTTP; hosts are distinguished by `Host`.

    python -m owt_pipeline.demo.server --port 8123

prints `serving on 127.0.0.1:8123` once it answers. The names below `demo.test` do not resolve:
a client connects to that address and sends the name, as `owt fetch --resolve` does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, unquote, urlencode

from aiohttp import web

from owt_pipeline.demo.inputs import common_crawl
from owt_pipeline.demo.site import Answer, Behaviour, Site, build_site

ENDLESS_BYTES = 200 * 2**20
"""Where the body without end does end, so that a client without a limit finds out as well."""

_STALL_SECONDS = 300.0
_DATE = "Wed, 01 Jan 2020 00:00:00 GMT"  # equal responses give equal bytes, whenever they are sent
_LINGER_0 = struct.pack("ii", 1, 0)  # close() then sends RST


@contextmanager
def serving() -> Iterator[str]:
    """The demo's web in a process of its own while the context lasts; gives its `address:port`.

    Raises:
      RuntimeError: the server did not start.
    """
    command = [sys.executable, "-m", "owt_pipeline.demo.server"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("serving on "):
            raise RuntimeError(f"the demo's server did not start (exit status {process.wait(timeout=10)})")
        yield line.split()[2]
    finally:
        process.kill()  # it holds nothing, and answers that stall would be waited for
        process.communicate()


async def start(site: Site, port: int = 0) -> tuple[web.AppRunner, int]:
    """Start serving `site` in the running event loop; returns the runner, to be cleaned up, and the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _Handler(site))
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", port)
    await listener.start()
    return runner, runner.addresses[0][1]


class _Handler:
    def __init__(self, site: Site) -> None:
        answers = {**site.answers, **site.later_answers, **common_crawl(site)}
        self.answers = {(host, _page_path(path)): answer for (host, path), answer in answers.items()}
        self.hosts = set(site.hosts)
        self.asked: set[tuple[str, str]] = set()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        host = request.host.partition(":")[0].lower().removeprefix("www.")
        key = host, _page_path(request.raw_path)
        answer = self.answers.get(key)
        if answer is None:
            return _plain(404 if host in self.hosts else 421, "nothing here")
        if answer.delay:
            await asyncio.sleep(answer.delay)
        if answer.behaviour is Behaviour.BUSY and key not in self.asked:
            self.asked.add(key)
            return _plain(503, "busy", {"Retry-After": "1"})
        if answer.behaviour is Behaviour.RESET:
            return _reset(request)
        if answer.behaviour is Behaviour.STALL:
            return await _stalled(request, answer)
        if answer.behaviour is Behaviour.ENDLESS:
            return await _endless(request, answer)
        if "Range" in request.headers:
            return _part(answer, request.http_range)
        return _complete(answer)


def _page_path(path_qs: str) -> str:
    """The path a page is known by: decoded, without tracking parameters and a slash at its end."""
    path, _, query = path_qs.partition("?")
    kept = [(key, value) for key, value in parse_qsl(query) if not key.startswith(("utm_", "fbclid"))]
    return (unquote(path).rstrip("/") or "/") + (f"?{urlencode(kept)}" if kept else "")


def _headers(answer: Answer) -> dict[str, str]:
    headers = {"Content-Type": answer.content_type, "Date": _DATE, "Server": "demo"}
    if answer.location:
        headers["Location"] = answer.location
    if answer.status in (429, 503):
        headers["Retry-After"] = "1"
    if answer.behaviour is Behaviour.BROKEN_GZIP:
        headers["Content-Encoding"] = "gzip"
    return headers


def _complete(answer: Answer) -> web.Response:
    response = web.Response(status=answer.status, body=answer.body, headers=_headers(answer))
    if answer.compress:
        response.enable_compression()
    return response


def _part(answer: Answer, span: slice) -> web.Response:
    start, end, _ = span.indices(len(answer.body))
    about = {"Content-Range": f"bytes {start}-{end - 1}/{len(answer.body)}"}
    return web.Response(status=206, body=answer.body[start:end], headers={**_headers(answer), **about})


def _plain(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=text, headers={"Date": _DATE, "Server": "demo", **(headers or {})})


def _reset(request: web.Request) -> web.Response:
    assert request.transport is not None
    connection: socket.socket = request.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
    request.transport.abort()
    return web.Response()


async def _stalled(request: web.Request, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_headers(answer))
    response.content_length = len(answer.body)
    await response.prepare(request)
    await response.write(answer.body[: len(answer.body) // 2])
    await asyncio.sleep(_STALL_SECONDS)
    return response


async def _endless(request: web.Request, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_headers(answer))
    await response.prepare(request)
    paragraph = b"<p>And so it went on, entry after entry, for there was no one to close the book.</p>\n" * 1024
    with contextlib.suppress(ConnectionResetError):  # the client has enough: that is what the page is for
        await response.write(answer.body)
        for _ in range(ENDLESS_BYTES // len(paragraph) + 1):
            await response.write(paragraph)
    return response


async def _serve_until_stdin_closes(port: int) -> None:
    runner, port = await start(build_site(), port)
    print(f"serving on 127.0.0.1:{port}", flush=True)
    try:
        # The pipe closes with the parent, however it ends: no server is left behind.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    finally:
        await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the demo's web on loopback until standard input ends.")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to listen on (default: a free one)")
    asyncio.run(_serve_until_stdin_closes(parser.parse_args().port))


if __name__ == "__main__":
    main()
