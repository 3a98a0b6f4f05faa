"""`owt page`: the main text of one page."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.config import stage_options
from owt_pipeline.engine.parts import make_here
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import NotFound
from owt_pipeline.formats.warc import pages
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages import load
from owt_pipeline.stages.extract.pages import Found, Result, extract_all, extract_body, extract_row
from owt_pipeline.storage.folder import Storage, folder_of
from schemas.settings import add_flags, flags_given

_FETCH = ("user_agent", "allow_private_hosts", "allowed_ports", "proxy")


def _flags(parser: CommandParser) -> None:
    """Print the main text of a page: a file, a URL, or standard input (-). A URL is fetched as `owt fetch`
    fetches it: robots.txt is checked, and addresses of private networks are refused.

    examples:
      owt page article.html
      owt page article.html --text_format markdown --url https://example.org/article
      owt page https://example.org/article --user_agent 'me/1.0 (+mailto:me@example.org)' --json | jq .title
      curl -s https://example.org/article | owt page -

    Exit code 3 if the page has no main text.
    """
    parser.add_argument("page", metavar="FILE|URL|-", help="an HTML file, a URL, or - for standard input")
    parser.add_argument("--url", default="", help="URL of a file, which helps to find its date and site")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: one object with text, title, author, date, ..."
    )
    add_flags(parser.add_argument_group("extraction"), load("extract").options)
    group = parser.add_argument_group("fetching a URL")
    group.add_argument("--user_agent", metavar="TEXT", help="User-Agent with contact details, which a URL needs")
    group.add_argument(
        "--allow_private_hosts", action="store_true", default=None, help="also fetch from private networks"
    )
    group.add_argument(
        "--allowed_ports", type=int, nargs="+", metavar="N", help="ports to fetch from (default: 80 443)"
    )
    group.add_argument("--proxy", metavar="URL", help="an HTTP proxy")


def _page(arguments: argparse.Namespace) -> int:
    stage = load("extract")
    options = stage_options(stage, None, {}, flags_given(stage.options, arguments))
    given: str = arguments.page
    if given.startswith(("http://", "https://")):
        chosen = {name: value for name in _FETCH if (value := getattr(arguments, name)) is not None}
        row, problem = _fetched(given, chosen)
        if row is None:
            raise NotFound(f"{given}: {problem}")
        result, url = _one(row, options, extract_row), row["final_url"][0].as_py()
    else:
        body = sys.stdin.buffer.read() if given == "-" else _read(given)
        result, url = _one((arguments.url, int(time.time()), body), options, _extract_file), arguments.url
    if not isinstance(result, Found):
        raise NotFound(f"{given}: {result.reason}: {result.detail}")
    if arguments.json:
        fields = {"url": url or None, "charset": result.charset, **dataclasses.asdict(result.document)}
        print(json.dumps(fields, indent=1, ensure_ascii=False))
    else:
        print(result.document.text)
    return 0


def _one(page: Any, options: Any, work: Any) -> Result:
    """Extract one page in a separate process, with the stage's limits."""
    ((_, result),) = extract_all([page], options, 1, work)
    return result


def _extract_file(extract: Any, page: tuple[str, int, bytes]) -> Result:
    url, moment, body = page
    return extract_body(extract, url, moment, body)


def _read(path: str) -> bytes:
    folder, name = folder_of(path)
    return folder.read(name)


def _fetched(url: str, chosen: dict[str, Any]) -> tuple[Any, str]:
    """(row of `pages/` with its record, "") of a URL, or (None, why there is none): a run of two stages."""
    with tempfile.TemporaryDirectory(prefix="owt-") as folder:
        (Path(folder) / "url.txt").write_text(url + "\n", encoding="utf-8")
        runtime = Runtime(Storage(f"{folder}/run"))
        for name, flags in (
            ("collect", {"url_lists": [f"{folder}/url.txt"], "num_shards": 1, "blocked_extensions": []}),
            ("fetch", chosen),
        ):
            stage = load(name)
            manifest = make_here(stage, stage_options(stage, None, {}, flags), runtime)
            reader = DatasetReader(runtime.workdir, manifest)
            for rejects in reader.batches(kind="rejects"):
                for reject in rejects.to_pylist():
                    return None, f"{reject['reason']}" + (f": {reject['detail']}" if reject["detail"] else "")
        (row,) = pages(reader, 0)
        return row, ""


main = Command("owt page", _flags, _page)
