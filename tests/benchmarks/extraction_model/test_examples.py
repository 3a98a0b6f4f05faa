"""Labels of blocks, from texts and from snippets."""

from __future__ import annotations

import numpy as np

from benchmarks.extraction_model.examples import UNSURE, labels
from benchmarks.extraction_model.labelled_pages import LabelledPage

ARTICLE = "The quick brown fox jumps over the lazy dog and rests"


def labelled(truth: str, *texts: str) -> list[float] | None:
    found = labels(LabelledPage("wcxb", "http://a.example/", "", "article", truth), texts, [])
    return None if found is None else np.round(found[0], 2).tolist()


def test_a_block_is_labelled_by_the_share_of_its_tokens_in_common_runs() -> None:
    assert labelled(ARTICLE, "Home News Sport", ARTICLE, "Quick foxes and lazy dogs") == [0.0, 1.0, 0.0]
    assert labelled(ARTICLE, f"{ARTICLE} " + "and more words that are not in it at all")[0] == 0.52  # type: ignore[index]


def test_short_block_belongs_if_it_is_common_and_next_to_one_that_belongs() -> None:
    truth = f"Foxes\n{ARTICLE}\nSource: zoo"
    assert labelled(truth, "Foxes", "Menu", "Foxes", ARTICLE, "Source: zoo", "Home") == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]


def test_blocks_without_words_have_no_weight() -> None:
    found = labels(LabelledPage("wcxb", "http://a.example/", "", "article", ARTICLE), (ARTICLE, "•", ""), [])
    assert found is not None
    assert found[1].tolist() == [1, 0, 0]


def test_page_with_little_of_its_truth_is_left_out() -> None:
    assert labelled(f"{ARTICLE} {'other words ' * 20}", ARTICLE) is None


def test_snippets_label_their_blocks_and_agreeing_extractors_the_rest() -> None:
    page = LabelledPage(
        "trafilatura", "http://a.example/", "", "trafilatura", None, ("quick brown", "lazy  dog"), ("Log in",)
    )
    texts = ("Log in now", ARTICLE, "Some other sentence of the page.", "Share this", "Only one has this sentence.")
    opinions = [
        f"{ARTICLE} Some other sentence of the page. Only one has this sentence.",
        "Some other sentence of the page.",
    ]
    found = labels(page, texts, opinions)
    assert found is not None
    assert found[0].tolist() == [0, 1, 1, 0, 0]
    assert found[1].tolist() == [1, 1, UNSURE, UNSURE, 0]
