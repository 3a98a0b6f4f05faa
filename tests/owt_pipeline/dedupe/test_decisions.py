"""The steps of dedupe as functions: buckets, components, decisions."""

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
LONG = {
    "chain": [(i, i + 1) for i in range(1000)],
    "star": [(500, i) for i in range(1001)],
    "grid": [
        (x * 30 + y, x * 30 + y + step) for x in range(29) for y in range(29) for step in (1, 30)
    ],
}


def joined(edges: Sequence[tuple[int, int]]) -> bool:
    """Whether the forest joins these edges as following them does: each node has its component's
    lowest as root."""
    label = list(range(NODES))
    before: list[int] = []
    while label != before:
        before = list(label)
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    forest = Forest(NODES)
    forest.join(*np.array(edges, np.uint32).reshape(-1, 2).T)
    return forest.roots(np.arange(NODES)).tolist() == label


@given(EDGES)
def test_components_of_random_graphs(edges: list[tuple[int, int]]) -> None:
    assert joined(edges)


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_components_of_long_graphs(shape: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "_CHUNK_EDGES", chunk)
    assert joined(random.Random(0).sample(LONG[shape], len(LONG[shape])))


@given(st.lists(st.integers(0, 6), max_size=40), st.permutations(range(40)), st.booleans())
def test_star_edges_join_exactly_the_documents_of_a_bucket(
    buckets: list[int], order: list[int], wide: bool
) -> None:
    """With hashes of 64 bits, and of 128 bits whose halves alone do not suffice."""
    documents = np.array(order[: len(buckets)], np.uint32)
    high, low = np.array([divmod(bucket, 3) for bucket in buckets], np.uint64).reshape(-1, 2).T
    others, least = star_edges(
        high if wide else np.array(buckets, np.uint64), documents, low if wide else None
    )
    of_bucket: dict[int, list[int]] = {}
    for bucket, document in zip(buckets, documents.tolist(), strict=True):
        of_bucket.setdefault(bucket, []).append(document)
    expected = {
        (one, min(members))
        for members in of_bucket.values()
        for one in members
        if one != min(members)
    }
    assert set(zip(others.tolist(), least.tolist(), strict=True)) == expected
    assert len(others) == len(expected)


def candidates(sets: Sequence[frozenset[int]], bands: Sequence[Sequence[int]]) -> pa.Table:
    """Documents in order of precedence, numbered consecutively."""
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
    """removed document -> (kept document, similarity)"""
    found, _ = decide(rows, np.array(generations), threshold)
    document = rows["document"].to_numpy()
    pairs = zip(
        document[found.removed].tolist(),
        document[found.kept].tolist(),
        found.similarity.tolist(),
        strict=True,
    )
    return {gone: (kept, similarity) for gone, kept, similarity in pairs}


def plainly(
    sets: Sequence[frozenset[int]], bands: Sequence[Sequence[int]], threshold: float
) -> dict[int, tuple[int, float]]:
    """The same by comparing each document with all kept ones before it that share a band."""
    gone: dict[int, tuple[int, float]] = {}
    for i, mine in enumerate(sets):
        rivals = [j for j in range(i) if j not in gone and set(bands[i]) & set(bands[j])]
        similarities = {j: len(mine & sets[j]) / len(mine | sets[j]) for j in rivals}
        if similarities and max(similarities.values()) >= threshold:
            gone[i] = next(
                (j, s) for j, s in similarities.items() if s == max(similarities.values())
            )
    return gone


SETS = st.lists(st.frozensets(st.integers(0, 25), min_size=1, max_size=12), min_size=1, max_size=14)


@given(SETS, st.sampled_from([0.3, 0.5, 0.75, 0.8, 1.0]), st.data())
def test_decisions_equal_comparing_all_that_share_a_band(
    sets: list[frozenset[int]], threshold: float, data: st.DataObject
) -> None:
    bands = data.draw(
        st.lists(st.tuples(*[st.integers(0, 3)] * 2), min_size=len(sets), max_size=len(sets))
    )
    found, expected = decided(candidates(sets, bands), threshold), plainly(sets, bands, threshold)
    assert found.keys() == expected.keys()
    for gone, (kept, similarity) in found.items():
        assert similarity == pytest.approx(expected[gone][1])
        assert kept not in found
        assert set(bands[kept]) & set(bands[gone])


@settings(deadline=None)
@given(SETS, st.data())
def test_a_later_generation_changes_no_decision(
    sets: list[frozenset[int]], data: st.DataObject
) -> None:
    bands = data.draw(
        st.lists(st.tuples(*[st.integers(0, 3)] * 2), min_size=len(sets), max_size=len(sets))
    )
    precedence = data.draw(st.permutations(range(len(sets))))
    first = data.draw(st.integers(0, len(sets)))
    rows = candidates(sets, bands).set_column(4, "precedence", pa.array(precedence, pa.int64()))
    alone, together = decided(rows.slice(0, first), 0.5), decided(rows, 0.5, [0, first])
    assert {gone: kept for gone, kept in together.items() if gone < first} == alone


@given(st.frozensets(st.integers(0, 30)), st.frozensets(st.integers(0, 30)), st.floats(0, 1))
def test_similarity_is_jaccards_and_contained_is_a_share(
    one: frozenset[int], other: frozenset[int], threshold: float
) -> None:
    found = compare(*(np.array(sorted(items), np.uint64) for items in (one, other)), threshold)
    both = len(one & other)
    expected = (both / len(one | other), both / len(one)) if one and other else (0.0, 0.0)
    assert found in (expected, (0.0, 0.0))
    assert found == expected or expected[0] < threshold


def test_decisions_do_not_depend_on_ranges_groups_or_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many ranges and groups, and small chunks, as on a large corpus."""
    texts = corpus_with_copies(seed=11, documents=150)
    write_clean(tmp_path / "at once", texts)
    at_once = dedupe(tmp_path / "at once")[1]
    for module, name, value in (
        (steps, "MAX_HASHES_OF_RANGE", 80),
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
    """Of 200 documents that share a band, the last is a copy of the one that shares most."""
    common = frozenset(range(80))
    sets = [common | frozenset(range(100 + 20 * i, 120 + 20 * i)) for i in range(200)]
    bands = [(0, i + 1) for i in range(200)]
    rows = candidates([*sets, sets[50] | {99}], [*bands, (0, 51)])
    found, counts = decide(rows, np.array([0]), 0.8)
    assert found.removed.tolist() == [200]
    assert found.kept.tolist() == [50]
    assert counts["capped"] == 200 - MAX_COMPARISONS
    monkeypatch.setattr(decisions, "MAX_COMPARISONS", 2)
    shared = [f"w{i}" for i in range(150)]
    texts = [" ".join([*shared, *(f"y{i}x{k}" for k in range(90))]) for i in range(9)]
    write_clean(tmp_path, texts)
    assert dedupe(tmp_path, threshold=0.5)[1] == []
    assert "documents have more than" in caplog.text
