"""`owt sample-documents`: print random documents, kept or rejected for a reason, to read."""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from owt_pipeline.command_line import Command, CommandParser, at_least
from owt_pipeline.commands.why import find_id, readers_of, say
from owt_pipeline.errors import NotFound, UsageError, command
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import mention_running
from schemas import DATASETS, Reason
from schemas.quantities import pluralize
from schemas.settings import did_you_mean

MAX_CHARACTERS = 800
"""Characters of each text that are printed, unless it is printed as JSON."""


def _flags(parser: CommandParser) -> None:
    """Print random documents of the corpus, or documents that were rejected for a reason, for you
    to read. The same seed prints the same documents.

    examples:
      owt sample-documents runs/2013 --n 3
      owt sample-documents runs/2013 --reason too_short --seed 7 | less
      owt sample-documents runs/2013 --domain example.org --json | jq -r .url
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "--n", type=at_least(1), default=5, metavar="N", help="documents to print (default: 5)"
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of the random choice (default: 0)",
    )
    parser.add_argument(
        "--domain",
        default="",
        metavar="D",
        help="only documents of this domain and of the hosts below it",
    )
    parser.add_argument(
        "--reason",
        default="",
        metavar="R",
        help="documents rejected for this reason (docs/data.md lists the reasons)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON Lines: one document per line, with all its text",
    )


def _print(arguments: argparse.Namespace) -> int:
    """Print the documents."""
    workdir = Storage(arguments.run)
    mention_running(workdir)
    rows = sample(
        readers_of(workdir),
        arguments.n,
        arguments.seed,
        domain=arguments.domain,
        reason=arguments.reason,
    )
    for row in rows:
        if arguments.json:
            print(json.dumps(row, ensure_ascii=False))
        else:
            _print_document(row)
    return 0


def _print_document(row: dict[str, Any]) -> None:
    """Print a document's fields, and the beginning of its text."""
    say(f"── {row.get('title') or row['url'] or row['url_id']}")
    for key in ("url", "url_id", "reason", "detail", "language", "date", "n_words", "score"):
        if row.get(key) is not None:
            say(f"   {key}: {row[key]}")
    text = row.get("text") or ""
    shown = text[:MAX_CHARACTERS]
    for paragraph in shown.splitlines():
        for line in textwrap.wrap(paragraph, 100) or [""]:
            say(line)
    if len(shown) < len(text):
        remaining = pluralize(len(text) - len(shown), "more character")
        print(f"… {remaining} (--json prints the complete text)")
    print()


_WITH_TEXT = ("corpus", "clean", "documents")
# The dataset that has the text of a reject, by the stage that rejected it.
_TEXT_BEFORE = {"clean": "documents", "export": "clean", "tokenize": "corpus"}


def sample(
    readers: Mapping[str, DatasetReader], n: int, seed: int, *, domain: str = "", reason: str = ""
) -> list[dict[str, Any]]:
    """Return `n` random documents of the corpus, or of those rejected for `reason`.

    Before there is a corpus, these are documents of the last stage before it.

    Args:
      readers: the run's datasets.
      n: how many, or all where there are fewer.
      seed: other seeds give other documents.
      domain: only documents of this domain and the hosts below it.
      reason: a reject reason. Its rows have `detail`, and the text if a stage made one.

    Raises UsageError for an unknown reason, NotFound if there is no such document.
    """
    reader, kind = _where(readers, reason)
    columns = ["url_id", "url"]
    if reason:
        columns.append("reason")
    # Canonical URLs begin with https, and a host ends at a port or at the path.
    site = rf"^https://([^/:]*\.)?{re.escape(domain.lower())}[:/]"
    # (random number, id, shard) of the documents with the smallest numbers so far.
    chosen: list[tuple[int, int, int]] = []
    for shard in range(reader.num_shards):
        for batch in reader.batches(shard, kind=kind, columns=columns):
            if reason:
                batch = batch.filter(pc.equal(batch["reason"], reason))
            if domain:
                batch = batch.filter(pc.match_substring_regex(batch["url"], site))
            ids = batch["url_id"].to_numpy()
            numbers = _random_numbers(ids, seed)
            # The ids with the n smallest random numbers are a uniform sample of all ids.
            smallest = np.argsort(numbers)[:n]
            pairs = zip(numbers[smallest].tolist(), ids[smallest].tolist(), strict=True)
            for number, url_id in pairs:
                chosen.append((number, url_id, shard))
        chosen = sorted(chosen)[:n]
    if not chosen:
        conditions = []
        if domain:
            conditions.append(f" of {domain}")
        if reason:
            conditions.append(f" rejected as {reason}")
        raise NotFound(f"{reader.workdir}/{reader.name} has no document{''.join(conditions)}")
    return [_document(readers, reader, url_id, shard, kind, reason) for _, url_id, shard in chosen]


def _random_numbers(ids: np.ndarray, seed: int) -> np.ndarray:
    """Return 64 random bits for each id. Each seed gives different bits.

    This is splitmix64 (Steele, Lea and Flood, 2014).
    """
    mixed = ids + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _where(readers: Mapping[str, DatasetReader], reason: str) -> tuple[DatasetReader, str]:
    """Return the dataset to sample from, and `data` or `rejects`."""
    if not reason:
        for name in _WITH_TEXT:
            if name in readers and not readers[name].gone:
                return readers[name], "data"
        until_extract = "`owt run RUN --until extract`"
        for reader in readers.values():
            until_extract = command("owt", "run", reader.workdir, "--until", "extract")
        raise NotFound(f"the run has no documents yet: run {until_extract}, or until a later stage")
    try:
        stage = Reason.of(reason).stage
    except ValueError:
        raise UsageError(
            f"--reason: unknown reason '{reason}'{did_you_mean(reason, map(str, Reason))}"
        ) from None
    for name, reader in readers.items():
        if stage in (DATASETS[name].stage, reader.manifest.stage):
            return reader, "rejects"
    raise NotFound(
        f"the stage {stage} has not run, and no other stage rejects documents as {reason}"
    )


def _document(
    readers: Mapping[str, DatasetReader],
    reader: DatasetReader,
    url_id: int,
    shard: int,
    kind: str,
    reason: str,
) -> dict[str, Any]:
    """Return a document's row; a reject also has its text, if the dataset before has one."""
    rows = [
        located.row for located in find_id(reader, url_id, [shard]) if located.file.kind == kind
    ]
    row = next(row for row in rows if not reason or row["reason"] == reason)
    source = _TEXT_BEFORE.get(reader.manifest.stage, "")
    if kind == "data" or source not in readers:
        return row
    with_text = find_id(readers[source], url_id, [shard])
    if not with_text:
        return row
    document = with_text[0].row
    return {**row, "title": document["title"], "text": document["text"]}


main = Command("owt sample-documents", _flags, _print)
