"""The model on pages that it was not fitted on, and the training that makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.extraction_model.boosting import Growth
from benchmarks.extraction_model.examples import Example
from benchmarks.extraction_model.fitting import Recipe, examples, fit_model, write
from benchmarks.extraction_model.labelled_pages import LabelledPage, read_labelled
from benchmarks.extraction_model.validation import by_host, by_set, extracted, held_out_texts, score
from owt_pipeline.stages.extract.model import load, read

Labelled = tuple[list[LabelledPage], list[Example]]
SMALL = Recipe(Growth(trees=10, rows=2000), (Growth(trees=10, rows=2000),))


@pytest.fixture(scope="module")
def labelled(testdata: Path) -> Labelled:
    pages = read_labelled(testdata / "web")
    return pages, examples(pages)


def test_training_gives_the_same_bytes_and_a_file_the_same_model(testdata: Path, tmp_path: Path) -> None:
    pages = read_labelled(testdata / "web", ("readability",))[:40]
    found = examples(pages)
    fitted = [fit_model(found, 0, SMALL) for _ in range(2)]
    for model, name in zip(fitted, ("one.npz", "other.npz"), strict=True):
        write(model, tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()
    model = read(tmp_path / "one.npz")
    view = found[0].view
    assert (model.judge(view) == fitted[1].judge(view)).all()
    assert dict(extracted(model, pages[:3]))


def test_packaged_model_was_fitted_on_the_current_features(testdata: Path) -> None:
    """It has seen these pages, so this says nothing of others; but with shifted features it would know none."""
    pages = read_labelled(testdata / "web", ("readability",))
    assert score(pages, dict(extracted(load(), pages)))["readability"].f1 >= 0.94


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_fold_of_hosts_is_as_good_as_promised(labelled: Labelled) -> None:
    pages, found = labelled
    split = by_host()
    scores = score([page for page in pages if split(page) == 0], held_out_texts(pages, found, split, only=[0]))
    assert scores["trafilatura"].f1 >= 0.931
    assert scores["wcxb"].f1 >= 0.904
    assert scores["wcxb article"].f1 >= 0.966
    assert scores["readability"].f1 >= 0.958


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_folds_by_host_are_as_good_as_promised(labelled: Labelled) -> None:
    pages, found = labelled
    scores = score(pages, held_out_texts(pages, found, by_host()))
    assert scores["trafilatura"].f1 >= 0.940
    assert scores["wcxb"].f1 >= 0.901
    assert scores["wcxb article"].f1 >= 0.962
    assert scores["readability"].f1 >= 0.946


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_left_out_sets_are_as_good_as_promised(labelled: Labelled) -> None:
    pages, found = labelled
    scores = score(pages, held_out_texts(pages, found, by_set, only=("trafilatura", "wcxb")))
    assert scores["trafilatura"].f1 >= 0.927
    assert scores["wcxb article"].f1 >= 0.950
