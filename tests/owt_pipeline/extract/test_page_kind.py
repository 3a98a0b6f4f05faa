"""The kind of a page by its URL and its metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.stages.extract.content.metadata import read_head
from owt_pipeline.stages.extract.content.page_kind import PageKind, read_page_kind
from owt_pipeline.stages.extract.html.reader import read_page


def kind_of(url: str, head: str = "") -> PageKind:
    page = read_page(f"<html><head>{head}</head><body><p>x</p></body></html>")
    return read_page_kind(url, page.metas, read_head(page))


@pytest.mark.parametrize(
    "url",
    [
        "https://forum.example.org/t/a-title/12",
        "https://example.org/forums/a-title.12/",
        "http://example.org/showthread.php?t=5",
        "http://example.org/viewtopic.php?f=2&t=5",
        "https://community.example.com/x",
        "https://Example.org/Discussion/12/a-title",
        "https://example.org/threads/a-title.99/",
    ],
)
def test_a_forum_is_known_by_its_url(url: str) -> None:
    assert kind_of(url).is_forum


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://news.example/2024/05/the-community-rallies-for-its-forum",
        "https://news.example/local/new-topic-of-discussion-at-the-council",
        "https://example.org/communityfocus",
        "forum",
        "http://[broken/forum",
    ],
)
def test_words_of_a_title_do_not_make_a_forum(url: str) -> None:
    assert not kind_of(url).is_forum


def test_a_page_without_a_url_has_zeros_for_it() -> None:
    of_url = len(kind_of("").features) - 12
    assert not any(kind_of("").features[:of_url])
    assert kind_of("https://example.org/").features[0] == 1


def test_types_date_and_author_are_features() -> None:
    declared = """<meta property="og:type" content="product.item">
        <meta name="author" content="Ada"><script type="application/ld+json">
        {"@type": ["Recipe", "FAQPage"], "datePublished": "2024-05-01"}</script>"""
    *types, is_dated, is_signed = kind_of("", declared).features[-12:]
    # articles, products, threads, lists, sites, questions, recipes, companies, persons, pages
    assert types == [0, 1, 0, 0, 0, 1, 1, 0, 0, 0]
    assert (is_dated, is_signed) == (1, 1)
    assert kind_of("").features[-12:] == (0,) * 12


@given(st.text(max_size=60))
def test_any_url_has_the_same_number_of_features(url: str) -> None:
    assert len(kind_of(url).features) == len(kind_of("").features)
