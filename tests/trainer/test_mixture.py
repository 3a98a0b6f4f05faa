"""The report's table of what each sampler shows is what the trainer's samplers do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.stages.report.figures import LENGTHS, realised_mixture
from trainer.samplers import Packed, Sampler, longbiased
from trainer.shards import Documents

CONTEXT, EOT = 256, 65535
SAMPLES = 4096


def made_up(count: int = 3000) -> Documents:
    """Log-normal lengths; every token of a document is the row its length belongs to."""
    lengths = np.random.default_rng(5).lognormal(5.5, 1.2, count).astype(np.int64)
    rows = (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint16)
    starts = np.cumsum(lengths) - lengths
    return Documents([np.repeat(rows, lengths)], starts, lengths, np.array([0]))


def drawn(sampler: Sampler) -> tuple[np.ndarray, np.ndarray]:
    """(share of samples, share of tokens) by row, as the sampler realises them."""
    windows = sampler.windows(0, SAMPLES)[:, :CONTEXT]
    holds = np.array([(windows == row).any(axis=1).mean() for row in range(len(LENGTHS))])
    tokens = np.array([(windows == row).sum() for row in range(len(LENGTHS))])
    return holds, tokens / (windows != EOT).sum()


@pytest.mark.parametrize("name", ["packed", "longbiased"])
def test_the_table_is_what_the_sampler_draws(name: str) -> None:
    documents = made_up()
    table = realised_mixture(documents.lengths, CONTEXT)
    sampler = Packed(documents, CONTEXT, EOT, 3) if name == "packed" else longbiased(documents, CONTEXT, EOT, 3)
    holds, tokens = drawn(sampler)
    for row, entry in enumerate(table):
        shown = getattr(entry, name)
        # The table's order of documents is another than the sampler's: their difference is a matter of chance.
        assert abs(shown.samples - holds[row]) <= 4 * np.sqrt(shown.samples * (1 - shown.samples) / SAMPLES) + 0.015
        assert abs(shown.tokens - tokens[row]) <= 0.015
    assert sum(entry.documents for entry in table) == pytest.approx(1)
    assert sum(getattr(entry, name).tokens for entry in table) == pytest.approx(1)


@given(lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=60), context=st.integers(1, 600))
@settings(max_examples=50, deadline=None)
def test_the_shares_of_a_mixture_are_those_of_its_parts(lengths: list[int], context: int) -> None:
    table = realised_mixture(np.array(lengths), context, long_min_tokens=1000, long_fraction=0.5)
    has_long = max(lengths) >= 1000
    for entry in table:
        assert (entry.longbiased is not None) == has_long
        assert 0 <= entry.packed.tokens <= 1
        assert 0 <= entry.packed.samples <= 1
        if entry.longbiased and entry.below is not None and entry.below <= 1000:
            assert entry.longbiased.tokens == pytest.approx(entry.packed.tokens / 2)
            assert entry.longbiased.samples == pytest.approx(entry.packed.samples / 2)


def test_a_single_document_fills_every_sample() -> None:
    (row,) = [row for row in realised_mixture(np.array([700]), 128) if row.documents]
    assert (row.at_least, row.below) == (512, 1024)
    assert (row.packed.samples, row.packed.tokens) == (1, 1)
    assert row.longbiased == row.packed


def test_a_corpus_without_documents_is_refused() -> None:
    with pytest.raises(ValueError, match="no document"):
        realised_mixture(np.zeros(0, np.int64))
