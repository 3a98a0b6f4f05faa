"""Notices about cookies, which are no text of a page.

A banner is prose as good as an article's, of which a short page may have less; no name of a class is sure to tell it.
But it is at one end of the text, speaks of cookies and consent in every sentence, and the rest of the page does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from owt_pipeline.extract.blocks import HEADING, Block

_NOTICE = re.compile(
    r"\b(?:we|our (?:partners|website|site)|this (?:website|site|page)|by (?:using|continuing|clicking))\b.{0,160}"
    r"\bcookies?\b|\bcookies?\b.{0,120}\b(?:consent|preferences|settings|policy|accept|reject|necessary)\b"
    r"|\b(?:accept|reject|allow|manage|necessary|functional|marketing|advertising|essential) (?:all )?cookies?\b"
    r"|\blegitimate interest\b|\bwithdraw your consent\b|\bconsent to (?:the use|our use|cookies)"
    r"|\b(?:verwende[nt]|nutz(?:en|t)|setz(?:en|t)) .{0,60}\bcookies\b|\butilis(?:e|ons|ent) .{0,40}\bcookies\b"
    r"|\b(?:utiliza(?:mos)?|usa(?:mos)?|utilizziamo|utilizza|usiamo|gebrui(?:kt|ken)) .{0,60}\bcookies?\b",
    re.IGNORECASE | re.DOTALL,
)
_BUTTON = re.compile(
    r"\W*(?:accept|agree|allow|decline|reject|ok|got it|dismiss|close|settings|preferences|customi[sz]e|learn more"
    r"|more information|manage|akzeptieren|ablehnen|einstellungen|accepter|refuser|aceptar|rechazar|accetta|rifiuta)"
    r"\b.{0,24}",
    re.IGNORECASE,
)
_LABEL = 40  # characters; a shorter block before the first sentence of a banner is its heading
_MOST_OF_TEXT, _MOST = 0.4, 2000  # what is more than this share of the text, or longer, is what the page is about


def without_notice(kept: Sequence[Block]) -> list[Block]:
    """`kept`, the blocks of a page's text, without a notice about cookies at its start or its end."""
    most = min(_MOST, _MOST_OF_TEXT * sum(block.chars for block in kept))
    start = _length_of_notice(kept, most)
    end = len(kept) - _length_of_notice(kept[::-1], most)
    if start < end < len(kept) and kept[end - 1].form == HEADING:
        end -= 1  # the banner's
    text = list(kept[start:end])
    if sum("cookie" in block.text.lower() for block in text) > 1:
        return list(kept)  # the page is about cookies
    return text


def _length_of_notice(blocks: Sequence[Block], most: float) -> int:
    """How many of the first blocks are a notice, of at most `most` characters."""
    chars, length = 0, 0
    for index, block in enumerate(blocks):
        chars += block.chars
        is_notice = _NOTICE.search(block.text, 0, _MOST) is not None  # some blocks have megabytes
        if is_notice and chars > most:
            return 0
        if is_notice or (length and _BUTTON.fullmatch(block.text)):
            length = index + 1
        elif block.chars > _LABEL or length:
            break
    return length
