"""Notices of a site before or after the text of a page: a request for cookies, a copyright line.

The model keeps a notice where a short page has little else, since it has sentences like the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from owt_pipeline.stages.extract.content.article import holds
from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    PREFORMATTED,
    ROW,
    Block,
    Container,
    is_prose,
    key_of,
    num_words,
)

_NO_NOTICE_FORMS = frozenset((HEADING, ROW, PREFORMATTED))

# Cookies. Parts of words in lower case; most languages have the English word.
_COOKIE_STEMS = tuple("cookie|eväste|sütik|informasjonskaps|vafrakök|куки|クッキー".split("|"))
# Words in a site's notice on cookies that a recipe does not have.
_SITE_STEMS = tuple(
    "website|web site|our site|this site|the site|browser|browsing|consent|accept|agree|privacy"
    "|third part|technologies|traffic|webseite|seite|einverst|zustimm|akzept|datenschutz|navigateur"
    "|ce site|notre site|navigation|sito|navigazion|sitio|navega|acept|aceit|gebruik|webbplats"
    "|samtyck|hjemmeside|nettsted|samtykk|sivusto|stron|zgod|stránk|souhlas|webhely|oldal|сайт"
    "|согла|サイト|同意".split("|")
)
_MIN_BANNER_CHARS = 20
_MAX_BANNER_CHARS = 600
# A page with more text on cookies is about them.
_MAX_BANNER_BLOCKS = 3

# Copyright. A line without a year may credit a photographer or the author of a quotation.
_COPYRIGHT = re.compile(
    r"\W*(?:©|\(c\)|copyright\b|&copy;)[^.]{0,20}\b(?:19|20)\d\d\b|.{0,120}\ball rights reserved\b",
    re.IGNORECASE | re.DOTALL,
)
_MAX_COPYRIGHT_CHARS = 300
_MAX_COPYRIGHT_LINES = 2


def leave_notices(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of a cookie banner around the text and of copyright lines after it."""
    leave_cookie_banner(blocks, keep)
    leave_copyright(blocks, keep)


def leave_cookie_banner(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of a request for cookies in an element of its own, before or after all prose.

    A page that mentions cookies anywhere else is about them, and nothing is left out.
    """
    kept_indexes: list[int] = np.flatnonzero(keep).tolist()
    lower_texts = {index: blocks[index].text.lower() for index in kept_indexes}
    mentions = [i for i in kept_indexes if any(stem in lower_texts[i] for stem in _COOKIE_STEMS)]
    if not 0 < len(mentions) <= _MAX_BANNER_BLOCKS:
        return
    if not any(_is_request(blocks[index]) for index in mentions):
        return
    others = [index for index in kept_indexes if index not in mentions and is_prose(blocks[index])]
    if sum(num_words(blocks[i]) for i in others) <= sum(num_words(blocks[i]) for i in mentions):
        return
    if others[0] < mentions[-1] and mentions[0] < others[-1]:
        return
    keys = {key_of(blocks[index].container) for index in others}
    if any(key_of(blocks[index].container) in keys for index in mentions):
        return
    titles = [index for index in kept_indexes if blocks[index].container.tag == "h1"]
    outside = [blocks[index].container for index in (*others, *titles)]
    banner = _banner_around(blocks[mentions[0]].container, outside)
    for index in kept_indexes:
        if index in mentions or holds(banner, blocks[index].container):
            keep[index] = False


def _is_request(block: Block) -> bool:
    """Return whether a block that mentions cookies is about the cookies of a site."""
    if block.form in _NO_NOTICE_FORMS:
        return False
    if not _MIN_BANNER_CHARS <= block.chars <= _MAX_BANNER_CHARS:
        return False
    text = block.text.lower()
    return any(stem in text for stem in _SITE_STEMS)


def _banner_around(container: Container, outside: Sequence[Container]) -> Container:
    """Return the outermost container around a request that holds none of the others.

    Its buttons and links belong to the banner.
    """
    banner = container
    for ancestor in container.ancestors():
        if any(holds(ancestor, other) for other in outside):
            break
        banner = ancestor
    return banner


def leave_copyright(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of copyright lines at the end of a page that has prose before them."""
    kept_indexes: list[int] = np.flatnonzero(keep).tolist()
    if not any(is_prose(blocks[index]) for index in kept_indexes[:-1]):
        return
    for index in kept_indexes[: -_MAX_COPYRIGHT_LINES - 1 : -1]:
        block = blocks[index]
        if block.form in _NO_NOTICE_FORMS or block.chars > _MAX_COPYRIGHT_CHARS:
            return
        if _COPYRIGHT.match(block.text) is None:
            return
        keep[index] = False
