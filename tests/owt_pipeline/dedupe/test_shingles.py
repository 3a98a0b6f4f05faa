"""Shingles: equal hashes for equal n-grams, and for no others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.dedupe.shingles import KINDS, fold, shingle
from tests.owt_pipeline.dedupe import plain

WORDS = ["a", "b", "ab", "ba", "aa", "Ä", "漢", "eightlet", "nineletter", "sixteenletters16", "x" * 63, "x" * 64]
WORDS += ["x" * 65, "x" * 64 + "y", "x" * 64 + "z", "y" * 200]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=8)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=TEXTS, n=st.integers(1, 7))
def test_shingles_are_equal_exactly_where_their_n_grams_are(kind: str, texts: list[str], n: int) -> None:
    shingles = shingle(fold(pa.array(texts, pa.string())), n, kind)
    grams = [plain.shingles(text, n, kind) for text in texts]
    assert np.diff(shingles.offsets).tolist() == [len(of_text) for of_text in grams]
    named = list(zip([gram for of_text in grams for gram in of_text], shingles.hashes.tolist(), strict=True))
    assert len(set(named)) == len({gram for gram, _ in named}) == len({value for _, value in named})


@given(TEXTS)
def test_a_text_has_the_same_shingles_in_any_batch(texts: list[str]) -> None:
    together = shingle(fold(pa.array(texts, pa.string())), 3)
    for i, text in enumerate(texts):
        alone = shingle(fold(pa.array([text])), 3)
        assert alone.hashes.tolist() == together.hashes[together.offsets[i] : together.offsets[i + 1]].tolist()
