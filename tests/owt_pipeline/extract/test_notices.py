"""Banners about cookies are left out, articles about cookies are not."""

from __future__ import annotations

import pytest

from owt_pipeline.extract.blocks import HEADING, PARAGRAPH, Block
from owt_pipeline.extract.notices import without_notice

FOX = "The quick brown fox jumps over the lazy dog, and then it rests beneath a tree for a while."


def block(text: str, form: str = PARAGRAPH) -> Block:
    return Block(form, text, 0, 0)


@pytest.mark.parametrize(
    "notice",
    [
        "We use cookies and similar technologies to provide our service. You can accept them or change your settings.",
        "This website uses cookies. By continuing, you consent to their use.",
        "Wir verwenden Cookies, um unsere Seiten zu verbessern.",
        "Nous utilisons des cookies pour mesurer l'audience.",
        "Some of our partners process your data on the basis of legitimate interest.",
    ],
)
def test_a_notice_about_cookies_is_no_text_at_either_end(notice: str) -> None:
    text = [block(FOX) for _ in range(4)]
    banner = [block("Your privacy", HEADING), block(notice), block("Accept all cookies")]
    for kept in (banner + text, text + banner, banner[1:2] + text):
        assert without_notice(kept) == text


def test_an_article_about_cookies_is_kept() -> None:
    text = [block(f"{number}. This site uses cookies to remember who logged in. {FOX}") for number in range(5)]
    assert without_notice(text) == text
    about = [block("This site uses cookies for its session only."), *(block(f"A cookie. {FOX}") for _ in range(5))]
    assert without_notice(about) == about
    within = [block(FOX), block("We use cookies."), block(FOX)]
    assert without_notice(within) == within
