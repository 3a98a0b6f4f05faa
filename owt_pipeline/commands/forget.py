"""`owt forget`: remove documents from the corpus and the tokens, and keep them out."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence

import msgspec

from owt_pipeline.command_line import (
    Command,
    CommandParser,
    add_output_flags,
    at_least,
    configure_output,
)
from owt_pipeline.commands.run import REMADE, recorded_stages
from owt_pipeline.commands.takedown_search import TEXTS_IN, Resolved, resolve, with_resolution
from owt_pipeline.commands.why import readers_of
from owt_pipeline.engine.runner import run_stages
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError, command
from owt_pipeline.formats.takedowns import (
    Takedown,
    Takedowns,
    read_takedowns,
    write_takedowns,
)
from owt_pipeline.formats.urls import BadURL, canonicalize, id_of
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
    Later runs reject copies of the removed texts: the run keeps hashes of them, not the texts.
    If the command is killed, run it again. Before it has logged that the run has the list, nothing
    is forgotten; after that, owt run goes on with it, too.

    pages/, warc/, documents/ and clean/ still have the text, since the corpus is made from them.
    Delete them once the corpus is final (rm -r RUN/warc RUN/pages RUN/documents RUN/clean): nothing
    needs them until something is made from them. A later run that needs them, such as one with
    --add, may make them again, with the text, from archives or imported files that have it: delete
    them again after it.

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
    """Record the takedowns, and remove their documents from the corpus and what follows it."""
    configure_output(arguments)
    workdir = Storage(arguments.run)
    readers = readers_of(workdir)
    run = uuid.uuid4().hex
    with hold(workdir, run):
        listed = read_takedowns(workdir, read_root(workdir)[0])
        request = parse_request(_lines(arguments.urls), arguments.urls, arguments.reason)
        if not request.ids and not request.domains:
            raise UserError(f"{arguments.urls} names no URL, id or domain: nothing to forget")
        resolved = resolve(request, listed, workdir, readers, arguments.workers)
        if not arguments.dry_run:
            _record(workdir, run, listed, resolved)
    _warn_of(resolved, workdir)
    say: Callable[[str], object] = (lambda _: None) if arguments.quiet else print
    verb = "would leave" if arguments.dry_run else "leave"
    copies = ""
    if resolved.copies:
        copies = f"; {resolved.copies:,} duplicates of them stay out with them"
    say(f"{resolved.in_corpus:,} documents {verb} the corpus{copies}")
    if arguments.dry_run:
        return 0
    # A missing tokenizer must not keep documents in corpus/.
    runtime = Runtime(workdir, arguments.workers)
    for result in run_stages(recorded_stages(REMADE, workdir), runtime):
        finished = " (finished)" if result.seconds is None else ""
        say(f"{result.stage.output}/: {result.manifest.counts.left:,} documents{finished}")
    with_text = []
    for name in _WITH_TEXT:
        if name in readers and not readers[name].gone:
            with_text.append(f"{name}/")
    if with_text:
        say(
            f"{', '.join(with_text)} still hold what was collected: see `owt forget --help`. Once "
            "deleted, a later run may make them again from archives that have the text"
        )
    return 0


def _record(workdir: Storage, run: str, listed: Takedowns, resolved: Resolved) -> None:
    """Add the resolved takedowns to the run's list."""
    extended = with_resolution(workdir, listed, resolved)
    if extended != listed:
        # The list is written before the root manifest names it, so a killed command leaves the
        # earlier list in force.
        path = write_takedowns(workdir, extended)
        change_root(workdir, lambda root: msgspec.structs.replace(root, takedowns=path), run)
    logger.info("%s has the list: %s goes on with it, too", workdir, command("owt", "run", workdir))


def _warn_of(resolved: Resolved, workdir: Storage) -> None:
    """Log the entries without a document, and the copies that stay or cannot be recognised."""
    if resolved.unknown:
        logger.warning(
            "%d entries of the list name no document of %s, but stay out if it comes: %s",
            len(resolved.unknown),
            workdir,
            _first_three(resolved.unknown),
        )
    if resolved.without_text:
        logger.warning(
            "the texts of %d documents are in none of %s, so that copies of them are not "
            "recognised: %s",
            len(resolved.without_text),
            ", ".join(f"{name}/" for name in TEXTS_IN),
            _first_three(resolved.without_text),
        )
    if resolved.stay:
        logger.warning(
            "%d other documents have the same text and stay: %s; name them too if they are to go",
            len(resolved.stay),
            _first_three(resolved.stay),
        )


def _first_three(entries: Sequence[str]) -> str:
    """Return the first entries of a list for a message."""
    shown = ", ".join(entries[:3])
    if len(entries) > 3:
        shown += ", ..."
    return shown


def _lines(path: str) -> list[str]:
    """Return the lines of a file, or of standard input for `-`, without a byte-order mark."""
    try:
        if path == "-":
            return sys.stdin.read().removeprefix("\ufeff").split("\n")
        with open(path, encoding="utf-8-sig") as file:
            return file.read().split("\n")
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; it should hold one URL, id or domain per line"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from error


def parse_request(lines: Iterable[str], path: str, detail: str) -> Takedowns:
    """Return the takedowns of a file's lines, which name a URL, an id or a domain each.

    Blank lines and comments, from a `#` on, are skipped. Raises UserError, with the line's number,
    for a line that names nothing.
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
            # Read as a URL, joe@example.org would remove all pages of the domain example.org.
            if "@" in text.partition("/")[0]:
                raise BadURL("an e-mail address names no document")
            url, host = canonicalize(text if "://" in text else f"https://{text}")
        except BadURL as error:
            raise UserError(
                f"{path}:{number}: {text[:80]!r} is not a URL, id or domain: {error}"
            ) from error
        # A host without a scheme and a path stands for its whole domain.
        if "://" not in text and "/" not in text:
            domains[host] = detail
        else:
            ids[id_of(url)] = Takedown(url, detail)
    return Takedowns(ids, domains)


main = Command("owt forget", _flags, _forget)
