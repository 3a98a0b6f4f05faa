"""Which tokens make up training sample i: pure functions of (seed, i), the same on any number of ranks.

A sampler is anything with `windows(first, count)`. Its samples go on for ever; there is no state to
save, and nothing to seek: sample 10**9 costs what sample 0 costs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import numpy as np

from trainer.permutation import Permutation
from trainer.shards import Documents

_BLOCK_BITS = 10
_BLOCK = 1 << _BLOCK_BITS
_SHARE_BITS = 20


class Sampler(Protocol):
    """An endless sequence of training samples."""

    context: int

    def windows(self, first: int, count: int) -> np.ndarray:
        """Samples first … first+count−1: token ids (count, context + 1), inputs and targets in one row."""
        ...


class Packed:
    """All documents in a permuted order, each after an end-of-text, cut into windows.

        stream   ⏎ c c c c ⏎ a a ⏎ b b b b b b ⏎ …       a new permutation every epoch, without end
        window 0 ⏎ c c c c                                context 4: five tokens,
        window 1         c ⏎ a a ⏎                        the last of which is the next one's first

    So over an epoch every token of every document is predicted exactly once, and each end-of-text
    too: nothing is padded and no tail is dropped; the window that straddles two epochs belongs to both.

    Args:
      documents: the documents.
      context: tokens a sample predicts.
      eot: id of end-of-text.
      seed: of the permutations.
      subset: the documents to use, where not all.

    Raises:
      ValueError: there is no document.
    """

    def __init__(
        self, documents: Documents, context: int, eot: int, seed: int, subset: np.ndarray | None = None
    ) -> None:
        self.documents, self.context, self.eot, self.seed = documents, context, eot, seed
        self._subset = subset
        self._lengths = documents.lengths if subset is None else documents.lengths[subset]
        if not len(self._lengths):
            raise ValueError("there is no document to sample from")
        self.epoch_tokens = int(self._lengths.sum()) + len(self._lengths)
        self._epochs: OrderedDict[int, tuple[Permutation, np.ndarray]] = OrderedDict()

    @property
    def windows_per_epoch(self) -> float:
        return self.epoch_tokens / self.context

    def windows(self, first: int, count: int) -> np.ndarray:
        stream = self.stream(first * self.context, count * self.context + 1)
        step = stream.itemsize
        shared = np.lib.stride_tricks.as_strided(
            stream, (count, self.context + 1), (self.context * step, step), writeable=False
        )
        return shared.copy()

    def stream(self, begin: int, length: int) -> np.ndarray:
        """`length` tokens of the endless stream from position `begin`."""
        out = np.full(length, self.eot, dtype=self.documents.dtype)
        filled = 0
        while filled < length:
            epoch, position = divmod(begin + filled, self.epoch_tokens)
            part = min(length - filled, self.epoch_tokens - position)
            self._fill(out[filled : filled + part], epoch, position)
            filled += part
        return out

    def _fill(self, out: np.ndarray, epoch: int, begin: int) -> None:
        """Write the documents' tokens of [begin, begin + len(out)) of one epoch; end-of-text is there already."""
        order, ends = self._epoch(epoch)
        end = begin + len(out)
        slots = np.arange(np.searchsorted(ends, begin, side="right"), np.searchsorted(ends, end) + 1)
        documents = order(slots)
        if self._subset is not None:
            documents = self._subset[documents]
        starts = ends[slots] - self.documents.lengths[documents]  # of the tokens; end-of-text is one before
        from_ = np.maximum(starts, begin)
        count = np.minimum(ends[slots], end) - from_
        some = count > 0
        self.documents.copy_into(out, documents[some], (from_ - begin)[some], (from_ - starts)[some], count[some])

    def _epoch(self, epoch: int) -> tuple[Permutation, np.ndarray]:
        """(order, where in the epoch's stream each document ends); the last two epochs are kept."""
        if epoch not in self._epochs:
            order = Permutation(len(self._lengths), self.seed, epoch)
            ends = np.cumsum(self._lengths[order(np.arange(len(self._lengths)))] + 1)
            self._epochs[epoch] = (order, ends)
            if len(self._epochs) > 2:
                self._epochs.popitem(last=False)
        self._epochs.move_to_end(epoch)
        return self._epochs[epoch]


class Mixture:
    """Samples of two samplers, `share` of them from the first; more corpora by nesting.

    Each block of 1,024 samples holds a fixed number from the first sampler, at places that a
    permutation of the block's own picks. So how many came before sample i, and with it which sample of
    which sampler i is, follows without looking at the samples before; and both samplers are read in
    order, so no token loses its turn. The realised share differs from `share` by less than a sample a
    block; `share` is rounded to a multiple of 2**-20.
    """

    def __init__(self, first: Sampler, second: Sampler, share: float, seed: int) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"a share lies between 0 and 1, not {share}")
        if first.context != second.context:
            raise ValueError(f"samplers of different context: {first.context} and {second.context}")
        self.context, self.seed = first.context, seed
        self._samplers = (first, second)
        self._share = round(share * (1 << _SHARE_BITS))

    def windows(self, first: int, count: int) -> np.ndarray:
        source, index = self.draw(first, count)
        out: np.ndarray | None = None
        for number, sampler in enumerate(self._samplers):
            rows = np.flatnonzero(source == number)
            if not rows.size:
                continue
            # A sampler's samples within [first, first + count) follow one another, in permuted order.
            wanted = index[rows]
            low = int(wanted.min())
            part = sampler.windows(low, int(wanted.max()) - low + 1)
            if out is None:
                out = np.empty((count, self.context + 1), part.dtype)
            elif part.itemsize > out.itemsize:
                out = out.astype(part.dtype)
            out[rows] = part[wanted - low]
        assert out is not None
        return out

    def draw(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(which sampler, which of its samples) for samples first … first+count−1."""
        sources, indices = [], []
        for block in range(first >> _BLOCK_BITS, ((first + count - 1) >> _BLOCK_BITS) + 1):
            before = self._first_before(block)
            ours = self._first_before(block + 1) - before
            rank = Permutation(_BLOCK, self.seed, block)(np.arange(_BLOCK))
            source = (rank >= ours).astype(np.int64)
            index = np.where(
                source == 0,
                before + np.cumsum(source == 0) - 1,
                block * _BLOCK - before + np.cumsum(source) - 1,
            )
            low = max(first - block * _BLOCK, 0)
            high = min(first + count - block * _BLOCK, _BLOCK)
            sources.append(source[low:high])
            indices.append(index[low:high])
        return np.concatenate(sources), np.concatenate(indices)

    def _first_before(self, block: int) -> int:
        """Samples of the first sampler in all blocks before `block`."""
        return (block * self._share) >> (_SHARE_BITS - _BLOCK_BITS)


def longbiased(
    documents: Documents, context: int, eot: int, seed: int, *, long_min_tokens: int = 512, long_fraction: float = 0.7
) -> Sampler:
    """`long_fraction` of the samples from documents of at least `long_min_tokens`, the others from all.

    Both kinds are packed, so every long document has its turn once in each epoch of the long ones, and
    every document once in each epoch of all. The recipe of ConnorJL's GPT2 (`openwebtext_longbiased`),
    which of each 42 documents stitched together kept one window.

    Raises:
      ValueError: there is no document, or none is long.
    """
    long = np.flatnonzero(documents.lengths >= long_min_tokens)
    if not long.size:
        raise ValueError(f"no document has {long_min_tokens} tokens or more; lower long_min_tokens, or use packed")
    # Seeds of their own, so that the long documents do not come in the order they have among all.
    first = Packed(documents, context, eot, seed ^ 0x4C4F4E47, long)
    return Mixture(first, Packed(documents, context, eot, seed), long_fraction, seed)
