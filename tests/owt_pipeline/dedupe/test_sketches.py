"""Signatures equal datasketch's, the probabilities of bandings, and edges between documents that share a bucket."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from datasketch import MinHash
from datasketch.lsh import _optimal_param
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.errors import UserError
from owt_pipeline.stages.dedupe.components import forest_of
from owt_pipeline.stages.dedupe.sketches import Banding, band_hashes, choose_banding, signatures, star_edges


@pytest.mark.parametrize("false_negative_weight", [0.001, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.7, 0.8, 0.95])
@pytest.mark.parametrize("num_perm", [2, 64, 96, 128])
def test_banding_equals_datasketchs_choice(num_perm: int, threshold: float, false_negative_weight: float) -> None:
    theirs = _optimal_param(threshold, num_perm, 1 - false_negative_weight, false_negative_weight)
    ours = choose_banding(threshold, num_perm, false_negative_weight)
    assert (ours.bands, ours.rows) == theirs


def test_default_banding_finds_pairs_at_the_threshold() -> None:
    assert choose_banding(0.8, 128, 0.999).probability(0.8) > 0.99


def test_banding_with_too_many_permutations_is_refused() -> None:
    with pytest.raises(UserError, match="bands=20 times rows=10 is 200, more than num_perm=128"):
        choose_banding(0.8, 128, 0.5, 20, 10)
    with pytest.raises(UserError, match="give both or neither"):
        choose_banding(0.8, 128, 0.5, 20)


def test_curve_matches_random_signatures() -> None:
    banding, rng = Banding(24, 6, 4), np.random.default_rng(0)
    for similarity in (0.5, 0.7, 0.9):
        left = rng.integers(0, 2**32, (24, 4000), dtype=np.uint32)
        right = np.where(rng.random((24, 4000)) < similarity, left, left + np.uint32(1))
        met = (band_hashes(left, banding) == band_hashes(right, banding)).any(axis=0).mean()
        assert met == pytest.approx(banding.probability(similarity), abs=0.03)


def test_equal_rows_in_different_bands_have_different_hashes() -> None:
    assert len(np.unique(band_hashes(np.zeros((12, 1), np.uint32), Banding(12, 4, 3)))) == 4


@given(st.lists(st.integers(0, 6), max_size=40), st.permutations(range(40)), st.booleans())
def test_star_edges_join_exactly_the_documents_of_a_bucket(buckets: list[int], order: list[int], wide: bool) -> None:
    """With hashes of 64 bits, and of 128 bits whose halves alone do not suffice."""
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


Sign = Callable[..., np.ndarray]
HASHES = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def datasketch_signature(hashes: list[int], num_perm: int) -> list[int]:
    sketch = MinHash(num_perm, hashfunc=int, scheme="affine32")
    sketch.update_batch(hashes)
    return sketch.hashvalues.tolist()


@pytest.fixture(scope="module", params=["numpy", "numba"])
def sign(request: pytest.FixtureRequest) -> Sign:
    """The following tests run with numpy and with the loop compiled by numba."""
    if request.param == "numba":
        pytest.importorskip("numba")
    return partial(signatures, compiled=request.param == "numba")


@settings(deadline=None)
@given(st.lists(HASHES, max_size=8), st.integers(1, 140))
def test_signatures_equal_datasketchs(sign: Sign, texts: list[list[int]], num_perm: int) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    hashes = np.array([value for text in texts for value in text], np.uint32)
    result = sign(hashes, offsets, num_perm)
    assert result.T.tolist() == [datasketch_signature(text, num_perm) for text in texts]


@pytest.mark.parametrize("sizes", [[200_000, 3, 0, 70_000], [10] * 20_000])
def test_signatures_do_not_depend_on_batches(sign: Sign, sizes: list[int]) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**32, sum(sizes), dtype=np.uint32)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    together = sign(hashes, offsets, 16)
    for i in (0, 1, 2, 3, len(sizes) - 1):
        text = hashes[offsets[i] : offsets[i + 1]]
        assert together[:, i].tolist() == datasketch_signature(text.tolist(), 16)


def test_a_long_text_does_not_saturate_its_signature(sign: Sign) -> None:
    """Two sets of 1,500,000 shingles, as in 10 MB of text, that share half of their union."""
    values = np.random.default_rng(0).permutation(2**22).astype(np.uint64)
    hashes = (values * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)
    pair = np.concatenate([hashes[:1_500_000], hashes[500_000:2_000_000]])
    found = sign(pair, np.array([0, 1_500_000, 3_000_000]), 256)
    assert abs((found[:, 0] == found[:, 1]).mean() - 0.5) < 0.1
    assert len(np.unique(found[:, 0])) > 200
