"""Difficult corpora: texts of megabytes, thousands of copies of one text, thousands of pages of one template."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.owt_pipeline.dedupe.corpora import decide, dedupe, prose, url_id, write_clean

COUNT = 5_000


def test_texts_of_ten_megabytes_are_compared(tmp_path: Path) -> None:
    """Exact and near copies are removed, and a text that shares the first half is kept."""
    words = [f"word{i}" for i in range(1_000_000)]
    base = " ".join(words)
    assert len(base) > 10_000_000
    near = " ".join(word if i % 100 else f"edit{i}" for i, word in enumerate(words))
    half = " ".join([*words[:500_000], *(f"other{i}" for i in range(500_000))])
    texts = [base, near + " and its end", half, base.upper() + "!", "a short text"]
    decisions = decide(tmp_path, texts)
    # The edited one is the longest: both copies go for it, with the similarity of the 95 shingles of 100 they share.
    assert {gone: (row["kept"], row["rule"]) for gone, row in decisions.items()} == {0: (1, "near"), 3: (1, "near")}
    assert decisions[0]["similarity"] == decisions[3]["similarity"] == pytest.approx(0.95 / 1.05, abs=1e-4)


def test_word_of_ten_megabytes_is_hashed(tmp_path: Path) -> None:
    assert not decide(tmp_path, ["a" * 10_000_000, "a" * 10_000_001, "b" * 10_000_000])


def test_repeated_text_is_sketched_once_per_part(tmp_path: Path) -> None:
    write_clean(tmp_path, [" ".join(prose(random.Random(0), 200))] * COUNT, 4)
    manifest, rows = dedupe(tmp_path)
    assert len(rows) == COUNT - 1
    assert {row["kept_url_id"] for row in rows} == {min(url_id(i) for i in range(COUNT))}
    assert {row["cluster_size"] for row in rows} == {COUNT}
    assert manifest.stats["edges"] <= 4
    assert manifest.stats["candidates"] == 0


def test_many_copies_that_differ_in_one_word_are_near_duplicates(tmp_path: Path) -> None:
    """All texts share buckets but differ; each is compared with the kept one, not with all."""
    words = prose(random.Random(0), 200)
    write_clean(tmp_path, [" ".join([*words, f"visitor{i}"]) for i in range(COUNT)], 4)
    manifest, rows = dedupe(tmp_path)
    assert len(rows) == COUNT - 1
    assert len({row["kept_url_id"] for row in rows}) == 1
    assert manifest.stats["edges"] < 21 * COUNT  # not a pair for any two in a bucket
    assert manifest.stats["comparisons"] < COUNT


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
