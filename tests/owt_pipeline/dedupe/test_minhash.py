"""MinHash: datasketch's own signatures, for many texts at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.dedupe.sketches import signatures

Sign = Callable[..., np.ndarray]
HASHES = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def datasketch_signature(hashes: list[int], num_perm: int, seed: int) -> list[int]:
    sketch = MinHash(num_perm, seed=seed, hashfunc=int, scheme="affine32")
    sketch.update_batch(hashes)
    return sketch.hashvalues.tolist()


@pytest.fixture(scope="module", params=["numpy", "numba"])
def sign(request: pytest.FixtureRequest) -> Sign:
    """All of this holds for signatures in numpy, and for those of the loop that numba compiles."""
    if request.param == "numba":
        pytest.importorskip("numba")
    return partial(signatures, compiled=request.param == "numba")


@settings(deadline=None)
@given(st.lists(HASHES, max_size=8), st.integers(1, 140), st.integers(0, 5))
def test_signatures_are_those_of_datasketch(sign: Sign, texts: list[list[int]], num_perm: int, seed: int) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    hashes = np.array([value for text in texts for value in text], np.uint32)
    result = sign(hashes, offsets, num_perm, seed)
    assert result.T.tolist() == [datasketch_signature(text, num_perm, seed) for text in texts]


@pytest.mark.parametrize("sizes", [[200_000, 3, 0, 70_000], [10] * 20_000])
def test_signatures_do_not_depend_on_how_the_work_is_cut(sign: Sign, sizes: list[int]) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**32, sum(sizes), dtype=np.uint32)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    together = sign(hashes, offsets, 16)
    for i in (0, 1, 2, 3, len(sizes) - 1):
        text = hashes[offsets[i] : offsets[i + 1]]
        assert together[:, i].tolist() == datasketch_signature(text.tolist(), 16, 1)


def test_a_long_text_does_not_saturate_its_signature(sign: Sign) -> None:
    """Two sets of 1,500,000, as of 10 MB of text, that share half of their union."""
    values = np.random.default_rng(0).permutation(2**22).astype(np.uint64)
    hashes = (values * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)
    pair = np.concatenate([hashes[:1_500_000], hashes[500_000:2_000_000]])
    found = sign(pair, np.array([0, 1_500_000, 3_000_000]), 256)
    assert abs((found[:, 0] == found[:, 1]).mean() - 0.5) < 0.1
    assert len(np.unique(found[:, 0])) > 200
