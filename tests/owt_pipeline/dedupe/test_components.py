"""Connected components: the same as by following every edge."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.dedupe import components
from owt_pipeline.dedupe.components import connected_components
from owt_pipeline.dedupe.stars import checksum, large_star, small_star

EDGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=80)


def by_following(edges: list[tuple[int, int]]) -> dict[int, int]:
    """node -> least node of its component."""
    neighbours: dict[int, set[int]] = {}
    for a, b in edges:
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    label: dict[int, int] = {}
    for node in sorted(neighbours):
        waiting = [node] if node not in label else []
        while waiting:
            current = waiting.pop()
            if current not in label:
                label[current] = node
                waiting.extend(neighbours[current])
    return label


def found(edges: list[tuple[int, int]], cut: int) -> dict[int, int]:
    array = np.array(edges, np.uint64).reshape(-1, 2)
    nodes, roots = connected_components(lambda: [array[:cut], array[cut:]])
    return dict(zip(nodes.tolist(), nodes[roots].tolist(), strict=True))


def contracted(edges: list[tuple[int, int]], partitions: int = 3) -> tuple[dict[int, int], int]:
    """({node: label} by rounds of stars over partitions, rounds it took)."""
    array = np.array([(min(e), max(e)) for e in edges if e[0] != e[1]], np.uint64).reshape(-1, 2)
    for rounds in range(1, 60):
        before = array
        for large in (True, False):
            center = np.concatenate([array[:, 1], array[:, 0]]) if large else array[:, 1]
            neighbour = np.concatenate([array[:, 0], array[:, 1]]) if large else array[:, 0]
            star = large_star if large else small_star
            of = center % np.uint64(partitions)
            array = np.concatenate([star(center[of == p], neighbour[of == p]) for p in range(partitions)])
        if sorted(map(tuple, array.tolist())) == sorted(map(tuple, before.tolist())):
            return {int(b): int(a) for a, b in array} | {int(a): int(a) for a, _ in array}, rounds
    raise AssertionError("not converged")


def of_two(edges: list[tuple[int, int]]) -> dict[int, int]:
    """The components that have two nodes or more."""
    return by_following([edge for edge in edges if edge[0] != edge[1]])


@given(EDGES, st.integers(0, 80))
def test_components_of_random_graphs(edges: list[tuple[int, int]], cut: int) -> None:
    assert found(edges, cut) == by_following(edges)
    assert contracted(edges)[0] == of_two(edges)


@given(EDGES)
def test_a_checksum_of_edges_is_that_of_their_set(edges: list[tuple[int, int]]) -> None:
    array = np.unique(np.array(edges, np.uint64).reshape(-1, 2), axis=0)
    parts = checksum(array[::2]) + checksum(array[1::2])
    assert (parts - checksum(array[::-1])) % 2**64 == 0
    if len(array):
        assert checksum(array[1:]) != checksum(array)


LONG = {
    "chain": [(i, i + 1) for i in range(1000)],
    "star": [(500, i) for i in range(1001)],
    "grid": [(x * 30 + y, x * 30 + y + step) for x in range(29) for y in range(29) for step in (1, 30)],
}


@pytest.mark.parametrize("shape", LONG)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_components_of_long_graphs(shape: str, seed: int) -> None:
    """In any order of the edges, with any numbers for the nodes."""
    rng = random.Random(seed)
    number = rng.sample(range(1001), 1001)
    edges = [(number[a], number[b]) for a, b in LONG[shape]]
    rng.shuffle(edges)
    assert found(edges, len(edges) // 3) == by_following(edges)
    stars, rounds = contracted(edges)
    assert stars == of_two(edges)
    assert rounds <= 12


def test_edges_may_come_in_more_than_fits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "_CHUNK_EDGES", 7)
    edges = [(i, i + 2) for i in range(200)]
    assert found(edges, 100) == by_following(edges)


@pytest.mark.parametrize("nodes", [2**62, 100_000])
def test_memory_is_at_most_40_bytes_an_edge(nodes: int) -> None:
    """Where no two edges share a node, and where all are in one component."""
    count, batch = 600_000, 50_000

    def edges() -> Iterator[np.ndarray]:
        rng = np.random.default_rng(0)
        for _ in range(0, count, batch):
            yield rng.integers(0, nodes, (batch, 2), dtype=np.uint64)

    tracemalloc.start()
    try:
        found, roots = connected_components(edges)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == (2 * count if nodes > count else nodes)
    assert len(np.unique(roots)) == (count if nodes > count else 1)
    assert peak <= 40 * count
