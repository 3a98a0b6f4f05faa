"""Signatures equal datasketch's; two documents share a band as often as their similarity predicts."""

from __future__ import annotations

import numpy as np
import pytest
from datasketch import MinHash
from datasketch.lsh import _optimal_param
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.stages.dedupe.minhash import BANDS, ROWS, band_hashes, probability, signatures

HASHES = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_the_banding_is_datasketchs_choice() -> None:
    assert _optimal_param(0.8, 128, 0.001, 0.999) == (BANDS, ROWS)
    assert probability(0.8) > 0.998
    assert [probability(similarity) for similarity in (0.0, 1.0)] == [0.0, 1.0]


@pytest.mark.parametrize("similarity", [0.4, 0.6, 0.8])
def test_pairs_share_a_band_as_often_as_their_similarity_predicts(similarity: float) -> None:
    rng = np.random.default_rng(1)
    left = rng.integers(0, 2**32, (BANDS * ROWS, 20_000), dtype=np.uint32)
    right = np.where(rng.random(left.shape) < similarity, left, left + np.uint32(1))
    met = (band_hashes(left) == band_hashes(right)).any(axis=0).mean()
    assert met == pytest.approx(probability(similarity), abs=0.03)
    assert len(np.unique(band_hashes(np.zeros((BANDS * ROWS, 1), np.uint32)))) == BANDS  # equal rows, other bands


def datasketch_signature(hashes: list[int], count: int) -> list[int]:
    sketch = MinHash(count, hashfunc=int, scheme="affine32")
    sketch.update_batch(hashes)
    return sketch.hashvalues.tolist()


@settings(deadline=None)
@given(st.lists(HASHES, max_size=8), st.integers(1, 140))
def test_signatures_equal_datasketchs(texts: list[list[int]], count: int) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    hashes = np.array([value for text in texts for value in text], np.uint32)
    result = signatures(hashes, offsets, count)
    assert result.T.tolist() == [datasketch_signature(text, count) for text in texts]


@pytest.mark.parametrize("sizes", [[200_000, 3, 0, 70_000], [10] * 20_000])
def test_signatures_do_not_depend_on_batches(sizes: list[int]) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**32, sum(sizes), dtype=np.uint32)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    together = signatures(hashes, offsets, 16)
    for i in (0, 1, 2, 3, len(sizes) - 1):
        text = hashes[offsets[i] : offsets[i + 1]]
        assert together[:, i].tolist() == datasketch_signature(text.tolist(), 16)


def test_a_long_text_does_not_saturate_its_signature() -> None:
    """Two sets of 1,500,000 shingles, as in 10 MB of text, that share half of their union."""
    values = np.random.default_rng(0).permutation(2**22).astype(np.uint64)
    hashes = (values * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)
    pair = np.concatenate([hashes[:1_500_000], hashes[500_000:2_000_000]])
    found = signatures(pair, np.array([0, 1_500_000, 3_000_000]), 256)
    assert abs((found[:, 0] == found[:, 1]).mean() - 0.5) < 0.1
    assert len(np.unique(found[:, 0])) > 200
