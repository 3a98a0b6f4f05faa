"""Detects pages that servers send with status 200 instead of the requested one: missing pages,
parked domains, walls.

The signals are few and precise, and count only in pages with little text, since a page rejected
here is lost. All are published:

- soft 404s: the titles of the error pages of Apache, nginx, IIS, WordPress, Drupal and Joomla,
  which most soft 404s have (Bar-Yossef et al., "Sic transit gloria telae", 2004);
- parked domains: the hosts from which parking services load their pages (Vissers et al., "Parking
  Sensors", 2015);
- walls: markers documented by Cloudflare, Imperva, DataDome, HUMAN, Akamai, AWS and Sucuri or
  listed by Wappalyzer, and the consent and login pages of the largest sites.
"""

from __future__ import annotations

import html
import re

from owt_pipeline.stages.extract.extractor import Page
from owt_pipeline.stages.extract.html.names import NAMES
from schemas import Reason

MAX_WORDS = 250
"""A page with more words passes: an article about such pages has more."""

# Searched for a title.
_HEAD_CHARACTERS = 1 << 16
# A longer page passes.
_MAX_CHARACTERS = 1 << 17

_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_UNSHOWN = re.compile(
    r"<(script|style|noscript|template|svg)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>",
    re.IGNORECASE | re.DOTALL,
)

# The end of a title, or the site's name.
_END = r"\W{0,4}(?:\s[|·–—-]\s.*)?$"
_MISSING_PAGE = (
    r"(?:the |this |that )?(?:page|file|document|url|article)(?: you (?:requested|are looking "
    r"for))?"
    r" (?:not|(?:was|is|could|can) ?not|(?:was|is|could|ca)n['’]t) (?:be )?(?:found|available)"
    r"|(?:the |this |that )?page (?:does not|doesn['’]t) exist"
)
_TITLE_404 = (
    r"(?:(?:http|error|status)\W{1,3})?404\b"
    r"(?:\W{0,4}(?:error(?: page)?|(?:file or directory |page )?not found))?(?:\)!!1)?"
)
_MISSING = re.compile(
    rf"{_TITLE_404}{_END}|(?:(?:404|oops|sorry)\W{{1,4}})?(?:{_MISSING_PAGE}){_END}|.*[|·:–—-]\s(?:404|{_MISSING_PAGE})\W*$",
    re.IGNORECASE,
)
_FOR_SALE = re.compile(
    r"(?:the domain )?[\w-]+(?:\.[\w-]+)+ (?:is|may be) (?:for sale|available for purchase)\b"
    r"|this domain (?:name )?(?:is|may be) for sale\W*$",
    re.IGNORECASE,
)
_WALL = re.compile(
    r"(?:just a moment|attention required! \| cloudflare|access denied|access to this page has "
    r"been denied\.?"
    r"|(?:please wait\W+)?checking your browser|are you a (?:robot|human)|robot or human|robot "
    r"check|human verification"
    r"|security check required|ddos-guard|captcha|access denied - sucuri website firewall|pardon "
    r"our interruption"
    r"|before you continue to (?:google|youtube)(?: search)?)\W*$"
    rf"|(?:please )?(?:log|sign) ?in(?: to (?:continue|facebook|your account))?{_END}"
    r"|linkedin login, sign in|login \W instagram",
    re.IGNORECASE,
)

_PARKING_HOSTS = NAMES["hosts of parked domains"]
_WALL_MARKERS = NAMES["markers of walls"]


def reason_for_no_page(page: Page) -> tuple[Reason, str] | None:
    """Return the reason to reject a page sent instead of the requested one, and its signal.

    Return None for any other page.
    """
    if len(page.html) > _MAX_CHARACTERS:
        return None
    reason = _by_title(page.html) or _by_marker(page.lower_html)
    if reason is None or len(_UNSHOWN.sub(" ", page.html).split()) > MAX_WORDS:
        return None
    return reason


def _by_title(page: str) -> tuple[Reason, str] | None:
    match = _TITLE.search(page, 0, _HEAD_CHARACTERS)
    title = " ".join(html.unescape(match[1]).split()) if match else ""
    signal = f"the title is {title[:100]!r}"
    if _MISSING.match(title):
        return Reason.SOFT_404, f"a missing page: {signal}"
    if _FOR_SALE.match(title):
        return Reason.SOFT_404, f"a parked domain: {signal}"
    if _WALL.match(title):
        return Reason.WALL, signal
    return None


def _by_marker(page: bytes) -> tuple[Reason, str] | None:
    for host in _PARKING_HOSTS:
        if host.encode() in page and _loads_from(host).search(page):
            return Reason.SOFT_404, f"a parked domain: it loads {host}"
    for marker in _WALL_MARKERS:
        if marker.encode() in page:
            return Reason.WALL, f"the page has {marker}"
    return None


def _loads_from(host: str) -> re.Pattern[bytes]:
    """Return an expression for an element of a page in lower case that loads from a host."""
    return re.compile(rf"src=[\"']?(?:https?:)?//[^\"'\s>]*{re.escape(host)}".encode())
