"""References and further articles do not belong to a text, whatever the model decides about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from owt_pipeline.stages.extract.content.next_articles import leave_next_articles
from owt_pipeline.stages.extract.content.references import leave_references
from owt_pipeline.stages.extract.html.blocks import Block
from owt_pipeline.stages.extract.html.reader import read_page

TEXTS = [
    f"Lamp number {number} of the northern cape was made in a year when no ship had come for "
    f"{number + 3} months, and its keeper wrote that he had {number + 5} barrels of oil left."
    for number in range(12)
]
PARAGRAPHS = [f"<p>{text}</p>" for text in TEXTS]


def lines_after(rule: Callable[[Sequence[Block], np.ndarray], None], html: str) -> list[str]:
    """Return the lines that a rule leaves of a page of which the model keeps everything."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    keep = np.ones(len(blocks), dtype=bool)
    rule(blocks, keep)
    return [block.text for block, is_kept in zip(blocks, keep, strict=True) if is_kept]


def between_paragraphs(*insertions: str) -> str:
    parts = []
    for paragraph, insertion in zip(PARAGRAPHS, insertions, strict=False):
        parts += [paragraph, insertion]
    return f"<article>{''.join(parts)}{''.join(PARAGRAPHS[len(insertions) : 8])}</article>"


@pytest.mark.parametrize(
    "reference",
    [
        "<p>See also: <a href=/1>A road to the northern cape</a></p>",
        "<p><strong><a href=/1>Lesen Sie auch: Ein Weg zum Nordkap</a></strong></p>",
        "<div>LIRE AUSSI &gt; <a href=/1>Une route vers le cap du nord</a></div>",
        "<blockquote>&gt;&gt; Читайте также: <a href=/1>Дорога на северный мыс</a></blockquote>",
        "<p><em>Olvasta már? <a href=/1>Lezárták az északi fokhoz vezető utat</a></em></p>",
        "<p>【関連記事】<a href=/1>北の岬への道路が通行止めに、住民は困惑</a></p>",
        "<div><b>Read also</b> <a href=/1>A road to the northern cape</a></div>",
        "<p>See also:</p><ul><li><a href=/1>A road to the cape</a>"
        "<li><a href=/2>Storm on the lake</a></ul>",
    ],
)
def test_references_to_other_articles_are_left_out(reference: str) -> None:
    assert lines_after(leave_references, between_paragraphs(reference, "", reference)) == TEXTS[:8]


@pytest.mark.parametrize(
    "line",
    [
        "<p>Source: <a href=/1>A road to the northern cape</a></p>",
        "<p>See also the <a href=/1>map of the northern cape</a> in the second chapter.</p>",
        "<p>See also: <a href=/1>open</a></p>",
        "<p>Related: the bridge to the northern cape was never built, say the owners.</p>",
        "<h2>See also</h2>",
    ],
)
def test_other_lines_with_labels_stay(line: str) -> None:
    assert len(lines_after(leave_references, between_paragraphs(line, "", line))) == 10


FIRST = "".join(PARAGRAPHS[:3])
SECOND = "".join(PARAGRAPHS[3:9])


@pytest.mark.parametrize(
    "page",
    [
        "<article class=post-1><h1>One</h1>{}</article><article class=post-2><h1>Two</h1>{}"
        "</article>",
        "<main><article><h1>One</h1><div>{}</div></article><hr><article><h2><a href=/2>Two</a></h2>"
        "{}</article></main>",
        "<div class=story><h1>One</h1><p>2 May 2024</p>{}</div><div class=story><h1>Two</h1>"
        "<p>1 May 2024</p>{}</div>",
        "<div class=story><h1>One</h1><p>By Ada Fox</p>{}</div><div class=story><h1>Two</h1>"
        "<p>By Bo Lund</p>{}</div>",
        "<section class=s><header><h1>One</h1><p>2 May 2024</p></header><div>{}</div></section>"
        "<section class=s><header><h1>Two</h1><p>1 May 2024</p></header><div>{}</div></section>",
        "<main class=a><h1>One</h1>{}</main><main class=a><h1>Two</h1>{}</main>",
        "<div class=n><h1>One</h1><div itemprop=articleBody>{}</div></div>"
        "<div class=n><h1>Two</h1><div itemprop=articleBody>{}</div></div>",
        "<div class=a><article><h1>One</h1>{}</article></div><div class=more><div class=a><article>"
        "<h1>Two</h1>{}</article></div></div>",
        "<article class=a><h2>One</h2><p>2 May 2024</p>{}</article><article class=a><h2>Two</h2>"
        "<p>1 May 2024</p>{}</article>",
        "<article class=a><h1>One</h1><p>2 May 2024</p>{}</article><article class=b><h1>Two</h1>"
        "<p>1 May 2024</p>{}</article><article class=c><h2><a href=/3>Three</a></h2></article>",
    ],
)
def test_further_articles_below_the_first_are_left_out(page: str) -> None:
    lines = lines_after(leave_next_articles, page.format(FIRST, SECOND))
    assert [line for line in lines if line in TEXTS] == TEXTS[:3]
    assert "One" in lines
    assert "Two" not in lines


@pytest.mark.parametrize(
    "page",
    [
        # A list of complete articles.
        "<article><h1><a href=/1>One</a></h1>{}</article><article><h1><a href=/2>Two</a></h1>{}"
        "</article>",
        # Sections of one text.
        "<section class=a><h1>One</h1>{}</section><section class=a><h1>Two</h1>{}</section>",
        "<div class=a><h1>One</h1>{}</div><div class=a><h1>Two</h1>{}</div>",
        "<article><h1>One</h1>{}<h2>Two</h2>{}</article>",
        # Elements of two kinds.
        "<article class=a><h1>One</h1>{}</article><article class=b><h1>Two</h1>{}</article>",
        # A banner with the title of the article below it.
        "<article class=a><h1>One</h1><div>2 May 2024</div></article><article class=a>"
        "<h1>The first</h1>{}{}</article>",
        "<div class=a><h1>One</h1><p>2 May 2024</p>{}</div><div class=a><h1>One</h1>"
        "<p>2 May 2024</p>{}</div>",
        "<article class=a><h2>One</h2>{}</article><article class=a><h2>Two</h2>{}</article>",
        # Posts without titles.
        "<h1>One</h1><article>{}</article><article>{}</article>",
    ],
)
def test_parts_of_one_text_and_lists_of_articles_stay(page: str) -> None:
    lines = lines_after(leave_next_articles, page.format(FIRST, SECOND))
    assert [line for line in lines if line in TEXTS] == TEXTS[:9]


def test_a_short_text_keeps_references() -> None:
    html = f"{PARAGRAPHS[0]}<p>See also: <a href=/1>A road to the northern cape</a></p>"
    assert len(lines_after(leave_references, html)) == 2
