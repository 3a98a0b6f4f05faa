"""Which addresses may be connected to, and which URL is requested for a posted one."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import time
from email.utils import formatdate
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from owt_pipeline.errors import UserError
from owt_pipeline.formats.public_addresses import is_public
from owt_pipeline.formats.urls import BadURL, canonical_url, requested
from owt_pipeline.formats.warc import response_record
from owt_pipeline.stages.fetch.answers import HttpResponse, Origin
from owt_pipeline.stages.fetch.archives.search import ArchivedRedirect, read_capture
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.web.addresses import (
    Addresses,
    BlockedAddress,
    Rule,
    RuledResolver,
    parse_rules,
)
from owt_pipeline.stages.fetch.web.client import Client
from owt_pipeline.stages.fetch.web.live import redirect_target, requested_url
from owt_pipeline.stages.fetch.web.politeness import Gate, RequestError, retry_after
from owt_pipeline.stages.fetch.web.robots import robots_token
from schemas import Reason

PRIVATE = [
    "127.0.0.1",
    "127.255.255.255",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "0.0.0.0",
    "100.64.0.1",
    "168.63.129.16",
    "192.0.0.8",
    "192.0.0.170",
    "192.0.0.192",
    "192.88.99.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "fd12::1",
    "ff02::1",
    "100:0:0:1::1",
    "2001:10::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "::ffff:168.63.129.16",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1",
    "fec0::1",
    "::127.0.0.1",
    "::ffff:0:7f00:1",
    "4000::1",
]
PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "168.63.129.17",
    "192.0.0.9",
    "192.0.1.1",
    "192.175.48.6",
    "2001:20::1",
    "2001:500:88:200::8",
    "2001:4860:4860::8888",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_blocked(address: str) -> None:
    with pytest.raises(BlockedAddress, match="not public"):
        Addresses().check_address(address)
    Addresses(allow_private=True).check_address(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    Addresses().check_address(address)


@given(st.ip_addresses(v=4))
def test_an_ipv6_address_is_judged_by_the_ipv4_address_it_wraps(ip: ipaddress.IPv4Address) -> None:
    for wrapped in (f"::ffff:{ip}", str(ipaddress.IPv6Address((0x2002 << 112) | (int(ip) << 80)))):
        assert is_public(ipaddress.ip_address(wrapped)) == is_public(ip)


def test_rules_permit_their_addresses() -> None:
    rules = parse_rules(("*.demo.test=127.0.0.1:8123", "A.test=[::1]:80", "b.test=10.0.0.1"))
    assert rules == (
        Rule("*.demo.test", "127.0.0.1", 8123),
        Rule("a.test", "::1", 80),
        Rule("b.test", "10.0.0.1", None),
    )
    addresses = Addresses(rules, (80,))
    addresses.check_port("x.demo.test", 9999)
    with pytest.raises(BlockedAddress, match="port 9999 is not among --allowed_ports"):
        addresses.check_port("demo.test", 9999)
    assert Addresses((), ()).check_port("x", 9999) is None


@pytest.mark.parametrize(
    "text", ["", "a.test", "a.test=", "=1.2.3.4", "a=b.test:80", "a=1.2.3.4:0", "a=1.2.3.4:99999"]
)
def test_an_unknown_rule_is_an_error(text: str) -> None:
    with pytest.raises(UserError, match="--resolve"):
        parse_rules((text,))


@pytest.mark.parametrize(
    ("posted", "requested"),
    [
        ("http://example.com", "http://example.com/"),
        ("HTTP://Example.COM/A b?q=ä&amp;r=1#frag", "http://example.com/A%20b?q=%C3%A4&r=1"),
        ("http://user:pw@example.com/", "http://example.com/"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://example.com/a%2Fb", "http://example.com/a%2Fb"),
        (
            "http://example.com/share?u=http%3A%2F%2Fx.org%2F&b=%20c+d",
            "http://example.com/share?u=http%3A%2F%2Fx.org%2F&b=%20c+d",
        ),
        ("http://example.com/%7ea/%41|[b]'?q={c}|'", "http://example.com/%7ea/%41|[b]'?q={c}|%27"),
        ("http://example.com/100%/%2e%2E/a/./b/..", "http://example.com/a/"),
        ("http:\\\\example.com.:80\\a\nb?c\\d", "http://example.com/ab?c\\d"),
        ("https://example.com:8443?q", "https://example.com:8443/?q"),
        ("http://example.com/groups#!topic/a b", "http://example.com/groups#!topic/a%20b"),
        ("http://[::1]:8080/", "http://[::1]:8080/"),
        ("http://example.com/..", "http://example.com/"),
        ("http://example.com/a/..", "http://example.com/"),
        ("http://example.com/.", "http://example.com/"),
        ("http://example.com/a/b/../.", "http://example.com/a/"),
        ("http://example.com/../../a/.?q", "http://example.com/a/?q"),
    ],
)
def test_a_posted_url_is_requested_encoded(posted: str, requested: str) -> None:
    assert str(requested_url(posted)) == requested


@given(st.text(max_size=60) | st.text(max_size=30).map(lambda text: f"http://{text}"))
def test_any_text_is_a_url_to_request_or_a_value_error(posted: str) -> None:
    try:
        url = requested_url(posted)
    except ValueError:
        return
    assert url.scheme in ("http", "https")
    assert str(url).isascii()
    assert requested_url(str(url)) == url
    with contextlib.suppress(BadURL):
        assert canonical_url(str(url)) == canonical_url(posted)


PIECES = [
    "/",
    "..",
    ".",
    "%2e",
    "%2F",
    "%3a",
    "%",
    "%zz",
    "&amp;",
    "&",
    "?",
    "#",
    "#!",
    "#/",
    "=",
    "a",
    "B",
    "ä",
    "☃",
    " ",
    "\t",
    "\n",
    "\\",
    "[",
    "]",
    "|",
    "{",
    "'",
    '"',
    "<",
    ";",
    "+",
    "%7E",
    "%41",
    ":",
    "@",
    "utm_source=x",
    "\udc80",
]
HOSTS = [
    "Example.COM.",
    "www.example.com",
    "www.www.x.org",
    "a_b.example",
    "bücher.example",
    "☃.net",
    "u:p@x.org",
]
HOSTS += ["x.org:80", "x.org:443", "x.org:8080", "[::1]:80", "%65xample.com", "1.2.3.4"]


@given(
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(HOSTS),
    st.lists(st.sampled_from(PIECES), max_size=10),
)
def test_requested_and_posted_url_have_one_canonical_form(
    scheme: str, host: str, pieces: list[str]
) -> None:
    posted = f"{scheme}://{host}/{''.join(pieces)}"
    url = str(requested_url(posted))
    assert canonical_url(url) == canonical_url(posted)
    assert requested(url) == url
    escapes = re.findall(
        "%[0-9A-Fa-f]{2}", posted.partition("#")[0].partition("://")[2].partition("/")[2]
    )
    kept_escapes = [escape for escape in escapes if escape.lower() != "%2e"]
    escapes_of_url = iter(re.findall("%[0-9A-Fa-f]{2}", url.partition("://")[2]))
    if ".." not in posted and "%2e" not in posted:
        # An iterator: the escapes are in the same order.
        assert all(escape in escapes_of_url for escape in kept_escapes)


def connected(
    monkeypatch: pytest.MonkeyPatch, url: str, *addresses: str, **options: object
) -> tuple[list[str], str]:
    """The addresses that are connected to for a URL whose name has these addresses, and the
    reason of the failure."""
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: infos)
    tried: list[str] = []

    async def connect(_: asyncio.AbstractEventLoop, __: socket.socket, address: tuple) -> None:
        tried.append(address[0])
        raise ConnectionRefusedError(111, "Connection refused")

    async def get() -> Reason:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "sock_connect", partial(connect, loop))
        client = Client(Options(user_agent="x", **options))  # type: ignore[arg-type]
        try:
            await client.get(URL(url), lambda *_: False, Gate(0.0, 1))
        except RequestError as failure:
            return failure.reason
        finally:
            await client.close()
        raise AssertionError

    reason = asyncio.run(get())
    return list(dict.fromkeys(tried)), reason


def test_only_the_public_addresses_of_a_name_are_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "http://name.example/"
    assert connected(monkeypatch, name, "10.0.0.1", "127.0.0.1", "8.8.8.8") == (
        ["8.8.8.8"],
        "connect",
    )
    assert connected(monkeypatch, name, "10.0.0.1", "::1") == ([], "blocked_address")
    permitted = connected(monkeypatch, name, allow_private_hosts=True, resolve=("*=10.0.0.1",))
    assert permitted == (["10.0.0.1"], "connect")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "10.0.0.1"]
)
def test_an_address_in_a_url_is_not_resolved_and_is_checked_too(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    assert connected(monkeypatch, f"http://{host}/") == ([], "blocked_address")
    assert connected(monkeypatch, "http://8.8.8.8/") == (["8.8.8.8"], "connect")


def test_a_rule_permits_an_address_for_its_names_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = ("demo.test=127.0.0.1:80",)
    assert connected(monkeypatch, "http://demo.test/", resolve=rule) == (["127.0.0.1"], "connect")
    assert connected(monkeypatch, "http://other.test/", "127.0.0.1", resolve=rule) == (
        [],
        "blocked_address",
    )


def test_names_without_an_answer_do_not_delay_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, *_: object) -> list[tuple]:
        if host.startswith("dead"):
            time.sleep(0.4)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def resolve() -> list[object]:
        resolver = RuledResolver(Addresses(), 0.2)
        names = [f"dead{i}.example" for i in range(6)] + [f"alive{i}.example" for i in range(6)]
        try:
            return await asyncio.gather(
                *(resolver.resolve(name, 80) for name in names), return_exceptions=True
            )
        finally:
            await resolver.close()

    results = asyncio.run(resolve())
    assert all("no answer about the name within 0.2 s" in str(error) for error in results[:6])
    assert all(isinstance(infos, list) for infos in results[6:])


def answer(**headers: str) -> HttpResponse:
    fields = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return HttpResponse("http://a.example/dir/page?q", 302, fields, b"", b"", 1)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/x", "http://a.example/x"),
        ("x", "http://a.example/dir/x"),
        ("?y", "http://a.example/dir/page?y"),
        ("//b.example/", "http://b.example/"),
        ("https://b.example/a b#c", "https://b.example/a%20b"),
        # UTF-8, whose bytes are read as Latin-1 in a header.
        ("/\xc3\xa4", "http://a.example/%C3%A4"),
        ("/\xe4", "http://a.example/%E4"),
        ("http://b\xc3\xbccher.example/", "http://xn--bcher-kva.example/"),
        ("/share?u=http%3A%2F%2Fx.org%2F", "http://a.example/share?u=http%3A%2F%2Fx.org%2F"),
        ("/web/http://x.org/a//b", "http://a.example/web/http://x.org/a//b"),
        # A backslash is a slash, and any number of them may come before a host.
        ("\\x", "http://a.example/x"),
        ("x\\y", "http://a.example/dir/x/y"),
        ("\\\\b.example\\x", "http://b.example/x"),
        ("/\\b.example/x", "http://b.example/x"),
        ("\\/b.example", "http://b.example/"),
        ("///b.example/x", "http://b.example/x"),
        ("/////b.example", "http://b.example/"),
        ("http:///b.example/x", "http://b.example/x"),
        ("https:////b.example", "https://b.example/"),
        ("https:b.example/x", "https://b.example/x"),
        ("https:\\b.example", "https://b.example/"),
        ("HTTP:\\\\b.example", "http://b.example/"),
        # The base's scheme without slashes is none.
        ("http:x", "http://a.example/dir/x"),
        ("http:/x", "http://a.example/x"),
        ("http:?y", "http://a.example/dir/page?y"),
        # Dots at the root, at the end and in escapes.
        ("/..", "http://a.example/"),
        ("/.", "http://a.example/"),
        ("..", "http://a.example/"),
        (".", "http://a.example/dir/"),
        ("../../../x", "http://a.example/x"),
        ("/a/b/..", "http://a.example/a/"),
        ("/a/.", "http://a.example/a/"),
        ("/a//../b", "http://a.example/a/b"),
        ("/a\\..\\b", "http://a.example/b"),
        ("/%2e%2E/a/%2e", "http://a.example/a/"),
        ("?a=/../b\\c", "http://a.example/dir/page?a=/../b\\c"),
        # What is around and in it, and what belongs to it.
        ("\x00 /x\t\x1f", "http://a.example/x"),
        ("/a\tb", "http://a.example/ab"),
        ("/caf\xc3\xa0", "http://a.example/caf%C3%A0"),
        ("#x", "http://a.example/dir/page?q"),
        ("http://user:pw@b.example:80/", "http://b.example/"),
    ],
)
def test_redirects_resolve_as_in_browsers(location: str, target: str) -> None:
    response = answer(Location=location)
    assert str(redirect_target(response)) == target
    record = response_record(response.url, 0, "HTTP/1.1 302 Found", [("Location", location)], b"")
    redirect = read_capture(record, Origin("archive"), 0, "")
    assert isinstance(redirect, ArchivedRedirect)
    assert canonical_url(redirect.target or "") == canonical_url(target)


@pytest.mark.parametrize(
    ("agent", "token"),
    [
        ("mybot/1.0 (+mailto:me@example.org)", "mybot"),
        ("Mozilla/5.0 (compatible; mybot/1.0; +mailto:me@example.org)", "mybot"),
        (
            "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; my-bot/2.1; +https://example.org)",
            "my-bot",
        ),
    ],
)
def test_robots_txt_knows_an_agent_by_its_product_name(agent: str, token: str) -> None:
    assert robots_token(agent) == token


@given(st.text(st.characters(max_codepoint=255), max_size=50))
def test_any_location_is_a_target_or_a_bad_redirect(location: str) -> None:
    try:
        target = redirect_target(answer(Location=location))
    except RequestError as failure:
        reason = failure.reason
    else:
        assert target.scheme in ("http", "https")
        return
    assert reason == Reason.BAD_REDIRECT


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after(answer(Retry_After="120")) == 120
    assert (
        50 < (retry_after(answer(Retry_After=formatdate(time.time() + 60, usegmt=True))) or 0) <= 61
    )
    assert retry_after(answer(Retry_After=formatdate(0, usegmt=True))) == 0
    assert retry_after(answer(Retry_After="soon")) is retry_after(answer()) is None
