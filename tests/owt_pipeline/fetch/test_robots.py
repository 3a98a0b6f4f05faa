"""Which lines of a robots.txt name us, and what they forbid (RFC 9309, 2.2.1 and 2.2.2)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from owt_pipeline.stages.fetch.answers import Received
from owt_pipeline.stages.fetch.web.politeness import Failed
from owt_pipeline.stages.fetch.web.robots import Robots, naming, read_robots

AGENT = "my-corpus"
ORIGIN = URL("http://a.example")


def robots_of(text: str | bytes, agent: str = AGENT) -> Robots:
    body = text if isinstance(text, bytes) else text.encode()

    async def get(url: URL) -> Received:
        return Received(str(url), 200, [], b"", body, 1)

    return asyncio.run(read_robots(ORIGIN, get, agent))


def is_allowed(text: str | bytes, path: str = "/x", agent: str = AGENT) -> bool:
    robots = robots_of(text, agent)
    with contextlib.suppress(Failed):
        robots.check(URL(f"{ORIGIN}{path}", encoded=True), agent)
        return True
    return False


@pytest.mark.parametrize(
    "line",
    [
        "User-agent: my-corpus",
        "User-agent: My-Corpus",
        "user-agent:my-corpus",
        "User-agent: my-corpus/1.0",
        "User-agent: my-corpus/1.0 (+https://example.org)",
        "User-agent: my-corpus (news)",
        "User-agent: my-corpus(news)",
        "User-agent: my-corpus; news",
        "User-agent: my-corpus news bot",
        "User-agent: my-corpus # the crawler",
        "  User-agent :\tmy-corpus\t",
        "User-agent: Mozilla/5.0 (compatible; my-corpus/2.0; +https://example.org)",
        "User-agent: other, my-corpus/1.0",
        "User-agent: other\nUser-agent: my-corpus",
        "User-agent: *",
        "User-agent: * # all",
        "User-agent: * and all others",
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
        "User-agent: my",
        "User-agent: my-corpus-news",
        "User-agent: my-corpus2/1.0",
        "User-agent: not-my-corpus",
        "User-agent: corpus",
        "User-agent: my-*",
        "User-agent: other/1.0 my-corpus",
        "User-agent:",
        "# User-agent: my-corpus",
        "Agent: my-corpus",
    ],
)
def test_lines_that_name_others_do_not_count(line: str) -> None:
    assert is_allowed(f"{line}\nDisallow: /\n")


def test_our_group_counts_in_place_of_that_for_all() -> None:
    text = "User-agent: *\nDisallow: /\n\nUser-agent: my-corpus/1.0\nDisallow: /private\n"
    assert is_allowed(text)
    assert not is_allowed(text, "/private")
    assert not is_allowed(text, agent="other")


def test_groups_with_our_name_are_joined() -> None:
    text = "User-agent: my-corpus\nDisallow: /a\n\nUser-agent: b\nDisallow: /\n\n"
    text += "User-agent: My-Corpus/2\nDisallow: /c\nCrawl-delay: 7\n"
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
    text = f"User-agent: my-corpus/1.0\n{rules}\n"
    assert [path for path in allowed + forbidden if is_allowed(text, path)] == allowed


def test_a_byte_order_mark_and_bytes_that_are_no_text_do_no_harm() -> None:
    assert not is_allowed(b"\xef\xbb\xbfUser-agent: my-corpus/1\nDisallow: /")
    assert not is_allowed(b"\xff\xfe\x00\nUser-agent: my-corpus/1\nDisallow: /")


@given(st.text(max_size=300), st.sampled_from(["my-corpus", "a", "My Corpus", "x.y"]))
def test_any_text_is_read(text: str, agent: str) -> None:
    assert isinstance(naming(agent, text), str)
    assert naming(agent, naming(agent, text)) == naming(agent, text)
    is_allowed(text.encode("utf-8", "replace"), agent=agent)
