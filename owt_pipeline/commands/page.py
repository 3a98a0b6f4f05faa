"""`owt page`: the main text of one page."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import shlex
import sys

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.errors import NotFound, UsageError, UserError
from owt_pipeline.formats.file_kinds import (
    NUM_START_BYTES,
    TEXT,
    describe_kind,
    has_only_urls,
    kind_of,
)
from owt_pipeline.formats.files import known_format
from owt_pipeline.formats.lines import Decompressed
from owt_pipeline.formats.records import MAX_RECORD_BYTES, open_decompressed
from owt_pipeline.library import Extractor
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.pages import Rejected
from schemas.settings import add_flags, flags_given


def _flags(parser: CommandParser) -> None:
    """Print the main text of one web page, from a file or from standard input (-). The page is
    HTML or plain text, compressed (gzip, zstd, xz, bzip2) or not.

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
    path: str = arguments.page
    body = _read(path)
    try:
        # A page that crashes the parser or exhausts memory ends the separate process only.
        extractor = Extractor(isolated=True, workers=1, **flags_given(Options, arguments))
    except ValueError as error:
        raise UsageError(str(error)) from error
    (result,) = extractor.map([(body, arguments.url)])
    if isinstance(result, Rejected):
        raise NotFound(f"{path}: {result.reason}: {result.detail}")
    if arguments.json:
        fields = {"url": arguments.url or None, **dataclasses.asdict(result)}
        print(json.dumps(fields, indent=1, ensure_ascii=False))
    else:
        print(result.text)
    return 0


def _read(path: str) -> bytes:
    """Return the page in a file, local or in a bucket, or in standard input for `-`.

    A compressed page is decompressed. Raises UserError if the path does not name a page.
    """
    if path.lower().startswith(("http://", "https://")):
        fetch = f"curl -sL {shlex.quote(path)} | owt page - --url {shlex.quote(path)}"
        raise UserError(f"{path} is a URL; expected a file: fetch the page first (`{fetch}`)")
    if os.path.isdir(path):
        raise UserError(
            f"{path} is a folder; expected a file with one page. For many pages, write them to "
            "WARC files, which `owt run RUN --warcs` reads"
        )
    if path == "-":
        return _read_page(io.BufferedReader(Decompressed(sys.stdin.buffer)), path)
    with open_decompressed(path) as file:
        return _read_page(file, path)


def _read_page(file: io.BufferedReader, path: str) -> bytes:
    """Return the content of an open file; raise UserError if it does not begin like a page."""
    start = file.read(NUM_START_BYTES)
    kind = kind_of(start)
    is_page = kind in (TEXT, "html") or (kind == "urls" and not has_only_urls(start))
    problem = "" if is_page else describe_kind(start, "FILE" if path == "-" else path)
    if is_page and known_format(path) == "csv":
        problem = f"a table: `owt import RUN {shlex.quote(path)}` reads its texts"
    if problem:
        raise UserError(f"{path} is not a web page, but {problem}; expected HTML or plain text")
    return start + file.read(MAX_RECORD_BYTES)


main = Command("owt page", _flags, _page)
