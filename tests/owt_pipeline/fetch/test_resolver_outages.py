"""Names about which the resolver gives no answer count as hosts that do not respond.

If none is answered any more, the run stops. Names that fail between others are temporary failures,
and names that do not exist are answers.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from owt_pipeline.errors import UserError
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.test_live import fetch, page
from tests.servers.web import DOMAIN, WebServer

NUM_HOSTS = 40
HOSTS = [f"h{number}" for number in range(NUM_HOSTS)]
# Without a rule of --resolve, a loopback address and its port have to be allowed.
UNRULED = {"resolve": (), "allowed_ports": (), "allow_private_hosts": True, "retries": 0}
NO_ANSWER = r"hosts in a row gave no answer \(dns \d+\)\. The last failure: "

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


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM])
def test_a_resolver_that_goes_away_stops_the_run(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    server = serve(dict.fromkeys(HOSTS, page))
    urls = urls_of(server)
    runtime = write_urls(urls, num_shards=1)
    look_up = broken_resolver({})
    num_lookups = 0

    def resolve(host: str, *arguments: Any) -> Any:
        nonlocal num_lookups
        num_lookups += 1
        # The addresses of the first hosts stay known, and these hosts respond on.
        if num_lookups > 10:
            time.sleep(0.2)
            raise socket.gaierror(number, f"error {number}")
        return look_up(host, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", resolve)
        with pytest.raises(UserError, match=NO_ANSWER):
            fetch(runtime, server, **UNRULED)
        patched.setattr(socket, "getaddrinfo", look_up)
        manifest = fetch(runtime, server, **UNRULED)
    assert (manifest.counts.left, manifest.counts.rejected) == (len(urls), {})
    num_by_page = [num for (_, path), num in server.requests.items() if path != "/robots.txt"]
    assert max(num_by_page) == 1


def test_names_that_fail_between_others_are_pages_later(
    serve: Serve, write_urls: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(dict.fromkeys(HOSTS, page))
    urls = urls_of(server)
    runtime = write_urls(urls, num_shards=1)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", broken_resolver(failing(HOSTS[::2])))
        assert fetch(runtime, server, **UNRULED).counts.rejected == {"dns": NUM_HOSTS}
        patched.setattr(socket, "getaddrinfo", broken_resolver({}))
        manifest = fetch(runtime, server, **UNRULED, retry_failed=True)
    assert (manifest.counts.left, manifest.counts.rejected) == (len(urls), {})


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
