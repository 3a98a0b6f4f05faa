"""The scores of news, which are used to judge the extraction only."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.extraction_model import labelled_pages
from benchmarks.extraction_model.labelled_pages import LabelledPage
from benchmarks.extraction_model.news import FILE, read_news, score_news, without_described


def page(truth: str) -> LabelledPage:
    """Return a labelled page of news."""
    return LabelledPage("fundus", "http://a.example/", "", "fundus", truth)


def test_words_count_without_case_and_as_often_as_they_occur() -> None:
    scores = score_news([page("The cat and the end")], ["the CAT, the dog"])
    # They share "the", "the" and "cat". The text has 4 words and the truth 5.
    assert scores["f1"] == pytest.approx(2 * 3 / (4 + 5))
    assert scores["junk"] == pytest.approx(1 / 4)
    assert scores["lost"] == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("truth", "text", "f1"),
    [
        ("東京都", "東京", 2 * 2 / 5),
        ("서울시", "서울", 2 * 2 / 5),
        ("これはペン", "それはペン", 2 * 4 / 10),
        ("iPhone東京", "iphone 東京", 1.0),
        ("Köln liegt", "köln liegt", 1.0),
        ("Київ", "Київ", 1.0),
    ],
)
def test_chinese_japanese_and_korean_are_compared_by_characters(
    truth: str, text: str, f1: float
) -> None:
    assert score_news([page(truth)], [text])["f1"] == pytest.approx(f1)


def test_f1_is_a_mean_over_pages_and_junk_over_words() -> None:
    scores = score_news([page("one two"), page("a")], ["one two", "b"])
    assert scores == {
        "f1": pytest.approx(0.5),
        "junk": pytest.approx(1 / 3),
        "lost": pytest.approx(1 / 3),
    }


LEAD = "The ferry to the islands was late on Monday, and nobody knew why."


@pytest.mark.parametrize("name", ["description", "og:description"])
def test_described_lines_count_in_no_score_without_them(name: str) -> None:
    html = f'<meta name="{name}" content="{LEAD[:60]}…"><p>Later</p>'
    pages = [LabelledPage("fundus", "http://a.example/", html, "fundus", "It sailed at noon.")]
    text = f"{LEAD}\nIt sailed at noon."
    assert score_news(pages, [text])["junk"] > 0
    assert without_described(pages, [text])[1] == ["It sailed at noon."]
    assert score_news(*without_described(pages, [text]))["f1"] == 1.0


def test_lines_of_a_page_without_a_description_count_in_every_score() -> None:
    pages = [page(f"{LEAD}\nIt sailed at noon.")]
    text = f"{LEAD}\nLater"
    assert score_news(*without_described(pages, [text])) == score_news(pages, [text])


def test_news_are_not_among_the_pages_that_models_are_fitted_on(testdata: Path) -> None:
    assert all(FILE not in files for files in labelled_pages.FILES.values())
    pages = read_news(testdata / "web")
    assert len(pages) == 254
    assert all(page.truth for page in pages)
