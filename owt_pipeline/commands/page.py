"""`owt page`: the main text of one page."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.errors import NotFound, UsageError
from owt_pipeline.library import Extractor
from owt_pipeline.stages.extract.options import Options
from owt_pipeline.stages.extract.pages import Rejected
from owt_pipeline.storage.folder import folder_of
from schemas.settings import add_flags, flags_given


def _flags(parser: CommandParser) -> None:
    """Print the main text of a web page, from a file or from standard input (-).

    examples:
      owt page article.html
      owt page article.html --text_format markdown --url https://example.org/article
      curl -s https://example.org/article | owt page - --json | jq .title

    The exit code is 3 if the page has no main text.
    """
    parser.add_argument("page", metavar="FILE", help="an HTML file, or - for standard input")
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
    """Return the content of a file, local or in a bucket, or of standard input for `-`."""
    if path == "-":
        return sys.stdin.buffer.read()
    folder, name = folder_of(path)
    return folder.read(name)


main = Command("owt page", _flags, _page)
