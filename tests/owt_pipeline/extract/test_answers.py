"""A series of questions and answers is kept completely if it is probable as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from owt_pipeline.stages.extract.content.answers import keep_answers
from owt_pipeline.stages.extract.html.reader import read_page

QUESTIONS = [f"What does boat number {number} need for a day at sea?" for number in range(4)]
ANSWERS = [
    f"Boat number {number} needs {number + 3} litres of water, a chart of the northern cape and "
    "a lamp that burns all night."
    for number in range(4)
]
ACCORDION = (
    "<div class=faq-item><h3 class=question>{0}</h3><div class=answer><p>{1}</p></div></div>"
)
PLAIN = "<h3>{0}</h3><p>{1}</p>"
DEFINITIONS = "<dt>{0}</dt><dd>{1}</dd>"
BUTTON = "<section><button>{0} +</button><div><p>{1}</p></div></section>"


def lines_of(html: str, probabilities: dict[str, float], rest: float) -> list[str]:
    """Return the lines that are kept from .4 on, and those of series."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    p = np.array([probabilities.get(block.text, rest) for block in blocks])
    keep = p >= 0.6
    keep_answers(blocks, p, 0.4, keep)
    return [block.text for block, is_kept in zip(blocks, keep, strict=True) if is_kept]


def faq(item: str, num: int = 4) -> str:
    items = [item.format(*pair) for pair in zip(QUESTIONS[:num], ANSWERS[:num], strict=True)]
    return f"<div><h2>FAQ</h2>{''.join(items)}</div>"


@pytest.mark.parametrize("item", [ACCORDION, PLAIN, BUTTON])
def test_no_answer_of_a_probable_series_is_left_out(item: str) -> None:
    p = {ANSWERS[0]: 0.9, ANSWERS[1]: 0.5, ANSWERS[2]: 0.7, ANSWERS[3]: 0.3, "FAQ": 0.1}
    lines = lines_of(faq(item), p, 0.5)
    assert lines[0] == "FAQ"
    assert [line for line in lines if line in ANSWERS] == ANSWERS
    assert len(lines) == 9


@pytest.mark.parametrize("item", [ACCORDION, PLAIN, DEFINITIONS, BUTTON])
def test_an_improbable_series_is_left_out(item: str) -> None:
    p = {ANSWERS[0]: 0.7}
    assert lines_of(faq(item), p, 0.2) == [ANSWERS[0]]


@pytest.mark.parametrize("item", [ACCORDION, PLAIN, BUTTON])
def test_the_series_ends_with_the_last_answer(item: str) -> None:
    after = "<h3>More boats</h3><p>Follow us on the pages of the harbour and never miss a boat.</p>"
    lines = lines_of(faq(item) + after, {}, 0.5)
    assert lines[-1] == ANSWERS[-1]


def test_two_questions_are_not_a_series() -> None:
    assert lines_of(faq(ACCORDION, num=2), {}, 0.5) == []


def test_links_and_buttons_between_answers_stay_out() -> None:
    item = ACCORDION + '<a href="/more">Learn more about this boat</a><div>3</div>'
    lines = lines_of(faq(item), {}, 0.5)
    assert "3" not in lines
    assert "Learn more about this boat" not in lines
    assert [line for line in lines if line in ANSWERS] == ANSWERS
