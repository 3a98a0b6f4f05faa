"""`owt sample-documents`: documents at random, to read."""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from owt_pipeline.command_line import CommandParser
from owt_pipeline.commands.history import find_id, readers_of
from owt_pipeline.commands.stage import reporting_errors
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.errors import NotFound, UsageError
from owt_pipeline.engine.lease import mention_running
from owt_pipeline.engine.storage import Storage
from schemas import DATASETS, Reason
from schemas.settings import did_you_mean


def build_parser() -> argparse.ArgumentParser:
    """The flags of `owt sample-documents`."""
    parser = CommandParser(
        prog="owt sample-documents",
        description="Print documents of the corpus at random, or of those that were rejected for a reason, to read.\n"
        "The same seed gives the same documents.",
        epilog="examples:\n"
        "  owt sample-documents --workdir runs/2013 --n 3\n"
        "  owt sample-documents --workdir runs/2013 --reason too_short --seed 7 | less\n"
        "  owt sample-documents --workdir runs/2013 --domain example.org --json | jq -r .url",
    )
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    parser.add_argument("--n", type=int, default=5, metavar="N", help="documents (default: 5)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another one gives others (default: 0)")
    parser.add_argument("--domain", default="", metavar="D", help="only of this domain and the hosts below it")
    parser.add_argument("--reason", default="", metavar="R", help="of those rejected for this reason (docs/data.md)")
    parser.add_argument(
        "--characters", type=int, default=800, metavar="N", help="of each text (default: 800); 0 for all of it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON Lines: a document a line, with all its text")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """`owt sample-documents` with the flags of `argv`; returns the exit code."""
    return reporting_errors(lambda: _sample(build_parser().parse_args(argv)))


def _sample(arguments: argparse.Namespace) -> int:
    if arguments.n < 1:
        raise UsageError(f"--n: {arguments.n} is not a whole number of at least 1")
    mention_running(Storage(arguments.workdir))
    readers = readers_of(Storage(arguments.workdir))
    for row in sample(readers, arguments.n, arguments.seed, domain=arguments.domain, reason=arguments.reason):
        if arguments.json:
            print(json.dumps(row, ensure_ascii=False))
        else:
            _print(row, arguments.characters)
    return 0


def _print(row: dict[str, Any], characters: int) -> None:
    print(f"── {row.get('title') or row['url'] or row['url_id']}")
    for key in ("url", "url_id", "reason", "detail", "language", "date", "n_words", "score"):
        if row.get(key) is not None:
            print(f"   {key}: {row[key]}")
    text = row.get("text") or ""
    shown = text[:characters] if characters else text
    for paragraph in shown.splitlines():
        print(textwrap.fill(paragraph, 100))
    if len(shown) < len(text):
        print(f"… {len(text) - len(shown):,} more characters")
    print()


_WITH_TEXT = ("corpus", "clean", "documents")
_TEXT_BEFORE = {"clean": ("documents",), "export": ("clean",), "tokenize": ("corpus",)}  # by the stage that rejects


def sample(
    readers: Mapping[str, DatasetReader], n: int, seed: int, *, domain: str = "", reason: str = ""
) -> list[dict[str, Any]]:
    """`n` documents at random: of the corpus (or what comes nearest to it), or of those rejected for `reason`.

    Args:
      readers: the run's datasets.
      n: how many, or all where there are fewer.
      seed: another one gives others.
      domain: only of this domain, and of hosts below it.
      reason: a reject reason. Its rows have `detail`, and the text as far as a stage had got it.

    Raises UsageError for an unknown reason, NotFound where there is no such document.
    """
    reader, kind = _where(readers, reason)
    pattern = rf"^https://([^/:]*\.)?{re.escape(domain.lower())}[:/]" if domain else ""
    best: list[tuple[int, int, int]] = []  # (rank, id, shard)
    columns = ["url_id", *(["url"] if domain else []), *(["reason"] if reason else [])]
    for shard in range(reader.num_shards):
        for batch in reader.batches(shard, kind=kind, columns=columns, rows=1 << 16):
            if domain:
                batch = batch.filter(pc.fill_null(pc.match_substring_regex(batch["url"], pattern), False))
            if reason:
                batch = batch.filter(pc.equal(batch["reason"], reason))
            ids = batch["url_id"].to_numpy()
            ranks = _mixed(ids, seed)
            first = np.argsort(ranks, kind="stable")[:n]
            best += [(int(ranks[i]), int(ids[i]), shard) for i in first]
            best = sorted(best)[:n]
    if not best:
        named = " ".join(filter(None, [f"of {domain}" if domain else "", f"rejected as {reason}" if reason else ""]))
        raise NotFound(f"{reader.workdir}/{reader.name} holds no document {named}".rstrip())
    return [_document(readers, reader, identifier, shard, kind, reason) for _, identifier, shard in best]


def _where(readers: Mapping[str, DatasetReader], reason: str) -> tuple[DatasetReader, str]:
    """The dataset to draw from, and whether from its rows or its rejects."""
    if not reason:
        for name in _WITH_TEXT:
            if name in readers:
                return readers[name], "data"
        raise NotFound("the run has no documents yet: run `owt run` until extract or further")
    try:
        stage = Reason.of(reason).stage
    except ValueError:
        raise UsageError(f"--reason: unknown reason '{reason}'{did_you_mean(reason, map(str, Reason))}") from None
    for name, reader in readers.items():
        if stage in (DATASETS[name].stage, reader.manifest.stage):
            return reader, "rejects"
    raise NotFound(f"the stage {stage}, which rejects as {reason}, has not run")


def _document(
    readers: Mapping[str, DatasetReader], reader: DatasetReader, identifier: int, shard: int, kind: str, reason: str
) -> dict[str, Any]:
    found = [row for row in find_id(reader, identifier, [shard]) if row.file.kind == kind]
    row = next(f for f in found if not reason or f.row["reason"] == reason).row
    if kind == "data":
        return row
    for name in _TEXT_BEFORE.get(reader.manifest.stage, ()):
        if name in readers and (before := find_id(readers[name], identifier, [shard])):
            return {**row, "title": before[0].row["title"], "text": before[0].row["text"]}
    return row


def _mixed(ids: np.ndarray, seed: int) -> np.ndarray:
    """uint64 (n,): a rank for each id that the seed shuffles; SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        mixed = ids.astype(np.uint64) ^ (np.uint64(seed & (2**64 - 1)) * np.uint64(0x9E3779B97F4A7C15))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
