"""The metadata of a page."""

from __future__ import annotations

import pytest

from owt_pipeline.stages.extract.extractor import Extracted
from owt_pipeline.stages.extract.head import read_head
from owt_pipeline.stages.extract.metadata import read_metadata
from owt_pipeline.stages.extract.reader import read_page

FETCHED_AT = 1_577_836_800  # 2020-01-01


def read(head: str, body: str = "", url: str = "http://h/", attributes: str = "") -> Extracted:
    page = read_page(f"<html {attributes}><head>{head}</head><body>{body}</body></html>")
    return Extracted("", **read_metadata(page, read_head(page), url, FETCHED_AT))


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
        (
            "<title>The fox of May</title>",
            "<h1><div>The fox</div>of<br>May<style>p{}</style><svg><title>Link</title></svg></h1>",
            "The fox of May",
        ),
        ("", "", None),
    ],
)
def test_title(head: str, body: str, title: str | None) -> None:
    assert read(head, body).title == title


@pytest.mark.parametrize(
    ("head", "body", "title"),
    [
        (
            "<title>Rest</title><meta property=og:site_name content=Fox>",
            "<svg><title>Menu</title></svg><h1>Fox</h1>",
            "Rest",
        ),
        ("<title>The Fox Book: Rest</title>", "<h1><a href=http://h/>The Fox Book</a></h1>", "The Fox Book: Rest"),
        ("<title>Daily - Rest</title><meta property=og:title content=Rest>", "<h1>Rest</h1>", "Rest"),
        ("<title>Foxes at rest | Daily</title>", "<h1>Our newsletter</h1>", "Foxes at rest"),
        ("<title>Foxes at rest | Daily</title>", "<h1>Where foxes sleep at night</h1>", "Where foxes sleep at night"),
    ],
)
def test_title_is_not_the_heading_of_the_site(head: str, body: str, title: str) -> None:
    assert read(head, body, "https://h/a/rest.html").title == title


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
        ("", "<div class=byline>By<div>A. Fox</div><div>May 2019</div></div>", "A. Fox"),
        ("", "<p class=byline>3 May 2019</p>", None),
        ("", "<p class=byline>A. Fox, 3 May 2019</p>", "A. Fox"),
        ("", "<p class=byline>By A. Fox and B. Fox | May 3, 2019</p>", "A. Fox and B. Fox"),
        ("", "<div class=comment-author>C. Fox</div><div class=entry-author-name>A. Fox</div>", "A. Fox"),
        ("", "<div class=article__author>By\n<b>A. Fox</b></div>", "A. Fox"),
        ("", "<span itemprop=author><a><span itemprop=name>A. Fox</span></a>, editor</span>", "A. Fox"),
        ("<meta property='dc:creator og:author' content='A. Fox'><meta name=author content='B. Fox'>", "", "A. Fox"),
        (ld('<![CDATA[{"@type": "Article", "author": {"name": "A. Fox"}}]]>'), "", "A. Fox"),
        (ld('{"author": 7}'), "", None),
        (ld('{"@graph": [{"author": {"@id": "#p"}}, {"@id": "#p", "name": "A. Fox"}]}'), "", "A. Fox"),
        (ld('{"@type": "Article", "author": [{"@id": "#p"}]}') + ld('{"@id": "#p", "name": "A. Fox"}'), "", "A. Fox"),
        (ld('{"author": "#p", "publisher": {"@id": "#p", "name": "A. Fox"}}'), "", "A. Fox"),
        (ld('{"author": {"name": "A. Fox &amp; B. F&ouml;x"}}'), "", "A. Fox & B. Föx"),
        (ld('{"author": "A. O&#39;Fox"}'), "", "A. O'Fox"),
        ("", "<p class=byline>By A. Fox <span class=badge>Staff</span></p>", "A. Fox"),
        ("", "<span itemprop=author>A. Fox<i class=author-role>Editor</i></span>", "A. Fox"),
        ("", "<p class=byline>By A. Fox, Tuesday 3 May 2019</p>", "A. Fox"),
        ("", "<p class=byline>Von A. Fox, Dienstag, 3. Mai</p>", "A. Fox"),
        ("", "<p class=byline>By A. Fox Fri, May 3, 2019</p>", "A. Fox"),
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
        ("", "<p class=byline>By A. Fox on 2019-05-03</p>", "http://h/", "2019-05-03"),
        ("", "<div class=date>2019年5月3日</div>", "http://h/", "2019-05-03"),
        ("", "<div class=date>3/5/2019</div>", "http://h/", None),  # in May or in March
        ("", "<div class=event-date>3 May 2019</div>", "http://h/", None),
        ("", "<time class=review__published-date datetime=2019-05-03>May</time>", "http://h/", None),
        (
            "",
            "<time class=updated datetime=2019-06-01>x</time><time datetime=2019-05-03>y</time>",
            "http://h/",
            "2019-05-03",
        ),
        (
            "<meta property=article:published_time content=2019-06-01>"
            + ld('{"@type": "NewsArticle", "datePublished": "2019-05-03"}'),
            "",
            "http://h/",
            "2019-05-03",
        ),
        (
            "",
            "<div class=related><time datetime=2010-01-01>x</time></div><time datetime=2019-05-03>y</time>",
            "http://h/",
            "2019-05-03",
        ),
        ("", "<aside><time datetime=2010-01-01>x</time></aside>", "http://h/", None),
        ("", "<ul class=more-stories><li><time datetime=2010-01-01>x</time></ul>", "http://h/", None),
        ("", "<div class=kommentare><p>y <time datetime=2010-01-01>x</time></div>", "http://h/", None),
        ("", "<div itemprop=comment><p>y <time datetime=2010-01-01>x</time></div>", "http://h/", None),
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


BY_SA = "https://creativecommons.org/licenses/by-sa/4.0/"


@pytest.mark.parametrize(
    ("head", "body", "license"),
    [
        (f"<link rel=license href={BY_SA}>", "", "CC-BY-SA-4.0"),
        ("", f"<footer><a rel='license noopener' href={BY_SA}deed.en>CC</a></footer>", "CC-BY-SA-4.0"),
        ("", "<a rel=license href=http://creativecommons.org/licenses/by-nc/3.0/us/>x</a>", "CC-BY-NC-3.0-US"),
        ("", "<a rel=license href=//creativecommons.org/publicdomain/zero/1.0/>x</a>", "CC0-1.0"),
        ("<link rel=license href=https://h/terms>", "", "https://h/terms"),
        (ld('{"@type": "Article", "license": "https://creativecommons.org/licenses/by/4.0"}'), "", "CC-BY-4.0"),
        ("<meta name=dcterms.rights content='CC BY 4.0'>", "", "CC BY 4.0"),
        ("<meta name=dc.rights content='All rights reserved'>", "", None),
        ("", f"<p>Text is available under the <a href={BY_SA}>Creative Commons License</a>.</p>", "CC-BY-SA-4.0"),
        ("", f"<p>Photo: A. Fox, <a href={BY_SA}>CC</a></p>", None),
        ("", f"<figure><img><figcaption>Licensed <a rel=license href={BY_SA}>so</a></figcaption></figure>", None),
        ("", f"<a rel=license href={BY_SA}>a</a><a rel=license href=http://h/other>b</a>", None),
        ("", "", None),
    ],
)
def test_license(head: str, body: str, license: str | None) -> None:
    assert read(head, body).license == license


@pytest.mark.parametrize(
    ("head", "site"),
    [
        ("<meta property=og:site_name content='Daily Fox'>", "Daily Fox"),
        (ld('{"@type": "WebSite", "name": "Daily Fox"}'), "Daily Fox"),
        (ld('{"@type": "Article", "publisher": {"@type": "Organization", "name": "Daily Fox"}}'), "Daily Fox"),
        (ld('{"@type": "Product", "publisher": "Daily Fox"}'), None),
    ],
)
def test_site_name(head: str, site: str | None) -> None:
    assert read(head).site_name == site
