"""LSH: the banding's arithmetic, and edges that join what shares a bucket."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from datasketch import MinHashLSH
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.dedupe.components import connected_components
from owt_pipeline.dedupe.lsh import Banding, band_hashes, choose_banding, partition_of, star_edges


def test_the_banding_is_the_one_datasketch_chooses() -> None:
    theirs = MinHashLSH(0.7, num_perm=96, weights=(0.1, 0.9))
    ours = choose_banding(0.7, 96, 0.9)
    assert (ours.bands, ours.rows) == (theirs.b, theirs.r)


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


@given(st.lists(st.integers(0, 6), max_size=40), st.permutations(range(40)))
def test_star_edges_join_exactly_what_shares_a_bucket(buckets: list[int], order: list[int]) -> None:
    places = np.array(order[: len(buckets)], np.uint64)
    edges, counts = star_edges(np.array(buckets, np.uint64), places, oversized=3)
    pairs = [(a, b) for a, b in combinations(range(len(buckets)), 2) if buckets[a] == buckets[b]]
    nodes, roots = connected_components(lambda: [edges])
    label = dict(zip(nodes.tolist(), roots.tolist(), strict=True))
    joined = {
        frozenset((a, b)) for a, b in combinations(places.tolist(), 2) if label.get(a, "none") == label.get(b, "nor")
    }
    assert joined == {frozenset((int(places[a]), int(places[b]))) for a, b in pairs}
    sizes = [buckets.count(bucket) for bucket in set(buckets)]
    assert len(edges) == sum(size - 1 for size in sizes)
    assert counts["pairs"] == len(pairs)
    assert counts["oversized_buckets"] == sum(size > 3 for size in sizes)


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 1000))
def test_partitions_are_ranges_of_the_hash_space(hashes: list[int], partitions: int) -> None:
    found = partition_of(np.array(sorted(hashes), np.uint64), partitions)
    assert all(0 <= partition < partitions for partition in found)
    assert (np.diff(found) >= 0).all()
