"""The comparison of extraction with that of the last release."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.extraction_model.fitting import examples
from benchmarks.extraction_model.gate import (
    RELEASE,
    SEEDS,
    Change,
    compare,
    count_held_out,
    read_release,
    store,
)
from benchmarks.extraction_model.labelled_pages import LabelledPage, read_labelled
from benchmarks.extraction_model.validation import by_host

NUM_PAGES = 400


def pages_of(kind: str) -> list[LabelledPage]:
    return [
        LabelledPage("wcxb", f"http://h{number}.example/", "", kind) for number in range(NUM_PAGES)
    ]


def counts_of(shared: np.ndarray, found: np.ndarray) -> dict[int, np.ndarray]:
    rows = np.stack([shared, found, np.full(NUM_PAGES, 1000)], axis=1).astype(np.int32)
    return dict.fromkeys(SEEDS, rows)


def changes_by_name(
    kind: str, before: dict[int, np.ndarray], after: dict[int, np.ndarray]
) -> dict[str, Change]:
    return {change.name: change for change in compare(pages_of(kind), before, after)}


RELEASED = counts_of(shared=np.full(NUM_PAGES, 900), found=np.full(NUM_PAGES, 1000))


def test_equal_texts_pass() -> None:
    for change in changes_by_name("article", RELEASED, RELEASED).values():
        assert change.before == change.after == pytest.approx(0.9)
        assert change.faults == []


def test_a_loss_within_the_deviation_passes() -> None:
    noise = np.random.default_rng(1).integers(-40, 41, NUM_PAGES)
    after = counts_of(shared=900 + noise - noise.mean().astype(int), found=np.full(NUM_PAGES, 1000))
    changes = changes_by_name("forum", RELEASED, after)
    assert changes["wcxb"].deviation > 0
    assert changes["wcxb"].faults == []


@pytest.mark.parametrize(("kind", "num_faults"), [("article", 2), ("forum", 1)])
def test_a_small_loss_on_many_pages_fails(kind: str, num_faults: int) -> None:
    after = counts_of(
        shared=900 - np.arange(NUM_PAGES) % 12,
        found=np.full(NUM_PAGES, 1000) - np.arange(NUM_PAGES) % 12,
    )
    changes = changes_by_name(kind, RELEASED, after)
    faults = [fault for change in changes.values() for fault in change.faults]
    assert len(faults) == num_faults
    assert all("of F1" in fault for fault in faults)


def test_junk_of_articles_fails_even_where_f1_is_equal() -> None:
    # 10 more words of the truth, and 25 more of junk: F1 moves by less than its deviation.
    noise = np.random.default_rng(2).integers(-60, 61, NUM_PAGES)
    before = counts_of(shared=900 + noise, found=np.full(NUM_PAGES, 1000))
    after = counts_of(shared=910 - noise, found=np.full(NUM_PAGES, 1025))
    article = changes_by_name("article", before, after)["wcxb article"]
    assert len(article.faults) == 1
    assert "junk" in article.faults[0]
    assert changes_by_name("forum", before, after)["wcxb forum"].faults == []


def test_stored_counts_are_read_again_by_page(tmp_path: Path) -> None:
    pages = pages_of("article")
    counts = counts_of(shared=np.arange(NUM_PAGES), found=np.full(NUM_PAGES, 1000))
    path = tmp_path / "release.npz"
    store(pages, counts, path)
    read = read_release(pages[::-3], SEEDS, path)
    assert (read[0] == counts[0][::-3]).all()
    assert b"h1.example" not in path.read_bytes()
    other = dataclasses.replace(pages[0], url="http://new.example/")
    with pytest.raises(ValueError, match=r"lacks 1 of 2 pages, such as http://new\.example/"):
        read_release([pages[0], other], SEEDS, path)
    with pytest.raises(ValueError, match="no seed 9"):
        read_release(pages, [9], path)


@pytest.mark.slow
def test_a_fold_is_extracted_as_well_as_by_the_last_release(testdata: Path) -> None:
    """All folds and seeds take ten minutes: `python -m benchmarks.extraction_model.gate`."""
    pages = read_labelled(testdata / "web")
    split = by_host()
    known = examples([page for page in pages if split(page) != 0])
    judged, after = count_held_out(pages, known, folds=[0], seeds=[0])
    changes = compare(judged, read_release(judged, [0], RELEASE), after)
    assert [fault for change in changes for fault in change.faults] == [], "\n".join(
        map(str, changes)
    )
