"""Connected components equal those found by following every edge."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.stages.dedupe import components
from owt_pipeline.stages.dedupe.components import Candidates, find_candidates, forest_of

NODES = 1001
EDGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=80)
Pair = tuple[np.ndarray, np.ndarray]


def by_following(edges: list[tuple[int, int]]) -> dict[int, int]:
    """node -> lowest node of its component."""
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


def columns(edges: list[tuple[int, int]]) -> Pair:
    array = np.array(edges, np.uint32).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def found(edges: list[tuple[int, int]], cut: int) -> dict[int, int]:
    """{node: lowest node of its component}, for components of two or more nodes, from two forests."""
    forests = [forest_of(NODES, [columns(some)]) for some in (edges[:cut], edges[cut:])]
    return roots_of(find_candidates(NODES, NODES, [], forests))


def roots_of(candidates: Candidates) -> dict[int, int]:
    """{node: lowest node of its component}"""
    least: dict[int, int] = {}
    for node, component in zip(candidates.document.tolist(), candidates.component.tolist(), strict=True):
        least.setdefault(component, node)
    assert sorted(least) == list(range(len(candidates.compared)))
    assert sorted(least.values()) == [least[component] for component in sorted(least)]
    return {
        node: least[component]
        for node, component in zip(candidates.document.tolist(), candidates.component.tolist(), strict=True)
    }


def of_two(edges: list[tuple[int, int]]) -> dict[int, int]:
    """The components that have two nodes or more."""
    return by_following([edge for edge in edges if edge[0] != edge[1]])


@given(EDGES, st.integers(0, 80))
def test_components_of_random_graphs(edges: list[tuple[int, int]], cut: int) -> None:
    assert found(edges, cut) == of_two(edges)


LONG = {
    "chain": [(i, i + 1) for i in range(1000)],
    "star": [(500, i) for i in range(1001)],
    "grid": [(x * 30 + y, x * 30 + y + step) for x in range(29) for y in range(29) for step in (1, 30)],
}


@pytest.mark.parametrize("shape", LONG)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_components_of_long_graphs(shape: str, seed: int) -> None:
    """The order of the edges and the numbers of the nodes do not matter."""
    rng = random.Random(seed)
    number = rng.sample(range(1001), 1001)
    edges = [(number[a], number[b]) for a, b in LONG[shape]]
    rng.shuffle(edges)
    assert found(edges, len(edges) // 3) == by_following(edges)


@given(st.lists(st.integers(0, 30), min_size=61, max_size=61), EDGES, st.integers(0, 61))
def test_copies_and_documents_of_earlier_corpora(texts: list[int], edges: list[tuple[int, int]], own: int) -> None:
    """Copies form one component; components with several texts are compared. Each has a document of the run."""
    least = [texts.index(text) for text in texts]
    copies = [(i, of) for i, of in enumerate(least) if i != of]
    expected = {node: root for node, root in of_two([*edges, *copies]).items() if root < own}
    edges, copies = ([edge for edge in some if edge[0] in expected] for some in (edges, copies))
    within = [edge for edge in edges if max(edge) < own]
    to_past = [edge for edge in edges if max(edge) >= own]
    candidates = find_candidates(61, own, [columns(copies)], [forest_of(own, [columns(within)])], [columns(to_past)])
    assert roots_of(candidates) == expected
    assert candidates.text.tolist() == [least[node] for node in sorted(expected)]
    several = {root for node, root in expected.items() if least[node] != root}
    of_earlier = {least[node] for node in range(own, 61)}
    several &= {root for node, root in expected.items() if least[node] not in of_earlier}
    assert candidates.compared.tolist() == [root in several for root in sorted(set(expected.values()))]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(8, 4000))
def test_groups_hold_complete_components_of_a_bounded_size(sizes: list[int], at_most: int) -> None:
    starts = np.cumsum([0, *sizes])
    edges = [(start, start + k) for start, size in zip(starts.tolist(), sizes, strict=False) for k in range(1, size)]
    count = int(starts[-1]) + 1
    candidates = find_candidates(count, count, [], [forest_of(count, [columns(edges)])])
    group = candidates.groups(100.0, at_most, 0, 16)
    assert len(group) == len(candidates.compared)
    assert group.tolist() == sorted(group.tolist())
    assert set(group.tolist()) == set(range(max(group.tolist(), default=-1) + 1))
    for members in np.bincount(group[candidates.component]).tolist():
        assert 108 * members <= at_most + 108 * max(sizes)


def test_edges_beyond_one_chunk_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "_CHUNK_EDGES", 7)
    edges = [(i, i + 2) for i in range(200)]
    assert found(edges, 100) == by_following(edges)


def test_memory_is_five_bytes_per_document_plus_candidates() -> None:
    documents, count, batch = 4_000_000, 200_000, 50_000

    def edges() -> Iterator[Pair]:
        rng = np.random.default_rng(0)
        for _ in range(0, count, batch):
            yield rng.integers(0, 400_000, batch, np.uint32), rng.integers(0, 400_000, batch, np.uint32)

    tracemalloc.start()
    try:
        candidates = find_candidates(documents, documents, [], [forest_of(documents, edges())])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count < len(candidates.document) <= 400_000
    assert peak <= 5.1 * documents + 80 * len(candidates.document)
