"""Markup that a page shows as text, because it was escaped twice or a plugin is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LITERAL_TAG = re.compile(
    r"<(?:img|iframe|embed|video|audio|source|figure|object)\s+[a-z-]+\s*=[^<>]*>|</(?:iframe|video|audio|figure|object)>",
    re.IGNORECASE,
)
_BUILDER = r"(?:vc|et_pb|fusion|mk|nectar|tatsu|cmsmasters)_\w+"  # codes of page builders, never words of a text
_OPEN_SHORTCODE = re.compile(rf"\[{_BUILDER}\s[^\[\]]*$")
_LONGEST_SHORTCODE = 30_000
_WORD = "caption|gallery|embed|playlist|audio|video|soundcloud|youtube|vimeo|toc|tabs?"
_ATTRIBUTES = r"\s[^\[\]\n=]{1,200}=[^\[\]\n]{0,500}"
_SHORTCODE = re.compile(
    r"\[vc_raw_\w+[^\[\]]*\][A-Za-z0-9+/=%\s]*(?=\[/)"  # their content is encoded
    rf"|\[/?{_BUILDER}(?:\s[^\[\]]*)?\]"
    r"|\[/?(?:contact-form-7|mc4wp_form|wpforms|dropcap|pullquote|advanced_iframe|adrotate|sc_\w+|su_\w+|wp_\w+"
    r"|ngg\w*|av_\w+|fl_\w+|elementor-template|rev_slider|tabgroup|one_half(?:_last)?|one_third(?:_last)?)"
    rf"(?:{_ATTRIBUTES})?\s*/?\]"
    # Words of texts ("see [video]"): with attributes, an end, or a line of their own.
    rf"|\[(?:{_WORD}){_ATTRIBUTES}\s*/?\]|\[/(?:{_WORD})\]|^\[(?:{_WORD})\s*/?\]$"
    rf"|\[({_WORD})\](?=[^\[\]]{{0,500}}\[/\1\])",
    re.MULTILINE,
)


def without_markup(text: str) -> str:
    """Text without shortcodes and without tags of images and other media."""
    return _SHORTCODE.sub("", _LITERAL_TAG.sub("", text))


def opens_shortcode(text: str) -> bool:
    """Whether a shortcode begins in `text` but does not end in it."""
    return _OPEN_SHORTCODE.search(text) is not None


def without_spanning(texts: Sequence[str], starts: Sequence[int]) -> dict[int, str]:
    """The rest of texts, by index, without shortcodes that begin in the texts `starts` and end in a later one.

    The texts between hold their attributes. A shortcode that does not end within 30,000 characters counts as text.
    """
    left: dict[int, str] = {}
    for start in starts:
        chars = 0
        for index in range(start + 1, len(texts)):
            before, bracket, after = texts[index].partition("]")
            chars += len(before)
            if chars > _LONGEST_SHORTCODE:
                break
            if bracket:
                left |= dict.fromkeys(range(start + 1, index), "")
                left[start] = _OPEN_SHORTCODE.sub("", left.get(start, texts[start])).strip()
                left[index] = without_markup(after).strip()
                break
    return left
