"""Teasers next to an article, and questions before answers, whatever the model decides."""

from __future__ import annotations

import numpy as np
import pytest

from owt_pipeline.stages.extract.content.questions import keep_questions
from owt_pipeline.stages.extract.content.teasers import leave_teasers
from owt_pipeline.stages.extract.html.reader import read_page

SENTENCE = "The harbour of the islands is older than the town, as a map of the coast shows. "
ARTICLE = f"<div><h1>Boats</h1>{f'<p>{SENTENCE * 4}</p>' * 5}</div>"


def after_teasers(html: str, *, is_declared: bool = False) -> str:
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    keep = np.ones(len(blocks), dtype=bool)
    leave_teasers(blocks, keep, is_declared=is_declared, is_article=is_declared)
    return " ".join(block.text for block, is_kept in zip(blocks, keep, strict=True) if is_kept)


@pytest.mark.parametrize(
    "teaser",
    [
        "<li><a href=/>Two new boats</a><div class=description>They sail from May on.</div></li>",
        "<table><tr><td><a href=/>Two new boats</a></td></tr></table>",
        "<div class=card><p>They sail from May on.</p><h3><a href=/>Two new boats</a></h3></div>",
        "<article><h3><a href=/>Two new boats</a></h3></article>",
    ],
)
@pytest.mark.parametrize("is_before", [False, True])
def test_teasers_around_an_article_are_left_out(teaser: str, is_before: bool) -> None:
    teasers = f"<section>{teaser * 8}</section>"
    text = after_teasers(teasers + ARTICLE if is_before else ARTICLE + teasers)
    assert "new boats" not in text
    assert "May" not in text
    assert text.count(SENTENCE.strip()) == 20


@pytest.mark.parametrize(
    "page",
    [
        "<h1>Boats</h1><ul>{}</ul>",
        "<h1>Boats</h1><ul>{}</ul>" + ARTICLE.replace("h1", "h2"),
        ARTICLE.replace("</div>", "<ul>{}</ul></div>"),
    ],
)
def test_a_list_that_is_the_page_or_in_the_article_stays(page: str) -> None:
    items = "<li><a href=/>Two new boats</a><div>They sail from May on.</div></li>" * 8
    assert after_teasers(page.replace("{}", items)).count("Two new boats") == 8


INTRODUCTION = f"<p>{SENTENCE * 4}</p>" * 3
OFFERS = (
    "<ul><li><a href=/>Two new boats</a><div>They sail from May on.</div></li>"
    + "<li><a href=/>A week by the sea</a><div>With bicycles for all.</div></li>" * 7
    + "</ul>"
)


@pytest.mark.parametrize(
    "page",
    [
        "<main><h1>Boats</h1><div>{}</div>{}</main>",
        "<div><h1>Boats</h1>{}</div><section>{}</section>",
        "<h1>Boats</h1><section><div>{}</div></section>{}",
        # Five paragraphs, but below a title that heads the offers, too.
        f"<main><h1>Boats</h1><div>{f'<p>{SENTENCE}</p>' * 2}{{}}</div>{{}}</main>",
    ],
)
def test_offers_below_an_introduction_stay(page: str) -> None:
    assert "Two new boats" in after_teasers(page.format(INTRODUCTION, OFFERS))


@pytest.mark.parametrize(
    ("page", "is_declared"),
    [
        ("<div><h1>Boats</h1>{}</div>{}", True),
        ("<article><h1>Boats</h1>{}</article>{}", False),
        ("<h1>Boats</h1><article><div>{}</div></article><aside>{}</aside>", False),
    ],
)
def test_teasers_next_to_a_short_article_are_left_out(page: str, is_declared: bool) -> None:
    text = after_teasers(page.format(INTRODUCTION, OFFERS), is_declared=is_declared)
    assert "Two new boats" not in text
    assert text.count(SENTENCE.strip()) == 12


def test_offers_with_prices_stay() -> None:
    offers = "<li><a href=/>Two new boats</a><div>Now for 12 €.</div></li>" * 8
    assert after_teasers(f"{ARTICLE}<ul>{offers}</ul>").count("Two new boats") == 8


def kept_with_answer(html: str) -> list[str]:
    """Return what is kept if the model keeps only prose."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    keep = np.array([block.chars > 60 for block in blocks])
    keep_questions(blocks, keep)
    return [block.text for block, is_kept in zip(blocks, keep, strict=True) if is_kept]


@pytest.mark.parametrize(
    "question",
    [
        "<h3>How old is it?</h3>",
        "<button>How old is it? +</button>",
        "<div>How old is it？</div>",
        "<p><b>“How old is it?”</b></p>",
    ],
)
def test_a_question_keeps_with_its_answer(question: str) -> None:
    assert len(kept_with_answer(f"{question}<p>{SENTENCE}</p>")) == 2


@pytest.mark.parametrize(
    "question",
    [
        "<p><a href=/>How old is it?</a></p>",
        "<p>How old is it</p>",
        "<blockquote><p>How old is it?</p></blockquote>",
        "<p>How old is it?</p><p>Share</p>",
    ],
)
def test_other_lines_before_a_text_are_left_to_the_model(question: str) -> None:
    assert kept_with_answer(f"{question}<p>{SENTENCE}</p>") == [SENTENCE.strip()]
