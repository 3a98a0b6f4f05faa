from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.loader import Loader
from trainer.data.mapped_documents import Chunk, Documents
from trainer.data.samplers import Mixture, Packed, longbiased, permutation

EOT = 65535
CORPORA = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def documents_of(lengths: Sequence[int], chunk: int = 4) -> Documents:
    """Return documents of these lengths in several chunks.

    Token number t of all is t, so each is known by its id.
    """
    tokens = np.split(np.arange(sum(lengths), dtype=np.uint16), np.cumsum(lengths)[:-1])
    parts = [tokens[first : first + chunk] for first in range(0, len(lengths), chunk)]
    chunks = []
    for arrays in parts:
        sizes = np.array([len(ids) for ids in arrays])
        chunks.append(Chunk(np.concatenate(arrays), sizes, np.cumsum(sizes) - sizes))
    return Documents(chunks)


def stream_of(packed: Packed, begin: int, length: int) -> np.ndarray:
    """Return `length` tokens of the sampler's endless stream from position `begin`."""
    out = np.full(length, packed.eot, dtype=packed.documents.dtype)
    packed._copy(out, np.array([begin]), np.array([length]), np.array([0]))
    return out


@given(
    lengths=CORPORA,
    block_size=st.integers(1, 25),
    seed=st.integers(0, 99),
    epochs=st.integers(1, 3),
)
def test_an_epoch_predicts_every_token_exactly_once(
    lengths: list[int], block_size: int, seed: int, epochs: int
) -> None:
    packed = Packed(documents_of(lengths), block_size, EOT, seed)
    count = packed.first_window(epochs)
    predicted = packed.windows(0, count)[:, 1:] if count else np.zeros((0, block_size), np.uint16)
    # The last window of these epochs reaches into the next: its targets there are not these
    # epochs'.
    beyond = count * block_size + 1 - epochs * packed.epoch_tokens
    counts = Counter(predicted.ravel().tolist()) - Counter(
        stream_of(packed, epochs * packed.epoch_tokens, beyond).tolist()
    )
    assert {counts[token] for token in range(sum(lengths))} <= {epochs}
    # The first token is not the target of any window.
    assert counts[EOT] == epochs * len(lengths) - 1


@given(lengths=CORPORA, block_size=st.integers(1, 25), epoch=st.integers(0, 3))
def test_an_epochs_windows_are_its_streams_permuted(
    lengths: list[int], block_size: int, epoch: int
) -> None:
    packed = Packed(documents_of(lengths), block_size, EOT, 7)
    first = packed.first_window(epoch)
    last = packed.first_window(epoch + 1)
    stream = stream_of(packed, first * block_size, (last - first) * block_size + 1).tolist()
    cut = [stream[k * block_size : (k + 1) * block_size + 1] for k in range(last - first)]
    windows = packed.windows(first, last - first).tolist() if last > first else []
    assert sorted(windows) == sorted(cut)
    if len(cut) > 20:
        assert windows != cut


@given(lengths=CORPORA, block_size=st.integers(1, 25), seed=st.integers(0, 99))
def test_documents_are_not_split_and_follow_an_end_of_text(
    lengths: list[int], block_size: int, seed: int
) -> None:
    documents = documents_of(lengths)
    packed = Packed(documents, block_size, EOT, seed)
    stream = stream_of(packed, 0, packed.epoch_tokens).tolist()
    windows_of_document = []
    current = None
    for token in stream:
        if token == EOT:
            current = []
            windows_of_document.append(current)
        else:
            assert current is not None
            current.append(token)
    assert sorted(map(tuple, windows_of_document)) == sorted(
        tuple(documents[k].tolist()) for k in range(len(lengths))
    )


@pytest.mark.parametrize("name", ["packed", "longbiased"])
@given(
    batch=st.integers(1, 60),
    device_batch_size=st.integers(1, 9),
    ranks=st.integers(1, 9),
    step=st.integers(0, 10_000),
)
@settings(max_examples=30, deadline=None)
def test_a_batch_is_the_same_on_any_ranks_after_any_restart(
    name: str, batch: int, device_batch_size: int, ranks: int, step: int
) -> None:
    ranks = min(ranks, batch)
    loaders = [
        Loader(_sampler(name), batch, device_batch_size, rank, ranks) for rank in range(ranks)
    ]
    assert (
        len({loader.accumulation for loader in loaders}) == 1
    )  # ranks wait for each other at each micro-batch
    got = []
    sizes = []
    for loader in loaders:
        batches = loader.batches(step)
        for micro_step in range(loader.accumulation):
            sizes.append(round(loader.weight(micro_step) * batch))
            got.append(next(batches)[0].numpy()[: sizes[-1]])
        batches.close()
    assert np.array_equal(np.concatenate(got), _sampler(name).windows(step * batch, batch)[:, :-1])
    assert max(sizes) <= device_batch_size
    assert max(sizes) - min(sizes) <= 2


@pytest.mark.parametrize(
    ("batch", "device_batch_size", "world_size"), [(7, 2, 2), (5, 2, 1), (8, 3, 3), (3, 8, 2)]
)
def test_micro_batches_have_one_shape_and_ignored_padding(
    batch: int, device_batch_size: int, world_size: int
) -> None:
    counted = []
    ends = 0
    for rank in range(world_size):
        loader = Loader(
            _sampler("packed"), batch, device_batch_size, rank=rank, world_size=world_size
        )
        batches = loader.batches(3)
        for number in range(loader.accumulation):
            inputs, targets = next(batches)
            assert inputs.shape == targets.shape == (loader.device_batch_size, 16)
            assert inputs.dtype == targets.dtype == torch.int64
            assert inputs.min() >= 0
            ends += int((inputs == EOT).sum())
            assert targets.stride() == (16, 1)
            rows = (targets != -100).all(1)
            assert torch.equal(rows, (targets != -100).any(1))
            assert inputs[rows][:, 1:].equal(targets[rows][:, :-1])
            assert rows.sum() == max(1, round(loader.weight(number) * batch))
            counted.append(loader.weight(number))
        batches.close()
    assert sum(counted) == pytest.approx(1)
    assert ends, "65,535 survives the way through 16 signed bits"


@given(share=st.floats(0, 1), first=st.integers(0, 10**12), count=st.integers(1, 5000))
def test_a_mixture_has_its_share_in_each_batch_and_no_gaps(
    share: float, first: int, count: int
) -> None:
    mixture = Mixture(_sampler("packed"), _sampler("packed"), share)
    second, num_before = mixture.sources(first, count)
    position = np.cumsum(~second)
    assert np.abs(position - share * np.arange(1, count + 1)).max() < 1 + 1e-8 * count
    assert mixture.sources(first + count, 1)[1] == num_before + position[-1]


def test_longbiased_gives_the_token_shares_of_its_definition() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 400).tolist()
    documents = documents_of(lengths)
    length_of = np.repeat(lengths, lengths)
    sampler = longbiased(documents, 16, EOT, 3, long_min_tokens=40, long_fraction=0.7)
    tokens = sampler.windows(0, 20_000)[:, 1:].ravel()
    tokens = tokens[tokens != EOT]
    long = np.array([n for n in lengths if n >= 40])
    # Of a packed stream's targets, n of each document's n + 1 are tokens, one is its end-of-text.
    from_long = 0.7 * long.sum() / (long.sum() + len(long))
    all_tokens = sum(lengths)
    all_long = long.sum()
    from_all = 0.3 / (all_tokens + len(lengths))
    expected = (from_long + from_all * all_long) / (from_long + from_all * all_tokens)
    assert abs((length_of[tokens] >= 40).mean() - expected) < 0.005


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Packed(documents_of([5]), 4, EOT, 0, subset=np.zeros(0, np.int64)), "no document"),
        (lambda: longbiased(documents_of([3, 4]), 8, EOT, 0), "no document"),
        (
            lambda: Loader(_sampler("packed"), 3, 2, world_size=5),
            "a batch of 3 samples is too small for 5 ranks",
        ),
    ],
)
def test_what_cannot_be_sampled_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def _sampler(name: str) -> Packed | Mixture:
    documents = documents_of([7, 60, 3, 20, 45, 1, 33, 12, 80] * 4)
    if name == "packed":
        return Packed(documents, 16, EOT, 11)
    sampler = longbiased(documents, 16, EOT, 11, long_min_tokens=40)
    assert isinstance(sampler, Mixture)
    return sampler


def test_batches_are_prefetched() -> None:
    requested: list[int] = []

    class Watched:
        block_size = 16

        def windows(self, first: int, count: int) -> np.ndarray:
            requested.append(first)
            return np.zeros((count, 17), np.uint16)

    batches = Loader(Watched(), 4, 4).batches(10)
    next(batches)
    end = time.monotonic() + 10
    while len(requested) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    assert requested == [40, 44, 48]
    batches.close()  # type: ignore[attr-defined]


def test_each_seed_and_epoch_gives_another_order() -> None:
    orders = {
        tuple(permutation(100, seed, epoch, kind).tolist())
        for seed in range(20)
        for epoch in range(20)
        for kind in (0, 1)
    }
    assert len(orders) == 800
    # The order of a run must never change with a version of NumPy.
    assert permutation(10, 1337, 2, 1).tolist() == [8, 6, 9, 3, 0, 1, 7, 4, 2, 5]
