"""All labelled pages as examples.

Of a page with snippets, most blocks have no label. They get one, of little weight, where three opinions of the page
agree: trafilatura's as it is and with precision, and that of a small model fitted on the pages whose text is known.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from owt_pipeline.extract.features import PageView
from owt_pipeline.extract.model import Model
from owt_pipeline.extract.training.boosting import Growth
from owt_pipeline.extract.training.examples import Example, example
from owt_pipeline.extract.training.fitting import Recipe, fit_model
from owt_pipeline.extract.training.labelled_pages import LabelledPage

_SMALL = Recipe(Growth(trees=150), Growth(trees=200), forests=1)


def examples(pages: Sequence[LabelledPage], cache: Path | None = None) -> list[Example]:
    """Those of `pages` that can be learned from; `cache` is a file to keep them in, or to take them from."""
    if cache is not None and cache.exists():
        with open(cache, "rb") as file:
            return list(pickle.load(file))
    known = [example(page, lambda view: []) for page in pages if page.truth is not None]
    found = [known_page for known_page in known if known_page is not None]
    model = fit_model(found, 0, _SMALL)
    for page in pages:
        if page.truth is None:
            snippets = example(page, lambda view, html=page.html: _opinions(html, model, view))  # type: ignore[misc]
            if snippets is not None:
                found.append(snippets)
    if cache is not None:
        with open(cache, "wb") as file:
            pickle.dump(found, file, pickle.HIGHEST_PROTOCOL)
    return found


def _opinions(html: str, model: Model, view: PageView) -> list[str]:
    from trafilatura import extract

    likely = model.probabilities(view) >= 0.5
    return [
        extract(html, include_comments=False) or "",
        extract(html, include_comments=False, favor_precision=True) or "",
        "\n".join(text for text, stays in zip(view.texts, likely.tolist(), strict=True) if stays),
    ]
