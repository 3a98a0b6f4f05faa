"""The steps of dedupe as functions: buckets, components and decisions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.formats import shingles
from owt_pipeline.formats.shingles import mix
from owt_pipeline.stages.dedupe import components, decisions, numbering, steps
from owt_pipeline.stages.dedupe.components import Forest, star_edges
from owt_pipeline.stages.dedupe.decisions import (
    CANDIDATES,
    MAX_COMPARISONS,
    compare,
    decide,
)
from tests.owt_pipeline.dedupe.corpora import corpus_with_copies, dedupe, write_clean

NODES = 1001
EDGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=80)
GRID = []
for row in range(29):
    for column in range(29):
        node = 30 * row + column
        GRID += [(node, node + 1), (node, node + 30)]
LONG = {
    "chain": [(node, node + 1) for node in range(1000)],
    "star": [(500, node) for node in range(1001)],
    "grid": GRID,
}


def joins_like_labels(edges: Sequence[tuple[int, int]]) -> bool:
    """Return whether the forest finds the components that spreading labels finds.

    The root of a node is the lowest node of its component.
    """
    labels = list(range(NODES))
    previous_labels: list[int] = []
    while labels != previous_labels:
        previous_labels = list(labels)
        for left, right in edges:
            lowest = min(labels[left], labels[right])
            labels[left] = lowest
            labels[right] = lowest
    forest = Forest(NODES)
    forest.join(*np.array(edges, np.uint32).reshape(-1, 2).T)
    return forest.roots(np.arange(NODES)).tolist() == labels


@given(EDGES)
def test_components_of_random_graphs(edges: list[tuple[int, int]]) -> None:
    assert joins_like_labels(edges)


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_components_of_long_graphs(shape: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "_CHUNK_EDGES", chunk)
    assert joins_like_labels(random.Random(0).sample(LONG[shape], len(LONG[shape])))


@given(st.lists(st.integers(0, 6), max_size=40), st.permutations(range(40)), st.booleans())
def test_star_edges_join_exactly_the_documents_of_a_bucket(
    buckets: list[int], order: list[int], has_128_bits: bool
) -> None:
    """The hashes have 64 bits, or 128 bits whose halves are both needed."""
    documents = np.array(order[: len(buckets)], np.uint32)
    if has_128_bits:
        halves = np.array([divmod(bucket, 3) for bucket in buckets], np.uint64).reshape(-1, 2)
        ends, centers = star_edges(halves[:, 0], documents, halves[:, 1])
    else:
        ends, centers = star_edges(np.array(buckets, np.uint64), documents, None)
    members_by_bucket: dict[int, list[int]] = {}
    for bucket, document in zip(buckets, documents.tolist(), strict=True):
        members_by_bucket.setdefault(bucket, []).append(document)
    expected = set()
    for members in members_by_bucket.values():
        lowest = min(members)
        expected |= {(member, lowest) for member in members if member != lowest}
    assert set(zip(ends.tolist(), centers.tolist(), strict=True)) == expected
    assert len(ends) == len(expected)


def candidates(sets: Sequence[frozenset[int]], bands: Sequence[Sequence[int]]) -> pa.Table:
    """Return documents in their order of precedence, numbered consecutively."""
    numbered = dict.fromkeys(("text", "document", "url_id", "precedence"), range(len(sets)))
    hashed = [np.sort(mix(np.array(list(shingles), np.uint64))) for shingles in sets]
    columns = {
        **numbered,
        "component": [0] * len(sets),
        "bands": [*map(list, bands)],
        "shingles": hashed,
    }
    return pa.table(
        {name: pa.array(columns[name], CANDIDATES.field(name).type) for name in CANDIDATES.names}
    )


def decided(
    rows: pa.Table, threshold: float, generations: Sequence[int] = (0,)
) -> dict[int, tuple[int, float]]:
    """Return the kept document and the similarity of each removed document."""
    removals, _ = decide(rows, np.array(generations), threshold)
    documents = rows["document"].to_numpy()
    removed = documents[removals.removed].tolist()
    kept_documents = documents[removals.kept].tolist()
    similarities = removals.similarity.tolist()
    return dict(zip(removed, zip(kept_documents, similarities, strict=True), strict=True))


def decided_plainly(
    sets: Sequence[frozenset[int]], bands: Sequence[Sequence[int]], threshold: float
) -> dict[int, tuple[int, float]]:
    """Return the same by comparing each document with all earlier kept ones that share a band."""
    match_by_removed: dict[int, tuple[int, float]] = {}
    for document, shingles_of_document in enumerate(sets):
        best_match = None
        best_similarity = 0.0
        for earlier in range(document):
            if earlier in match_by_removed or not set(bands[document]) & set(bands[earlier]):
                continue
            num_shared = len(shingles_of_document & sets[earlier])
            similarity = num_shared / len(shingles_of_document | sets[earlier])
            # Of several equal matches, the first is kept.
            if best_match is None or similarity > best_similarity:
                best_match = earlier
                best_similarity = similarity
        if best_match is not None and best_similarity >= threshold:
            match_by_removed[document] = (best_match, best_similarity)
    return match_by_removed


SETS = st.lists(st.frozensets(st.integers(0, 25), min_size=1, max_size=12), min_size=1, max_size=14)


@given(SETS, st.sampled_from([0.3, 0.5, 0.75, 0.8, 1.0]), st.data())
def test_decisions_equal_comparing_all_that_share_a_band(
    sets: list[frozenset[int]], threshold: float, data: st.DataObject
) -> None:
    bands = data.draw(bands_of(len(sets)))
    decisions = decided(candidates(sets, bands), threshold)
    expected = decided_plainly(sets, bands, threshold)
    assert decisions.keys() == expected.keys()
    for document, (kept_document, similarity) in decisions.items():
        assert similarity == pytest.approx(expected[document][1])
        assert kept_document not in decisions
        assert set(bands[kept_document]) & set(bands[document])


def bands_of(num_documents: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Return a strategy for two bands of each document."""
    two_bands = st.tuples(st.integers(0, 3), st.integers(0, 3))
    return st.lists(two_bands, min_size=num_documents, max_size=num_documents)


@settings(deadline=None)
@given(SETS, st.data())
def test_a_later_generation_changes_no_decision(
    sets: list[frozenset[int]], data: st.DataObject
) -> None:
    bands = data.draw(bands_of(len(sets)))
    precedence = data.draw(st.permutations(range(len(sets))))
    num_first = data.draw(st.integers(0, len(sets)))
    rows = candidates(sets, bands).set_column(4, "precedence", pa.array(precedence, pa.int64()))
    first_decisions = decided(rows.slice(0, num_first), 0.5)
    all_decisions = decided(rows, 0.5, [0, num_first])
    of_first = {
        document: match for document, match in all_decisions.items() if document < num_first
    }
    assert of_first == first_decisions


@given(st.frozensets(st.integers(0, 30)), st.frozensets(st.integers(0, 30)), st.floats(0, 1))
def test_similarity_is_jaccards_and_contained_is_a_share(
    left: frozenset[int], right: frozenset[int], threshold: float
) -> None:
    left_array = np.array(sorted(left), np.uint64)
    right_array = np.array(sorted(right), np.uint64)
    result = compare(left_array, right_array, threshold)
    expected = (0.0, 0.0)
    if left and right:
        num_shared = len(left & right)
        expected = (num_shared / len(left | right), num_shared / len(left))
    # Below the threshold, the comparison may end early.
    assert result in (expected, (0.0, 0.0))
    assert result == expected or expected[0] < threshold


def test_decisions_do_not_depend_on_ranges_groups_or_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are many ranges and groups, and small chunks, as on a large corpus."""
    texts = corpus_with_copies(seed=11, documents=150)
    write_clean(tmp_path / "at once", texts)
    at_once = dedupe(tmp_path / "at once")[1]
    for module, name, value in (
        (steps, "MIN_HASHES_OF_RANGE", 80),
        (steps, "_MAX_SHINGLES_OF_GROUP", 1000),
        (steps, "_MIN_SHINGLES_OF_GROUP", 1000),
        (numbering, "_BATCH_ROWS", 7),
        (shingles, "_CHUNK_BYTES", 3000),
    ):
        monkeypatch.setattr(module, name, value)
    write_clean(tmp_path / "cut", texts)
    assert dedupe(tmp_path / "cut")[1] == at_once


def test_a_large_cluster_compares_128_and_the_run_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 200 documents with a common band, the last is a copy of the one that shares most bands."""
    common = frozenset(range(80))
    sets = [common | frozenset(range(100 + 20 * i, 120 + 20 * i)) for i in range(200)]
    bands = [(0, i + 1) for i in range(200)]
    rows = candidates([*sets, sets[50] | {99}], [*bands, (0, 51)])
    removals, counts = decide(rows, np.array([0]), 0.8)
    assert removals.removed.tolist() == [200]
    assert removals.kept.tolist() == [50]
    assert counts["capped"] == 200 - MAX_COMPARISONS
    monkeypatch.setattr(decisions, "MAX_COMPARISONS", 2)
    shared = [f"w{i}" for i in range(150)]
    texts = [" ".join([*shared, *(f"y{i}x{k}" for k in range(90))]) for i in range(9)]
    write_clean(tmp_path, texts)
    assert dedupe(tmp_path, threshold=0.5)[1] == []
    assert "documents had more than" in caplog.text
