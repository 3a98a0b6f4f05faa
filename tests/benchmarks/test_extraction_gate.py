"""Extraction is compared with the last release, page by page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.extraction_model.examples import example
from benchmarks.extraction_model.fitting import examples
from benchmarks.extraction_model.gate import (
    RELEASE,
    SEEDS,
    Change,
    HeldOut,
    compare,
    judge_held_out,
    read_release,
    store,
)
from benchmarks.extraction_model.labelled_pages import LabelledPage, read_labelled
from benchmarks.extraction_model.loss import compare_losses, page_loss

NUM_PAGES = 400


def pages_of(kind: str) -> list[LabelledPage]:
    """Return labelled pages of a kind, each of another host."""
    return [
        LabelledPage("wcxb", f"http://h{number}.example/", "", kind) for number in range(NUM_PAGES)
    ]


def counts_of(shared: np.ndarray, in_text: np.ndarray) -> dict[int, np.ndarray]:
    """Return the same counts for each seed: words shared, in the text, and in the truth."""
    in_truth = np.full(NUM_PAGES, 1000)
    rows = np.stack([shared, in_text, in_truth], axis=1).astype(np.int32)
    return dict.fromkeys(SEEDS, rows)


def changes_by_name(
    kind: str, old_counts: dict[int, np.ndarray], new_counts: dict[int, np.ndarray]
) -> dict[str, Change]:
    """Compare two results on pages of a kind; return the changes by the name of their set."""
    return {change.name: change for change in compare(pages_of(kind), old_counts, new_counts)}


RELEASED = counts_of(shared=np.full(NUM_PAGES, 900), in_text=np.full(NUM_PAGES, 1000))


def test_equal_texts_pass() -> None:
    for change in changes_by_name("article", RELEASED, RELEASED).values():
        assert change.before == change.after == pytest.approx(0.9)
        assert change.faults == []


def test_a_loss_within_the_deviation_passes() -> None:
    noise = np.random.default_rng(1).integers(-40, 41, NUM_PAGES)
    new_counts = counts_of(
        shared=900 + noise - noise.mean().astype(int), in_text=np.full(NUM_PAGES, 1000)
    )
    changes = changes_by_name("forum", RELEASED, new_counts)
    assert changes["wcxb"].deviation > 0
    assert changes["wcxb"].faults == []


@pytest.mark.parametrize(("kind", "num_faults"), [("article", 2), ("forum", 1)])
def test_a_small_loss_on_many_pages_fails(kind: str, num_faults: int) -> None:
    new_counts = counts_of(
        shared=900 - np.arange(NUM_PAGES) % 12,
        in_text=np.full(NUM_PAGES, 1000) - np.arange(NUM_PAGES) % 12,
    )
    changes = changes_by_name(kind, RELEASED, new_counts)
    faults = [fault for change in changes.values() for fault in change.faults]
    assert len(faults) == num_faults
    assert all("of F1" in fault for fault in faults)


def test_junk_of_articles_fails_even_where_f1_is_equal() -> None:
    # 10 more words of the truth, and 25 more of junk: F1 moves by less than its deviation.
    noise = np.random.default_rng(2).integers(-60, 61, NUM_PAGES)
    old_counts = counts_of(shared=900 + noise, in_text=np.full(NUM_PAGES, 1000))
    new_counts = counts_of(shared=910 - noise, in_text=np.full(NUM_PAGES, 1025))
    article = changes_by_name("article", old_counts, new_counts)["wcxb article"]
    assert len(article.faults) == 1
    assert "junk" in article.faults[0]
    assert changes_by_name("forum", old_counts, new_counts)["wcxb forum"].faults == []


def test_stored_counts_are_read_again_by_page(tmp_path: Path) -> None:
    pages = pages_of("article")
    counts = counts_of(shared=np.arange(NUM_PAGES), in_text=np.full(NUM_PAGES, 1000))
    path = tmp_path / "release.npz"
    losses = {seed: np.arange(NUM_PAGES) + 0.5 * seed for seed in SEEDS}
    store(HeldOut(pages, counts, losses), path)
    read = read_release(pages[::-3], SEEDS, path)
    assert (read.counts[0] == counts[0][::-3]).all()
    assert (read.losses[1] == losses[1][::-3]).all()
    assert b"h1.example" not in path.read_bytes()
    new_page = dataclasses.replace(pages[0], url="http://new.example/")
    with pytest.raises(ValueError, match=r"lacks 1 of 2 pages, such as http://new\.example/"):
        read_release([pages[0], new_page], SEEDS, path)
    with pytest.raises(ValueError, match="no seed 9"):
        read_release(pages, [9], path)


def test_log_loss_is_compared_page_by_page() -> None:
    pages = pages_of("article")
    old_counts = np.linspace(0.1, 0.9, NUM_PAGES)
    lower = old_counts - 0.01 + 0.001 * (np.arange(NUM_PAGES) % 2)
    # These pages have no labels.
    lower[:3] = np.nan
    for change in compare_losses(
        pages, np.stack([old_counts, old_counts]), np.stack([lower, lower])
    ):
        assert change.pages == NUM_PAGES - 3
        assert change.after - change.before == pytest.approx(-0.0095, abs=1e-4)
        # The pages differ by .23 from each other, and their changes by .0005.
        assert change.deviation == pytest.approx(0.0005 / np.sqrt(NUM_PAGES - 3), rel=0.01)
    (change_of_set, _) = compare_losses(pages, None, lower[None])
    assert change_of_set.before is None
    assert change_of_set.after == pytest.approx(np.nanmean(lower))


def test_log_loss_of_a_page_follows_from_its_labels() -> None:
    html = "".join(f"<p>{'A sentence of the story. ' * 9}</p>" for _ in range(4))
    page = LabelledPage(
        "wcxb", "http://h.example/", html, "article", "A sentence of the story. " * 36
    )
    labelled_example = example(page, lambda view: [])
    assert labelled_example is not None
    certain = FixedModel(labelled_example.label)
    assert page_loss(certain, labelled_example) == pytest.approx(-np.log(1 - 1 / 8192))
    assert page_loss(FixedModel(1 - labelled_example.label), labelled_example) == pytest.approx(
        np.log(8192)
    )
    assert page_loss(FixedModel(np.full(4, 0.5)), labelled_example) == pytest.approx(np.log(2))


class FixedModel:
    """A model that returns given probabilities."""

    def __init__(self, p: np.ndarray) -> None:
        self.p = p

    def judge(self, page: object) -> tuple[np.ndarray, float]:
        """Return the probabilities, and that the page is an article."""
        return self.p, 1.0


@pytest.mark.slow
def test_a_fold_is_extracted_as_well_as_by_the_last_release(testdata: Path) -> None:
    """`python -m benchmarks.extraction_model.gate` compares all folds and seeds, in ten minutes."""
    pages = read_labelled(testdata / "web")
    # As in the command. Fewer examples would label other sentences, and a fit of other labels has
    # an F1 that differs by as much as the gate rejects.
    new_counts = judge_held_out(pages, examples(pages), folds=[0], seeds=[0])
    released = read_release(new_counts.pages, [0], RELEASE)
    changes = compare(new_counts.pages, released.counts, new_counts.counts)
    assert [fault for change in changes for fault in change.faults] == [], "\n".join(
        map(str, changes)
    )
