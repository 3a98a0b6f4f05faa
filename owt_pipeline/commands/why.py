"""`owt why`: what happened to a URL at every stage."""

from __future__ import annotations

import argparse
import json
from typing import Any

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.commands.history import asked_for, history, readers_of, say
from owt_pipeline.errors import NotFound
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import mention_running


def _flags(parser: CommandParser) -> None:
    """Show what happened to a URL at every stage: who posted it, what the fetch answered, what was
    extracted, which document it repeats and how closely, or in which shard and row its tokens are.

    examples:
      owt why runs/2013 https://example.org/article
      owt why runs/2013 10266087034311239731 --json | jq .verdict

    Exit code 3 if it does not appear in the run.
    """
    parser.add_argument("run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://")
    parser.add_argument("url", help="the URL in any spelling, or its id")
    parser.add_argument("--json", action="store_true", help="print JSON: one object")


def _why(arguments: argparse.Namespace) -> int:
    workdir, as_json = Storage(arguments.run), arguments.json
    mention_running(workdir)
    found = history(readers := readers_of(workdir), asked := asked_for(arguments.url))
    if found is None:
        looked_for = f", looked for as {asked.url}" if asked.url and asked.url != asked.text else ""
        lost = "" if not any(reader.lost for reader in readers.values()) else ", of which files are gone (owt ls)"
        raise NotFound(f"{asked.text} (id {asked.url_id}{looked_for}) does not appear in any stage of {workdir}{lost}")
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        _print_history(found)
    return 0


def _print_history(found: dict[str, Any]) -> None:
    say(f"{found['url'] or found['asked']}: {_verdict(found)}")
    if found["stages"]:
        say(f"  id {found['url_id']}, shard {found['shard']}")
    shown: dict[str, Any] = {"url": found["url"], "url_id": found["url_id"], "host": found["host"]}
    for entry in found["stages"]:
        say(f"{entry['stage']}: {entry['verdict']}")
        for key, value in entry.items():
            if key in ("stage", "verdict") or value is None or (shown.get(key) == value and key != "row"):
                continue  # unchanged values are not shown again
            shown[key] = value
            say(f"  {key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")


def _verdict(found: dict[str, Any]) -> str:
    last = found["stages"][-1]
    if found["verdict"] == "rejected":
        return f"rejected by {last['stage']}: {last.get('reason', 'a duplicate')}"
    if found["verdict"] == "pending":
        return f"kept by {last['stage']}; the stages after it have not run"
    return "kept; its tokens are in tokens/"


main = Command("owt why", _flags, _why)
