"""When a run goes wrong: the step, the documents its batch was from, and the checkpoint to go back to."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from trainer import checkpoint
from trainer.data import Corpora
from trainer.manifest import TokenFile
from trainer.remote import RemoteFolder
from trainer.samplers import Sampler
from trainer.shards import Documents, TokenDataset


class Diverged(RuntimeError):
    """The loss or the gradient is no longer a number, or the loss has leapt up."""


class LossWatch:
    """Stops a run whose loss or gradient is not finite, or whose loss leaps `max_spike` above its recent median.

    Args:
      max_spike: in nats; 0 for none.
      run: the run's folder.
      url_ids: of each sample of a step's batch.
      saved: waits until the checkpoint being written is there.
      main: whether this rank is the one that writes `diverged.json`.
    """

    def __init__(
        self,
        max_spike: float,
        run: Path,
        url_ids: Callable[[int], dict[int, list[int]]],
        saved: Callable[[], None],
        main: bool,
    ) -> None:
        self._max_spike, self._run, self._url_ids, self._saved, self._main = max_spike, run, url_ids, saved, main
        self._recent: deque[float] = deque(maxlen=100)

    def check(self, step: int, loss: float, norm: float) -> None:
        """Raises Diverged, naming the step, its samples and their documents, and the last good checkpoint."""
        usual = statistics.median(self._recent) if len(self._recent) >= 20 else math.inf
        self._recent.append(loss)
        spike = self._max_spike and loss > usual + self._max_spike
        if math.isfinite(loss) and math.isfinite(norm) and not spike:
            return
        self._saved()  # the last good one may be on its way
        saved = checkpoint.checkpoints(self._run / "checkpoints")
        good = str(saved[-1]) if saved else "none"
        samples = self._url_ids(step)
        ids = list(dict.fromkeys(url_id for own in samples.values() for url_id in own))
        found = {"step": step, "last_good": good, "url_ids_by_sample": samples}
        path = self._run / "diverged.json"
        if self._main:
            path.write_text(json.dumps(found) + "\n", encoding="utf-8")
        raise Diverged(
            f"step {step} (samples {min(samples)} to {max(samples)}, of {len(ids)} documents: url_id "
            f"{', '.join(map(str, ids[:5]))}{', …' if len(ids) > 5 else ''}): "
            f"loss {loss:.4g}{f', usually {usual:.4g}' if spike else ''}, gradient norm {norm:.4g}; "
            f"the last good checkpoint is {good}. Look at these documents ({path} names those of each sample; "
            f"`owt why URL_ID --workdir …` tells of one), try a lower learning_rate or a longer warm-up"
            f"{', or allow it by max_spike' if spike else ''}"
        )


def url_ids_by_sample(
    corpora: Corpora, sampler_of: Callable[[Corpora], Sampler], first: int, count: int
) -> dict[int, list[int]]:
    """The documents with tokens in each of the samples first … first+count−1, in their order there.

    The sampler is asked for the same samples of a corpus in which every token is its document's number.
    """
    numbered, url_ids, before = [], [], 0
    for dataset in corpora.datasets:
        ids = [_url_ids(dataset, file) for file in dataset.files.get("train", [])]
        numbered.append(_Numbered.of(dataset, before))
        url_ids += ids
        before += sum(map(len, ids))
    windows = sampler_of(dataclasses.replace(corpora, datasets=tuple(numbered))).windows(first, count)
    known = np.concatenate(url_ids)
    numbers = (dict.fromkeys(row[row >= 0].tolist()) for row in windows)
    return {first + k: [int(known[number]) for number in own] for k, own in enumerate(numbers)}


@dataclasses.dataclass(frozen=True)
class _Numbered(TokenDataset):
    """A dataset each of whose tokens is its document's number, from `before` on, and −1 for end-of-text."""

    before: int = 0

    @classmethod
    def of(cls, dataset: TokenDataset, before: int) -> _Numbered:
        tokenizer = dataclasses.replace(dataset.tokenizer, eot=-1)
        return cls(dataset.folder, dataset.digest, tokenizer, dataset.files, before=before)

    def documents(self, split: str) -> Documents:
        return _Numbers(super().documents(split).lengths, self.before)


class _Numbers(Documents):
    def __init__(self, lengths: np.ndarray, before: int) -> None:
        self.lengths, self._before, self.dtype = lengths, before, np.dtype(np.int64)

    def copy_into(
        self, out: np.ndarray, documents: np.ndarray, at: np.ndarray, begin: np.ndarray, count: np.ndarray
    ) -> None:
        for document, start, length in zip(documents.tolist(), at.tolist(), count.tolist(), strict=True):
            out[start : start + length] = self._before + document


def _url_ids(dataset: TokenDataset, file: TokenFile) -> np.ndarray:
    if isinstance(dataset.folder, RemoteFolder):
        batches = dataset.folder.columns(file, ["url_id"])
    else:
        reader = pa.ipc.open_file(pa.memory_map(str(dataset.folder / file.path)))
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    return np.concatenate([batch.column("url_id").to_numpy() for batch in batches] or [np.zeros(0, np.uint64)])
