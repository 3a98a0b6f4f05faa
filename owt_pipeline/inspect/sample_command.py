"""`owt sample-documents`: documents at random, to read."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from typing import Any

from owt_pipeline.engine.command_line import CommandParser
from owt_pipeline.engine.errors import UsageError
from owt_pipeline.engine.lease import mention_running
from owt_pipeline.engine.storage import Storage
from owt_pipeline.inspect.sample import sample
from owt_pipeline.ledger.story import readers_of
from owt_pipeline.stage_command import reporting_errors


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
