"""How good models are on pages that they were not fitted on: folds by host, and sets that are left out altogether."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from owt_pipeline.extract.extractor import Page, Settings
from owt_pipeline.extract.model import Model
from owt_pipeline.extract.training.examples import Example
from owt_pipeline.extract.training.fitting import Recipe, fit_model
from owt_pipeline.extract.training.labelled_pages import LabelledPage
from owt_pipeline.extract.with_blocks import with_model

FETCHED_AT = 1_767_225_600
FOLDS = 3

Split = Callable[[LabelledPage], object]


def by_host(seed: int = 0) -> Split:
    """Pages of a host are held out together, in FOLDS parts."""
    return lambda page: page.fold(FOLDS, seed + 1000)


def by_set(page: LabelledPage) -> str:
    """Each set is held out completely."""
    return page.set


def held_out_texts(
    pages: Sequence[LabelledPage],
    examples: Sequence[Example],
    split: Split,
    seed: int = 0,
    recipe: Recipe | None = None,
    only: Sequence[object] | None = None,
) -> dict[str, str]:
    """The text of each page, by a model fitted on the pages of the other parts of `split` (`only` some parts)."""
    texts: dict[str, str] = {}
    for part in only or sorted({split(page) for page in pages}, key=str):
        model = fit_model([example for example in examples if split(example.page) != part], seed, recipe)
        texts.update(extracted(model, [page for page in pages if split(page) == part]))
    return texts


def extracted(model: Model, pages: Sequence[LabelledPage]) -> Iterator[tuple[str, str]]:
    """URL and text of each page."""
    extract = with_model(model, Settings())
    for page in pages:
        found = extract(Page(page.url, page.html, FETCHED_AT))
        yield page.url, found.text if found else ""
