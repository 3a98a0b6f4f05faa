"""The model on pages that it was not fitted on, and the training that makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.extraction_model.boosting import Growth
from benchmarks.extraction_model.examples import Example
from benchmarks.extraction_model.fitting import Recipe, examples, fit_model, write
from benchmarks.extraction_model.labelled_pages import LabelledPage, read_labelled
from benchmarks.extraction_model.validation import Split, by_host, by_set, extracted, held_out_texts, score
from owt_pipeline.stages.extract.model import load, read

Labelled = tuple[list[LabelledPage], list[Example]]
SMALL = Recipe(Growth(trees=10, rows=2000), Growth(trees=10, rows=2000))


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


def test_a_fifth_of_the_pages_keeps_its_quality(testdata: Path) -> None:
    """The packaged model has seen these pages, so this says nothing of others; but a change of the reader, the features
    or the rules shows."""
    pages = read_labelled(testdata / "web")[::5]
    scores = score(pages, dict(extracted(load(), pages)))
    least = {"trafilatura": 0.954, "wcxb": 0.929, "wcxb article": 0.969, "readability": 0.970}
    assert {name: scores[name].f1 for name in least if scores[name].f1 < least[name]} == {}


HELD_OUT = [
    (by_host(), [0], {"trafilatura": 0.932, "wcxb": 0.902, "wcxb article": 0.965, "readability": 0.956}),
    (by_host(), None, {"trafilatura": 0.939, "wcxb": 0.898, "wcxb article": 0.962, "readability": 0.946}),
    (by_set, ["trafilatura", "wcxb"], {"trafilatura": 0.927, "wcxb article": 0.950}),
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("split", "only", "promised"), HELD_OUT, ids=["a fold of hosts", "hosts", "sets"])
def test_pages_that_were_held_out_are_extracted_as_well_as_promised(
    labelled: Labelled, split: Split, only: list[object] | None, promised: dict[str, float]
) -> None:
    pages, found = labelled
    judged = [page for page in pages if only is None or split(page) in only]
    scores = score(judged, held_out_texts(pages, found, split, only=only))
    assert {name: round(scores[name].f1, 3) for name in promised if scores[name].f1 < promised[name]} == {}
