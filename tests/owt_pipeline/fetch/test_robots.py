"""Lines of a robots.txt that name us, and the paths that they forbid (RFC 9309, 2.2.1 and 2.2.2)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego
from yarl import URL

from owt_pipeline.stages.fetch.answers import HttpResponse
from owt_pipeline.stages.fetch.web.politeness import RequestError
from owt_pipeline.stages.fetch.web.robots import Robots, parse_robots, read_robots

AGENT = "my-corpus"
ORIGIN = URL("http://a.example")


def robots_of(text: str | bytes) -> Robots:
    body = text if isinstance(text, bytes) else text.encode()

    async def get(url: URL) -> HttpResponse:
        return HttpResponse(str(url), 200, [], b"", body, 1)

    return asyncio.run(read_robots(ORIGIN, get))


def is_allowed(text: str | bytes, path: str = "/x", agent: str = AGENT) -> bool:
    robots = robots_of(text)
    with contextlib.suppress(RequestError):
        robots.check(URL(f"{ORIGIN}{path}", encoded=True), agent)
        return True
    return False


@pytest.mark.parametrize(
    "line",
    [
        "User-agent: my-corpus",
        "User-agent: My-Corpus",
        "user-agent:my-corpus",
        "User-agent: my-corpus*",
        "User-agent: my-corpus # the crawler",
        "  User-agent :\tmy-corpus\t",
        "User-agent: other\nUser-agent: my-corpus",
        "User-agent: *",
        "User-agent: * # all",
        "Useragent: my-corpus",
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_that_name_the_product_count(line: str, line_end: str) -> None:
    other_group = "" if "*" in line else "User-agent: *\nAllow: /\n\n"
    text = f"{other_group}{line}\nDisallow: /\n"
    assert not is_allowed(text.replace("\n", line_end))


@pytest.mark.parametrize(
    "line",
    [
        "User-agent: my-corpus-news",
        "User-agent: my-corpus2/1.0",
        "User-agent: not-my-corpus",
        "User-agent: corpus",
        "User-agent: other/1.0 my-corpus",
        "User-agent:",
        "# User-agent: my-corpus",
        "Agent: my-corpus",
    ],
)
def test_lines_that_name_others_do_not_count(line: str) -> None:
    assert is_allowed(f"{line}\nDisallow: /\n")


def test_our_group_counts_in_place_of_that_for_all() -> None:
    text = "User-agent: *\nDisallow: /\n\nUser-agent: my-corpus\nDisallow: /private\n"
    assert is_allowed(text)
    assert not is_allowed(text, "/private")
    assert not is_allowed(text, agent="other")


def test_groups_with_our_name_are_joined() -> None:
    text = "User-agent: my-corpus\nDisallow: /a\n\nUser-agent: b\nDisallow: /\n\n"
    text += "User-agent: My-Corpus\nDisallow: /c\nCrawl-delay: 7\n"
    assert [is_allowed(text, path) for path in ("/a", "/b", "/c")] == [False, True, False]
    assert robots_of(text).crawl_delay(AGENT) == 7


@pytest.mark.parametrize(
    ("rules", "allowed", "forbidden"),
    [
        ("Disallow: /p", ["/", "/x/p"], ["/p", "/page", "/p/x"]),
        ("Disallow:", ["/", "/x"], []),
        ("Disallow: /a\nAllow: /a/b", ["/a/b", "/a/bc"], ["/a", "/a/c"]),
        ("Allow: /a\nDisallow: /a", ["/a"], []),
        ("Disallow: /*.php", ["/a"], ["/a.php", "/a.php5", "/x/a.php/y"]),
        ("Disallow: /*.php$", ["/a.php5"], ["/a.php"]),
        ("Disallow: /a%3cd", ["/a"], ["/a%3Cd"]),
        ("Disallow: /ä", ["/"], ["/%C3%A4"]),
        ("disallow : /x", ["/"], ["/x"]),
    ],
)
def test_rules_match_as_in_the_standard(
    rules: str, allowed: list[str], forbidden: list[str]
) -> None:
    text = f"User-agent: my-corpus\n{rules}\n"
    assert [path for path in allowed + forbidden if is_allowed(text, path)] == allowed


SIMPLE = """\
User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot
"""
"""The example of RFC 9309, 5.1."""

LONGEST = "User-Agent: foobot\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif\n"
"""The example of RFC 9309, 5.2."""

ONLY = "User-agent: *\nDisallow: /\nAllow: {}\n"
OUTSIDE = "Disallow: /a\n\nUser-agent: foobot\nDisallow: /b\n\n\nDisallow: /c\n"
MANY_NAMES = "User-agent: foobot\nUser-agent: barbot\n\nDisallow: /a\nUser-agent: *\nAllow: /\n"
UNKNOWN_LINES = "User-agent: foobot\nSitemap: /s.xml\nNoindex: /\nDisallow: /a\nHost: b.example\n"


@pytest.mark.parametrize(
    ("text", "agent", "allowed", "forbidden"),
    [
        (SIMPLE, "foobot", ["/example/page.html", "/example/allowed.gif"], ["/", "/example/x"]),
        (SIMPLE, "barbot", ["/", "/example/", "/x.gif"], ["/example/page.html"]),
        (SIMPLE, "bazbot", ["/x.gif"], ["/example/page.html?q"]),
        (SIMPLE, "quxbot", ["/", "/example/page.html", "/x.gif"], []),
        (SIMPLE, "other", ["/", "/publications/", "/x.gif?a"], ["/x.gif", "/example/"]),
        (LONGEST, "foobot", ["/example/page/", "/"], ["/example/page/disallowed.gif"]),
        ("", "foobot", ["/"], []),
        ("Disallow: /", "foobot", ["/"], []),
        (OUTSIDE, "foobot", ["/a"], ["/b", "/c"]),
        (MANY_NAMES, "foobot", ["/b"], ["/a"]),
        (MANY_NAMES, "barbot", ["/b"], ["/a"]),
        (MANY_NAMES, "other", ["/a"], []),
        (UNKNOWN_LINES, "foobot", ["/b", "/s.xml"], ["/a"]),
    ],
)
def test_groups_count_as_in_the_standards_examples(
    text: str, agent: str, allowed: list[str], forbidden: list[str]
) -> None:
    paths = allowed + forbidden
    assert [path for path in paths if is_allowed(text, path, agent)] == allowed
    # The standard allows CRLF and CR, too.
    windows = text.replace("\n", "\r\n")
    assert [path for path in paths if is_allowed(windows, path, agent)] == allowed


@pytest.mark.parametrize(
    ("rule", "allowed", "forbidden"),
    [
        # The table of RFC 9309, 2.2.2.
        ("/foo/bar?baz=quz", ["/foo/bar?baz=quz", "/foo/bar?baz=quzz"], ["/foo/bar"]),
        ("/foo/bar?baz=https://a.b", ["/foo/bar?baz=https://a.b"], ["/foo/bar?baz=https:"]),
        ("/foo/bar/ツ", ["/foo/bar/%E3%83%84", "/foo/bar/%e3%83%84"], ["/foo/bar/%E3%83%85"]),
        ("/foo/bar/%E3%83%84", ["/foo/bar/%E3%83%84"], ["/foo/bar/"]),
        ("/foo/bar/%62%61%7A", ["/foo/bar/baz", "/foo/bar/%62%61%7A"], ["/foo/bar/bay"]),
        # RFC 9309, 2.2.3: `*` and `$`, and what stands for these characters themselves.
        ("/this/*/exactly", ["/this/a/exactly", "/this/a/b/exactly/c"], ["/this/exactly"]),
        ("/exactly$", ["/exactly"], ["/exactly/", "/exactly?q"]),
        ("/x*$", ["/x", "/xyz"], ["/y"]),
        ("/a$b", ["/a$b", "/a$bc"], ["/a"]),
        ("/star-%2A.html", ["/star-*.html", "/star-%2A.html"], ["/star-x.html"]),
        ("/path/foo-%24", ["/path/foo-$", "/path/foo-%24"], ["/path/foo-"]),
        ("/a # the rest is a comment", ["/a", "/ab"], ["/b"]),
        ("/Case", ["/Case"], ["/case"]),
    ],
)
def test_paths_match_as_in_the_standards_table(
    rule: str, allowed: list[str], forbidden: list[str]
) -> None:
    text = ONLY.format(rule)
    paths = allowed + forbidden
    assert [path for path in paths if is_allowed(text, path)] == allowed


def test_a_byte_order_mark_and_bytes_that_are_no_text_do_no_harm() -> None:
    assert not is_allowed(b"\xef\xbb\xbfUser-agent: my-corpus\nDisallow: /")
    assert not is_allowed(b"\xff\xfe\x00\nUser-agent: my-corpus\nDisallow: /")


@pytest.mark.parametrize("blank", ["\v", "\f", "\x1c", "\x1e", "\x85", "\u2028", "\u2029"])
def test_only_cr_and_lf_end_a_line(blank: str) -> None:
    assert is_allowed(f"User-agent: *\n# a note{blank}Disallow: /\n")
    assert is_allowed(f"User-agent: *\nDisallow: /c # a note{blank}User-agent: {AGENT}\n")
    assert not is_allowed(f"User-agent: *\nDisallow: /{blank}\r\n{blank}Allow: /y\n")


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_are_read(body: bytes) -> None:
    assert isinstance(parse_robots(b"User-agent: *\nDisallow: /\n" + body), Protego)
