"""The model on pages that it was not fitted on, its training, and the scores that judge it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.extraction_model.boosting import Growth, binned, borders, fit
from benchmarks.extraction_model.examples import Example
from benchmarks.extraction_model.fitting import Recipe, examples, fit_model, write
from benchmarks.extraction_model.labelled_pages import LabelledPage, read_labelled
from benchmarks.extraction_model.validation import (
    Split,
    by_host,
    by_set,
    extracted,
    held_out_texts,
    score,
)
from owt_pipeline.stages.extract.content.model import SCALE, Forest, load, probabilities, read

Labelled = tuple[list[LabelledPage], list[Example]]
SMALL = Recipe(
    first=Growth(trees=10, rows=2000),
    second=Growth(trees=10, rows=2000),
    pages=Growth(trees=5, depth=3, rows=500),
    num_second=2,
)


@pytest.fixture(scope="module")
def labelled(testdata: Path) -> Labelled:
    """The labelled pages, and the examples among them."""
    pages = read_labelled(testdata / "web")
    return pages, examples(pages)


@pytest.mark.slow
def test_training_gives_the_same_bytes_and_a_file_the_same_model(
    testdata: Path, tmp_path: Path
) -> None:
    pages = read_labelled(testdata / "web", ("readability",))[:40]
    known_examples = examples(pages)
    models = [fit_model(known_examples, 0, SMALL) for _ in range(2)]
    for model, name in zip(models, ("one.npz", "other.npz"), strict=True):
        write(model, tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()
    model = read(tmp_path / "one.npz")
    view = known_examples[0].view
    (read_p, read_article) = model.judge(view)
    (fitted_p, fitted_article) = models[1].judge(view)
    assert (read_p == fitted_p).all()
    assert read_article == fitted_article
    assert dict(extracted(model, pages[:3]))


@pytest.mark.slow
def test_a_fifth_of_the_pages_keeps_its_quality(testdata: Path) -> None:
    """A change of the reader, the features or the rules shows on pages that the model has seen.

    On these pages, the scores are higher than on others.
    """
    pages = read_labelled(testdata / "web")[::5]
    scores = score(pages, dict(extracted(load(), pages)))
    min_f1 = {"trafilatura": 0.954, "wcxb": 0.929, "wcxb article": 0.969, "readability": 0.970}
    assert {name: scores[name].f1 for name in min_f1 if scores[name].f1 < min_f1[name]} == {}


HELD_OUT = [
    (
        by_host(),
        [0],
        {"trafilatura": 0.932, "wcxb": 0.902, "wcxb article": 0.965, "readability": 0.956},
    ),
    (
        by_host(),
        None,
        {"trafilatura": 0.939, "wcxb": 0.898, "wcxb article": 0.962, "readability": 0.946},
    ),
    (by_set, ["trafilatura", "wcxb"], {"trafilatura": 0.927, "wcxb article": 0.950}),
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("split", "only", "promised"), HELD_OUT, ids=["a fold of hosts", "hosts", "sets"]
)
def test_held_out_pages_are_extracted_as_well_as_promised(
    labelled: Labelled, split: Split, only: list[object] | None, promised: dict[str, float]
) -> None:
    pages, known_examples = labelled
    judged = [page for page in pages if only is None or split(page) in only]
    scores = score(judged, held_out_texts(pages, known_examples, split, only=only))
    assert {
        name: round(scores[name].f1, 3) for name in promised if scores[name].f1 < promised[name]
    } == {}


def page(kind: str, **labels: object) -> LabelledPage:
    """Return a labelled page of a kind."""
    set_name = kind if kind in ("trafilatura", "readability") else "wcxb"
    return LabelledPage(set_name, "http://a.example/", "<p>", kind, **labels)  # type: ignore[arg-type]


def test_snippets_count_as_exact_substrings() -> None:
    labelled = page("trafilatura", wanted=("One two", "three"), unwanted=("Share", "Log in"))
    scores = score([labelled], {"http://a.example/": "One two\nthree. share Log in"})["trafilatura"]
    # The text has both of the wanted snippets, and one of the unwanted.
    assert scores.f1 == pytest.approx(2 * 2 / (3 + 2))
    assert (scores.junk, scores.lost) == (pytest.approx(1 / 3), 0.0)


def test_wcxb_compares_bags_of_lower_case_words_page_by_page() -> None:
    labelled = page("article", truth="The cat sat. The end")
    scores = score([labelled], {"http://a.example/": "the CAT ran"})
    assert scores["wcxb"].f1 == scores["wcxb article"].f1 == pytest.approx(2 * 2 / (3 + 5))
    assert scores["wcxb"].junk == pytest.approx(1 / 3)
    assert scores["wcxb"].lost == pytest.approx(3 / 5)


def test_articles_are_compared_by_four_grams_and_mean_scores() -> None:
    labelled = page("readability", truth="a b c d e")
    scores = score([labelled], {"http://a.example/": "a b c d x"})["readability"]
    assert scores.f1 == pytest.approx(0.5)
    assert score([labelled], {"http://a.example/": "a b c d e f"})[
        "readability"
    ].f1 == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))


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


GROWTH = Growth(trees=30, depth=4, rate=0.3, rows=4000, features=1.0)


def learned(seed: int = 0) -> tuple[Forest, np.ndarray, np.ndarray]:
    """Return a forest, with its values and labels.

    A label needs two features together. A third feature is random, and the last one is constant.
    """
    generator = np.random.default_rng(1)
    values = np.column_stack([generator.normal(size=(5000, 3)), np.ones(5000)]).astype(np.float32)
    labels = ((values[:, 0] > 0) ^ (values[:, 1] > 0.5)).astype(np.float64)
    weights = generator.random(5000) + 0.1
    thresholds = borders(values, weights)
    return (
        fit(binned(values, thresholds), thresholds, labels, weights, GROWTH, seed),
        values,
        labels,
    )


@pytest.mark.slow
def test_forest_learns_an_interaction_of_two_features() -> None:
    forest, values, labels = learned()
    assert np.mean((probabilities(forest, values) > 0.5) == labels) > 0.97


def test_forest_evaluation_equals_a_plain_loop() -> None:
    forest, values, _ = learned()
    evaluated = probabilities(forest, values[:50])
    for row, probability in zip(values[:50], evaluated, strict=True):
        score = forest.base
        for features, cuts, leaves in zip(forest.features, forest.cuts, forest.leaves, strict=True):
            leaf = 0
            for level, cut in enumerate(cuts):
                leaf |= int(row[features[level]] > cut) << level
            score += leaves[leaf]
        assert probability == pytest.approx(1 / (1 + np.exp(-score / SCALE)), abs=0.01)


def test_evaluation_of_a_row_does_not_depend_on_other_rows() -> None:
    forest, values, _ = learned()
    batches = [probabilities(forest, values[start : start + 7]) for start in range(0, 4999, 7)]
    in_batches = np.concatenate(batches)
    assert (in_batches == probabilities(forest, values)[: len(in_batches)]).all()
