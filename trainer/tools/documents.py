"""Name the documents of a training step, with the part of each window that they take.

python -m trainer.tools.documents RUN --step 1000 prints one line of JSON for each: `{"sample": 4096, "url_id": 7,
"begin": 0, "end": 130}`, with `--corpus WORKDIR/corpus` also its `url`. `owt why WORKDIR URL_ID` shows where a document
comes from.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from schemas.settings import from_table
from trainer.checkpoint import CheckpointError, read_record
from trainer.command_line import CommandParser, run_reporting
from trainer.config import TrainConfig
from trainer.corpora import open_corpora
from trainer.pretrained import resolve
from trainer.remote import ShardError
from trainer.shards import Documents


class Numbers(Documents):
    """Documents in which each token is the number of its document, counted from `before`."""

    def __init__(self, lengths: np.ndarray, before: int) -> None:
        self.lengths, self._before, self.dtype = lengths, before, np.dtype(np.int64)

    def copy_into(
        self, out: np.ndarray, documents: np.ndarray, at: np.ndarray, begin: np.ndarray, count: np.ndarray
    ) -> None:
        for document, start, length in zip(documents.tolist(), at.tolist(), count.tolist(), strict=True):
            out[start : start + length] = self._before + document


def documents_of(run: str, step: int) -> Iterator[dict[str, Any]]:
    """The documents in each sample of a step (from 1 on): tokens begin … end−1 of its window are the document's.

    They are read from the same samples of a corpus in which every token is the number of its document.

    Raises:
      CheckpointError: the run has no checkpoint, or its data has changed since.
    """
    path = resolve(run)
    record = read_record(path)
    config = from_table(TrainConfig, {key: own for key, own in record.settings.items() if own is not None}, str(path))
    corpora = open_corpora(config.data, config.cache, record.data)
    if [own["digest"] for own in corpora.description()] != [own["digest"] for own in record.data]:
        raise CheckpointError(f"{path} was trained on other shards than {', '.join(config.data)} has now")
    numbered, before = [], 0
    for dataset in corpora.datasets:
        numbers = Numbers(dataset.documents("train").lengths, before)
        tokenizer = dataclasses.replace(dataset.tokenizer, eot=-1)
        numbered.append(dataclasses.replace(dataset, tokenizer=tokenizer, opened={"train": numbers}))
        before += len(numbers)
    known, context = np.concatenate([own.url_ids("train") for own in corpora.datasets]), record.model["context"]
    sampler = dataclasses.replace(corpora, datasets=tuple(numbered)).sampler(
        config.sampler, context, config.seed, config.long_min_tokens, config.long_fraction
    )
    batch = config.windows_per_batch(context)
    for sample, row in enumerate(sampler.windows((step - 1) * batch, batch), (step - 1) * batch):
        begin = 0
        for number, tokens in itertools.groupby(row.tolist()):
            end = begin + len(list(tokens))
            if number >= 0:  # not an end-of-text
                yield {"sample": sample, "url_id": int(known[number]), "begin": begin, "end": end}
            begin = end


def urls_of(folder: str, url_ids: Sequence[int]) -> dict[int, str | None]:
    """The documents' URLs by id, from the Parquet files of a run's `corpus/`, on disk or in a bucket.

    A document that is not in the corpus is left out. Raises ShardError if the folder cannot be read.
    """
    try:
        rows = pyarrow.dataset.dataset(folder, format="parquet").to_table(
            ["url_id", "url"], filter=pc.field("url_id").isin(pa.array(url_ids, pa.uint64()))
        )
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:240]
        raise ShardError(f"{folder} cannot be read: {reason}; give a run's folder corpus/") from error
    return dict(zip(rows["url_id"].to_pylist(), rows["url"].to_pylist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandParser(prog="python -m trainer.tools.documents", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="a run's folder, or a checkpoint")
    parser.add_argument("--step", metavar="N", type=int, required=True, help="counted from 1, as in metrics.jsonl")
    parser.add_argument("--corpus", metavar="FOLDER", help="a run's folder corpus/, for the documents' URLs")

    def work() -> None:
        given = parser.parse_args(arguments)
        if given.step < 1:
            parser.error(f"argument --step: {given.step} is below 1")
        found = list(documents_of(given.run, given.step))
        if given.corpus:
            urls = urls_of(given.corpus, [part["url_id"] for part in found])
            found = [part | {"url": urls.get(part["url_id"])} for part in found]
        for part in found:
            print(json.dumps(part))

    return run_reporting("trainer.tools.documents", work)


if __name__ == "__main__":
    sys.exit(main())
