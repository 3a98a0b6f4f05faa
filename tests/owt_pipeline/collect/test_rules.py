"""Blocklists: a domain matches its subdomains, too, a host only itself; and which paths are
files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from owt_pipeline.errors import UserError
from owt_pipeline.stages.collect.rules import (
    DomainSet,
    blocked_domains,
    blocked_extension,
    blocked_extensions,
    blocklists,
)


def test_a_domain_includes_subdomains_and_a_host_only_itself() -> None:
    domains = DomainSet(["imgur.com", "=docs.google.com", "=a.imgur.com", "xn--mnchen-3ya.de"])
    for host in ("imgur.com", "i.m.imgur.com", "a.imgur.com"):
        assert domains.match(host) == "imgur.com"
    for host in (
        "notimgur.com",
        "imgur.com.example.org",
        "google.com",
        "a.docs.google.com",
        "com",
        "1.2.3.4",
        "[::1]",
    ):
        assert domains.match(host) is None
    assert domains.match("docs.google.com") == "=docs.google.com"
    built_in = blocked_domains()
    hosts = ("docs.google.com", "i.imgur.com", "sites.google.com")
    assert [*map(built_in.match, hosts)] == ["=docs.google.com", "imgur.com", None]


def test_lists_in_the_usual_formats_are_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts.gz"
    lines = [
        "# adult",
        "",
        "Example.ORG",
        "0.0.0.0 ads.example.net # why",
        "*.wild.com",
        ".dotted.com.",
        "münchen.de",
    ]
    lines += ["!?", "||advertiser.com^", "! example.biz", "=only.example.info"]
    path.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    domains = blocked_domains(((str(path), ""),))
    for host in (
        "example.org",
        "a.wild.com",
        "dotted.com",
        "xn--mnchen-3ya.de",
        "www.advertiser.com",
    ):
        assert domains.match(host) == host.removeprefix("a.").removeprefix("www.")
    # A line of /etc/hosts is about one host, and not about hosts below it.
    for host in ("ads.example.net", "only.example.info"):
        assert domains.match(host) == f"={host}"
        assert domains.match(f"a.{host}") is None
    assert domains.match("example.net") is domains.match("example.biz") is None


def test_an_option_names_domains_hosts_and_lists(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a.example\n")
    (tmp_path / "two.txt").write_text("b.example\n")
    files, domains = blocklists(
        ["wikipedia.org", f"{tmp_path}/*.txt", "=docs.python.org", "münchen.de"]
    )
    assert files == [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]
    assert domains == ["wikipedia.org", "=docs.python.org", "münchen.de"]
    matched = blocked_domains((), tuple(domains))
    assert matched.match("en.wikipedia.org") == "wikipedia.org"
    assert matched.match("docs.python.org") == "=docs.python.org"
    assert matched.match("python.org") is None
    for missing in (
        "ads.txt",
        "lists/wikipedia.org",
        "hosts",
        str(tmp_path / "*.gz"),
        "domains.zst",
        "ads.hosts",
    ):
        with pytest.raises(UserError, match="no file matches"):
            blocklists([missing])


def test_millions_of_domains_take_8_bytes_each() -> None:
    # Lists of adult sites have millions of domains.
    domains = DomainSet(f"host{k}.example" for k in range(300_000))
    assert domains._hashes.nbytes == 8 * 300_000
    assert domains.match("www.host299999.example") == "host299999.example"
    assert domains.match("host300000.example") is None


def test_no_extension_of_pages_is_blocked() -> None:
    assert {"jpg", "mp4", "pdf", "zip"} <= blocked_extensions()
    assert (
        not {"html", "htm", "php", "aspx", "shtml", "com", "org", "txt", ""} & blocked_extensions()
    )


def test_a_path_like_a_file_is_a_page_where_a_host_has_no_files() -> None:
    cases = [
        line.split() for line in Path(__file__).with_name("paths.txt").read_text().splitlines()
    ]
    assert [[blocked_extension(url) or "-", url] for _, url in cases] == cases
