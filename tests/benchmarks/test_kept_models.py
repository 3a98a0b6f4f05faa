"""Fitted models are kept in a folder, and only a fit of the same examples takes one from there."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.extraction_model import gate, kept_models
from benchmarks.extraction_model.examples import Example, example
from benchmarks.extraction_model.fitting import RECIPE, Recipe, write
from benchmarks.extraction_model.kept_models import fit_or_read
from benchmarks.extraction_model.labelled_pages import LabelledPage
from benchmarks.extraction_model.validation import FOLDS, by_host, held_out_texts
from owt_pipeline.stages.extract.content.model import Model, load


def page_of_host(number: int) -> LabelledPage:
    """Return a labelled page: a story of a heading and two paragraphs, and offers after it."""
    paragraph = (
        f"The boat of the {number} fishermen came back to the harbour before the storm. " * 3
    )
    story = f"<h1>Before the storm</h1><p>{paragraph}<p>{paragraph}"
    offers = "".join(f"<p>Offer {offer} of the week" for offer in range(number % 5 + 2))
    html = f"<body><article>{story}</article><div class=offers>{offers}</div>"
    truth = f"Before the storm {paragraph} {paragraph}"
    kind = "article" if number % 3 else "forum"
    return LabelledPage("wcxb", f"http://h{number}.example/story", html, kind, truth)


@pytest.fixture(scope="module")
def pages() -> list[LabelledPage]:
    """Labelled pages, each of another host."""
    return [page_of_host(number) for number in range(24)]


@pytest.fixture(scope="module")
def labelled(pages: list[LabelledPage]) -> list[Example]:
    """The pages as examples."""
    examples = [example(page, lambda view: []) for page in pages]
    return [known for known in examples if known is not None]


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seed of each fit from now on. To save time, each has the packaged model as result."""
    seeds: list[int] = []

    def fit_and_count(examples: Sequence[Example], seed: int, recipe: Recipe) -> Model:
        seeds.append(seed)
        return load()

    monkeypatch.setattr(kept_models, "fit_model", fit_and_count)
    return seeds


def judgement_of(model: Model, labelled: Sequence[Example]) -> list[object]:
    """Return what a model says of each example."""
    judgements: list[object] = []
    for known in labelled:
        (p, article) = model.judge(known.view)
        judgements.append((p.tolist(), article))
    return judgements


def test_a_kept_model_is_read_and_judges_as_the_fitted_one(
    labelled: list[Example], fits: list[int], tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    fitted = fit_or_read(labelled, 0, RECIPE, folder)
    # As from `--cache`.
    unpickled = pickle.loads(pickle.dumps(labelled))
    kept = fit_or_read(unpickled, 0, RECIPE, folder)
    assert len(fits) == 1
    assert judgement_of(kept, labelled) == judgement_of(fitted, labelled)
    # So it can be shipped as if it came from the fit.
    write(kept, tmp_path / "shipped.npz")
    (kept_path,) = folder.iterdir()
    assert (tmp_path / "shipped.npz").read_bytes() == kept_path.read_bytes()
    fit_or_read(labelled, 0, RECIPE)
    assert len(fits) == 2


def with_another_label(labelled: Example) -> Example:
    return dataclasses.replace(labelled, label=1 - labelled.label)


def with_another_kind(labelled: Example) -> Example:
    return dataclasses.replace(labelled, page=dataclasses.replace(labelled.page, kind="product"))


def with_another_host(labelled: Example) -> Example:
    page = dataclasses.replace(labelled.page, url="http://other.example/story")
    return dataclasses.replace(labelled, page=page)


def with_another_feature(labelled: Example) -> Example:
    view = dataclasses.replace(labelled.view, static=labelled.view.static + 1)
    return dataclasses.replace(labelled, view=view)


def with_another_word(labelled: Example) -> Example:
    words = [[b"other", *block_words[1:]] for block_words in labelled.view.words]
    return dataclasses.replace(labelled, view=dataclasses.replace(labelled.view, words=words))


@pytest.mark.parametrize(
    "change",
    [
        with_another_label,
        with_another_kind,
        with_another_host,
        with_another_feature,
        with_another_word,
    ],
)
def test_another_example_fits_anew(
    change: Callable[[Example], Example], labelled: list[Example], fits: list[int], tmp_path: Path
) -> None:
    fit_or_read(labelled, 0, RECIPE, tmp_path)
    fit_or_read([*labelled[:-1], change(labelled[-1])], 0, RECIPE, tmp_path)
    assert len(fits) == 2


def test_another_seed_recipe_or_number_of_examples_fits_anew(
    labelled: list[Example], fits: list[int], tmp_path: Path
) -> None:
    fit_or_read(labelled, 0, RECIPE, tmp_path)
    fit_or_read(labelled, 1, RECIPE, tmp_path)
    fit_or_read(labelled, 0, dataclasses.replace(RECIPE, num_second=3), tmp_path)
    fit_or_read(labelled[:-1], 0, RECIPE, tmp_path)
    assert len(fits) == 4
    assert len(list(tmp_path.iterdir())) == 4


def test_other_code_fits_anew(
    labelled: list[Example], fits: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_or_read(labelled, 0, RECIPE, tmp_path)
    monkeypatch.setattr(kept_models, "_CODE", kept_models._CODE[1:])
    fit_or_read(labelled, 0, RECIPE, tmp_path)
    assert len(fits) == 2


def test_a_stop_within_a_write_leaves_no_model(
    labelled: list[Example], fits: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_a_part(model: Model, path: Path) -> None:
        path.write_bytes(b"PK")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kept_models, "write", write_a_part)
        with pytest.raises(KeyboardInterrupt):
            fit_or_read(labelled, 0, RECIPE, tmp_path)
    fit_or_read(labelled, 0, RECIPE, tmp_path)
    fit_or_read(labelled, 0, RECIPE, tmp_path)
    assert len(fits) == 2


def test_the_gate_and_the_figures_of_seeds_share_their_fits(
    pages: list[LabelledPage], labelled: list[Example], fits: list[int], tmp_path: Path
) -> None:
    judged, _ = gate.judge_held_out(pages, labelled, range(FOLDS), [0, 1], tmp_path)
    assert fits == [0] * FOLDS + [1] * FOLDS
    texts = held_out_texts(pages, labelled, by_host(), 1, folder=tmp_path)
    assert len(fits) == 2 * FOLDS
    assert set(texts) == {page.url for page in pages}
    assert len(judged) == len(pages)
