"""`owt forget`: remove documents from the corpus and the tokens, and keep them out."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence

from owt_pipeline.command_line import (
    Command,
    CommandParser,
    add_output_flags,
    at_least,
    configure_output,
)
from owt_pipeline.commands.run import REMADE, recorded_stages
from owt_pipeline.commands.takedown_search import TEXTS_IN, Found, find_documents
from owt_pipeline.commands.why import readers_of
from owt_pipeline.engine.runner import run_stages
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.engine.takedowns import (
    Takedown,
    Takedowns,
    read_takedowns,
    write_takedowns,
)
from owt_pipeline.errors import UserError, command
from owt_pipeline.formats.urls import BadURL, canonicalize, id_of
from owt_pipeline.ledger.root import change_root, read_root
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import hold
from schemas.quantities import pluralize

logger = logging.getLogger("owt")


_COMMENT = re.compile(r"(^|\s)#.*")
_WITH_TEXT = ("pages", "documents", "clean")


def _flags(parser: CommandParser) -> None:
    """Remove documents from corpus/ and tokens/ (a takedown). The command writes them to a file in
    ledger/takedowns/, so they stay removed whichever stages you rerun. It compares all documents
    of corpus/ with them, rewrites only the shards that contain them, and rebuilds the report.
    Documents with the same text are removed too: duplicates of a removed document, and the
    document that was kept instead of a URL or id in your list. Later runs reject copies of the
    removed texts. The run stores hashes of these texts, not the texts.

    If the command is killed, run it again. Until it logs that the takedowns are recorded, nothing
    is removed. After that, `owt run` completes the removal, too.

    pages/, warc/, documents/ and clean/ still contain the text, since the corpus is built from
    them. Delete them when you no longer add to the corpus (rm -r RUN/warc RUN/pages RUN/documents
    RUN/clean). A later run that needs them, such as one with --add, may rebuild them, with the
    text, from archives or imported files that contain it. Delete them again after such a run.

    example:
      owt forget runs/2013 takedown.txt --reason 'request of 2026-11-20'

    takedown.txt has one URL, id or domain (example.org, with all hosts below it) per line. A #
    begins a comment. Entries that are not in the corpus are recorded too, so later runs reject
    them. If their documents come later, run the command again with the same list: it then also
    knows their texts.
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "urls",
        type=os.path.expanduser,
        metavar="URLS.txt",
        help="file of URLs, ids and domains, one per line; - reads standard input",
    )
    parser.add_argument(
        "--reason",
        default="on request",
        metavar="TEXT",
        help="reason to record in the ledger (default: %(default)s)",
    )
    parser.add_argument(
        "--replaces",
        nargs="+",
        default=[],
        metavar="FILE",
        help="missing or damaged files of takedowns whose requests URLS.txt repeats",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print what would be removed; change nothing"
    )
    parser.add_argument(
        "--workers",
        type=at_least(1),
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes for CPU-bound work (default: this machine's cores)",
    )
    add_output_flags(parser)


def _forget(arguments: argparse.Namespace) -> int:
    """Write the takedowns, and remove their documents from the corpus and what follows it."""
    configure_output(arguments)
    workdir = Storage(arguments.run)
    readers = readers_of(workdir)
    run = uuid.uuid4().hex
    with hold(workdir, run):
        names = read_root(workdir)[0].takedowns
        replaced = set(names).intersection(map(os.path.basename, arguments.replaces))
        listed = read_takedowns(workdir, names, replaced)
        request = parse_request(_lines(arguments.urls), arguments.urls, arguments.reason)
        if not request:
            raise UserError(
                f"{arguments.urls} has no URL, id or domain, so there is nothing to forget: write "
                "one per line"
            )
        found = find_documents(request, listed, readers, arguments.workers)
        if not arguments.dry_run:
            _record(workdir, run, listed, found, replaced)
    _warn_of(found, workdir)
    say: Callable[[str], object] = (lambda _: None) if arguments.quiet else print
    say(_effect_of(found, arguments.dry_run))
    if arguments.dry_run:
        return 0
    # A missing tokenizer must not keep documents in corpus/.
    runtime = Runtime(workdir, arguments.workers)
    for result in run_stages(recorded_stages(REMADE, workdir), runtime):
        content = pluralize(result.manifest.counts.left, "document")
        if result.stage.name == "report":
            content = "statistics"
        finished = " (finished)" if result.seconds is None else ""
        say(f"{result.stage.output}/: {content}{finished}")
    with_text = []
    for name in _WITH_TEXT:
        if name in readers and not readers[name].gone:
            with_text.append(f"{name}/")
    if with_text:
        say(
            f"{', '.join(with_text)} may still contain the removed texts: see `owt forget --help` "
            "for when to delete them. A later run may rebuild them from archives that contain the "
            "texts"
        )
    return 0


def _record(
    workdir: Storage, run: str, listed: Takedowns, found: Found, replaced: Collection[str]
) -> None:
    """Write the takedowns that the run lacks to a file, and its name to the root manifest."""
    rows = listed.lacking(found.takedowns)
    if rows or replaced:
        # From here on the takedowns are in force, also if the root is not replaced any more.
        write_takedowns(workdir, rows, replaced)
        change_root(workdir, lambda root: root, run)
    logger.info(
        "the takedowns are recorded in %s; if this command is interrupted, %s completes the "
        "removal",
        workdir,
        command("owt", "run", workdir),
    )


def _effect_of(found: Found, is_dry_run: bool) -> str:
    """Return a line with the number of documents that are removed, or would be."""
    verb = "would be removed" if is_dry_run else "removed"
    line = f"{pluralize(found.in_corpus, 'document')} {verb} from the corpus"
    if found.duplicates:
        duplicates = pluralize(found.duplicates, "duplicate")
        line += f"; {duplicates} outside the corpus recorded, too"
    return line


def _warn_of(found: Found, workdir: Storage) -> None:
    """Log the entries without a document, and the copies that stay or cannot be recognised."""
    if found.unknown:
        logger.warning(
            "no document of %s matches %s of the list (%s); later runs reject such documents",
            workdir,
            pluralize(len(found.unknown), "entry"),
            _first_three(found.unknown),
        )
    if found.without_text:
        logger.warning(
            "later runs cannot recognise copies of %s, because none of %s has the text any more: "
            "%s",
            pluralize(len(found.without_text), "document"),
            ", ".join(f"{name}/" for name in TEXTS_IN),
            _first_three(found.without_text),
        )
    if found.stay:
        logger.warning(
            "the corpus keeps %s with the same text: %s; add them to the list to remove them, too",
            pluralize(len(found.stay), "other document"),
            _first_three(found.stay),
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
            f"cannot read {path}: {error.strerror}; expected a file with one URL, id or domain "
            "per line"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); expected a "
            "text file with one URL, id or domain per line, saved as UTF-8"
        ) from error


def parse_request(lines: Iterable[str], path: str, detail: str) -> list[Takedown]:
    """Return the takedowns of a file's lines, which name a URL, an id or a domain each.

    Blank lines and comments, from a `#` on, are skipped. Raises UserError, with the line's number,
    for a line that names nothing.
    """
    requested: dict[int | str, Takedown] = {}
    for number, line in enumerate(lines, start=1):
        text = _COMMENT.sub("", line).strip()
        if not text:
            continue
        if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64:
            requested.setdefault(int(text), Takedown(int(text), None, None, detail))
            continue
        try:
            # Read as a URL, joe@example.org would remove all pages of the domain example.org.
            if "@" in text.partition("/")[0]:
                raise BadURL("an e-mail address does not identify a document")
            url, host = canonicalize(text if "://" in text else f"https://{text}")
        except BadURL as error:
            raise UserError(
                f"{path}:{number}: {text[:80]!r} is not a URL, id or domain: {error}"
            ) from error
        # A host without a scheme and a path stands for its whole domain.
        if "://" not in text and "/" not in text:
            requested[host] = Takedown(None, None, host, detail)
        else:
            requested[id_of(url)] = Takedown(id_of(url), url, None, detail)
    return list(requested.values())


main = Command("owt forget", _flags, _forget)
