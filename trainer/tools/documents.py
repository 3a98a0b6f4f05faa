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

from schemas import option
from trainer.checkpoint import CheckpointError, read_record, resolve
from trainer.command_line import run_command
from trainer.config import config_of
from trainer.corpora import open_corpora
from trainer.shards import Documents


@dataclass(frozen=True)
class DocumentsOptions:
    """Settings of `trainer.tools.documents`."""

    step: int = option(help="counted from 1, as in metrics.jsonl", minimum=1)
    corpus: str | None = option(
        None, "a run's folder corpus/, for the documents' URLs", metavar="FOLDER"
    )


class Numbers(Documents):
    """Documents in which each token is the number of its document, counted from `first`."""

    def __init__(self, lengths: np.ndarray, first: int) -> None:
        self.lengths, self._first_number, self.dtype = lengths, first, np.dtype(np.int64)

    def __getitem__(self, document: int) -> np.ndarray:
        return np.full(self.lengths[document], self._first_number + document)

    def copy_into(
        self, out: np.ndarray, documents: np.ndarray, at: np.ndarray, *range: np.ndarray
    ) -> None:
        for document, start, length in zip(
            documents.tolist(), at.tolist(), range[1].tolist(), strict=True
        ):
            out[start : start + length] = self._first_number + document


def documents_of(run: str, step: int) -> Iterator[dict[str, Any]]:
    """The documents of a step, read from a corpus in which every token is its document's number;
    or CheckpointError."""
    path = resolve(run)
    record = read_record(path)
    config = config_of(record.settings, str(path))
    corpora = open_corpora(config.data, record.data)
    if [own["digest"] for own in corpora.description()] != [own["digest"] for own in record.data]:
        raise CheckpointError(
            f"{path} was trained on other shards than {', '.join(config.data)} has now"
        )
    known, first = (
        np.zeros(0, np.uint64),
        corpora.tokenizer.eot + 1,
    )  # url_ids; the number of the first document
    for dataset in corpora.datasets:
        dataset.opened["train"] = Numbers(dataset.documents("train").lengths, first + len(known))
        known = np.concatenate([known, dataset.url_ids("train")])
    context = record.model["context"]
    sampler = corpora.sampler(config)
    batch = config.windows_per_batch(context)
    for sample, row in enumerate(sampler.windows((step - 1) * batch, batch), (step - 1) * batch):
        begin = 0
        for number, tokens in itertools.groupby(row.tolist()):
            end = begin + len(list(tokens))
            if number >= first:  # not an end-of-text
                yield {
                    "sample": sample,
                    "url_id": int(known[number - first]),
                    "begin": begin,
                    "end": end,
                }
            begin = end


def print_documents(run: str, options: DocumentsOptions) -> None:
    found = list(documents_of(run, options.step))
    if options.corpus:  # a document that is not in it has no URL
        ids = pa.array([part["url_id"] for part in found], pa.uint64())
        dataset = pyarrow.dataset.dataset(options.corpus, format="parquet")
        rows = dataset.to_table(["url_id", "url"], filter=pc.field("url_id").isin(ids)).to_pylist()
        urls = {row["url_id"]: row["url"] for row in rows}
        found = [part | {"url": urls.get(part["url_id"])} for part in found]
    for part in found:
        print(json.dumps(part))


_NAMED = {"run": "a run's folder, or a checkpoint"}
main = partial(
    run_command, "trainer.tools.documents", __doc__, _NAMED, DocumentsOptions, print_documents
)


if __name__ == "__main__":
    sys.exit(main())
