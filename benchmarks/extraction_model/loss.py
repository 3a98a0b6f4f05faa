"""The log loss of a model's blocks: a finer measure of features than the F1 of texts.

The F1 of one fit moves by .004 if only the borders of its bins change, since a block is kept or
not. The log loss moves with every probability, so fewer pages show a difference of two models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from owt_pipeline.stages.extract.content.model import Model

from .examples import Example
from .labelled_pages import LabelledPage, groups_of

# The model's probabilities are multiples of 1/4096, so 0 stands for anything below half of that.
_MIN_PROBABILITY = 1 / 8192


@dataclass(frozen=True)
class LossChange:
    """A set's change of the log loss since the release.

    Attributes:
      name: the set, or the set and its kind of page.
      pages: the number of pages with labels.
      before, after: the mean log loss of a page in nats; `before` is None if none was stored.
      deviation: the standard error of the mean difference of a page; None as `before`.
    """

    name: str
    pages: int
    before: float | None
    after: float
    deviation: float | None

    def __str__(self) -> str:
        head = f"{self.name:<20} {self.pages:5} pages   log loss"
        if self.before is None:
            return f"{head} {self.after:.4f} (the last release has none)"
        return (
            f"{head} {self.before:.4f} -> {self.after:.4f} "
            f"({self.after - self.before:+.4f} ± {self.deviation:.4f})"
        )


def page_loss(model: Model, labelled: Example) -> float:
    """Return the mean log loss of a page's blocks, by their weights."""
    p, _ = model.judge(labelled.view)
    p = np.clip(p, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    losses = -labelled.label * np.log(p) - (1 - labelled.label) * np.log(1 - p)
    return float((labelled.weight * losses).sum())


def compare_losses(
    pages: Sequence[LabelledPage], before: np.ndarray | None, after: np.ndarray
) -> list[LossChange]:
    """Return the change of each set and kind of page.

    Args:
      pages: the n pages.
      before, after: the log loss of each page (seeds, n); NaN for a page without labels. `before`
        is None if the release has none.
    """
    changes = []
    # The mean over seeds first: pages are independent of each other, seeds of a page are not.
    loss_after = after.mean(axis=0)
    loss_before = before.mean(axis=0) if before is not None else None
    for name, indexes in groups_of(pages).items():
        new = loss_after[indexes]
        if loss_before is None:
            is_known = ~np.isnan(new)
            mean = float(new[is_known].mean())
            changes.append(LossChange(name, int(is_known.sum()), None, mean, None))
            continue
        old = loss_before[indexes]
        is_known = ~np.isnan(new - old)
        old = old[is_known]
        new = new[is_known]
        deviation = float(np.std(new - old) / np.sqrt(len(new)))
        changes.append(LossChange(name, len(new), float(old.mean()), float(new.mean()), deviation))
    return changes
