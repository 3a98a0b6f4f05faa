"""LSH: the banding's arithmetic, and edges that join what shares a bucket."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from datasketch.lsh import _optimal_param
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.dedupe.components import forest_of
from owt_pipeline.dedupe.sketches import Banding, band_hashes, choose_banding, star_edges


@pytest.mark.parametrize("false_negative_weight", [0.001, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.7, 0.8, 0.95])
@pytest.mark.parametrize("num_perm", [2, 64, 96, 128])
def test_the_banding_is_the_one_datasketch_chooses(
    num_perm: int, threshold: float, false_negative_weight: float
) -> None:
    theirs = _optimal_param(threshold, num_perm, 1 - false_negative_weight, false_negative_weight)
    ours = choose_banding(threshold, num_perm, false_negative_weight)
    assert (ours.bands, ours.rows) == theirs


def test_the_default_banding_finds_what_is_at_the_threshold() -> None:
    assert choose_banding(0.8, 128, 0.999).probability(0.8) > 0.99


def test_a_banding_that_needs_more_permutations_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="bands=20 times rows=10 is 200, more than num_perm=128"):
        choose_banding(0.8, 128, 0.5, 20, 10)
    with pytest.raises(ValueError, match="give both, or neither"):
        choose_banding(0.8, 128, 0.5, 20)


def test_the_curve_is_what_random_signatures_do() -> None:
    banding, rng = Banding(24, 6, 4), np.random.default_rng(0)
    for similarity in (0.5, 0.7, 0.9):
        left = rng.integers(0, 2**32, (24, 4000), dtype=np.uint32)
        right = np.where(rng.random((24, 4000)) < similarity, left, left + np.uint32(1))
        met = (band_hashes(left, banding) == band_hashes(right, banding)).any(axis=0).mean()
        assert met == pytest.approx(banding.probability(similarity), abs=0.03)


def test_equal_rows_in_different_bands_do_not_meet() -> None:
    assert len(np.unique(band_hashes(np.zeros((12, 1), np.uint32), Banding(12, 4, 3)))) == 4


@given(st.lists(st.integers(0, 6), max_size=40), st.permutations(range(40)), st.booleans())
def test_star_edges_join_exactly_what_shares_a_bucket(buckets: list[int], order: list[int], wide: bool) -> None:
    """With hashes of 64 bits, or of 128 of which the halves alone are not enough."""
    documents = np.array(order[: len(buckets)], np.uint32)
    high, low = np.array([divmod(bucket, 3) for bucket in buckets], np.uint64).reshape(-1, 2).T
    hashes = high if wide else np.array(buckets, np.uint64)
    others, least, counts = star_edges(hashes, documents, 3, low if wide else None)
    pairs = [(a, b) for a, b in combinations(range(len(buckets)), 2) if buckets[a] == buckets[b]]
    found, roots = forest_of(40, [(others, least)])
    label = dict(zip(found.tolist(), roots.tolist(), strict=True))
    joined = {frozenset((a, b)) for a, b in combinations(documents.tolist(), 2) if label.get(a, a) == label.get(b, b)}
    assert joined == {frozenset((int(documents[a]), int(documents[b]))) for a, b in pairs}
    sizes = [buckets.count(bucket) for bucket in set(buckets)]
    assert len(others) == len(set(others.tolist())) == sum(size - 1 for size in sizes)
    assert counts["pairs"] == len(pairs)
    assert counts["oversized_buckets"] == sum(size > 3 for size in sizes)
