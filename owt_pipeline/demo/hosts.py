"""The demo's hosts: what each site calls itself, how its pages look, and how it forms their paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from urllib.parse import quote

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
"""The hosts whose pages hold articles; mirrors and hosts that only fail stand beside them."""


def slug_of(title: str) -> str:
    """A title as it stands in a path: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
