"""Common variants of a URL have the same canonical URL.

Canonicalization never crashes, and is idempotent.
"""

from __future__ import annotations

import json
from pathlib import Path

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
    id_of,
    redirected,
    requested,
    unescaped,
    unescaped_column,
)

CASES = json.loads(Path(__file__).with_name("urls.json").read_bytes())
# Spellings by their canonical URL. The last spelling has tracking parameters.
VARIANTS = CASES["variants"]
# URLs of different pages.
DIFFERENT = CASES["different"]
# Texts that are not URLs.
BAD = [
    *CASES["bad"],
    f"http://{'a' * 64}.com/",
    f"http://{'a.' * 127}com/",
    f"http://example.com/{'a' * 9000}",
]


@pytest.mark.parametrize("canonical", VARIANTS)
def test_variants_of_a_url_have_one_canonical_url(canonical: str) -> None:
    for variant in VARIANTS[canonical]:
        assert canonical_url(variant) == canonical, variant


def test_urls_of_different_pages_stay_different() -> None:
    canonical = [canonical_url(url) for url in DIFFERENT]
    assert canonical == DIFFERENT
    assert len({id_of(url) for url in canonical}) == len(DIFFERENT)


@pytest.mark.parametrize("url", BAD)
def test_url_that_cannot_be_fetched_is_a_bad_url(url: str) -> None:
    with pytest.raises(BadURL, match=r"."):
        canonical_url(url)


@pytest.mark.parametrize(
    "host",
    [
        "[::%31]", "[::1%31]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%25]", "[::%]",
        "[::ffff:1.2.3.%34]", "[%3A%3A1]", "[2001:db8::%2531]", "[::1%20]", "[v1.a]", "[]", "[:]",
    ],
)  # fmt: skip
def test_brackets_hold_an_ipv6_address_without_a_zone(host: str) -> None:
    for parse in (canonical_url, requested):
        with pytest.raises(BadURL, match="is no IPv6 address"):
            parse(f"http://{host}/")
    with pytest.raises(BadURL, match="is no IPv6 address"):
        redirected("http://example.com/", f"//{host}/")


def test_ipv6_addresses_are_spelled_alike_on_every_python() -> None:
    spellings = ("::ffff:1.2.3.4", "0:0::FFFF:102:304", "::ffff:0102:0304", "::ffff:1.2.3.4")
    assert {canonical_url(f"http://[{address}]/") for address in spellings} == {
        "https://[::ffff:102:304]/"
    }
    assert canonical_url("http://[::1.2.3.4]:8080/") == "https://[::102:304]:8080/"
    assert requested("http://[2001:DB8:0:0:1:0:0:1]") == "http://[2001:db8::1:0:0:1]/"


def test_url_ids_never_change() -> None:
    assert id_of("https://example.com/") == 5522761390303137003


def test_requested_url_is_the_posted_one() -> None:
    assert (
        unescaped(" http://Example.com/?a=1&amp;utm_source=b#c\n")
        == "http://Example.com/?a=1&utm_source=b#c"
    )


hosts = st.one_of(
    st.sampled_from(
        ["example.com", "cnn.com", "www.amazon.co.uk", "www.example.com", "WWW.Example.co.uk"]
    ),
    st.sampled_from(["münchen.de", "www.com", "a.b.c.d", "[::1]"]),
    st.from_regex(r"[a-zA-Z0-9_.\-%ß:@\[\]]{1,30}", fullmatch=True),
)
paths = st.one_of(
    st.text(max_size=20),
    st.lists(
        st.sampled_from(
            [
                "/",
                ".",
                "..",
                "a",
                "%2e",
                "%2F",
                "%",
                "%4",
                "%61",
                "&amp;",
                "&",
                "amp;",
                "%26",
                "?",
                "#",
                "=",
                ";",
                "+",
                " ",
                "utm_x",
                "utm_source=1",
                "#!",
                "#/",
                "!",
                "hpt=2",
                "psc=3&",
                "srsltid=4",
                "é",
                "\ud800",
                "\\",
                "(",
                "%28",
                "\t",
                "ref",
                "www.",
                ".jpg",
                ":",
            ]
        ),
        max_size=12,
    ).map("".join),
)
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
def test_any_string_is_a_bad_url_or_has_a_stable_canonical_url(url: str) -> None:
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
@example(
    [
        f"http://{host}/"
        for host in ("w.com", "ww.w.com", "a." * 5 + "com", f"{'a.' * 2}{'b' * 63}", "a" * 63)
    ]
)
def test_a_column_of_urls_has_the_canonical_urls_of_each(posted: list[str]) -> None:
    posted = [url.encode("utf-8", "replace").decode() for url in posted]
    rows = list(
        zip(
            *(column.to_pylist() for column in canonical_column(pa.array(posted, pa.string()))),
            strict=True,
        )
    )
    for url, row in zip(posted, rows, strict=True):
        try:
            expected = (*canonicalize(url), None)
        except BadURL as problem:
            expected = (None, None, str(problem))
        assert row == expected, url
    assert unescaped_column(pa.array(posted, pa.string())).to_pylist() == list(
        map(unescaped, posted)
    )


fields = st.lists(
    st.tuples(
        st.sampled_from(
            ["id", "q", "page", "ref", "source", "hpt", "utm_source", "srsltid", "psc", "Fbclid"]
        ),
        st.sampled_from(["1", "2", "x%26y", ""]),
    ),
    max_size=4,
)
routes = st.sampled_from(["", "#top", "#", "#!", "#!/a", "#!/b", "#/a", "#/b", "#a/b"])


@given(
    st.sampled_from(["example.com", "cnn.com", "amazon.de", "github.com"]),
    st.sampled_from(["", "/", "/a", "/a/b"]),
    fields,
    routes,
)
def test_canonical_url_loses_only_tracking_parameters(
    host: str, path: str, query: list[tuple[str, str]], fragment: str
) -> None:
    """Two URLs of a page differ only in tracking parameters, a final slash, or an anchor."""
    tracking = {"utm_source", "srsltid", "fbclid"} | {
        "cnn.com": {"hpt"},
        "amazon.de": {"psc", "ref"},
    }.get(host, set())
    parameters = [f"{name}={value}" for name, value in query]
    expected = f"https://{host}{path.rstrip('/') or '/'}"
    kept_parameters = [f"{name}={value}" for name, value in query if name.lower() not in tracking]
    if kept_parameters:
        expected += "?" + "&".join(kept_parameters)
    if fragment in ("#!/a", "#!/b", "#/a", "#/b"):
        expected += fragment
    posted = f"http://www.{host}{path}?{'&'.join(parameters)}{fragment}"
    assert canonical_url(posted) == expected
