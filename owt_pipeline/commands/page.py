"""`owt page`: the main text of one page."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.errors import NotFound, UsageError, UserError
from owt_pipeline.formats.file_kinds import NUM_START_BYTES, TEXT, describe_kind, kind_of
from owt_pipeline.formats.records import MAX_RECORD_BYTES, open_decompressed
from owt_pipeline.library import Extractor
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.pages import Rejected
from schemas.settings import add_flags, flags_given


def _flags(parser: CommandParser) -> None:
    """Print the main text of one web page, HTML or plain text, from a file or from standard input
    (-). A file can be compressed (gzip, zstd, xz, bzip2).

    examples:
      owt page article.html
      owt page article.html --text_format markdown --url https://example.org/article
      curl -s https://example.org/article | owt page - --json | jq .title

    The exit code is 3 if the page has no main text.
    """
    parser.add_argument(
        "page",
        type=os.path.expanduser,
        metavar="FILE",
        help="an HTML file, or - for standard input",
    )
    parser.add_argument(
        "--url", default="", help="URL of the page, which helps to find its date and site name"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON: one object with text, title, author, date, ...",
    )
    add_flags(parser.add_argument_group("extraction"), Options)


def _page(arguments: argparse.Namespace) -> int:
    """Print the main text of a page; raises NotFound if it has none."""
    body = _read(arguments.page)
    try:
        # A page that crashes the parser or exhausts memory ends the separate process only.
        extractor = Extractor(isolated=True, workers=1, **flags_given(Options, arguments))
    except ValueError as error:
        raise UsageError(str(error)) from error
    (result,) = extractor.map([(body, arguments.url)])
    if isinstance(result, Rejected):
        raise NotFound(f"{arguments.page}: {result.reason}: {result.detail}")
    if arguments.json:
        fields = {"url": arguments.url or None, **dataclasses.asdict(result)}
        print(json.dumps(fields, indent=1, ensure_ascii=False))
    else:
        print(result.text)
    return 0


def _read(path: str) -> bytes:
    """Return the page in a file, or in standard input for `-`; raise UserError for other data."""
    if "://" in path and not os.path.exists(path):
        url = shlex.quote(path)
        fetch = f"curl -sL {url} | owt page - --url {url}"
        raise UserError(f"{path} is a URL; expected a file: fetch the page first (`{fetch}`)")
    if path == "-":
        body = sys.stdin.buffer.read(MAX_RECORD_BYTES)
    else:
        with open_decompressed(path) as file:
            body = file.read(MAX_RECORD_BYTES)
    start = body[:NUM_START_BYTES]
    # A plain text may begin with a URL.
    if kind_of(start) not in (TEXT, "html", "urls"):
        kind = describe_kind(start, path)
        raise UserError(f"{path} is not a web page, but {kind}; expected HTML or plain text")
    return body


main = Command("owt page", _flags, _page)
