"""The features of a page are checked with plain loops over its blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.extraction_model.examples import name_words
from owt_pipeline.stages.extract.content.features import PageView, view
from owt_pipeline.stages.extract.content.metadata import read_head
from owt_pipeline.stages.extract.content.model import (
    Odds,
    _of_runs,
    _overlap,
    contextual,
    expected_f1,
    lexical,
    page_row,
)
from owt_pipeline.stages.extract.content.page_kind import read_page_kind
from owt_pipeline.stages.extract.html.reader import read_page

PROSE = (
    "The quick brown fox jumps over the lazy dog, and then it rests beneath a tree for quite a "
    "while. "
)
PAGE = (
    '<div class="menu"><ul><li><a href=/>Home</a><li><a href=/n>News</a></ul></div>'
    f'<div class="post-12 post"><h1>Foxes</h1><p>{PROSE}</p><p>{PROSE}</p></div><footer>All rights '
    f"reserved</footer>"
)


def seen(body: str) -> PageView:
    """Return the view of a page with this body."""
    read = read_page(f"<html><body>{body}</body></html>", leaves_navigation=False)
    return view(read.blocks, read_page_kind("", read.metas, read_head(read)))


def test_every_block_has_a_row_and_every_container_a_range() -> None:
    page = seen(PAGE)
    assert page.texts == [
        "Home",
        "News",
        "Foxes",
        PROSE.strip(),
        PROSE.strip(),
        "All rights reserved",
    ]
    assert page.static.shape[0] == 6
    for container, end in enumerate(page.tree.end):
        descendants = {container}
        for index, parent in enumerate(page.tree.parent):
            if parent in descendants:
                descendants.add(index)
        assert descendants == set(range(container, end))
    assert len(page.tree.end) == len(page.tree.parent)
    with_an_empty_one = seen(f'<div class="ad"><div></div> </div>{PAGE}')
    assert len(with_an_empty_one.tree.parent) == len(page.tree.parent)


def test_signatures_ignore_numbers_in_names() -> None:
    page = seen(
        f'<div class="post-1"><p>{PROSE}</p></div><div '
        f'class="post-2"><p>{PROSE}</p></div><p>{PROSE}</p>'
    )
    for signature in page.signatures[1:]:
        assert signature[0] == signature[1] != signature[2]


def test_odds_come_from_names_and_from_words_of_short_texts() -> None:
    page = seen(PAGE)
    features = lexical(page, Odds({"post": 2.0, "menu": -3.0, "<footer>": -1.0}, {"rights": -4.0}))
    # The columns are the lowest and the highest odds of a name, and the odds of the words.
    assert features[:, 0].tolist() == [-3, -3, 0, 0, 0, -1]
    assert features[:, 1].tolist() == [0, 0, 2, 2, 2, 0]
    assert features[:, 8].tolist() == [0, 0, 0, 0, 0, -4]
    assert name_words("<div> mainNav post-12") == [
        "<div>",
        "main",
        "nav",
        "mainnav",
        "post",
        "post-12",
    ]


def test_comment_names_in_other_languages_have_english_odds() -> None:
    odds = Odds({"comments": -2.0, "replies": -0.5}, {})
    for name in ("comments", "kommentare-liste", "c-comentarios"):
        assert odds.of_name(f"<div> {name}")[0] == -2.0
    assert odds.of_name("<div> replies")[0] == -0.5


def test_the_expected_f1_is_for_the_best_cut() -> None:
    weights = np.array([10.0, 5.0, 1.0, 20.0])
    probabilities = np.array([0.9, 0.2, 0.7, 0.5])
    expected_words = weights * probabilities
    scores = []
    for cut in (0.9, 0.7, 0.5, 0.2):
        is_kept = probabilities >= cut
        num_right = expected_words[is_kept].sum()
        scores.append(2 * num_right / (weights[is_kept].sum() + expected_words.sum()))
    assert expected_f1(weights, probabilities) == pytest.approx(max(scores))


def test_runs_of_likely_blocks_have_their_length_and_distances() -> None:
    page = seen("".join(f"<p>{number} {PROSE}</p>" for number in range(6)))
    p = np.array([0.1, 0.9, 0.9, 0.2, 0.8, 0.1])
    mass = np.array([1.0, 9.0, 9.0, 2.0, 8.0, 1.0])
    (share, lengths, to_previous, to_next, from_first, to_last), heaviest = _of_runs(mass, p)
    assert share.tolist() == pytest.approx([1 / 30, 0.6, 0.6, 2 / 30, 8 / 30, 1 / 30])
    assert lengths.tolist() == [-1, 2, 2, -1, 1, -1]
    assert to_previous.tolist() == [0, 0, 0, 1, 2, 3]
    assert to_next.tolist() == [1, 0, 0, 0, 0, 0]
    assert from_first.tolist() == [-1, 0, 1, 2, 3, 4]
    assert to_last.tolist() == [4, 3, 2, 1, 0, -1]
    assert heaviest == 18
    assert len(page.texts) == len(p)


def test_words_in_common_are_looked_up_for_unsure_blocks_only() -> None:
    page = seen("<p>green foxes jump<p>green foxes<p>the foxes sleep<p>foxes green")
    shares = _overlap(page, np.array([0.9, 0.001, 0.5, 0.7]))
    assert shares.tolist() == [-1, -1, pytest.approx(1 / 3), 1]


def test_shared_features_are_the_last_of_every_block() -> None:
    page = seen(PAGE)
    assert (page.static[:, -len(page.shared) :] == np.float32(page.shared)).all()
    values, shared = contextual(page, np.linspace(0, 1, len(page.texts)))
    assert (values[:, -len(shared) :] == np.float32(shared)).all()
    assert page_row(page, shared).tolist() == np.float32([*page.shared, *shared]).tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["<div class=a>", "</div>", "<p>", "one two", PROSE, "<li><a href=x>go</a>", "<h2>"]
        )
    )
)
def test_any_page_has_finite_features(pieces: list[str]) -> None:
    page = seen("".join(pieces) + "end")
    p = np.linspace(0, 1, len(page.texts))
    for values in (
        page.static,
        lexical(page, Odds({}, {})),
        contextual(page, p)[0],
        contextual(page, 0 * p)[0],
    ):
        assert values.shape[0] == len(page.texts)
        assert np.isfinite(values).all()
