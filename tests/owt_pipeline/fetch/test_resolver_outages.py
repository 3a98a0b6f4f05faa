"""A resolver that gives no answer about many names rejects no URL. A few such names are the
names' own fault, and names that do not exist are answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from owt_pipeline.errors import UserError
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.test_live import fetch, page
from tests.servers.web import DOMAIN, Request, WebServer

NUM_HOSTS = 40
HOSTS = [f"h{number}" for number in range(NUM_HOSTS)]
# Without a rule of --resolve, a loopback address and its port have to be allowed.
UNRULED = {"resolve": (), "allowed_ports": (), "allow_private_hosts": True, "retries": 0}
NO_ANSWER = r"the resolver gave no answer about {} names, and the shard has {} hosts \("

LookUp = Callable[..., Any]


def broken_resolver(error_numbers: dict[str, int]) -> LookUp:
    """A resolver that fails for some names, by their first label, and has loopback for others."""
    look_up = socket.getaddrinfo

    def resolve(host: str, *arguments: Any) -> Any:
        number = error_numbers.get(host.partition(".")[0])
        if number is not None:
            # After the first responses, which show that the network works.
            time.sleep(0.2)
            raise socket.gaierror(number, f"error {number}")
        return look_up("127.0.0.1", *arguments)

    return resolve


def failing(hosts: list[str], number: int = socket.EAI_AGAIN) -> dict[str, int]:
    return dict.fromkeys(hosts, number)


def urls_of(server: WebServer, hosts: list[str] = HOSTS) -> list[str]:
    return [f"http://{host}.{DOMAIN}:{server.port}/{number}" for host in hosts for number in (1, 2)]


@pytest.mark.parametrize(
    ("number", "failed_hosts"),
    [
        (socket.EAI_AGAIN, HOSTS[::2]),
        pytest.param(socket.EAI_FAIL, HOSTS[1::2], marks=pytest.mark.slow),
        (socket.EAI_SYSTEM, HOSTS[:20]),
        pytest.param(socket.EAI_AGAIN, HOSTS[20:], marks=pytest.mark.slow),
        pytest.param(socket.EAI_AGAIN, HOSTS[::3], marks=pytest.mark.slow),
    ],
)
def test_a_resolver_that_fails_for_many_names_is_an_outage(
    serve: Serve,
    write_urls: Write,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    failed_hosts: list[str],
) -> None:
    server = serve(dict.fromkeys(HOSTS, page))
    urls = urls_of(server)
    runtime = write_urls(urls, num_shards=1)
    with monkeypatch.context() as patched:
        resolver = broken_resolver(failing(failed_hosts, number))
        patched.setattr(socket, "getaddrinfo", resolver)
        problem = NO_ANSWER.format(len(failed_hosts), NUM_HOSTS)
        for _ in range(2):
            with pytest.raises(UserError, match=problem):
                fetch(runtime, server, **UNRULED)
        patched.setattr(socket, "getaddrinfo", broken_resolver({}))
        manifest = fetch(runtime, server, **UNRULED)
    assert (manifest.counts.left, manifest.counts.rejected) == (len(urls), {})
    num_by_page = [num for (_, path), num in server.requests.items() if path != "/robots.txt"]
    assert max(num_by_page) == 1


def test_dead_names_are_rejected_as_the_message_advises(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(dict.fromkeys(HOSTS, page))
    urls = urls_of(server)
    runtime = write_urls(urls, num_shards=1)
    monkeypatch.setattr(socket, "getaddrinfo", broken_resolver(failing(HOSTS[::2])))
    with pytest.raises(UserError, match="add --max_unanswered_names 1"):
        fetch(runtime, server, **UNRULED)
    manifest = fetch(runtime, server, **UNRULED, max_unanswered_names=1.0)
    assert manifest.counts.rejected == {"dns": NUM_HOSTS}
    manifest = fetch(runtime, server, **UNRULED, max_unanswered_names=1.0, retry_failed=True)
    assert manifest.counts.rejected == {"dns": NUM_HOSTS}


@pytest.mark.parametrize(
    "error_numbers",
    [
        pytest.param(failing(HOSTS[:9]), id="nine names without an answer"),
        pytest.param(failing(HOSTS[::2], socket.EAI_NONAME), id="half do not exist"),
        pytest.param(
            failing(HOSTS[:24], socket.EAI_NONAME) | failing(HOSTS[30:39]), id="both at once"
        ),
    ],
)
def test_names_that_are_dead_themselves_are_rejected(
    serve: Serve,
    write_urls: Write,
    monkeypatch: pytest.MonkeyPatch,
    error_numbers: dict[str, int],
) -> None:
    server = serve(dict.fromkeys(HOSTS, page))
    runtime = write_urls(urls_of(server), num_shards=1)
    monkeypatch.setattr(socket, "getaddrinfo", broken_resolver(error_numbers))
    manifest = fetch(runtime, server, **UNRULED)
    assert manifest.counts.rejected == {"dns": 2 * len(error_numbers)}


def test_a_large_shard_may_have_more_dead_names(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [f"h{number}" for number in range(60)]
    server = serve(dict.fromkeys(hosts, page))
    runtime = write_urls(urls_of(server, hosts), num_shards=1)
    monkeypatch.setattr(socket, "getaddrinfo", broken_resolver(failing(hosts[:15])))
    assert fetch(runtime, server, **UNRULED).counts.rejected == {"dns": 30}
    retried = fetch(runtime, server, **UNRULED, retry_failed=True)
    assert retried.counts.rejected == {"dns": 30}, "a retry counts all hosts of the shard, too"


def test_names_that_redirects_lead_to_count(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def redirect(request: Request) -> None:
        if request.path == "/robots.txt":
            await request.answer(b"", "404 Not Found")
            return
        number = int(request.host.partition(".")[0][1:])
        await request.redirect(f"http://lost{number}.{DOMAIN}:{server.port}/")

    ways = {host: redirect if number % 2 else page for number, host in enumerate(HOSTS)}
    server = serve(ways)
    runtime = write_urls(urls_of(server), num_shards=1)
    lost_hosts = [f"lost{number}" for number in range(NUM_HOSTS)]
    monkeypatch.setattr(socket, "getaddrinfo", broken_resolver(failing(lost_hosts)))
    with pytest.raises(UserError, match=NO_ANSWER.format(20, NUM_HOSTS)):
        fetch(runtime, server, **UNRULED)


def test_a_resolver_that_is_silent_for_half_of_the_names_is_an_outage(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = broken_resolver({})

    def resolve(host: str, *arguments: Any) -> Any:
        if host.partition(".")[0] in HOSTS[::2]:
            time.sleep(2.0)
        return look_up(host, *arguments)

    server = serve(dict.fromkeys(HOSTS, page))
    runtime = write_urls(urls_of(server), num_shards=1)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UserError, match=NO_ANSWER.format(20, NUM_HOSTS) + ".*within 0.5 s"):
        fetch(runtime, server, **UNRULED, connect_timeout=0.5)
    monkeypatch.undo()
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert fetch(runtime, server, **UNRULED).counts.rejected == {}
