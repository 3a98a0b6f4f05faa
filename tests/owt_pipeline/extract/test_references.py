"""References to other articles do not belong to a text, whatever the model decides about them."""

from __future__ import annotations

import numpy as np
import pytest

from owt_pipeline.stages.extract.content.references import leave_references
from owt_pipeline.stages.extract.html.reader import read_page

TEXTS = [
    f"Lamp number {number} of the northern cape was made in a year when no ship had come for "
    f"{number + 3} months, and its keeper wrote that he had {number + 5} barrels of oil left."
    for number in range(12)
]
PARAGRAPHS = [f"<p>{text}</p>" for text in TEXTS]


def lines_after(html: str) -> list[str]:
    """Return the lines that the rule leaves of a page of which the model keeps everything."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    keep = np.ones(len(blocks), dtype=bool)
    leave_references(blocks, keep)
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
    assert lines_after(between_paragraphs(reference, "", reference)) == TEXTS[:8]


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
    assert len(lines_after(between_paragraphs(line, "", line))) == 10


FIRST = "".join(PARAGRAPHS[:3])
SECOND = "".join(PARAGRAPHS[3:9])


def test_a_short_text_keeps_references() -> None:
    html = f"{PARAGRAPHS[0]}<p>See also: <a href=/1>A road to the northern cape</a></p>"
    assert len(lines_after(html)) == 2
