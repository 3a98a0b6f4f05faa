"""What the demo's web is made of: hosts, templates, answers to requests, and what should happen to each link."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import cache
from html import escape
from importlib import resources
from string import Template
from urllib.parse import quote

from owt_pipeline.demo.texts import Article
from schemas import Reason

DOMAIN = "demo.test"
"""Hosts are below it; `.test` is reserved (RFC 6761), so no name of the real web is meant by accident."""

_SLOW_SECONDS = 0.3


@dataclass(frozen=True)
class Host:
    """A site of the demo.

    Attributes:
      name: its first label, below DOMAIN.
      title: the name it gives itself.
      template: the template of its pages.
      compress: whether it sends them gzipped.
      delay: seconds before each answer.
    """

    name: str
    title: str
    template: str
    compress: bool = False
    delay: float = 0.0

    @property
    def host(self) -> str:
        return f"{self.name}.{DOMAIN}"

    def path(self, title: str, published: date, number: int) -> str:
        """The path of the page `title`; `number` tells forum topics apart."""
        slug = slug_of(title)
        return {
            "blog": f"/{published:%Y/%m}/{slug}",
            "newspaper": f"/world/{published:%Y-%m-%d}/{slug}.html",
            "docs": f"/en/latest/{slug}.html",
            "forum": f"/viewtopic.php?f=2&t={number}",
            "tables": f"/~webmaster/{slug}.htm",
            "wiki": "/wiki/" + quote(title.replace(" ", "_"), safe=""),
            "magazine": f"/stories/{slug}-{published:%Y%m}",
            "plain": f"/{slug}",
        }[self.template]


HOSTS = (
    Host("garden", "The Walled Garden", "blog", compress=True),
    Host("inkwell", "Inkwell and Quill", "blog"),
    Host("lantern", "Lantern Street", "blog"),
    Host("courier", "The Daily Courier", "newspaper", compress=True),
    Host("gazette", "Harbour Gazette", "newspaper"),
    Host("observer", "The Evening Observer", "newspaper", compress=True),
    Host("manual", "The Patient Manual", "docs", compress=True),
    Host("handbook", "Field Handbook", "docs"),
    Host("reference", "Plain Reference", "docs", compress=True),
    Host("tavern", "The Talking Tavern", "forum"),
    Host("roundtable", "Round Table Board", "forum", compress=True),
    Host("homepage", "Webmaster's Home", "tables"),
    Host("guestbook", "Guestbook Corner", "tables"),
    Host("almanac", "The Open Almanac", "wiki", compress=True),
    Host("compendium", "Compendium", "wiki"),
    Host("longread", "The Long Read Review", "magazine", compress=True),
    Host("quarterly", "Quarterly Letters", "magazine"),
    Host("notes", "Notes of a Tinkerer", "plain"),
    Host("snail", "Slow and Steady", "plain", delay=_SLOW_SECONDS),
    Host("private", "Members and Guests", "wiki"),
)
"""The hosts whose pages hold articles; there are also mirrors, and hosts that only fail."""


def slug_of(title: str) -> str:
    """A title as it is in a path: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


TEMPLATES = ("blog", "newspaper", "docs", "forum", "tables", "wiki", "magazine", "plain")

BOILERPLATE = (
    "We use cookies",
    "Subscribe to my newsletter",
    "Breaking: weather expected",
    "No part of this publication",
    "Quick search",
    "Report this post",
    "Who is online",
    "visitor number 004711",
    "Articles with unclear tone",
    "842 partners",
    "two free articles left",
)
"""Phrases around the articles that no extracted text should hold."""


def render(
    template: str,
    article: Article,
    *,
    site: str,
    url: str,
    author: str,
    published: date,
    related: Sequence[tuple[str, str]] = (),
    charset: str = "utf-8",
    charset_meta: bool = True,
) -> bytes:
    """The HTML of `article` in `template`, encoded in `charset`; `related` are (path, title) links next to it."""
    html = _template(template).substitute(
        title=escape(article.title),
        author=escape(author),
        date=published.isoformat(),
        long_date=f"{published.day} {published:%B %Y}",
        site=escape(site),
        url=escape(url),
        language=article.language,
        charset=f'<meta http-equiv="Content-Type" content="text/html; charset={charset}">' if charset_meta else "",
        body="\n".join(f"<p>{escape(paragraph, quote=False)}</p>" for paragraph in article.paragraphs),
        related="".join(f'<li><a href="{escape(path)}">{escape(title)}</a></li>' for path, title in related),
    )
    return html.encode(charset, "xmlcharrefreplace")


@cache
def _template(name: str) -> Template:
    path = resources.files("owt_pipeline.demo") / "templates" / f"{name}.html"
    return Template(path.read_text(encoding="utf-8"))


HTML = "text/html; charset=utf-8"


class Behaviour(str, Enum):
    """What the server does beyond sending a status, headers and a body."""

    PLAIN = "plain"
    BUSY = "busy"  # 503 with Retry-After at the first request, then the page
    STALL = "stall"  # headers and half the body, then silence
    RESET = "reset"  # the connection is reset before an answer
    ENDLESS = "endless"  # a body that continues far beyond any limit
    BROKEN_GZIP = "broken_gzip"  # announced as gzip, and is none


@dataclass(frozen=True)
class Answer:
    """The answer to one path of one host; `delay` in seconds comes before it."""

    body: bytes = b""
    status: int = 200
    content_type: str = HTML
    location: str = ""
    behaviour: Behaviour = Behaviour.PLAIN
    delay: float = 0.0
    compress: bool = False


@dataclass(frozen=True)
class Expectation:
    """What should happen to one URL.

    Attributes:
      url: the URL in the form a browser shows; the dump may link to variants of it.
      reasons: the reasons it may be rejected for; empty for a document of the corpus.
      cluster: name of a cluster of duplicates: one of its URLs is kept, the others leave for one of `reasons`.
      article: the text its page holds, as extraction and repair should give it; None where it holds none.
      author: the author its page names in its metadata, else None.
      date: the date of publication that its metadata name, YYYY-MM-DD, else None.
      site_name: the name the site gives itself in its metadata, else None.
    """

    url: str
    reasons: tuple[Reason, ...] = ()
    cluster: str = ""
    article: Article | None = None
    author: str | None = None
    date: str | None = None
    site_name: str | None = None

    @property
    def kept(self) -> bool:
        """Whether the URL is a document of the corpus whatever dedupe's choices are."""
        return not self.reasons
