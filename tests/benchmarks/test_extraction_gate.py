"""Extraction is compared with the last release, page by page."""

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
    judge_held_out,
    read_release,
    store,
)
from benchmarks.extraction_model.labelled_pages import LabelledPage, read_labelled
from benchmarks.extraction_model.news import read_news
from benchmarks.extraction_model.rules import RULES, rule_lines
from owt_pipeline.stages.extract.content.model import load

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


def test_a_loss_that_fits_have_by_chance_passes() -> None:
    shared = np.full(NUM_PAGES, 900)
    # All pages lose alike: .001 of F1, less than fits of the same pages differ.
    changes = changes_by_name("forum", RELEASED, counts_of(shared - 1, np.full(NUM_PAGES, 1000)))
    assert changes["wcxb"].deviation == pytest.approx(0.0011 * np.sqrt(2 / len(SEEDS)))
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
    store(pages, counts, path)
    assert (read_release(pages[::-3], SEEDS, path)[0] == counts[0][::-3]).all()
    assert b"h1.example" not in path.read_bytes()
    new_page = dataclasses.replace(pages[0], url="http://new.example/")
    with pytest.raises(ValueError, match=r"lacks 1 of 2 pages, such as http://new\.example/"):
        read_release([pages[0], new_page], SEEDS, path)
    with pytest.raises(ValueError, match="no seed 9"):
        read_release(pages, [9], path)


@pytest.mark.slow
def test_a_fold_is_extracted_as_well_as_by_the_last_release(testdata: Path) -> None:
    """`python -m benchmarks.extraction_model.gate` compares all folds and seeds, in ten minutes."""
    pages = read_labelled(testdata / "web")
    # As in the command. Fewer examples would label other sentences, and a fit of other labels has
    # an F1 that differs by as much as the gate rejects.
    judged, counts = judge_held_out(pages, examples(pages), folds=[0], seeds=[0])
    changes = compare(judged, read_release(judged, [0], RELEASE), counts)
    assert [fault for change in changes for fault in change.faults] == [], "\n".join(
        map(str, changes)
    )


def test_each_rule_is_switched_off_by_itself(testdata: Path) -> None:
    pages = read_labelled(testdata / "web", ("readability",))[:8]
    lines = list(rule_lines(load(), pages, read_news(testdata / "web")[:8]))
    assert [line[2:18].strip() for line in lines[1:]] == [rule.name for rule in RULES]
    num_changed = [int(line[18:24]) for line in lines[1:]]
    # Most rules change one page in a hundred.
    assert max(num_changed) > 0
    assert {line[24:] for line in lines[1:]} != {lines[0][24:]}
