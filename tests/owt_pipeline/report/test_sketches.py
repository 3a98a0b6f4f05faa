"""Statistics that merge: the same whatever the order and the pieces, and as exact as they say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.report.sketches import Details, Frequencies, LogHistogram, Sample, Summary, pack, unpack

VALUES = st.lists(st.integers(0, 2**40) | st.integers(0, 300), min_size=1, max_size=60)
KEYS = st.lists(st.sampled_from(["a.org", "b.org", "c.org", "d.org", "ü.org", ""]) | st.none(), max_size=60)


def in_pieces(values: list, seed: int) -> list[list]:
    """The values in another order, cut into pieces."""
    rng = random.Random(seed)
    shuffled = rng.sample(values, len(values))
    cuts = sorted(rng.choices(range(len(values) + 1), k=3))
    return [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]


def merged(make: Callable[[list], Any], pieces: list[list]) -> Any:
    first, *others = map(make, pieces)
    for other in others:
        first.merge(other)
    return first


def histogram(values: list[int]) -> LogHistogram:
    made = LogHistogram()
    made.add(np.array(values, np.int64))
    return made


@given(VALUES, st.integers(0, 999), st.sampled_from([1, 5, 25, 50, 75, 95, 99, 100]))
@settings(max_examples=200, deadline=None)
def test_a_histogram_knows_its_percentiles_to_within_half_a_percent(values: list[int], seed: int, q: int) -> None:
    found = merged(histogram, in_pieces(values, seed))
    assert (found.count, found.total, found.minimum, found.maximum) == (
        len(values), sum(values), min(values), max(values),
    )  # fmt: skip
    exact = sorted(values)[int(np.ceil(q / 100 * len(values))) - 1]
    assert abs(found.percentile(q) - exact) <= 0.004 * exact
    if exact < 256:
        assert found.percentile(q) == exact


@given(VALUES, st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=200, deadline=None)
def test_a_histograms_bins_hold_what_lies_between_their_edges(values: list[int], per_octave: int) -> None:
    bins = histogram(values).bins(per_octave)
    assert [count for *_, count in bins] == [sum(low <= v < high for v in values) for low, high, _ in bins]
    assert sum(count for *_, count in bins) == len(values)
    assert all(high <= next_low for (_, high, _), (next_low, *_) in pairwise(bins))


@given(VALUES, st.integers(0, 80))
@settings(max_examples=200, deadline=None)
def test_a_histogram_gives_its_values_back(values: list[int], most: int) -> None:
    found = histogram(values).values(most)
    exact = np.sort(np.array(values, np.int64))
    ranks = (2 * np.arange(min(most, len(values))) + 1) * len(values) // (2 * max(1, min(most, len(values))))
    assert np.all(np.abs(found - exact[ranks]) <= 0.004 * exact[ranks])


def test_a_histogram_of_nothing_has_no_percentiles() -> None:
    assert LogHistogram().percentile(50) is None
    assert len(LogHistogram().values(9)) == 0
    assert LogHistogram().bins() == []


def frequencies(keys: list[str | None]) -> Frequencies:
    made = Frequencies()
    made.add(pa.array(keys, pa.string()))
    return made


@given(KEYS, st.integers(0, 999))
@settings(max_examples=50, deadline=None)
def test_few_keys_are_all_counted(keys: list[str | None], seed: int) -> None:
    found = merged(frequencies, in_pieces(keys, seed))
    candidates = found.candidates()
    exact = Counter(key for key in keys if key is not None)
    assert candidates.count(pa.array(keys, pa.string())) == exact
    assert (candidates.bound, found.total, found.distinct()) == (0, exact.total(), len(exact))


def test_the_most_frequent_of_many_keys_are_counted_and_proven() -> None:
    rng = np.random.default_rng(1)
    ranks = np.concatenate([rng.zipf(1.3, 100_000) % 1_000_000, np.arange(1_000_000, 1_150_000)])
    keys = pa.array([f"host-{rank}.org" for rank in ranks])
    exact = Counter(keys.to_pylist())
    found = merged(frequencies, [keys[:70_000].to_pylist(), keys[70_000:].to_pylist()])
    candidates = found.candidates()
    counted = candidates.count(keys)
    assert len(counted) < len(exact) / 5
    top = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:100]
    assert top == sorted(exact.items(), key=lambda item: (-item[1], item[0]))[:100]
    assert all(exact[key] <= candidates.bound for key in exact.keys() - counted.keys())
    assert abs(found.distinct() / len(exact) - 1) < 0.025  # three standard errors
    assert found.total == len(keys)


def rows_of(ids: Sequence[int], values: Sequence[Any]) -> pa.RecordBatch:
    return pa.record_batch({"url_id": pa.array(ids, pa.uint64()), "value": pa.array(values)})


def sample(ids: list[int]) -> Sample:
    made = Sample(5)
    made.add(rows_of(ids, [i % 3 for i in ids]))
    return made


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=40), st.integers(0, 999))
@settings(max_examples=200, deadline=None)
def test_a_sample_is_the_same_in_whatever_order_the_rows_come(ids: list[int], seed: int) -> None:
    found = merged(sample, in_pieces(ids, seed)).rows()
    assert found == sample(ids).rows()
    assert len(found) == min(5, len(set(ids)))


@pytest.mark.parametrize("ids", [range(20_000), range(0, 20_000 << 20, 1 << 20)])
def test_a_sample_favours_no_part_of_the_ids(ids: range) -> None:
    made = Sample(1000)
    made.add(rows_of(ids, range(len(ids))))
    assert abs(np.mean([row["value"] for row in made.rows()]) / 10_000 - 1) < 4 / np.sqrt(12 * 1000) * 2


def test_an_id_with_several_rows_shows_the_same_one_always() -> None:
    for order in ((0, 1), (1, 0)):
        made = Sample(3)
        made.add(rows_of([7, 7], [f"row {k}" for k in order]))
        assert made.rows() == [{"url_id": 7, "value": "row 0"}]


@given(VALUES, KEYS)
@settings(max_examples=50, deadline=None)
def test_a_summary_is_the_same_once_packed_and_can_then_be_added_to(values: list[int], keys: list[str | None]) -> None:
    def summary() -> Summary:
        made = Summary(counters={"status": Counter({200: 3, None: 1})}, vocabulary=np.bincount([1, 1, 3]))
        made.measure("length", pa.array(values))
        made.tally("domain", pa.array(keys, pa.string()))
        made.sample("rows", 3).add(rows_of([value + 2**63 for value in values], ["ü"] * len(values)))
        made.add_cluster(2**64 - 1, 2, [{"url_id": 5, "similarity": 0.8125}])
        return made

    plain, packed = summary(), unpack(pack(summary()), Summary)
    assert pack(packed) == pack(plain)
    for made in (plain, packed):
        made.merge(summary())
    assert pack(packed) == pack(plain)
    details = Details({"failed": Counter({("a.org", "http_404"): 2})}, {2**63: None}, {1: "text"})
    assert unpack(pack(details), Details) == details
