"""Common Crawl's keys of URLs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.formats.lines import LineReader
from owt_pipeline.formats.urls import canonical_url, unescaped
from owt_pipeline.stages.fetch.archives.surt import surt_key
from owt_pipeline.storage.folder import open_source

PUBLISHED = {
    "https://fusionbikes.com.ar/producto/luz-knog-blinder-mini-niner/": "ar,com,fusionbikes)/producto/luz-knog-blinder-mini-niner",
    "http://futbolinterior.com.ar/component/mailto/?tmpl=component&template=shaper_helix3&link=b2449dac9dd9dbc27fe2d9f": "ar,com,futbolinterior)/component/mailto?link=b2449dac9dd9dbc27fe2d9f&template=shaper_helix3&tmpl=component",
    "https://www.commoncrawl.org/get-started": "org,commoncrawl)/get-started",
    "https://www.food.com/recipe/0-carb-0-cal-gummy-worms-283618": "com,food)/recipe/0-carb-0-cal-gummy-worms-283618",
    "http://2016legcoelection.hk01.com/candidate/tag/205/54": "com,hk01,2016legcoelection)/candidate/tag/205/54",
    "https://84.201.146.0/en/projects/aleksandr-solzhenitsyn-conference": "0,146,201,84)/en/projects/aleksandr-solzhenitsyn-conference",
    "https://167.172.123.0/index.php/legales/": "0,123,172,167)/index.php/legales",
    "https://github.com/": "com,github)/",
    "https://hurmaninvesterarimli.web.app/89132/31224.html": "app,web,hurmaninvesterarimli)/89132/31224.html",
    "https://whwheelers.org/robots.txt": "org,whwheelers)/robots.txt",
}
"""Rows of Common Crawl's indexes of 2018 to 2025."""


@pytest.mark.parametrize("url", PUBLISHED)
def test_keys_are_those_of_published_indexes(url: str) -> None:
    assert surt_key(url) == PUBLISHED[url].encode()
    assert surt_key(canonical_url(url)) == PUBLISHED[url].encode()


ODD = [
    *(f"http://{host}/x" for host in ("1.2.3.4", "256.1.1.1", "0x7f.1", "[::1]")),
    *(
        f"http://{host}/x"
        for host in ("[::1]", "[2001:db8::1]:8080", "u:p@a.com", "a..b.com", ".a.com.", "ex%61.com")
    ),
    *(
        f"http://{host}/x"
        for host in ("www2.a.com", "www22.www.a.com", "www.com", "münchen.de", "日本.jp", "💩.la")
    ),
    *(f"https://a.com{port}/x" for port in (":", ":0", ":80", ":443", ":8080", ":65535")),
    *(
        f"http://a.com{path}"
        for path in ("", "//x//y/", "/./x/..", "/x/.", "/../../", "/a%2Fb/../c", "/%25%32%35")
    ),
    *(
        f"http://a.com{path}"
        for path in ("/é", "/%E9", "/%zz%", "/x\\y", "/%23#y", "/x%3Fy?z", '/[x]{y}|^`"<>')
    ),
    *(
        f"http://a.com/{query}"
        for query in ("?", "?&", "?b&a", "?b=2&b=1&a", "?a=1==&a=1=", "?q=%26a=1", "?Q=%C3%89")
    ),
    *(
        f"http://a.com{path}"
        for path in ("/../a?utm_source=x", "/*//..", "/a/../../b/", "/..", "/../..", "/a//../b")
    ),
    *(
        f"http://{host}/a"
        for host in ("[2001:DB8::1]", "[::ffff:1.2.3.4]", "a%E9b.com", "a...b.com")
    ),
    *(f"http://a.com/{end}" for end in ("\u2028", "x\xa0", "x  ", "x\x0b")),
]


def test_keys_of_odd_urls_equal_the_internet_archives() -> None:
    surt = pytest.importorskip("surt")
    assert [(url, surt_key(url)) for url in ODD] == [(url, surt.surt(url.encode())) for url in ODD]


def test_keys_of_real_urls_equal_the_internet_archives(testdata: Path) -> None:
    surt = pytest.importorskip("surt")
    with open_source(str(testdata / "reddit" / "RS_wcxb-dev.zst")) as file:
        (block,) = LineReader(file)
    urls = [unescaped(json.loads(line)["url"]) for line in bytes(block.data).split(b"\n")]
    urls += [canonical_url(url) for url in urls]
    assert [surt_key(url) for url in urls] == [surt.surt(url.encode()) for url in urls]


def test_a_number_of_thousands_of_digits_is_no_port() -> None:
    assert surt_key(f"http://x.com\\@a.com:{'0' * 5000}80/") is None


@given(st.text(max_size=60))
def test_any_text_has_a_key_or_none(text: str) -> None:
    assert surt_key(text) is None or b")/" in (surt_key(text) or b"")
    assert b")/" in (surt_key(f"http://a.com/{text}") or b"")
