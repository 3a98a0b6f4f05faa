"""Verification finds exactly the pairs that reach the threshold, in components of any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.stages.dedupe import verification
from owt_pipeline.stages.dedupe.shingles import mix
from owt_pipeline.stages.dedupe.verification import CANDIDATES, Decisions, PrefixIndex, Verifier

SETS = st.lists(st.frozensets(st.integers(0, 25), min_size=1, max_size=12), min_size=1, max_size=14)


def measured(measure: str, gone: frozenset[int], kept: frozenset[int]) -> float:
    return len(gone & kept) / (len(gone | kept) if measure == "jaccard" else len(gone))


def candidates(components: Sequence[Sequence[frozenset[int]]]) -> pa.RecordBatch:
    """Documents in order of precedence, numbered consecutively."""
    rows = [
        {
            "component": 1000 * c,
            "text": 1000 * c + i,
            "document": 1000 * c + i,
            "url_id": 1000 * c + i,
            "precedence": i,
            "host": "",
            "bands": [c, i],
            "shingles": np.sort(mix(np.array(list(shingles), np.uint64))),
        }
        for c, component in enumerate(components)
        for i, shingles in enumerate(component)
    ]
    return pa.RecordBatch.from_pylist(rows, CANDIDATES)


def pairs(candidates: pa.RecordBatch, decisions: Decisions) -> dict[int, int]:
    """removed document -> kept document"""
    document = candidates["document"].to_numpy()
    return dict(zip(document[decisions.gone].tolist(), document[decisions.kept].tolist(), strict=True))


def by_comparing_all(measure: str, threshold: float, sets: Sequence[frozenset[int]]) -> dict[int, tuple[int, float]]:
    """document -> (kept document, similarity): the first most similar of all kept documents before it."""
    gone: dict[int, tuple[int, float]] = {}
    for i, shingles in enumerate(sets):
        found = [(measured(measure, shingles, sets[j]), -j) for j in range(i) if j not in gone]
        if found and max(found)[0] >= threshold:
            gone[i] = -max(found)[1], max(found)[0]
    return gone


@settings(deadline=None, max_examples=200)
@given(
    st.lists(SETS, min_size=1, max_size=3),
    st.sampled_from(["jaccard", "containment"]),
    st.sampled_from([0.3, 0.5, 0.75, 0.8, 1.0]),
    st.booleans(),
)
def test_component_is_decided_as_by_comparing_all_pairs(
    components: list[list[frozenset[int]]], measure: str, threshold: float, indexed: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_SMALL", 0 if indexed else 100)
        rows = candidates(components)
        decisions, counts = Verifier(threshold, measure).decide(rows)
    expected = {}
    for c, component in enumerate(components):
        for gone, (kept, similarity) in by_comparing_all(measure, threshold, component).items():
            expected[1000 * c + gone] = (1000 * c + kept, np.float32(similarity))
    found = {
        gone: (kept, similarity)
        for (gone, kept), similarity in zip(pairs(rows, decisions).items(), decisions.similarity, strict=True)
    }
    assert decisions.near.all()
    assert found == expected
    assert counts["capped"] == 0


@settings(deadline=None)
@given(SETS, st.data())
def test_copies_get_the_decision_of_their_first(sets: list[frozenset[int]], data: st.DataObject) -> None:
    """Only the first of several copies has shingles; the decisions are the same as if all had them."""
    texts = data.draw(st.lists(st.sampled_from(range(len(sets))), min_size=1, max_size=30))
    component = [sets[text] for text in texts]
    rows = candidates([component]).to_pylist()
    for i, row in enumerate(rows):
        row["text"] = texts.index(texts[i])
        if row["text"] != i:
            row["shingles"] = []
    batch = pa.RecordBatch.from_pylist(rows, CANDIDATES)
    decisions, _ = Verifier(0.5).decide(batch)
    found = pairs(batch, decisions)
    first = [i for i, text in enumerate(texts) if texts.index(text) == i]
    near = {
        first[gone]: first[kept]
        for gone, (kept, _) in by_comparing_all("jaccard", 0.5, [component[i] for i in first]).items()
    }
    for i, text in enumerate(texts):
        successor = near.get(texts.index(text), texts.index(text))
        assert found.get(i, i) == successor
    sizes = {kept: list(found.values()).count(kept) + 1 for kept in found.values()}
    assert decisions.cluster_size.tolist() == [sizes[kept] for kept in found.values()]
    is_near = dict(zip(found, decisions.near.tolist(), strict=True))
    assert is_near == {i: texts.index(texts[i]) in near for i in found}


def test_documents_of_one_template_are_not_compared_with_each_other() -> None:
    """500 documents share 85 of 100 shingles: their similarity is 0.74, so none is removed or even compared."""
    template = set(range(85))
    sets = [frozenset(template | set(range(1000 + 15 * i, 1015 + 15 * i))) for i in range(500)]
    decisions, counts = Verifier().decide(candidates([sets]))
    assert not len(decisions.gone)
    assert counts["comparisons"] == 0


def test_copies_within_one_template_are_found() -> None:
    template = set(range(60))
    bodies = [set(range(1000 + 40 * i, 1040 + 40 * i)) for i in range(400)]
    near = [set(list(bodies[i])[:38]) | {10**6 + i} for i in range(0, 400, 20)]
    sets = [frozenset(template | body) for body in [*bodies, *near]]
    rows = candidates([sets])
    decisions, counts = Verifier().decide(rows)
    assert pairs(rows, decisions) == {400 + k: 20 * k for k in range(20)}
    assert counts["comparisons"] < 100


def test_comparisons_per_document_are_limited_and_omissions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_MAX_ENTRIES", 50)
    rng = np.random.default_rng(0)
    sets = [frozenset(rng.choice(40, 20, replace=False).tolist()) for _ in range(300)]
    index = PrefixIndex([np.array(sorted(s), np.uint64) for s in sets], Verifier(0.3).from_sizes, 0.3)
    for i in range(299):
        index.add(i)
    rivals, left_out = index.rivals(299)
    assert 0 < len(rivals) <= 50 < left_out
    _, counts = Verifier(0.95, max_comparisons=3).decide(candidates([sets]))
    assert counts["comparisons"] <= 3 * 300
