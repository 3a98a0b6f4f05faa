"""Which tokens make up training sample i: pure functions of (seed, i), the same on any number of
ranks.

A sampler is anything with `windows(first, count)`. Its samples never end. It has no state to save
and needs no seeking: sample 10**9 costs as much as sample 0.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from trainer.shards import Documents

_BLOCK_BITS = 10
_BLOCK = 1 << _BLOCK_BITS
_SHARE_BITS = 40
_recent = functools.lru_cache(maxsize=2)  # for speed: keeps the last two values of a function
_WINDOWS = 1  # so that permutations of windows and of documents have different keys


class Sampler(Protocol):
    """An endless sequence of training samples."""

    context: int

    def windows(self, first: int, count: int) -> np.ndarray:
        """Samples first … first+count−1: token ids (count, context + 1), inputs and targets in
        one row."""


class Packed:
    """All documents in a permuted order, each after an end-of-text, cut into windows, which are
    permuted too.

        stream   ⏎ c c c c ⏎ a a ⏎ b b b b b b ⏎ …       a new permutation every epoch, without end
        window 0 ⏎ c c c c                                context 4: five tokens,
        window 1         c ⏎ a a ⏎                        the last of which is the next one's first

    Over an epoch every token of every document, and each end-of-text, is predicted exactly once:
    nothing is padded or dropped. A window that straddles two epochs belongs to the one it starts
    in. Windows are permuted within their epoch; otherwise those of one long document would fill a
    batch.

    `subset` are the documents to use (default: all); without any there is a ValueError.
    """

    def __init__(
        self,
        documents: Documents,
        context: int,
        eot: int,
        seed: int,
        subset: np.ndarray | None = None,
    ) -> None:
        self.documents, self.context, self.eot, self.seed, self._subset = (
            documents,
            context,
            eot,
            seed,
            subset,
        )
        self._lengths = documents.lengths if subset is None else documents.lengths[subset]
        if not len(self._lengths):
            raise ValueError("there is no document to sample from")
        self.epoch_tokens = int(self._lengths.sum()) + len(self._lengths)
        self._epoch, self._block = _recent(self._permute_documents), _recent(self._permute_block)

    def first_window(self, epoch: int) -> int:
        """The first window that starts in `epoch`: samples first_window(e) … first_window(e+1)−1
        are epoch e's."""
        return -(-epoch * self.epoch_tokens // self.context)

    def windows(self, first: int, count: int) -> np.ndarray:
        width = self.context + 1
        out = np.full((count, width), self.eot, dtype=self.documents.dtype)
        begin = self._permuted(np.arange(first, first + count)) * self.context
        self._copy(out.reshape(-1), begin, np.full(count, width), np.arange(count) * width)
        return out

    def _permuted(self, samples: np.ndarray) -> np.ndarray:
        """The window of each sample; the samples are consecutive."""
        if self.first_window(1) < _BLOCK:
            return self._permute(samples)
        first, end = int(samples[0]), int(samples[-1]) + 1
        blocks = range(first >> _BLOCK_BITS, ((end - 1) >> _BLOCK_BITS) + 1)
        return np.concatenate([*map(self._block, blocks)])[first - blocks[0] * _BLOCK :][
            : len(samples)
        ]

    def _permute_block(self, block: int) -> np.ndarray:
        return self._permute(np.arange(block * _BLOCK, (block + 1) * _BLOCK))

    def _permute(self, samples: np.ndarray) -> np.ndarray:
        epochs = samples * self.context // self.epoch_tokens
        windows = samples.copy()
        for epoch in np.unique(epochs).tolist():
            low, high = self.first_window(epoch), self.first_window(epoch + 1)
            if high - low > 1:
                own = epochs == epoch
                order = Permutation(high - low, self.seed, epoch, _WINDOWS)
                windows[own] = low + order(samples[own] - low)
        return windows

    def _copy(self, out: np.ndarray, begin: np.ndarray, length: np.ndarray, at: np.ndarray) -> None:
        """For each k: positions begin[k] … begin[k]+length[k]−1 of the stream to `out`, from
        at[k] on."""
        while len(begin):
            epochs, position = np.divmod(begin, self.epoch_tokens)
            part = np.minimum(length, self.epoch_tokens - position)
            for epoch in np.unique(epochs).tolist():
                own = epochs == epoch
                self._copy_within(out, epoch, position[own], part[own], at[own])
            rest = length > part  # what straddles the epoch's end
            begin, length, at = (begin + part)[rest], (length - part)[rest], (at + part)[rest]

    def _copy_within(
        self, out: np.ndarray, epoch: int, begin: np.ndarray, length: np.ndarray, at: np.ndarray
    ) -> None:
        """The documents' tokens of these parts of one epoch; end-of-text is in `out` already."""
        order, ends = self._epoch(epoch)
        end = begin + length
        low = np.searchsorted(ends, begin, side="right")  # the first document of each part
        number = np.searchsorted(ends, end) - low + 1
        part = np.repeat(np.arange(len(begin)), number)
        slots = np.arange(len(part)) + (low - np.cumsum(number) + number)[part]
        documents = order[slots]
        starts = (
            ends[slots] - self.documents.lengths[documents]
        )  # of the tokens; end-of-text is one before
        first = np.maximum(starts, begin[part])
        count = np.maximum(np.minimum(ends[slots], end[part]) - first, 0)
        self.documents.copy_into(
            out, documents, at[part] + first - begin[part], first - starts, count
        )

    def _permute_documents(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """(the documents in the epoch's order, where in its stream each ends)."""
        n = len(self._lengths)
        order = Permutation(n, self.seed, epoch)(np.arange(n))
        ends = np.cumsum(self._lengths[order] + 1)
        documents = order if self._subset is None else self._subset[order]
        return documents.astype(np.int32 if len(self.documents) < 1 << 31 else np.int64), ends


class Mixture:
    """Samples of two samplers, a `share` of them from the first; nest it for more than two.

    Of samples 0 … i−1, ⌊i · share⌋ are from the first: sources are spread evenly, so that every
    batch has the share but for one sample. Both samplers are read in order, so no token is skipped.
    `share` is rounded to a multiple of 2**-40. Raises ValueError: the samplers have different
    contexts, or the share is not between 0 and 1.
    """

    def __init__(self, first: Sampler, second: Sampler, share: float) -> None:
        if first.context != second.context:
            raise ValueError(f"samplers of different context: {first.context} and {second.context}")
        if not 0 <= share <= 1:
            raise ValueError(f"a share lies between 0 and 1, not {share}")
        self.context, self._share, self._samplers = (
            first.context,
            round(share * (1 << _SHARE_BITS)),
            (first, second),
        )

    def sources(self, first: int, count: int) -> tuple[np.ndarray, int]:
        """(whether each sample is from the second sampler, samples of the first sampler before
        sample `first`)."""
        before, rest = divmod(first * self._share, 1 << _SHARE_BITS)
        own = (
            rest + np.arange(count + 1) * self._share
        ) >> _SHARE_BITS  # fits in 64 bits up to 2**23 samples
        return np.diff(own) == 0, before

    def windows(self, first: int, count: int) -> np.ndarray:
        second, before = self.sources(first, count)
        starts, counts = (before, first - before), (count - int(second.sum()), int(second.sum()))
        parts = [
            sampler.windows(start, max(1, number))[:number]
            for sampler, start, number in zip(self._samplers, starts, counts, strict=True)
        ]
        out = np.empty((count, self.context + 1), np.promote_types(parts[0].dtype, parts[1].dtype))
        out[~second], out[second] = parts
        return out


def mix(samplers: Sequence[Sampler], weights: Sequence[float]) -> Sampler:
    """Samples of several samplers in proportion to `weights`: nested mixtures of two."""
    sampler = samplers[-1]
    for k in reversed(range(len(samplers) - 1)):
        # The share of each among its own samples and those of all samplers after it.
        sampler = Mixture(samplers[k], sampler, weights[k] / sum(weights[k:]))
    return sampler


def longbiased(
    documents: Documents,
    context: int,
    eot: int,
    seed: int,
    long_min_tokens: int = 512,
    long_fraction: float = 0.7,
) -> Sampler:
    """`long_fraction` of the samples from documents of at least `long_min_tokens`, the others
    from all.

    Both kinds are packed: every long document is read once in each epoch of the long ones, and
    every document once in each epoch of all. The recipe is that of ConnorJL's GPT2
    (`openwebtext_longbiased`), which kept only one window of each 42 documents that it joined. If
    none is long there is a ValueError.
    """
    long = np.flatnonzero(documents.lengths >= long_min_tokens)
    # Another seed, so that the long documents do not come in the order they have among all.
    first = Packed(documents, context, eot, seed ^ 0x4C4F4E47, long)
    return Mixture(first, Packed(documents, context, eot, seed), long_fraction)


_ROUNDS = 6  # four are enough for a large domain (Luby and Rackoff); small ones need two more
_MASK64 = (1 << 64) - 1


class Permutation:
    """A pseudorandom permutation of the integers below `n`, chosen by `key`.

    A Feistel network (Luby and Rackoff, 1988) over the smallest power of two of at least n,
    restricted to n by cycle walking (Black and Rogaway, 2002): an image outside is permuted again
    until it is inside. As a data order: Levanter. The round function is MurmurHash3's 32-bit
    finaliser. n is from 1 to 2**62; equal keys give equal permutations.
    """

    def __init__(self, n: int, *key: int) -> None:
        if not 1 <= n <= 1 << 62:
            raise ValueError(f"a permutation needs 1 to 2**62 elements, not {n}")
        self.n = n
        bits = max(2, (n - 1).bit_length())
        self._low_bits = bits // 2
        self._high_bits = bits - bits // 2
        state = 0
        for part in key:
            state = mix64(state ^ mix64(part & _MASK64))
        self._keys = [
            np.uint32(mix64(state + round_number) & 0xFFFFFFFF) for round_number in range(_ROUNDS)
        ]

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """The images of `index` (any integers below n) as int64."""
        image = self._encrypt(index.astype(np.uint64))
        outside = np.flatnonzero(image >= self.n)
        while (
            outside.size
        ):  # under half of them each time: the domain is under twice n (four at n below 3)
            image[outside] = self._encrypt(image[outside])
            outside = outside[image[outside] >= self.n]
        return image.astype(np.int64)

    def _encrypt(self, value: np.ndarray) -> np.ndarray:
        low_bits, high_bits = self._low_bits, self._high_bits
        high = (value >> np.uint64(low_bits)).astype(np.uint32)
        low = (value & np.uint64((1 << low_bits) - 1)).astype(np.uint32)
        for key in self._keys:
            # The halves swap, and with them their widths; an even number of rounds brings them
            # back.
            high, low = low, high ^ (_mix32(low ^ key) & np.uint32((1 << high_bits) - 1))
            high_bits, low_bits = low_bits, high_bits
        return (high.astype(np.uint64) << np.uint64(low_bits)) | low


def mix64(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014) on one integer."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _mix32(value: np.ndarray) -> np.ndarray:
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x85EBCA6B)
    value ^= value >> np.uint32(13)
    value *= np.uint32(0xC2B2AE35)
    value ^= value >> np.uint32(16)
    return value
