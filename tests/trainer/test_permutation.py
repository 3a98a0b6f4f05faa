import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.samplers import Permutation


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 10))
def test_every_element_comes_exactly_once(n: int, seed: int, epoch: int) -> None:
    image = Permutation(n, seed, epoch)(np.arange(n))
    assert np.array_equal(np.sort(image), np.arange(n))


@given(n=st.integers(1, 1 << 62), index=st.integers(0, (1 << 62) - 1), seed=st.integers(0, 2**32))
def test_an_element_costs_no_table_and_stays_inside(n: int, index: int, seed: int) -> None:
    index %= n
    (image,) = Permutation(n, seed)(np.array([index]))
    assert 0 <= image < n


@given(n=st.integers(2, 60), seed=st.integers(0, 1000))
def test_one_element_alone_has_the_image_it_has_among_all(n: int, seed: int) -> None:
    order = Permutation(n, seed)
    assert [int(order(np.array([i]))[0]) for i in range(n)] == order(np.arange(n)).tolist()


def test_seeds_and_epochs_give_orders_of_their_own() -> None:
    orders = {tuple(Permutation(100, seed, epoch)(np.arange(100))) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


def test_the_order_looks_random() -> None:
    n = 100_000
    image = Permutation(n, 1)(np.arange(n))
    # For a random order these correlations have a standard deviation of 1/√n = 0.003.
    assert abs(np.corrcoef(np.arange(n), image)[0, 1]) < 0.02
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.02
    # Each tenth of the places draws from each tenth of the elements: 1,000 each, ± 30.
    cells = np.histogram2d(np.arange(n), image, bins=10)[0]
    assert cells.min() > 850
    assert cells.max() < 1150


def test_a_million_elements_take_well_under_a_second() -> None:
    start = time.perf_counter()
    Permutation(1_000_000, 3)(np.arange(1_000_000))
    assert time.perf_counter() - start < 0.8


@pytest.mark.parametrize("n", [0, (1 << 62) + 1])
def test_an_impossible_size_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="elements"):
        Permutation(n)
