"""Name the documents of a training step, with the part of each window that they take.

Each is a line of JSON, `{"sample": 4096, "url_id": 7, "begin": 0, "end": 130}`: tokens begin …
end−1 of the window are the document's. `owt why WORKDIR URL_ID` shows where it comes from.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from schemas import SettingsError, option
from schemas.quantities import pluralize
from trainer.checkpoint import CheckpointError, read_record, resolve
from trainer.command_line import run_command
from trainer.config import TrainConfig
from trainer.data.corpora import Corpora, open_corpora
from trainer.data.mapped_documents import Documents


@dataclass(frozen=True)
class DocumentsOptions:
    """Settings of `trainer.data.documents`."""

    step: int = option(help="counted from 1, as in metrics.jsonl", minimum=1)
    max_steps: int = option(
        0, "steps of the run, where they are more than those of its newest checkpoint", minimum=0
    )
    corpus: str | None = option(
        None, "a run's folder corpus/, for the documents' URLs", metavar="FOLDER", is_path=True
    )


class NumberedDocuments(Documents):
    """Documents in which each token is the number of its document, counted from `first`.

    A sampler's windows of them show the document of each token.
    """

    def __init__(self, lengths: np.ndarray, first: int) -> None:
        self.lengths = lengths
        self.dtype = np.dtype(np.int64)
        self._first_number = first

    def __getitem__(self, document: int) -> np.ndarray:
        return np.full(self.lengths[document], self._first_number + document)

    def copy_into(
        self,
        out: np.ndarray,
        documents: np.ndarray,
        at: np.ndarray,
        begin: np.ndarray,
        count: np.ndarray,
    ) -> None:
        rows = zip(documents.tolist(), at.tolist(), count.tolist(), strict=True)
        for document, start, length in rows:
            out[start : start + length] = self._first_number + document


def documents_of(run: str, step: int, max_steps: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the documents of a step in the order of its samples.

    Each has its sample, its url_id, and where in the window its tokens begin and end. Raises
    CheckpointError if the run has no checkpoint, or was trained on other shards; SettingsError if
    the run has fewer steps. `max_steps` are those of a continued run that has no checkpoint since.
    """
    path = resolve(run)
    record = read_record(path)
    config = TrainConfig(**record.settings)
    last_step = max(config.max_steps, max_steps)
    if step > last_step:
        raise SettingsError(
            f"step: {run} has {pluralize(last_step, 'step')}, so there is no step {step}: give a "
            f"number from 1 to {last_step}"
        )
    corpora = open_corpora(config.data, record.data)
    digests = [dataset.digest for dataset in corpora.datasets]
    if digests != [entry["digest"] for entry in record.data]:
        raise CheckpointError(
            f"{path} was trained on other shards than {', '.join(config.data)} has now"
        )
    # End-of-text keeps its id, which is below all numbers.
    first_number = corpora.tokenizer.eot + 1
    url_ids = _number_documents(corpora, first_number)
    batch = config.windows_per_batch(record.model["block_size"])
    first_sample = (step - 1) * batch
    windows = corpora.sampler(config).windows(first_sample, batch)
    for sample, window in enumerate(windows, first_sample):
        begin = 0
        for number, tokens in itertools.groupby(window.tolist()):
            end = begin + len(list(tokens))
            if number >= first_number:
                yield {
                    "sample": sample,
                    "url_id": int(url_ids[number - first_number]),
                    "begin": begin,
                    "end": end,
                }
            begin = end


def _number_documents(corpora: Corpora, first_number: int) -> np.ndarray:
    """Replace the documents of the corpora by their numbers; return the url_id of each."""
    url_ids = np.zeros(0, np.uint64)
    for dataset in corpora.datasets:
        lengths = dataset.documents("train").lengths
        dataset.opened["train"] = NumberedDocuments(lengths, first_number + len(url_ids))
        url_ids = np.concatenate([url_ids, dataset.url_ids("train")])
    return url_ids


def print_documents(run: str, options: DocumentsOptions) -> None:
    """Print each document of a step as a line of JSON."""
    entries = list(documents_of(run, options.step, options.max_steps))
    if options.corpus:
        url_by_id = _read_urls(options.corpus, [entry["url_id"] for entry in entries])
        for entry in entries:
            # A document that is not in the corpus has no URL.
            entry["url"] = url_by_id.get(entry["url_id"])
    for entry in entries:
        print(json.dumps(entry))


def _read_urls(corpus: str, url_ids: list[int]) -> dict[int, str]:
    wanted = pc.field("url_id").isin(pa.array(url_ids, pa.uint64()))
    dataset = pyarrow.dataset.dataset(corpus, format="parquet")
    rows = dataset.to_table(["url_id", "url"], filter=wanted).to_pylist()
    return {row["url_id"]: row["url"] for row in rows}


_ARGUMENTS = {"run": "a run's folder, or a checkpoint"}
main = partial(
    run_command, "trainer.data.documents", __doc__, _ARGUMENTS, DocumentsOptions, print_documents
)


if __name__ == "__main__":
    sys.exit(main())
