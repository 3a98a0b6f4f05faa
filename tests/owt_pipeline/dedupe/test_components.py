"""Connected components: the same as by following every edge."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.dedupe import components
from owt_pipeline.dedupe.components import connected_components

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
    nodes, labels = connected_components([array[:cut], array[cut:]])
    return dict(zip(nodes.tolist(), labels.tolist(), strict=True))


@given(EDGES, st.integers(0, 80))
def test_components_of_random_graphs(edges: list[tuple[int, int]], cut: int) -> None:
    assert found(edges, cut) == by_following(edges)


@pytest.mark.parametrize("shape", ["chain", "star", "grid"])
def test_components_of_long_graphs(shape: str) -> None:
    edges = {
        "chain": [(i, i + 1) for i in range(1000)],
        "star": [(500, i) for i in range(1000)],
        "grid": [(x * 30 + y, x * 30 + y + step) for x in range(29) for y in range(29) for step in (1, 30)],
    }[shape]
    np.random.default_rng(0).shuffle(edges)
    assert found(edges, len(edges) // 3) == by_following(edges)


def test_edges_may_come_in_more_than_fits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "_CHUNK_EDGES", 7)
    edges = [(i, i + 2) for i in range(200)]
    assert found(edges, 100) == by_following(edges)
