"""The tokens of training sample i: pure functions of (seed, i), the same on any number of ranks.

A sampler is anything with a `block_size` and `windows(first, count)`. Its samples never end. It has
no state to save, and it does not read the samples before `first`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from trainer.data.mapped_documents import Documents

# Binary digits of a mixture's share.
_SHARE_BITS = 40
# Another seed, so that the long documents do not come in the order they have among all.
_LONG_SEED = 0x4C4F4E47
# Ends the key of a permutation, which would otherwise be the same for documents and windows.
_OF_DOCUMENTS = 0
_OF_WINDOWS = 1
_remember_two = functools.lru_cache(maxsize=2)


class Sampler(Protocol):
    """An endless sequence of training samples."""

    block_size: int

    def windows(self, first: int, count: int) -> np.ndarray:
        """Return samples first … first+count−1: token ids (count, block_size + 1).

        In each row, `[:-1]` are the inputs and `[1:]` the targets.
        """


class Packed:
    """All documents in a permuted order, each after an end-of-text, cut into windows.

        stream   ⏎ c c c c ⏎ a a ⏎ b b b b b b ⏎ …       a new permutation every epoch, without end
        window 0 ⏎ c c c c                                block size 4: five tokens,
        window 1         c ⏎ a a ⏎                        the last of which is the next one's first

    Over an epoch every token of every document, and each end-of-text, is predicted exactly once:
    nothing is padded or dropped. A window that straddles two epochs belongs to the one it starts
    in. Windows are permuted within their epoch; otherwise those of one long document would fill a
    batch.

    `subset` are the documents to use (default: all). Raises ValueError without any.
    """

    def __init__(
        self,
        documents: Documents,
        block_size: int,
        eot: int,
        seed: int,
        subset: np.ndarray | None = None,
    ) -> None:
        self.documents = documents
        self.block_size = block_size
        self.eot = eot
        self.seed = seed
        self._subset = subset
        self._lengths = documents.lengths if subset is None else documents.lengths[subset]
        if not len(self._lengths):
            raise ValueError("there is no document to sample from")
        self.epoch_tokens = int(self._lengths.sum()) + len(self._lengths)
        self._epoch = _remember_two(self._permute_documents)
        self._windows = _remember_two(self._permute_windows)

    def first_window(self, epoch: int) -> int:
        """Return the first window that starts in `epoch`.

        Samples first_window(e) … first_window(e+1)−1 are those of epoch e.
        """
        return -(-epoch * self.epoch_tokens // self.block_size)

    def windows(self, first: int, count: int) -> np.ndarray:
        width = self.block_size + 1
        out = np.full((count, width), self.eot, dtype=self.documents.dtype)
        begin = self._windows_of(np.arange(first, first + count)) * self.block_size
        self._copy(
            out.reshape(-1), begin=begin, length=np.full(count, width), at=np.arange(count) * width
        )
        return out

    def _windows_of(self, samples: np.ndarray) -> np.ndarray:
        """Return the window of each sample: a window of the sample's epoch."""
        epochs = samples * self.block_size // self.epoch_tokens
        windows = samples.copy()
        for epoch in np.unique(epochs).tolist():
            first = self.first_window(epoch)
            chosen = epochs == epoch
            windows[chosen] = self._windows(epoch)[samples[chosen] - first]
            windows[chosen] += first
        return windows

    def _permute_windows(self, epoch: int) -> np.ndarray:
        """Return the order of an epoch's windows, counted from its first."""
        num_windows = self.first_window(epoch + 1) - self.first_window(epoch)
        return permutation(num_windows, self.seed, epoch, _OF_WINDOWS)

    def _copy(self, out: np.ndarray, begin: np.ndarray, length: np.ndarray, at: np.ndarray) -> None:
        """Copy parts of the endless stream: part k to out[at[k]:at[k]+length[k]].

        Part k is positions begin[k] … begin[k]+length[k]−1 of the stream. End-of-text is in `out`
        already.
        """
        while len(begin):
            epochs, position = np.divmod(begin, self.epoch_tokens)
            in_this_epoch = np.minimum(length, self.epoch_tokens - position)
            for epoch in np.unique(epochs).tolist():
                chosen = epochs == epoch
                self._copy_within(
                    out,
                    epoch,
                    begin=position[chosen],
                    length=in_this_epoch[chosen],
                    at=at[chosen],
                )
            # The rest of those that straddle the epoch's end.
            straddles = length > in_this_epoch
            begin = (begin + in_this_epoch)[straddles]
            at = (at + in_this_epoch)[straddles]
            length = (length - in_this_epoch)[straddles]

    def _copy_within(
        self, out: np.ndarray, epoch: int, begin: np.ndarray, length: np.ndarray, at: np.ndarray
    ) -> None:
        """Copy parts of one epoch: the tokens of the documents in each of them."""
        order, ends = self._epoch(epoch)
        end = begin + length
        first_slot = np.searchsorted(ends, begin, side="right")
        num_documents = np.searchsorted(ends, end) - first_slot + 1
        # One entry for each document of each part: its part, and its place in the epoch's order.
        part = np.repeat(np.arange(len(begin)), num_documents)
        first_entry = np.cumsum(num_documents) - num_documents
        slots = np.arange(len(part)) + (first_slot - first_entry)[part]
        documents = order[slots]
        # Where the tokens start; end-of-text is one before.
        starts = ends[slots] - self.documents.lengths[documents]
        first = np.maximum(starts, begin[part])
        stop = np.minimum(ends[slots], end[part])
        self.documents.copy_into(
            out,
            documents,
            at=at[part] + first - begin[part],
            begin=first - starts,
            # 0 if the part ends with the document's end-of-text.
            count=stop - first,
        )

    def _permute_documents(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents in the epoch's order, and where in its stream each ends."""
        order = permutation(len(self._lengths), self.seed, epoch, _OF_DOCUMENTS)
        ends = np.cumsum(self._lengths[order] + 1)
        return order if self._subset is None else self._subset[order], ends


class Mixture:
    """Samples of two samplers, a `share` of them from the first; nest it for more than two.

    Of samples 0 … i−1, ⌊i · share⌋ are from the first. So sources are spread evenly, and the number
    of a source's samples in a batch is within one of its share. Both samplers are read in order, so
    no token is skipped. `share`, from 0 to 1, is rounded to a multiple of 2**-40. Both
    samplers have the same block size.
    """

    def __init__(self, first: Sampler, second: Sampler, share: float) -> None:
        self.block_size = first.block_size
        self._first = first
        self._second = second
        self._share = round(share * (1 << _SHARE_BITS))

    def sources(self, first: int, count: int) -> tuple[np.ndarray, int]:
        """Return whether each sample is from the second sampler.

        Also return how many samples before sample `first` are from the first one.
        """
        before, rest = divmod(first * self._share, 1 << _SHARE_BITS)
        # The products fit in 64 bits up to 2**23 samples.
        from_first = (rest + np.arange(count + 1) * self._share) >> _SHARE_BITS
        return np.diff(from_first) == 0, before

    def windows(self, first: int, count: int) -> np.ndarray:
        is_second, before = self.sources(first, count)
        num_second = int(is_second.sum())
        of_first = _read(self._first, before, count - num_second)
        of_second = _read(self._second, first - before, num_second)
        dtype = np.promote_types(of_first.dtype, of_second.dtype)
        out = np.empty((count, self.block_size + 1), dtype)
        out[~is_second] = of_first
        out[is_second] = of_second
        return out


def _read(sampler: Sampler, first: int, count: int) -> np.ndarray:
    """Return `count` samples, which may be 0."""
    return sampler.windows(first, max(1, count))[:count]


def mix(samplers: Sequence[Sampler], weights: Sequence[float]) -> Sampler:
    """Return samples of several samplers in proportion to `weights`: nested mixtures of two."""
    sampler = samplers[-1]
    for k in reversed(range(len(samplers) - 1)):
        # The share of each among its own samples and those of all samplers after it.
        share = weights[k] / sum(weights[k:])
        sampler = Mixture(samplers[k], sampler, share)
    return sampler


def longbiased(
    documents: Documents,
    block_size: int,
    eot: int,
    seed: int,
    long_min_tokens: int = 512,
    long_fraction: float = 0.7,
) -> Sampler:
    """Return samples: a `long_fraction` from long documents, the others from all, long ones too.

    A long document has at least `long_min_tokens`. Both kinds are packed: every long document is
    read once in each epoch of the long ones, and every document once in each epoch of all. The
    recipe is that of ConnorJL's GPT2 (`openwebtext_longbiased`), which kept only one window of each
    42 documents that it joined. Raises ValueError if no document is long.
    """
    is_long = documents.lengths >= long_min_tokens
    from_long = Packed(documents, block_size, eot, seed ^ _LONG_SEED, np.flatnonzero(is_long))
    from_all = Packed(documents, block_size, eot, seed)
    return Mixture(from_long, from_all, long_fraction)


def permutation(n: int, *key: int) -> np.ndarray:
    """Return the numbers below n in the order that `key` determines, int32 if they fit.

    NumPy never changes the numbers of a RandomState, so that a run resumes with any version.
    """
    order = np.random.RandomState(key).permutation(n)
    return order.astype(np.int32) if n < 1 << 31 else order
