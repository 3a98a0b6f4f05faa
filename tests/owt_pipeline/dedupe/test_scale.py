"""Difficult corpora: texts of megabytes, thousands of copies of one text, thousands of pages of one template."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.owt_pipeline.dedupe.corpora import decide, dedupe, prose, url_id, write_clean

COUNT = 2_000


def test_texts_of_three_megabytes_are_compared(tmp_path: Path) -> None:
    """Exact and near copies are removed, and a text that shares the first half is kept."""
    words = [f"word{i}" for i in range(300_000)]
    base = " ".join(words)
    assert len(base) > 3_000_000
    near = " ".join(word if i % 100 else f"edit{i}" for i, word in enumerate(words))
    half = " ".join([*words[:150_000], *(f"other{i}" for i in range(150_000))])
    texts = [base, near + " and its end", half, base.upper() + "!", "a short text"]
    decisions = decide(tmp_path, texts)
    # The edited one is the longest: both copies go for it, with the similarity of the 95 shingles of 100 they share.
    assert {gone: (row["kept"], row["rule"]) for gone, row in decisions.items()} == {0: (1, "near"), 3: (1, "near")}
    assert decisions[0]["similarity"] == decisions[3]["similarity"] == pytest.approx(0.95 / 1.05, abs=1e-4)


@pytest.mark.parametrize(("last", "edges", "comparisons"), [("", 4, 0), ("visitor{}", 21 * COUNT - 1, COUNT - 1)])
def test_many_copies_are_neither_joined_nor_compared_pair_by_pair(
    tmp_path: Path, last: str, edges: int, comparisons: int
) -> None:
    """Of a repeated text, which is sketched once a part; and of texts that share buckets and differ in one word."""
    words = prose(random.Random(0), 200)
    write_clean(tmp_path, [" ".join([*words, last.format(i)]) for i in range(COUNT)], 4)
    manifest, rows = dedupe(tmp_path)
    assert len(rows) == COUNT - 1
    assert len({row["kept_url_id"] for row in rows}) == 1
    assert {row["cluster_size"] for row in rows} == {COUNT}
    assert manifest.stats["edges"] <= edges
    assert manifest.stats.get("comparisons", 0) <= comparisons
    assert last or manifest.stats["candidates"] == 0


def test_pages_of_one_template_with_different_bodies_are_kept(tmp_path: Path) -> None:
    """Three quarters of each text are template; every hundredth has a near-copy, and only these are removed."""
    rng = random.Random(0)
    template = prose(rng, 120)
    bodies = [prose(rng, 40) for _ in range(COUNT)]
    copied = range(0, COUNT, 100)
    texts = [" ".join([*template[:60], *body, *template[60:]]) for body in bodies]
    texts += [" ".join([*template[:60], *bodies[i][:-1], "other", *template[60:]]) for i in copied]
    write_clean(tmp_path, texts, 4)
    manifest, rows = dedupe(tmp_path)
    number = {url_id(i): i for i in range(len(texts))}
    pairs = {frozenset((number[row["url_id"]], number[row["kept_url_id"]])) for row in rows}
    assert pairs == {frozenset((i, COUNT + k)) for k, i in enumerate(copied)}
    assert manifest.stats["largest_component"] > COUNT / 2
    assert manifest.stats["comparisons"] < 33 * COUNT
