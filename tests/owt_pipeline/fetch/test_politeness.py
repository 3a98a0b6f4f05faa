"""Turns at hosts and addresses, robots.txt, Retry-After, cookies, and proxies."""

from __future__ import annotations

import asyncio
import itertools
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from yarl import URL

from owt_pipeline.stages.fetch.answers import HttpResponse
from owt_pipeline.stages.fetch.web.live import Cookies
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.reading import rejects, responses
from tests.owt_pipeline.fetch.test_live import fetch, outcome, page
from tests.servers.web import DOMAIN, Request, WebServer, forward


def test_a_host_gets_one_request_in_its_delay_and_one_connection(
    serve: Serve, write_urls: Write
) -> None:
    times: dict[str, list[float]] = {}

    async def note(request: Request) -> None:
        times.setdefault(request.host, []).append(time.monotonic())
        await asyncio.sleep(0.05)
        await request.answer()

    hosts = [f"h{i}" for i in range(20)]
    server = serve(dict.fromkeys(hosts, note))
    runtime = write_urls([f"http://{host}.{DOMAIN}/{p}" for host in hosts for p in range(4)])
    started = time.monotonic()
    manifest = fetch(runtime, server, host_delay=0.3)
    assert manifest.counts.left == 80
    in_all = max(map(max, times.values())) - min(map(min, times.values()))
    # The hosts get their requests side by side.
    assert sum(max(of_host) - min(of_host) for of_host in times.values()) > 2 * in_all
    gaps = [b - a for host in hosts for a, b in itertools.pairwise(times[host])]
    # A busy server notes some requests late, and then the next gap is shorter.
    assert statistics.median(gaps) > 0.28, gaps
    for host in hosts:
        assert all(at - started >= 0.3 * number for number, at in enumerate(times[host])), times[
            host
        ]
    assert server.max_open <= len(hosts)


def test_robots_txt_is_requested_once_and_obeyed(serve: Serve, write_urls: Write) -> None:
    times: list[float] = []

    async def serve_rules(request: Request) -> None:
        if request.path == "/robots.txt":
            rules = (
                b"User-agent: testbot\nCrawl-delay: 0.4\nDisallow: /private\nAllow: /private/but\n"
            )
            await request.answer(rules)
        else:
            times.append(time.monotonic())
            await request.answer()

    server = serve({"robots-some": serve_rules})
    paths = ["private", "private/x", "private/but/this", "public", "x"]
    runtime = write_urls([f"http://robots-some.{DOMAIN}/{path}" for path in paths])
    response_by_url, reject_by_url = outcome(runtime, fetch(runtime, server))
    assert {url.partition(f"{DOMAIN}/")[2] for url in response_by_url} == {
        "private/but/this",
        "public",
        "x",
    }
    assert {reason for reason, _ in reject_by_url.values()} == {"robots"}
    assert server.requests["robots-some", "/robots.txt"] == 1
    assert server.requests["robots-some", "/private"] == 0
    # The first request may be noted late.
    assert times[-1] - times[0] > 0.7


def test_a_dead_host_is_given_up(serve: Serve, write_urls: Write) -> None:
    async def hang(request: Request) -> None:
        await asyncio.sleep(60)

    server = serve({"hang": hang})
    runtime = write_urls([f"http://hang.{DOMAIN}/{p}" for p in range(50)])
    _, rejects = outcome(runtime, fetch(runtime, server, host_failures=3, silence_timeout=0.3))
    assert {reason for reason, _ in rejects.values()} == {"timeout"}
    given_up = sum("given up after 3 failures" in detail for _, detail in rejects.values())
    # At the end of the shard, one is requested again.
    assert given_up == 49
    assert sum(server.requests.values()) == 5


def test_retry_after_is_waited_for(serve: Serve, write_urls: Write) -> None:
    times: list[float] = []

    async def busy(request: Request) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            await request.answer(b"", "503 Service Unavailable", Retry_After="2")
        else:
            await request.answer()

    runtime = write_urls([f"http://busy.{DOMAIN}/{p}" for p in range(2)])
    manifest = fetch(runtime, serve({"busy": busy}))
    assert manifest.counts.left == 2
    assert times[-1] - times[0] > 1.9


def test_a_host_with_a_long_retry_after_gets_no_more_requests(
    serve: Serve, write_urls: Write
) -> None:
    async def closed(request: Request) -> None:
        if request.path == "/robots.txt":
            await request.answer(b"", "404 Not Found")
        else:
            await request.answer(b"", "429 Too Many Requests", Retry_After="3600")

    server = serve({"closed": closed, "open": page})
    urls = [f"http://{host}.{DOMAIN}/{i}" for host in ("closed", "open") for i in range(5)]
    runtime = write_urls(urls, num_shards=1)
    manifest = fetch(runtime, server)
    assert (manifest.counts.left, manifest.counts.rejected) == (5, {"http_429": 5})
    # One of these requests is for robots.txt.
    assert sum(count for (host, _), count in server.requests.items() if host == "closed") == 2
    details = sorted(detail for _, detail in rejects(runtime, manifest).values())
    assert details == ["not asked: the host answered 429 and asked for 3,600 s"] * 5


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://www.a.example/sub/y", {"a=1", "b=2"}),
        ("https://www.a.example/", {"a=1", "d=4"}),
        ("http://www.a.example/", {"a=1"}),
        ("http://a.example/", set()),
        ("http://other.example/", set()),
        ("https://evil.example/", set()),
    ],
)
def test_cookies_are_sent_only_where_they_were_set_for(url: str, expected: set[str]) -> None:
    headers = [
        ("Set-Cookie", "a=1; Path=/"), ("set-cookie", "b=2; Path=/sub; Expires=Thu, 01 Jan 2099 "
        "00:00:00 GMT"),
        ("Set-Cookie", "c=3; Domain=other.example"), ("Set-Cookie", "d=4; Secure"),
    ]  # fmt: skip

    async def header() -> str | None:
        cookies = Cookies()
        assert cookies.header(URL(url)) is None
        cookies.take(HttpResponse("https://www.a.example/x", 302, headers, b"", b"", 1))
        return cookies.header(URL(url))

    assert set(filter(None, (asyncio.run(header()) or "").split("; "))) == expected


class Proxy(WebServer):
    """An HTTP proxy in front of another web server, plain or by CONNECT, that wants a password.

    Attributes:
      server: the server behind it.
      proxy_url: its URL with the password.
      request_lines: method and target of each request.
    """

    def __init__(self, server: WebServer, has_tls: bool = False):
        super().__init__({"": self._pass_on})
        self.server = server
        self.request_lines: list[str] = []
        self.proxy_url = f"http://me:secret@127.0.0.1:{self.port}"
        if has_tls:
            self.proxy_url = f"https://me:secret@127.0.0.1:{self.tls_port}"

    async def _pass_on(self, request: Request) -> None:
        self.request_lines.append(f"{request.method} {request.path}")
        assert request.headers["proxy-authorization"] == "Basic bWU6c2VjcmV0"
        if "refused" in request.path:
            await request.answer(b"", 403)
            request.close()
        else:
            await forward(self.server.port, self.server.tls_port)(request)


BEHIND_PROXY = ["inside", "printer.local", "metadata.google.internal"]


def no_names(original: Callable[..., list[tuple]], host: str, *arguments: Any) -> list[tuple]:
    """Resolve only names that go without the proxy, as none; other names are a fault."""
    assert host.endswith(".invalid") or not host[0].isalpha(), host
    if host[0].isalpha():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return original(host, *arguments)


@pytest.fixture
def proxy(serve: Serve, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """Serve a proxy, with TLS if the parameter is true, in front of a server of pages."""
    server = serve(dict.fromkeys(["plain", "tls", "refused", *BEHIND_PROXY], page))
    with Proxy(server, request.param) as proxy:
        yield proxy


@pytest.mark.parametrize("proxy", [False, True], ids=["http", "https"], indirect=True)
@pytest.mark.parametrize("named_by", ["option", "environment"])
def test_requests_go_through_a_proxy(
    proxy: Proxy, write_urls: Write, named_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if named_by == "environment":
        monkeypatch.setenv("http_proxy", proxy.proxy_url)
        monkeypatch.setenv("https_proxy", proxy.proxy_url)
    monkeypatch.setenv("no_proxy", "nowhere.invalid")
    urls = [
        f"http://plain.{DOMAIN}/a?b=c",
        f"https://tls.{DOMAIN}/x",
        f"https://refused.{DOMAIN}/",
        "http://10.0.0.1/",
    ]
    private = ["http://2130706433/", "http://0x7f.1/", "http://[::1]/", "http://localhost/"]
    urls += ["http://nowhere.invalid/", *private]
    urls += [f"http://{name}/" for name in BEHIND_PROXY]
    monkeypatch.setattr(socket, "getaddrinfo", partial(no_names, socket.getaddrinfo))
    runtime = write_urls(urls)
    options = {
        "resolve": (),
        "verify_tls": False,
        "proxy": proxy.proxy_url if named_by == "option" else "",
    }
    manifest = fetch(runtime, proxy.server, **options)
    assert {
        url.removesuffix("/a?b=c").removesuffix("/x") for url in responses(runtime, manifest)
    } == {
        f"https://plain.{DOMAIN}",
        f"https://tls.{DOMAIN}",
        *(f"https://{name}/" for name in BEHIND_PROXY),
    }
    reject_by_host = {
        url.split("/")[2]: reject for url, reject in rejects(runtime, manifest).items()
    }
    reject_by_host["refused"] = reject_by_host.pop(f"refused.{DOMAIN}")
    assert reject_by_host.pop("refused") == (
        "connect",
        "robots.txt: the proxy refuses: 403 Forbidden",
    )
    # It is looked up without the proxy, as no_proxy wants it.
    assert reject_by_host.pop("nowhere.invalid")[0] == "dns"
    assert {name: reason for name, (reason, _) in reject_by_host.items()} == dict.fromkeys(
        ["10.0.0.1", "2130706433", "0x7f.1", "[::1]", "localhost"], "blocked_address"
    )
    assert not any(
        name in target for target in proxy.request_lines for name in (*reject_by_host, "nowhere")
    )
    assert {f"GET http://plain.{DOMAIN}/robots.txt", f"CONNECT tls.{DOMAIN}:443"} < set(
        proxy.request_lines
    )
