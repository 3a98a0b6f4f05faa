"""Canonical URLs: common variants have the same one, and canonicalization never crashes and is idempotent."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.formats.urls import (
    BadURL,
    canonical_column,
    canonical_url,
    canonicalize,
    host_of,
    unescaped,
    unescaped_column,
    url_id,
)

VARIANTS = {
    "https://example.com/": [
        "http://example.com",
        "https://example.com/",
        "HTTP://EXAMPLE.COM",
        "http://www.example.com/",
        "http://www.www.example.com/",
        "http://example.com:80/",
        "https://example.com:443",
        "http://example.com:/",
        "http://example.com./",
        "http://user:secret@example.com/",
        "http://example.com?",
        "http://example.com/#",
        "http://example.com/#!",
        "http://example.com/#!/",
        "http://example.com/#/",
        "http://example.com/#top",
        "http://example.com/?utm_source=reddit",
        "  http://example.com/\n",
        "http://exa\tmple.com/",
        "http://ｅｘａｍｐｌｅ．com/",
        "http:\\\\example.com\\",
        "http://ex%61mple.com/",
    ],
    "https://example.com/a/b?id=1&x=2": [
        "https://example.com/a/b?id=1&x=2",
        "http://example.com/a/b?id=1&amp;x=2",
        "http://example.com/a/b?id=1&amp;amp;x=2",
        "http://example.com/a/b/?id=1&x=2",
        "http://example.com/a/./b?id=1&x=2",
        "http://example.com/a/c/../b?id=1&x=2",
        "http://example.com/../a/b?id=1&x=2#part",
        "http://example.com/%61/b?i%64=1&x=2",
        "http://example.com/a/b?utm_source=x&id=1&UTM_Campaign=y&x=2&fbclid=IwAR0&gclid=1",
        "http://example.com/a/b?&id=1&&x=2&",
        "http://example.com/a/b?id=1&x=2&utm%5Fmedium=social",
        "http://example.com/a/b?id=1&x=2&srsltid=AfmB&mc_cid=12&_hsenc=p2AN&igshid=3",
    ],
    "https://en.wikipedia.org/wiki/Tree_(graph_theory)": [
        "http://en.wikipedia.org/wiki/Tree_(graph_theory)",
        "http://en.wikipedia.org/wiki/Tree_%28graph_theory%29",
        "http://en.wikipedia.org/wiki/Tree_%28graph%5Ftheory%29#Definition",
    ],
    "https://de.wikipedia.org/wiki/M%C3%BCnchen": [
        "http://de.wikipedia.org/wiki/München",
        "http://de.wikipedia.org/wiki/M%c3%bcnchen",
    ],
    "https://xn--mnchen-3ya.example/": [
        "http://MÜNCHEN.example",
        "http://xn--mnchen-3ya.example/",
        "http://XN--MNCHEN-3YA.example/",
    ],
    "https://xn--ls8h.la/": ["http://💩.la", "http://xn--ls8h.la"],
    "https://example.com:8080/x%20y%7Bz%7D": [
        "http://www.example.com:8080/x y{z}",
        "https://example.com:08080/x%20y{z}/",
    ],
    "https://example.com/50%25": ["http://example.com/50%", "http://example.com/50%25"],
    "https://web.archive.org/web/2010/http://example.org": ["http://web.archive.org/web/2010/http://example.org/"],
    "https://[2001:db8::1]:8080/": ["http://[2001:DB8:0:0:0:0:0:1]:8080"],
    "https://www.com/": ["http://www.com"],
    "https://127.0.0.1:8000/a": ["http://127.0.0.1:8000/a/"],
}

DIFFERENT = [
    "https://example.com/a",
    "https://example.com/A",
    "https://example.org/a",
    "https://example.com/a?b=1",
    "https://example.com/a?b=2",
    "https://example.com/a?b=1&c=2",
    "https://example.com/a?c=2&b=1",  # some servers read the order
    "https://example.com/a%2Fb",
    "https://example.com/a/b",
    "https://example.com//a",
    "https://example.com/a?b=1%262",
    "https://example.com:8080/a",
    "https://blog.example.com/a",
    "https://m.example.com/a",
    "https://cnn.com/video#/video/us/2013/01/01/a.cnn",
    "https://cnn.com/video#/video/us/2013/01/01/b.cnn",
    "https://groups.google.com/forum#!topic/list/a",
    "https://groups.google.com/forum#!topic/list/b",
    "https://github.com/a/b/blob/x.py?ref=dev",
    "https://github.com/a/b/blob/x.py?ref=master",
    "https://example.com/a?source=1",
    "https://example.com/a?source=2",
]

BAD = [
    "",
    "example.com",
    "//example.com/",
    "ftp://example.com/",
    "javascript:alert(1)",
    "mailto:a@example.com",
    "magnet:?xt=urn:btih:1",
    "http://",
    "http:example.com",
    "http:///path",
    "http://?",
    "http://a b.com/",
    "http://[Imgur](http://i.imgur.com/1emfYYa)",
    "http://example.com:99999/",
    "http://example.com:x/",
    "http://exa%ff.com/",
    "http://%2e/",
    "http://a..b/",
    "http://" + "a" * 64 + ".com/",
    "http://" + "a." * 127 + "com/",
    "http://example.com/" + "a" * 9000,
    "http://\udcff.com/",
]


@pytest.mark.parametrize("canonical", VARIANTS)
def test_variants_of_a_url_have_one_canonical_url(canonical: str) -> None:
    for variant in VARIANTS[canonical]:
        assert canonical_url(variant) == canonical, variant


def test_urls_of_different_pages_stay_different() -> None:
    canonical = [canonical_url(url) for url in DIFFERENT]
    assert canonical == DIFFERENT
    assert len({url_id(url) for url in canonical}) == len(DIFFERENT)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://www.cnn.com/2013/01/01/us/a/index.html?hpt=hp_t2", "https://cnn.com/2013/01/01/us/a/index.html"),
        ("http://edition.cnn.com/a?hpt=hp_c1&iid=x&id=7", "https://edition.cnn.com/a?id=7"),
        ("http://example.com/a?hpt=hp_t2", "https://example.com/a?hpt=hp_t2"),
        ("http://notcnn.com/a?hpt=hp_t2", "https://notcnn.com/a?hpt=hp_t2"),
        ("https://shop.example.com/p?srsltid=AfmBOo&gad_source=1", "https://shop.example.com/p"),
        ("http://www.nytimes.com/2013/a.html?ref=us&_r=0&smid=tw", "https://nytimes.com/2013/a.html?_r=0"),
        ("http://www.amazon.co.uk/dp/B00?psc=1&ie=UTF8&pf_rd_p=4", "https://amazon.co.uk/dp/B00?ie=UTF8"),
        ("http://www.amazon.com/dp/B00?linkCode=as2&th=1", "https://amazon.com/dp/B00?th=1"),
        ("http://amazon.example.com/a?psc=1", "https://amazon.example.com/a?psc=1"),
        ("http://www.cnn.com/video/?hpt=hp_t5#/video/us/a.cnn", "https://cnn.com/video#/video/us/a.cnn"),
        ("http://example.com/#%21/user%2f1/?a=1", "https://example.com/#!/user%2F1/?a=1"),
    ],
)
def test_tracking_is_removed_and_content_is_kept(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical


@pytest.mark.parametrize("url", BAD)
def test_url_that_cannot_be_fetched_is_a_bad_url(url: str) -> None:
    with pytest.raises(BadURL, match=r"."):
        canonical_url(url)


def test_url_ids_never_change() -> None:
    assert url_id("https://example.com/") == 5522761390303137003


def test_requested_url_is_the_posted_one() -> None:
    assert unescaped(" http://Example.com/?a=1&amp;utm_source=b#c\n") == "http://Example.com/?a=1&utm_source=b#c"


hosts = st.one_of(
    st.sampled_from(["example.com", "cnn.com", "www.amazon.co.uk", "www.example.com", "WWW.Example.co.uk"]),
    st.sampled_from(["münchen.de", "www.com", "a.b.c.d", "[::1]"]),
    st.from_regex(r"[a-zA-Z0-9_.\-%ß:@\[\]]{1,30}", fullmatch=True),
)
paths = st.one_of(
    st.text(max_size=20),
    st.lists(
        st.sampled_from(
            ["/", ".", "..", "a", "%2e", "%2F", "%", "%4", "%61", "&amp;", "&", "amp;", "%26", "?", "#", "=", ";", "+",
             " ", "utm_x", "utm_source=1", "#!", "#/", "!",
             "hpt=2", "psc=3&", "srsltid=4", "é", "\ud800", "\\", "(", "%28", "\t", "ref", "www.", ".jpg", ":"]
        ),
        max_size=12,
    ).map("".join),
)  # fmt: skip
urls = st.one_of(
    st.builds("{}://{}{}".format, st.sampled_from(["http", "https", "HTTP", "ftp"]), hosts, paths),
    st.builds("http://{}/{}".format, hosts, paths),
    st.builds("http://example.com/{}?{}".format, paths, paths),
    st.text(max_size=40),
)


@given(urls)
@example("http://a/&%61mp;")
@example("http://a/?x&utm_a=1&amp;y")
@example("http://h:80:443/")
@example("https://www.www.com/")
@example("http://a/#!/b?c#d&amp;amp;e/")
@example("http://a.com/" + "é" * 2000)
def test_every_string_is_a_bad_url_or_has_an_idempotent_canonical_url(url: str) -> None:
    try:
        canonical, host = canonicalize(url)
    except BadURL:
        return
    assert canonical.isascii()
    assert canonical.startswith("https://")
    assert canonicalize(canonical) == (canonical, host)
    assert host_of(canonical) == host
    assert canonical_url(unescaped(url)) == canonical


plain = st.builds(
    "http{}://{}{}".format,
    st.sampled_from(["", "s"]),
    st.from_regex(r"(www\.){0,2}[a-z0-9w_-]{1,4}(\.[a-z0-9_-]{1,5}){0,4}\.?", fullmatch=True),
    st.from_regex(r"(/[a-z.~:@!;%&()-]{0,3}){0,4}", fullmatch=True),
)


@given(st.lists(st.one_of(plain, urls), max_size=8))
@example([*(variant for of in VARIANTS.values() for variant in of), *DIFFERENT, *BAD])
@example([f"http://{'a' * n}.com/{'b' * (8185 - n - m)}" for n in (62, 63, 64) for m in range(9)])
@example([f"http://{host}/" for host in ("w.com", "ww.w.com", "a." * 5 + "com", f"{'a.' * 2}{'b' * 63}", "a" * 63)])
def test_a_column_of_urls_has_the_canonical_urls_of_each(posted: list[str]) -> None:
    posted = [url.encode("utf-8", "replace").decode() for url in posted]
    rows = list(zip(*(column.to_pylist() for column in canonical_column(pa.array(posted, pa.string()))), strict=True))
    for url, row in zip(posted, rows, strict=True):
        try:
            expected = (*canonicalize(url), None)
        except BadURL as problem:
            expected = (None, None, str(problem))
        assert row == expected, url
    assert unescaped_column(pa.array(posted, pa.string())).to_pylist() == list(map(unescaped, posted))


fields = st.lists(
    st.tuples(
        st.sampled_from(["id", "q", "page", "ref", "source", "hpt", "utm_source", "srsltid", "psc", "Fbclid"]),
        st.sampled_from(["1", "2", "x%26y", ""]),
    ),
    max_size=4,
)
routes = st.sampled_from(["", "#top", "#", "#!", "#!/a", "#!/b", "#/a", "#/b", "#a/b"])


@given(
    st.sampled_from(["example.com", "cnn.com", "amazon.de", "github.com"]), st.sampled_from(["", "/", "/a", "/a/b"]),
    fields, routes,
)  # fmt: skip
def test_canonical_url_loses_only_tracking_parameters(
    host: str, path: str, query: list[tuple[str, str]], fragment: str
) -> None:
    """So two URLs are one page only if they differ in tracking parameters, a final slash, or an anchor."""
    tracking = {"utm_source", "srsltid", "fbclid"} | {"cnn.com": {"hpt"}, "amazon.de": {"psc", "ref"}}.get(host, set())
    kept = [f"{name}={value}" for name, value in query if name.lower() not in tracking]
    route = fragment if fragment in ("#!/a", "#!/b", "#/a", "#/b") else ""
    expected = f"https://{host}{path.rstrip('/') or '/'}{'?' + '&'.join(kept) if kept else ''}{route}"
    posted = f"http://www.{host}{path}?{'&'.join(f'{name}={value}' for name, value in query)}{fragment}"
    assert canonical_url(posted) == expected
