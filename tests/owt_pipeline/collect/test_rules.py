"""Blocklists: a domain matches its subdomains, too, a host only itself; and which paths are files."""

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
    extension_of,
)


def test_a_domain_includes_its_subdomains_and_nothing_else() -> None:
    domains = DomainSet(["imgur.com", "docs.google.com", "xn--mnchen-3ya.de"])
    assert domains.match("imgur.com") == "imgur.com"
    assert domains.match("i.m.imgur.com") == "imgur.com"
    assert domains.match("docs.google.com") == "docs.google.com"
    for host in ("notimgur.com", "imgur.com.example.org", "google.com", "com", "1.2.3.4", "[::1]"):
        assert domains.match(host) is None


def test_an_exact_host_matches_only_itself() -> None:
    domains = DomainSet(["=docs.google.com", "imgur.com", "=a.imgur.com"])
    assert domains.match("docs.google.com") == "=docs.google.com"
    assert domains.match("a.docs.google.com") is None
    assert domains.match("a.imgur.com") == "imgur.com"
    built_in = blocked_domains()
    assert built_in.match("docs.google.com") == "=docs.google.com"
    assert built_in.match("i.imgur.com") == "imgur.com"
    assert built_in.match("sites.google.com") is None


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
        "!?",
        "||advertiser.com^",
        "! example.biz",
        "=only.example.info",
    ]
    path.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    domains = blocked_domains(((str(path), ""),))
    for host in ("example.org", "a.wild.com", "dotted.com", "xn--mnchen-3ya.de", "www.advertiser.com"):
        assert domains.match(host) == host.removeprefix("a.").removeprefix("www.")
    for host in ("ads.example.net", "only.example.info"):  # a line of /etc/hosts is about one host
        assert domains.match(host) == f"={host}"
        assert domains.match(f"a.{host}") is None
    assert domains.match("example.net") is domains.match("example.biz") is None
    assert len(domains) == len(blocked_domains()) + 7


def test_an_option_names_domains_hosts_and_lists(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a.example\n")
    (tmp_path / "two.txt").write_text("b.example\n")
    files, domains = blocklists(["wikipedia.org", f"{tmp_path}/*.txt", "=docs.python.org", "münchen.de"])
    assert files == [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]
    assert domains == ["wikipedia.org", "=docs.python.org", "münchen.de"]
    matched = blocked_domains((), tuple(domains))
    assert matched.match("en.wikipedia.org") == "wikipedia.org"
    assert matched.match("docs.python.org") == "=docs.python.org"
    assert matched.match("python.org") is None
    for missing in ("ads.txt", "lists/wikipedia.org", "hosts", str(tmp_path / "*.gz"), "domains.zst", "ads.hosts"):
        with pytest.raises(UserError, match="no file matches"):
            blocklists([missing])


def test_a_missing_list_is_named() -> None:
    with pytest.raises(UserError, match="nowhere/list"):
        blocked_domains((("/nowhere/list", ""),))


def test_a_truncated_list_is_not_mistaken_for_the_complete_one(tmp_path: Path) -> None:
    path = tmp_path / "domains.gz"
    path.write_bytes(gzip.compress("".join(f"{k}.example\n" for k in range(999)).encode())[:-100])
    with pytest.raises(UserError, match=r"domains\.gz is damaged or incomplete: gz: the file ends at byte [\d,]+"):
        blocked_domains(((str(path), ""),))


def test_millions_of_domains_take_8_bytes_each() -> None:
    domains = DomainSet(f"host{k}.example" for k in range(300_000))
    assert domains._hashes.nbytes == 8 * 300_000
    assert domains.match("www.host299999.example") == "host299999.example"
    assert domains.match("host300000.example") is None


def test_extensions_are_those_of_paths() -> None:
    assert {"jpg", "mp4", "pdf", "zip"} <= blocked_extensions()
    assert not {"html", "htm", "php", "aspx", "shtml", "com", "org", "txt", ""} & blocked_extensions()
    for url, extension in {
        "https://a.com/": "",
        "https://a.com/b": "",
        "https://a.com/b.tar.GZ": "gz",
        "https://a.com/b.gif?c.html": "gif",
        "https://a.com/b.html?c=d.gif": "html",
        "https://a.com/b.c/d": "",
        "https://a.com/File:b.jpg": "",
        "https://a.com/b.jpg:large": "jpg",
    }.items():
        assert extension_of(url) == extension, url


def test_a_path_that_ends_like_a_file_is_a_page_where_the_host_serves_no_files() -> None:
    cases = [line.split() for line in Path(__file__).with_name("paths.txt").read_text().splitlines()]
    assert [[blocked_extension(url) or "-", url] for _, url in cases] == cases
