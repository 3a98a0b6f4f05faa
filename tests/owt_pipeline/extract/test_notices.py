"""Notices of a site around the text of a page, whatever the model decides about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import owt_pipeline as owt
from owt_pipeline.stages.extract.content.notices import leave_cookie_banner, leave_copyright
from owt_pipeline.stages.extract.html.blocks import Block
from owt_pipeline.stages.extract.html.reader import read_page

TEXTS = [
    f"The keeper of lamp number {number} wrote that the last ship had come {number + 3} months "
    "ago, and that he had little oil left for the winter."
    for number in range(3)
]
STORY = "<h1>Lamps</h1>" + "".join(f"<p>{text}</p>" for text in TEXTS)


def lines_after(rule: Callable[[Sequence[Block], np.ndarray], None], html: str) -> list[str]:
    """Return the lines that a rule leaves of a page of which the model keeps everything."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    keep = np.ones(len(blocks), dtype=bool)
    rule(blocks, keep)
    return [block.text for block, is_kept in zip(blocks, keep, strict=True) if is_kept]


@pytest.mark.parametrize(
    "banner",
    [
        "<div><p>This website uses cookies for a better experience. <a href=/p>More</a></p></div>",
        "<div class=x1><p>We use cookies to analyse our traffic.</p><button>Accept</button></div>",
        "<section>Diese Seite verwendet Cookies, auch von Dritten.<a href=/a>OK</a></section>",
        "<div><div>Ce site utilise des cookies pour la navigation.</div><b>Fermer</b></div>",
        "<div><p>Vi bruger cookies på vores hjemmeside for at huske dig.</p></div>",
        "<div><p>Мы используем куки, чтобы сайт работал лучше для вас.</p></div>",
    ],
)
@pytest.mark.parametrize("page", ["{}<article>{}</article>", "<main>{}{}</main>", "<p>{}<p>{}"])
def test_one_cookie_banner_is_left_out_before_or_after_the_text(banner: str, page: str) -> None:
    assert lines_after(leave_cookie_banner, page.format(banner, STORY)) == ["Lamps", *TEXTS]
    assert lines_after(leave_cookie_banner, page.format(STORY, banner)) == ["Lamps", *TEXTS]


@pytest.mark.parametrize(
    "insertion",
    [
        "<p>The website of the museum asks each visitor to accept its cookies.</p>",
        "<div><p>In his oven there were cookies for the winter, and a loaf of bread.</p></div>",
        "<div><p>We use cookies on this site.</p></div><p>Cookies are small files.</p>" * 3,
        "<h2>How this website uses cookies to find you again</h2>",
    ],
)
def test_a_text_that_speaks_of_cookies_stays(insertion: str) -> None:
    page = f"<article>{STORY}{insertion}</article>"
    assert lines_after(leave_cookie_banner, page) == lines_after(lambda *_: None, page)


def test_a_text_between_paragraphs_is_not_a_banner() -> None:
    quote = "<div>This website uses cookies, the sign at the door of the lamp said.</div>"
    page = STORY.replace(f"<p>{TEXTS[1]}</p>", f"<p>{TEXTS[1]}</p>{quote}")
    assert len(lines_after(leave_cookie_banner, page)) == 5


@pytest.mark.parametrize(
    "line",
    [
        "<div>© 2023 The Coast Herald</div>",
        "<p>Copyright © 1998-2024 Herald Media Ltd. No reprint.</p>",
        "<span>Coast Herald. All rights reserved.</span>",
        "<p>(c) Herald, 2019</p><p>All Rights Reserved</p>",
    ],
)
def test_copyright_lines_after_the_text_are_left_out(line: str) -> None:
    page = f"<article>{STORY}<div>{line}</div></article>"
    assert lines_after(leave_copyright, page) == ["Lamps", *TEXTS]


@pytest.mark.parametrize(
    "line",
    [
        "<p>© Ada Bruun</p>",
        "<p>From the book by Tom Miller, copyright 2019, with his permission.</p>",
        "<h2>Copyright in 2024</h2>",
        f"<p>© 2020 Herald</p><p>{TEXTS[0]}</p>",
    ],
)
def test_other_lines_that_mention_copyright_stay(line: str) -> None:
    page = f"<article>{STORY}{line}</article>"
    assert lines_after(leave_copyright, page) == lines_after(lambda *_: None, page)


def test_a_short_page_has_no_banner() -> None:
    banner = "<div><p>We value your privacy and use cookies on our site.</p><a href=#>OK</a></div>"
    document = owt.extract(f"<body>{banner}<article>{STORY}</article></body>")
    assert document is not None
    assert document.text.split("\n")[-3:] == TEXTS
    assert "cookies" not in document.text
