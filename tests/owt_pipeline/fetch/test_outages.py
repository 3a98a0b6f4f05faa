"""No URL is rejected because of an outage of our own network; temporary failures are retried
once."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.web import live
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.reading import rejects
from tests.owt_pipeline.fetch.test_live import fetch, page
from tests.servers.web import DOMAIN, Request, WebServer

HOSTS = [f"h{i}" for i in range(40)]
URLS = [f"http://{host}.{DOMAIN}/{number}" for host in HOSTS for number in range(3)]


def num_requests_to(server: WebServer) -> int:
    return sum(count for (_, path), count in server.requests.items() if path != "/robots.txt")


def resolver(number: int) -> Callable[..., None]:
    """A resolver whose answer is always this error."""

    def fail(*_: object) -> None:
        raise socket.gaierror(number, "no address")

    return fail


def test_without_a_network_no_url_has_an_outcome(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(dict.fromkeys(HOSTS, page))
    runtime, small = write_urls(URLS, num_shards=1), write_urls(URLS[:9], "few hosts")
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", resolver(socket.EAI_AGAIN))
        with pytest.raises(
            UserError,
            match=r"hosts in a row gave no answer \(dns .*The last failure: .* later to continue",
        ):
            fetch(runtime, server, resolve=(), retries=0)
        assert fetch(small, server, resolve=(), retries=0).counts.rejected == {"dns": 9}
    manifest = fetch(runtime, server, retries=0)
    assert (manifest.counts.left, manifest.counts.rejected) == (len(URLS), {})
    assert num_requests_to(server) == len(URLS)
    assert fetch(small, server, retries=0, retry_failed=True).counts.left == 9, (
        "those of few hosts are retried"
    )


@pytest.mark.parametrize("reason", ["connect", "dns"])
def test_hosts_that_are_really_dead_do_not_stop_the_run(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver(socket.EAI_NONAME))
    rules = tuple(f"{host}.{DOMAIN}=127.0.0.1:1" for host in HOSTS) if reason == "connect" else ()
    manifest = fetch(write_urls(URLS, num_shards=1), serve({}), resolve=rules, retries=0)
    assert manifest.counts.rejected == {reason: len(URLS)}


def test_silent_hosts_are_not_an_outage(serve: Serve, write_urls: Write) -> None:
    async def silent(_: Request) -> None:
        await asyncio.sleep(3600)

    server = serve(dict.fromkeys([f"robots-{host}" for host in HOSTS], silent))
    urls = [url.replace("//", "//robots-") for url in URLS]
    options = {"silence_timeout": 0.5, "retries": 0}
    manifest = fetch(write_urls(urls, num_shards=1), server, **options)
    assert manifest.counts.rejected == {"robots_unreachable": len(URLS)}


def test_hosts_that_drop_every_packet_look_like_an_outage(serve: Serve, write_urls: Write) -> None:
    runtime, server = write_urls(URLS, num_shards=1), serve({})
    rule = f"*.{DOMAIN}=127.0.0.1:{server.full_port}"
    with pytest.raises(UserError, match=r"hosts in a row gave no answer \(timeout "):
        fetch(runtime, server, resolve=(rule,), connect_timeout=0.5, retries=0)


@pytest.mark.parametrize(
    "proxy",
    [
        "dead",
        "silent",
        "407 Proxy Authentication Required",
        "502 Bad Gateway",
        "503 Service Unavailable",
    ],
)
def test_a_proxy_that_does_not_serve_us_is_an_outage(
    serve: Serve, write_urls: Write, proxy: str
) -> None:
    async def refuse(request: Request) -> None:
        await asyncio.sleep(60 if proxy == "silent" else 0)
        await request.answer(b"", proxy, Content_Type="")

    server = serve(dict.fromkeys(HOSTS, refuse))
    runtime = write_urls([*URLS, f"https://h9.{DOMAIN}/"], num_shards=1)
    reason = "connect" if proxy[0] == "5" else "timeout" if proxy == "silent" else "proxy"
    options = {
        "proxy": f"http://127.0.0.1:{1 if proxy == 'dead' else server.port}",
        "connect_timeout": 10.0,
        "silence_timeout": 0.5 if proxy == "silent" else 10.0,
    }
    with pytest.raises(
        UserError, match=rf"hosts in a row gave no answer \({reason} \d+\)\. The last failure: "
    ):
        fetch(runtime, server, resolve=(), retries=0, **options)


def test_hosts_that_go_away_stop_the_run_which_continues_later(
    serve: Serve, write_urls: Write
) -> None:
    server: WebServer
    is_down = threading.Event()

    async def answer(request: Request) -> None:
        if is_down.is_set():
            request.reset()
            return
        await request.answer()
        if num_requests_to(server) == len(URLS) // 2:
            is_down.set()

    server = serve({f"robots-{host}": answer for host in HOSTS})
    runtime = write_urls([url.replace("//", "//robots-") for url in URLS], num_shards=1)
    with pytest.raises(UserError, match="hosts in a row gave no answer"):
        fetch(runtime, server, retries=0, host_delay=0.1)
    is_down.clear()
    server.requests.clear()
    manifest = fetch(runtime, server, retries=0, host_delay=0.0)
    assert (manifest.counts.left, manifest.counts.rejected) == (len(URLS), {})
    # The requests in flight when the hosts went away are repeated.
    assert num_requests_to(server) <= len(URLS) // 2 + len(HOSTS)


def test_dead_hosts_next_to_one_that_answers_are_not_an_outage(
    serve: Serve, write_urls: Write
) -> None:
    server = serve({"good": page})
    rules = (*(f"{host}.{DOMAIN}=127.0.0.1:1" for host in HOSTS), *server.rules)
    runtime = write_urls([f"http://good.{DOMAIN}/", *URLS], num_shards=1)
    manifest = fetch(runtime, server, resolve=rules, retries=0)
    assert (manifest.counts.left, manifest.counts.rejected) == (1, {"connect": len(URLS)})
    assert set(rejects(runtime, manifest)) == {url.replace("http:", "https:") for url in URLS}


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_host_that_is_always_busy_is_closed_and_retried_once(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    async def busy(request: Request) -> None:
        await request.answer(b"", status)

    monkeypatch.setattr(live, "_FIRST_BACKOFF", 0.01)
    server = serve({"busy": busy, "good": page})
    urls = [f"http://{host}.{DOMAIN}/{number}" for host in ("busy", "good") for number in range(30)]
    manifest = fetch(write_urls(urls, num_shards=1), server, retries=3)
    reason = f"http_{status[:3]}"
    assert (manifest.counts.left, manifest.counts.rejected) == (30, {reason: 30})
    assert num_requests_to(server) - 30 == live._MAX_BUSY + 1


@pytest.mark.parametrize(
    ("retry_after", "num_more", "detail"),
    [
        ("3600", 0, "not asked: the host answered 503 and asked for 3,600 s"),
        ("90", 0, "not asked: the host answered 503 and asked for 90 s"),
        # The host is closed for longer than that, so one more request at the end is no fault.
        ("30", 1, f"not asked: the host answered {live._MAX_BUSY + 1} times in a row with 503"),
    ],
)
def test_a_host_that_is_closed_rests_as_long_as_it_asks(
    serve: Serve,
    write_urls: Write,
    monkeypatch: pytest.MonkeyPatch,
    retry_after: str,
    num_more: int,
    detail: str,
) -> None:
    num_requests = 0

    async def busy(request: Request) -> None:
        nonlocal num_requests
        if request.path == "/robots.txt":
            await request.answer(b"", "404 Not Found")
            return
        num_requests += 1
        headers = {"Retry_After": retry_after} if num_requests == live._MAX_BUSY else {}
        await request.answer(b"", "503 Service Unavailable", **headers)

    monkeypatch.setattr(live, "_FIRST_BACKOFF", 0.01)
    server = serve({"busy": busy})
    urls = [f"http://busy.{DOMAIN}/{number}" for number in range(9)]
    runtime = write_urls(urls, num_shards=1)
    manifest = fetch(runtime, server, retries=3)
    assert manifest.counts.rejected == {"http_503": 9}
    assert num_requests == live._MAX_BUSY + num_more
    details = [reject_detail for _, reject_detail in rejects(runtime, manifest).values()]
    assert details.count(detail) >= 8 - num_more


def test_temporary_failures_are_retried_once_at_the_shards_end(
    serve: Serve, write_urls: Write
) -> None:
    async def answer(request: Request) -> None:
        if request.count > 1 or request.path == "/robots.txt":
            await request.answer(
                status="404 Not Found" if request.path == "/robots.txt" else "200 OK"
            )
        elif request.path == "/gone":
            await request.answer(b"", "404 Not Found")
        elif request.path == "/reset":
            request.reset()
        else:
            await request.answer(b"", request.path[1:])

    async def no_robots(request: Request) -> None:
        is_robots = request.path == "/robots.txt"
        status = "500 Internal Server Error" if request.count == 1 else "404 Not Found"
        await request.answer(status=status if is_robots else "200 OK")

    ways = {"some": answer, "robots-late": no_robots}
    paths = ["gone", "reset", "500", "502", "503", "429"]
    urls = [f"http://some.{DOMAIN}/{path}" for path in paths] + [f"http://robots-late.{DOMAIN}/a"]
    server, runtime = serve(ways), write_urls(urls, num_shards=1)
    manifest = fetch(runtime, server, retries=0)
    assert (manifest.counts.left, manifest.counts.rejected) == (6, {"http_404": 1})
    assert server.requests["some", "/gone"] == 1
