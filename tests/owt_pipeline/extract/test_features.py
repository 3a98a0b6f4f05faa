"""The features of a page, checked with plain loops over its blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.extraction_model.examples import name_words
from owt_pipeline.stages.extract.features import PageView, view
from owt_pipeline.stages.extract.head import read_head
from owt_pipeline.stages.extract.model import Odds, contextual, expected_f1, lexical
from owt_pipeline.stages.extract.reader import read_page

PROSE = "The quick brown fox jumps over the lazy dog, and then it rests beneath a tree for quite a while. "
OTHER = "Hares sleep in a hollow that they make in the grass, with both their eyes open and ears laid back. "
PAGE = (
    '<div class="menu"><ul><li><a href=/>Home</a><li><a href=/n>News</a></ul></div>'
    f'<div class="post-12 post"><h1>Foxes</h1><p>{PROSE}</p><p>{PROSE}</p></div><footer>All rights reserved</footer>'
)


def seen(body: str, title: str = "Foxes") -> PageView:
    read = read_page(f"<html><head><title>{title}</title></head><body>{body}</body></html>", leaves_navigation=False)
    return view(read.blocks, read_head(read))


def test_every_block_has_a_row_and_every_container_a_range() -> None:
    page = seen(PAGE)
    assert page.texts == ["Home", "News", "Foxes", PROSE.strip(), PROSE.strip(), "All rights reserved"]
    assert page.static.shape[0] == 6
    for container, (start, end) in enumerate(zip(range(len(page.tree.parent)), page.tree.end, strict=True)):
        below = {container}
        for index, parent in enumerate(page.tree.parent):
            if parent in below:
                below.add(index)
        assert below == set(range(start, end))
    with_an_empty_one = seen(f'<div class="ad"><div></div> </div>{PAGE}')
    assert len(with_an_empty_one.tree.parent) == len(page.tree.parent)


def test_signatures_ignore_numbers_in_names() -> None:
    page = seen(f'<div class="post-1"><p>{PROSE}</p></div><div class="post-2"><p>{PROSE}</p></div><p>{PROSE}</p>')
    for signature in page.signatures[1:]:
        assert signature[0] == signature[1] != signature[2]


def test_odds_come_from_names_around_a_block_and_from_words_of_short_texts() -> None:
    page = seen(PAGE)
    found = lexical(page, Odds({"post": 2.0, "menu": -3.0, "<footer>": -1.0}, {"rights": -4.0}))
    lows, highs = found[:, 0], found[:, 1]
    assert lows.tolist() == [-3, -3, 0, 0, 0, -1]
    assert highs.tolist() == [0, 0, 2, 2, 2, 0]
    assert found[:, 8].tolist() == [0, 0, 0, 0, 0, -4]
    assert name_words("<div> mainNav post-12") == ["<div>", "mainnav", "main", "nav", "post-12", "post"]


def test_the_expected_f1_is_that_of_the_best_cut() -> None:
    weight, p = np.array([10.0, 5.0, 1.0, 20.0]), np.array([0.9, 0.2, 0.7, 0.5])
    best = max(
        2 * (weight * p)[kept].sum() / (weight[kept].sum() + (weight * p).sum())
        for kept in (p >= cut for cut in (0.9, 0.7, 0.5, 0.2))
    )
    assert expected_f1(weight, p) == pytest.approx(best)


def test_blocks_that_the_head_describes_are_found() -> None:
    head = (
        f"<title>T</title><meta name=description content='{PROSE[:70]}…'><meta property=og:type content=article>"
        '<script type="application/ld+json">{"@type": "NewsArticle", "articleBody": "%s"}</script>' % (OTHER * 2)
    )
    read = read_page(
        f"<html><head>{head}</head><body><p>Advertisement, 30 letters or more<p>{PROSE}<p>{OTHER}</body></html>"
    )
    found = read_head(read)
    assert found.titles == ()
    assert len(found.descriptions) == 1
    plain, described = (view(read.blocks, some) for some in (replace(found, descriptions=()), found))
    changed = (plain.static != described.static).any(axis=0)
    assert [0, 1, 0] in described.static[:, changed].T.tolist()  # the block with the description
    assert [-1, 0, 1] in described.static[:, changed].T.tolist()  # and how far it is
    without = view(read.blocks, replace(found, body=""))
    assert [0, 0, 1] in described.static[:, (without.static != described.static).any(axis=0)].T.tolist()
    assert (view(read.blocks, replace(found, kinds=0)).static != described.static).any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["<div class=a>", "</div>", "<p>", "one two", PROSE, "<li><a href=x>go</a>", "<h2>"])))
def test_any_page_has_finite_features(pieces: list[str]) -> None:
    page = seen("".join(pieces) + "end")
    p = np.linspace(0, 1, len(page.texts))
    for values in (page.static, lexical(page, Odds({}, {})), contextual(page, p), contextual(page, 0 * p)):
        assert values.shape[0] == len(page.texts)
        assert np.isfinite(values).all()
