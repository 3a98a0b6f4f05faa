"""Copyright lines of a site after the text of a page, whatever the model decides about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from owt_pipeline.stages.extract.content.copyright import leave_copyright
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
