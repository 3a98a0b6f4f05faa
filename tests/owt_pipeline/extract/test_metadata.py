"""What a page says of itself."""

from __future__ import annotations

import pytest

from owt_pipeline.extract.embedded import linked_data
from owt_pipeline.extract.metadata import Metadata, read_metadata
from owt_pipeline.extract.tree import parse

FETCHED_AT = 1_577_836_800  # 2020-01-01


def read(head: str, body: str = "", url: str = "http://h/", attributes: str = "") -> Metadata:
    root = parse(f"<html {attributes}><head>{head}</head><body>{body}</body></html>")
    assert root is not None
    return read_metadata(root, linked_data(root), url, FETCHED_AT)


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        ("<title>Foxes rest - Daily Fox</title>", "<h1>Foxes rest</h1>", "Foxes rest"),
        ("<title>Foxes rest | Daily Fox</title>", "", "Foxes rest"),
        ("<title>Daily Fox: news</title><meta property=og:title content='Foxes rest'>", "", "Daily Fox: news"),
        ("<title>A - B</title>", "<h1>Logo</h1><h1>C</h1>", "A"),
        ("", "<h1> Only\n a heading </h1>", "Only a heading"),
        ("<title>Usage - Docs</title>", "<h1>Usage<a href='#usage'>¶</a></h1>", "Usage"),
        ("<meta property=og:title content='Foxes rest'>", "", "Foxes rest"),
        (
            "<title>Foxes rest | Fox</title><meta property=og:site_name content=Fox>",
            "<h1>Fox</h1><h1>Foxes rest</h1>",
            "Foxes rest",
        ),
        ("<title>%s</title>" % ("x" * 1000), "", None),
        ("", "", None),
    ],
)
def test_title(head: str, body: str, title: str | None) -> None:
    assert read(head, body).title == title


def ld(json: str) -> str:
    return f'<script type="application/ld+json">{json}</script>'


@pytest.mark.parametrize(
    ("head", "body", "author"),
    [
        ("<meta name=author content='A. Fox'>", "", "A. Fox"),
        ("<meta name=author content=admin>", "<a rel=author>A. Fox</a>", "A. Fox"),
        (
            "<meta property=article:author content=https://facebook.com/fox>",
            "<a rel=author href=/>B. Fox</a>",
            "B. Fox",
        ),
        (ld('{"author": [{"name": "A. Fox"}, {"name": "B. Fox"}]}'), "", "A. Fox, B. Fox"),
        (ld('{"@graph": [{"@type": "Article", "author": "A. Fox"}]}'), "", "A. Fox"),
        ("", "<p class=byline>By A. Fox</p>", "A. Fox"),
        ("", "<p class=byline>By fox99</p>", "fox99"),
        ("", "<p class=byline>A. Fox, 3 May 2019</p>", None),
        (ld('{"author": 7}'), "", None),
    ],
)
def test_author(head: str, body: str, author: str | None) -> None:
    assert read(head, body).author == author


@pytest.mark.parametrize(
    ("head", "body", "url", "date"),
    [
        ("<meta property=article:published_time content=2019-05-03T22:00:00-07:00>", "", "http://h/", "2019-05-03"),
        ("<meta name=date content=20190503>", "", "http://h/", "2019-05-03"),
        (ld('{"datePublished": "2019/05/03"}'), "", "http://h/", "2019-05-03"),
        ("", "<time datetime=2019-05-03>May</time>", "http://h/", "2019-05-03"),
        ("", "", "http://h/2019/05/03/foxes", "2019-05-03"),
        ("<meta name=date content=2019-02-31>", "", "http://h/", None),
        ("<meta name=date content=2021-05-03>", "", "http://h/", None),  # after the page was fetched
        ("<meta name=date content=1970-01-01>", "", "http://h/", None),
        ("", "© 2019", "http://h/201905034", None),
    ],
)
def test_date(head: str, body: str, url: str, date: str | None) -> None:
    assert read(head, body, url).date == date


@pytest.mark.parametrize(
    ("attributes", "head", "language"),
    [
        ("lang=en-US", "", "en"),
        ("lang=''", "<meta http-equiv=Content-Language content='de, en'>", "de"),
        ("", "<meta property=og:locale content=fr_FR>", "fr"),
        ("lang=english", "", None),
    ],
)
def test_language(attributes: str, head: str, language: str | None) -> None:
    assert read(head, "", attributes=attributes).language == language
