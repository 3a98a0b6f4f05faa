"""Pages as the web has them: an article amid navigation, banners, advertisements and footers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import cache
from html import escape
from importlib import resources
from string import Template

from owt_pipeline.demo.prose import Article

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
    """The HTML of `article` in `template`, encoded in `charset`; `related` are (path, title) links beside it."""
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
