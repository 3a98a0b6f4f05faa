"""The scores by which extractors are judged, on texts small enough to count by hand."""

from __future__ import annotations

import pytest

from benchmarks.extraction_model.labelled_pages import LabelledPage, read_labelled
from benchmarks.extraction_model.validation import score


def page(kind: str, **labels: object) -> LabelledPage:
    set_name = kind if kind in ("trafilatura", "readability") else "wcxb"
    return LabelledPage(set_name, "http://a.example/", "<p>", kind, **labels)  # type: ignore[arg-type]


def test_snippets_count_as_exact_substrings() -> None:
    labelled = page("trafilatura", wanted=("One two", "three"), unwanted=("Share", "Log in"))
    found = score([labelled], {"http://a.example/": "One two\nthree. share Log in"})["trafilatura"]
    # found: two wanted, one unwanted; nothing is missing
    assert found.f1 == pytest.approx(2 * 2 / (3 + 2))
    assert (found.junk, found.lost) == (pytest.approx(1 / 3), 0.0)


def test_wcxb_compares_bags_of_lower_case_words_page_by_page() -> None:
    labelled = page("article", truth="The cat sat. The end")
    found = score([labelled], {"http://a.example/": "the CAT ran"})
    assert found["wcxb"].f1 == found["wcxb article"].f1 == pytest.approx(2 * 2 / (3 + 5))
    assert found["wcxb"].junk == pytest.approx(1 / 3)
    assert found["wcxb"].lost == pytest.approx(3 / 5)


def test_articles_are_compared_by_four_grams_and_means_of_precision_and_recall() -> None:
    labelled = page("readability", truth="a b c d e")
    found = score([labelled], {"http://a.example/": "a b c d x"})["readability"]
    assert found.f1 == pytest.approx(0.5)
    assert score([labelled], {"http://a.example/": "a b c d e f"})["readability"].f1 == pytest.approx(
        2 * (2 / 3) * 1 / (2 / 3 + 1)
    )


def test_a_page_without_a_text_counts_as_an_empty_one() -> None:
    assert score([page("article", truth="one")], {})["wcxb"].f1 == 0.0


def test_the_sets_are_read_and_pages_of_a_host_share_their_fold(testdata) -> None:  # type: ignore[no-untyped-def]
    pages = read_labelled(testdata / "web", ("trafilatura", "readability"))
    assert len(pages) == 519 + 130
    assert all(page.truth for page in pages if page.set == "readability")
    folds: dict[str, set[int]] = {}
    for labelled in pages:
        folds.setdefault(labelled.host, set()).add(labelled.fold(3))
    assert all(len(of_host) == 1 for of_host in folds.values())
    assert len(folds) > 400
