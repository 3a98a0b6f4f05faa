"""`owt page`: the main text of one page."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.config import stage_options
from owt_pipeline.errors import NotFound
from owt_pipeline.stages import load
from owt_pipeline.stages.extract.pages import Found, Result, extract_all, extract_body
from owt_pipeline.storage.folder import folder_of
from schemas.settings import add_flags, flags_given


def _flags(parser: CommandParser) -> None:
    """Print the main text of a page: a file, or standard input (-).

    examples:
      owt page article.html
      owt page article.html --text_format markdown --url https://example.org/article
      curl -s https://example.org/article | owt page - --json | jq .title

    Exit code 3 if the page has no main text.
    """
    parser.add_argument("page", metavar="FILE", help="an HTML file, or - for standard input")
    parser.add_argument("--url", default="", help="URL of a file, which helps to find its date and site")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: one object with text, title, author, date, ..."
    )
    add_flags(parser.add_argument_group("extraction"), load("extract").options)


def _page(arguments: argparse.Namespace) -> int:
    stage = load("extract")
    options = stage_options(stage, None, {}, flags_given(stage.options, arguments))
    given: str = arguments.page
    body = sys.stdin.buffer.read() if given == "-" else _read(given)
    result = _one((arguments.url, int(time.time()), body), options)
    if not isinstance(result, Found):
        raise NotFound(f"{given}: {result.reason}: {result.detail}")
    if arguments.json:
        fields = {"url": arguments.url or None, "charset": result.charset, **dataclasses.asdict(result.document)}
        print(json.dumps(fields, indent=1, ensure_ascii=False))
    else:
        print(result.document.text)
    return 0


def _one(page: tuple[str, int, bytes], options: Any) -> Result:
    """Extract one page in a separate process, with the stage's limits."""
    ((_, result),) = extract_all([page], options, 1, _extract_file)
    return result


def _extract_file(options: Any, page: tuple[str, int, bytes]) -> Result:
    url, moment, body = page
    return extract_body(options, url, moment, body)


def _read(path: str) -> bytes:
    folder, name = folder_of(path)
    return folder.read(name)


main = Command("owt page", _flags, _page)
