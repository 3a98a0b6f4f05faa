"""What may be connected to, and what is requested for a URL as it was posted."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.engine.errors import UserError
from owt_pipeline.fetch import addresses as addresses_module
from owt_pipeline.fetch.addresses import Addresses, BlockedAddress, CheckingResolver, Rule, is_public, parse_rules
from owt_pipeline.fetch.client import Received
from owt_pipeline.fetch.live import redirect_target, requested_url
from owt_pipeline.fetch.manners import Failed, retry_after
from schemas import Reason

PRIVATE = [
    "127.0.0.1", "127.255.255.255", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
    "0.0.0.0", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "2002:7f00:1::", "2002:a00:1::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "fec0::1",
    "::127.0.0.1", "::ffff:0:7f00:1", "4000::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "2002:808:808::1", "64:ff9b::808:808"]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_blocked(address: str) -> None:
    with pytest.raises(BlockedAddress, match="not public"):
        Addresses().check_address(address)
    Addresses(allow_private=True).check_address(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    Addresses().check_address(address)


@given(st.ip_addresses(v=4))
def test_an_address_is_as_public_as_what_it_wraps(ip: ipaddress.IPv4Address) -> None:
    for wrapped in (f"::ffff:{ip}", str(ipaddress.IPv6Address((0x2002 << 112) | (int(ip) << 80)))):
        assert is_public(ipaddress.ip_address(wrapped)) == is_public(ip)


def test_rules_permit_what_they_name() -> None:
    rules = parse_rules(("*.demo.test=127.0.0.1:8123", "A.test=[::1]:80", "b.test=10.0.0.1"))
    assert rules == (
        Rule("*.demo.test", "127.0.0.1", 8123), Rule("a.test", "::1", 80), Rule("b.test", "10.0.0.1", None),
    )  # fmt: skip
    addresses = Addresses(rules, (80,))
    addresses.check_port("x.demo.test", 9999)
    with pytest.raises(BlockedAddress, match="port 9999 is not among --allowed_ports"):
        addresses.check_port("demo.test", 9999)
    assert Addresses((), ()).check_port("x", 9999) is None


@pytest.mark.parametrize("text", ["", "a.test", "a.test=", "=1.2.3.4", "a=b.test:80", "a=1.2.3.4:0", "a=1.2.3.4:99999"])
def test_an_unknown_rule_is_an_error(text: str) -> None:
    with pytest.raises(UserError, match="--resolve"):
        parse_rules((text,))


@pytest.mark.parametrize(
    ("posted", "requested"),
    [
        ("http://example.com", "http://example.com"),
        ("HTTP://Example.COM/A b?q=ä&amp;r=1#frag", "http://example.com/A%20b?q=%C3%A4&r=1"),
        ("http://user:pw@example.com/", "http://example.com/"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://example.com/a%2Fb", "http://example.com/a%2Fb"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://[::1]:8080/", "http://[::1]:8080/"),
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


def resolved(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """What a name with these addresses may be connected to."""
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: infos)

    async def resolve() -> list[str]:
        resolver = CheckingResolver(Addresses())
        try:
            return [str(info[4][0]) for info in await resolver.resolve("name.example", 80, 9.0)]
        finally:
            resolver.close()

    return asyncio.run(resolve())


def test_only_the_public_addresses_of_a_name_are_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved(monkeypatch, "10.0.0.1", "8.8.8.8", "127.0.0.1") == ["8.8.8.8"]
    with pytest.raises(BlockedAddress, match=r"10\.0\.0\.1 is not public"):
        resolved(monkeypatch, "10.0.0.1")


def test_names_without_an_answer_cost_no_other_name_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, *_: object) -> list[tuple]:
        if host.startswith("dead"):
            time.sleep(0.4)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(addresses_module, "_THREADS", 3)

    async def resolve() -> list[object]:
        resolver = CheckingResolver(Addresses())
        names = [f"dead{i}.example" for i in range(6)] + [f"alive{i}.example" for i in range(6)]
        try:
            return await asyncio.gather(*(resolver.resolve(name, 80, 0.2) for name in names), return_exceptions=True)
        finally:
            resolver.close()

    found = asyncio.run(resolve())
    assert all("no answer about the name within 0.2 s" in str(error) for error in found[:6])
    assert all(isinstance(infos, list) for infos in found[6:])


def answer(**headers: str) -> Received:
    fields = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Received("http://a.example/dir/page?q", 302, fields, b"", b"", 1)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/x", "http://a.example/x"),
        ("x", "http://a.example/dir/x"),
        ("?y", "http://a.example/dir/page?y"),
        ("//b.example/", "http://b.example/"),
        ("https://b.example/a b#c", "https://b.example/a%20b"),
        ("/\xc3\xa4", "http://a.example/%C3%A4"),  # UTF-8, as headers are read
    ],
)
def test_redirects_lead_where_browsers_go(location: str, target: str) -> None:
    assert str(redirect_target(answer(Location=location))) == target


@given(st.text(st.characters(max_codepoint=255), max_size=50))
def test_any_location_is_a_target_or_a_bad_redirect(location: str) -> None:
    try:
        target = redirect_target(answer(Location=location))
    except Failed as failure:
        reason = failure.reason
    else:
        assert target.scheme in ("http", "https")
        return
    assert reason == Reason.BAD_REDIRECT


def test_retry_after_is_seconds_or_a_date() -> None:
    import time

    assert retry_after(answer(Retry_After="120")) == 120
    assert 50 < (retry_after(answer(Retry_After=formatdate(time.time() + 60, usegmt=True))) or 0) <= 61
    assert retry_after(answer(Retry_After=formatdate(0, usegmt=True))) == 0
    assert retry_after(answer(Retry_After="soon")) is retry_after(answer()) is None
