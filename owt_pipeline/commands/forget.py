"""`owt forget`: remove documents from the corpus and the tokens for good."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from owt_pipeline.command_line import (
    Command,
    CommandParser,
    add_output_flags,
    at_least,
    configure_output,
)
from owt_pipeline.commands.run import REMADE, recorded_stages
from owt_pipeline.commands.why import readers_of
from owt_pipeline.engine.runner import run_stages
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.takedowns import Takedown, Takedowns, read_takedowns, write_takedowns
from owt_pipeline.formats.urls import BadURL, canonicalize, id_of
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import change_root, read_root
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import hold

logger = logging.getLogger("owt")


_COMMENT = re.compile(r"(^|\s)#.*")
_WITH_TEXT = ("pages", "documents", "clean")


def _flags(parser: CommandParser) -> None:
    """Remove documents from corpus/ and tokens/ (a takedown). They are added to the run's list
    of takedowns, and stay out whichever stages run again. Only their shards are rewritten; the
    report is made again. Duplicates of a removed document are removed too, and so is the
    document that was kept in place of one named by its URL or id, since their text is the same.
    If the command is killed, run it or owt run again.

    pages/, warc/, documents/ and clean/ still have the text, since the corpus is made from them.
    Delete them once the corpus is final (rm -r RUN/warc RUN/pages RUN/documents RUN/clean): nothing
    needs them until something is made from them.

    example:
      owt forget runs/2013 takedown.txt --reason 'request of 2026-11-20'

    takedown.txt has one URL, id or domain (example.org, with all hosts below it) per line; # begins
    a comment. Entries that are not in the corpus are added too, and stay out.
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "urls",
        metavar="URLS.txt",
        help="URLs, ids and domains, one per line; - reads them from stdin",
    )
    parser.add_argument(
        "--reason",
        default="on request",
        metavar="TEXT",
        help="reason to record in the ledger (default: %(default)s)",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print what would be removed; change nothing"
    )
    parser.add_argument(
        "--workers",
        type=at_least(1),
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes to tokenize with",
    )
    add_output_flags(parser)


def _forget(arguments: argparse.Namespace) -> int:
    configure_output(arguments)
    workdir, workers = Storage(arguments.run), arguments.workers
    readers = readers_of(workdir)
    run = uuid.uuid4().hex
    with hold(workdir, run):
        before = read_takedowns(workdir, read_root(workdir)[0])
        request = parse_request(_lines(arguments.urls), arguments.urls, arguments.reason)
        if not request.ids and not request.domains:
            raise UserError(f"{arguments.urls} names no URL, id or domain: nothing to forget")
        resolved = resolve(request, readers)
        if not arguments.dry_run and (after := before | resolved.takedowns) != before:
            path = write_takedowns(workdir, after)
            change_root(workdir, lambda root: msgspec.structs.replace(root, takedowns=path), run)
    if resolved.unknown:
        logger.warning(
            "%d entries of the list name no document of %s: %s",
            len(resolved.unknown),
            workdir,
            _some(resolved.unknown),
        )
    if resolved.stay:
        logger.warning(
            "%d other documents have the same text and stay: %s; name them too if they are to go",
            len(resolved.stay), _some(resolved.stay),
        )  # fmt: skip
    say = (lambda _: None) if arguments.quiet else print
    copies = (
        f"; {resolved.copies:,} duplicates of them stay out with them" if resolved.copies else ""
    )
    say(
        f"{resolved.in_corpus:,} documents {'would leave' if arguments.dry_run else 'leave'} the "
        f"corpus{copies}"
    )
    if arguments.dry_run:
        return 0
    # A missing tokenizer must not keep documents in corpus/.
    for result in run_stages(recorded_stages(REMADE, workdir), Runtime(workdir, workers)):
        finished = "" if result.seconds is not None else " (finished)"
        say(f"{result.stage.output}/: {result.manifest.counts.left:,} documents{finished}")
    holding = [f"{name}/" for name in _WITH_TEXT if name in readers and not readers[name].gone]
    if holding:
        say(f"{', '.join(holding)} still hold what was collected: see owt forget --help")
    return 0


def _some(entries: Sequence[str]) -> str:
    return ", ".join(entries[:3]) + (", ..." if len(entries) > 3 else "")


def _lines(path: str) -> list[str]:
    try:
        if path == "-":
            return sys.stdin.read().split("\n")
        with open(path, encoding="utf-8") as file:
            return file.read().split("\n")
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; it should hold one URL, id or domain per line"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from error


@dataclass(frozen=True)
class Resolved:
    """A request, looked up.

    Attributes:
      takedowns: the entries for the list: the request and its duplicates.
      in_corpus: documents that leave the corpus.
      copies: duplicates of those that are not in the corpus, and are forgotten with them.
      unknown: URLs and ids that no document has.
      stay: documents with the same text that are not removed, each as `ID of RUN`.
    """

    takedowns: Takedowns
    in_corpus: int
    copies: int
    unknown: list[str]
    stay: list[str]


def parse_request(lines: Iterable[str], where: str, detail: str) -> Takedowns:
    """URLs, ids and domains, one per line; blank lines and comments, from a `#` on, are skipped.

    Raises UserError, with the line's number, for a line that is none of them.
    """
    ids: dict[int, Takedown] = {}
    domains: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = _COMMENT.sub("", line).strip()
        if not text:
            continue
        if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64:
            ids[int(text)] = Takedown(None, detail)
            continue
        try:
            if "@" in text.partition("/")[0]:
                raise BadURL("an e-mail address names no document")
            url, host = canonicalize(text if "://" in text else f"https://{text}")
        except BadURL as error:
            raise UserError(
                f"{where}:{number}: {text[:80]!r} is not a URL, id or domain: {error}"
            ) from error
        if "://" not in text and "/" not in text:
            domains[host] = detail
        else:
            ids[id_of(url)] = Takedown(url, detail)
    return Takedowns(ids, domains)


def resolve(request: Takedowns, readers: Mapping[str, DatasetReader]) -> Resolved:
    """What `request` removes from a run, with the duplicates of what it names, since their text
    is the same.

    Were a duplicate left off the list, deduplication with other options could bring the text back
    under its URL.
    """
    named = _documents(readers, request)
    copies = _copies(readers, named, request.ids)
    urls = (
        _documents(readers, Takedowns({key: Takedown(None, "") for key in copies.of}))
        if copies.of
        else {}
    )
    with_urls = {key: Takedown(t.url or named.get(key), t.detail) for key, t in request.ids.items()}
    repeats = {
        key: Takedown(urls.get(key), f"repeats {named[other] or other}, which was taken down")
        for key, other in copies.of.items()
    }
    in_corpus = _held(readers, "corpus", request | Takedowns(repeats))
    unknown = [t.url or str(key) for key, t in request.ids.items() if key not in named]
    takedowns = Takedowns(with_urls, request.domains) | Takedowns(repeats)
    stay_out = set(repeats) - set(request.ids) - set(in_corpus)
    return Resolved(takedowns, len(in_corpus), len(stay_out), unknown, copies.stay)


class _Copies(NamedTuple):
    """Documents of the run with the text of a named one, which is the value; and those that
    stay, as in `Resolved`."""

    of: dict[int, int]
    stay: list[str]


def _copies(
    readers: Mapping[str, DatasetReader], named: Mapping[int, str | None], ids: Container[int]
) -> _Copies:
    """What deduplication found to be the same text as the documents of `named`.

    What it kept in place of one goes with it if that one is named by its URL or id (`ids`). For a
    domain it stays: it may be the original of which the domain had a copy.
    """
    if "duplicates" not in readers or not named:
        return _Copies({}, [])
    decisions = readers["duplicates"]
    kept, stay = {key: key for key in named}, set[int]()
    for row in _decisions(decisions, "url_id", named):
        key = row["kept_url_id"]
        if key in named:
            continue
        if row["url_id"] in ids:
            kept[key] = min(row["url_id"], kept.get(key, row["url_id"]))
        else:
            stay.add(key)
    found = dict(kept)
    found |= {
        row["url_id"]: kept[row["kept_url_id"]]
        for row in _decisions(decisions, "kept_url_id", kept)
    }
    return _Copies(
        {key: of for key, of in found.items() if key not in named},
        [str(key) for key in sorted(stay - found.keys())],
    )


def _decisions(
    decisions: DatasetReader, column: str, ids: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """The decisions that have one of `ids` in `column`."""
    wanted = np.fromiter(ids, np.uint64)
    for batch in decisions.batches(columns=["url_id", "kept_url_id", "kept_shard"], rows=1 << 16):
        yield from batch.filter(pa.array(np.isin(batch[column].to_numpy(), wanted))).to_pylist()


def _documents(readers: Mapping[str, DatasetReader], wanted: Takedowns) -> dict[int, str | None]:
    """The documents of clean/ that are on a list, with their URLs; corpus/ and its rejects have
    them too."""
    if "clean" in readers and not readers["clean"].gone:
        return _held(readers, "clean", wanted)
    return _held(readers, "corpus", wanted) | _held(readers, "corpus", wanted, "rejects")


def _held(
    readers: Mapping[str, DatasetReader], dataset: str, wanted: Takedowns, kind: str = "data"
) -> dict[int, str | None]:
    """The documents of a dataset that are on a list, with their URLs."""
    found: dict[int, str | None] = {}
    if dataset not in readers:
        return found
    for batch in readers[dataset].batches(kind=kind, columns=["url_id", "url"], rows=1 << 16):
        for row, _ in wanted.of(batch["url_id"].to_numpy(), batch["url"]):
            found[batch["url_id"][row].as_py()] = batch["url"][row].as_py()
    return found


main = Command("owt forget", _flags, _forget)
