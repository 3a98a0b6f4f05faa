"""The split is a hash of the id."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.datasets import is_validation

IDS = st.lists(st.integers(0, 2**64 - 1), max_size=50)


@given(IDS, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_fraction_only_adds_documents(ids: list[int], one: float, other: float) -> None:
    url_ids = np.array(ids, np.uint64)
    small, large = is_validation(url_ids, min(one, other)), is_validation(url_ids, max(one, other))
    assert not (small & ~large).any()


@given(IDS, IDS)
def test_a_document_does_not_move_when_others_come(ids: list[int], others: list[int]) -> None:
    alone = is_validation(np.array(ids, np.uint64), 0.3)
    together = is_validation(np.array(others + ids, np.uint64), 0.3)
    assert alone.tolist() == together[len(others) :].tolist()


def test_the_fraction_is_met_for_ids_of_any_kind() -> None:
    n = 200_000
    for ids in (np.arange(n), np.arange(n) << 32, np.arange(n) * 64 + 5):
        share = is_validation(ids.astype(np.uint64), 0.01).mean()
        assert abs(share - 0.01) < 4 * (0.01 * 0.99 / n) ** 0.5
    assert not is_validation(np.arange(n, dtype=np.uint64), 0.0).any()
    assert is_validation(np.arange(n, dtype=np.uint64), 1.0).all()
