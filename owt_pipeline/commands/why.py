"""`owt why`: what happened to one URL at every stage.

It begins with who posted the URL and ends with where its tokens are.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.errors import NotFound, command
from owt_pipeline.formats.urls import BadURL, canonicalize, host_hash, id_of, unescaped
from owt_pipeline.ledger.commit import surviving_files
from owt_pipeline.ledger.dataset import DatasetReader, LocatedRow
from owt_pipeline.ledger.root import require_run
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import mention_running
from schemas import DATASETS, Reason


def _flags(parser: CommandParser) -> None:
    """Show what happened to a URL at every stage: who posted it, how the host responded, which text
    was extracted, which document it repeats and how similar they are, or in which shard and row its
    tokens are.

    examples:
      owt why runs/2013 https://example.org/article
      owt why runs/2013 10266087034311239731 --json | jq .verdict

    The exit code is 3 if the run does not contain the URL.
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument("url", help="URL in any spelling, or its id")
    parser.add_argument("--json", action="store_true", help="print JSON: one object")


def _why(arguments: argparse.Namespace) -> int:
    """Print what happened to a URL; raises NotFound if no stage has it."""
    workdir = Storage(arguments.run)
    mention_running(workdir)
    readers = readers_of(workdir)
    query = asked_for(arguments.url)
    events = history(readers, query)
    if events is None:
        raise _not_found(workdir, readers, query)
    if arguments.json:
        print(json.dumps(events, indent=1, ensure_ascii=False))
    else:
        _print_history(events)
    return 0


def _not_found(workdir: Storage, readers: Mapping[str, DatasetReader], query: Query) -> NotFound:
    """Return the error for a URL that no stage has."""
    searched_as = ""
    if query.url and query.url != query.text:
        searched_as = f", canonical {query.url}"
    lost = ""
    if any(reader.lost for reader in readers.values()):
        lost = f". Files of the run are missing, see {command('owt', 'ls', workdir)}"
    about_file = ""
    if os.path.exists(query.text):
        about_file = "; it is a file or folder here, but expected was a URL or an id"
    return NotFound(
        f"no stage of {workdir} has {query.text} (id {query.url_id}{searched_as}){about_file}{lost}"
    )


def _print_history(events: dict[str, Any]) -> None:
    """Print what happened, stage by stage, without values that have not changed."""
    say(f"{events['url'] or events['asked']}: {_verdict(events)}")
    if events["stages"]:
        say(f"  id {events['url_id']}, shard {events['shard']}")
    printed = {name: events[name] for name in ("url", "url_id", "host")}
    for entry in events["stages"]:
        say(f"{entry['stage']}: {entry['verdict']}")
        for name, value in entry.items():
            if name in ("stage", "verdict") or value is None:
                continue
            # A row number counts in its own file, so an equal one is not the same value.
            if name != "row" and printed.get(name) == value:
                continue
            printed[name] = value
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            say(f"  {name}: {text}")


def _verdict(events: dict[str, Any]) -> str:
    """Return the verdict of a history in words."""
    last = events["stages"][-1]
    if events["verdict"] == "rejected":
        return f"rejected by {last['stage']}: {last.get('reason', 'duplicate')}"
    if events["verdict"] == "pending":
        return f"kept by {last['stage']}; the stages after it have not run"
    if events["verdict"] == "unknown":
        return (
            f"kept by {last['stage']}; the later stages are unknown, because {events['lost'][0]} "
            "is missing: the next run rebuilds it"
        )
    return "kept; its tokens are in tokens/"


# Printed as they are, these would let a page's title or URL control the terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Query:
    """A URL or an id to look up.

    Attributes:
      text: the URL or id as the user wrote it.
      url_id: the id that rows have.
      url: its canonical form; None for an id, or a URL that has none.
      host: the host of `url`.
    """

    text: str
    url_id: int
    url: str | None = None
    host: str | None = None


def asked_for(text: str) -> Query:
    """Return the query for a decimal id, or for a URL in any spelling, also without a scheme."""
    if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64:
        return Query(text, int(text))
    for spelling in (text, f"https://{text}"):
        try:
            url, host = canonicalize(spelling)
        except BadURL:
            continue
        return Query(text, id_of(url), url, host)
    # collect gives this id to a URL that it rejects because it has no canonical form.
    return Query(text, id_of(unescaped(text)))


def readers_of(workdir: Storage) -> dict[str, DatasetReader]:
    """Return a reader for each finished dataset, in the order of the stages.

    The readers leave out lost files. Raises NotFound if the folder is not a run, or has no finished
    dataset.
    """
    root = require_run(workdir)
    if not root.datasets:
        raise NotFound(
            f"no stage of {workdir} has finished yet: run {command('owt', 'ls', workdir)} to see "
            "the progress"
        )
    return {
        name: surviving_files(workdir, root.datasets[name])
        for name in DATASETS
        if name in root.datasets
    }


def history(readers: Mapping[str, DatasetReader], query: Query) -> dict[str, Any] | None:
    """Return what happened to a URL; None if no stage has it.

    The result has `asked`, `url` (canonical), `url_id`, `host`, `shard`, `verdict` and `stages`.

    The last stage that has the URL decides the verdict: `kept` or `rejected`. It is `pending` if
    later stages have not run, and `unknown` if files of later stages are `lost`.

    `stages` has an entry per stage in order. Each has `stage`, `verdict` (`kept`, `rejected` or
    `duplicate`) and the fields that the stage recorded.
    """
    entries: list[dict[str, Any]] = []
    shard: int | None = None
    url = query.url
    for name, reader in readers.items():
        if shard is None:
            rows = _first_rows(query, reader)
        else:
            # A URL stays in its shard through all stages.
            rows = find_id(reader, query.url_id, [shard])
        if rows:
            shard = rows[0].file.shard
            url = url or rows[0].row.get("url")
            entries += _entries(readers, reader, rows)
        # A kept document has no decision of its own, only the decisions of its duplicates.
        elif name == "duplicates" and shard is not None:
            entries += _removed_for(reader, query.url_id)
    if not entries:
        return None
    last = entries[-1]
    verdict = "rejected" if last["verdict"] == "duplicate" else last["verdict"]
    lost: list[str] = []
    if verdict == "kept" and last["stage"] != "tokenize":
        lost = _lost_after(readers, last["stage"], shard)
        verdict = "unknown" if lost else "pending"
    events: dict[str, Any] = {
        "asked": query.text,
        "url": url,
        "url_id": query.url_id,
        "host": query.host,
        "shard": shard,
        "verdict": verdict,
    }
    if lost:
        events["lost"] = lost
    return {**events, "stages": entries}


def _lost_after(readers: Mapping[str, DatasetReader], stage: str, shard: int | None) -> list[str]:
    """Return the paths of lost files in which a later stage may have recorded the URL."""
    stages = [reader.manifest.stage for reader in readers.values()]
    later = list(readers.values())[stages.index(stage) + 1 :]
    paths = []
    for reader in later:
        for kind in ("data", "rejects"):
            for file in reader.table_of_files.of_kind(kind, shard):
                if file.path in reader.lost:
                    paths.append(reader.workdir.path(file.path))
    return paths


def _first_rows(query: Query, reader: DatasetReader) -> list[LocatedRow]:
    """Return the rows of an id whose shard is not known.

    If several generations have the id, these are the rows of the last generation that accepted the
    URL. If none accepted it, they are the rows of the last generation that has the id.
    """
    likely_shards = _likely_shards(query, reader)
    candidates = []
    for shard in likely_shards:
        rows = find_id(reader, query.url_id, [shard])
        if rows:
            candidates.append(rows)
    accepted = [rows for rows in candidates if any(row.file.kind == "data" for row in rows)]
    if accepted:
        return accepted[-1]
    if candidates:
        return candidates[-1]
    unlikely_shards = (shard for shard in range(reader.num_shards) if shard not in likely_shards)
    return find_id(reader, query.url_id, unlikely_shards)


def _likely_shards(query: Query, reader: DatasetReader) -> list[int]:
    """Return the shard of each generation in which a URL lies if its host is known."""
    shards = []
    for generation in require_run(reader.workdir).generations:
        if generation.stage == "import":
            bucket = query.url_id % generation.shards
        elif query.host is not None:
            bucket = host_hash(query.host) % generation.shards
        else:
            bucket = 0
        shards.append(generation.first + bucket)
    return shards


def _entries(
    readers: Mapping[str, DatasetReader], reader: DatasetReader, rows: list[LocatedRow]
) -> Iterator[dict[str, Any]]:
    """Yield an entry for each row and reject that a stage recorded of an id."""
    stage = reader.manifest.stage
    is_kept = stage != "dedupe" and any(row.file.kind == "data" for row in rows)
    repeats = []
    for located in rows:
        if is_kept and located.file.kind == "rejects":
            repeats.append(located.row["detail"])
    for located in rows:
        is_reject = located.file.kind == "rejects"
        # The kept row lists the other submissions of its URL as `repeated_by`.
        if is_reject and is_kept:
            continue
        if is_reject:
            verdict = "rejected"
            recorded = _reject(located.row)
        elif stage == "dedupe":
            verdict = "duplicate"
            recorded = _decision(readers, located.row)
        elif stage == "tokenize":
            verdict = "kept"
            split = located.file.path.split("/")[1]
            recorded = {"split": split, "n_tokens": located.row["n_tokens"]}
        else:
            verdict = "kept"
            recorded = _printable(located.row)
            if repeats:
                recorded["repeated_by"] = repeats
        yield {
            "stage": stage,
            "verdict": verdict,
            **recorded,
            "file": reader.workdir.path(located.file.path),
            "row": located.number,
        }


def _reject(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a reject, with the meaning of its reason."""
    reason = Reason.of(row["reason"])
    return {
        "url": row["url"],
        "reason": str(reason),
        "meaning": reason.description,
        "detail": row["detail"],
    }


def _removed_for(decisions: DatasetReader, url_id: int) -> Iterator[dict[str, Any]]:
    """Yield an entry with the documents that were removed because they repeat this one.

    Yields nothing if there are none.
    """
    removed: list[int] = []
    for batch in decisions.batches(columns=["url_id", "kept_url_id"], rows=1 << 16):
        repeats_it = pc.equal(batch["kept_url_id"], pa.scalar(url_id, pa.uint64()))
        removed += batch["url_id"].filter(repeats_it).to_pylist()
    if removed:
        recorded = {"kept_for": len(removed), "duplicates": removed}
        yield {"stage": "dedupe", "verdict": "kept", **recorded}


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its text cut and its times as text, and without empty fields."""
    fields = {name: value for name, value in row.items() if value not in (None, [], "")}
    if "text" in fields:
        fields["characters"] = len(row["text"])
        fields["text"] = cut(row["text"])
    for name in ("created_utc", "fetched_at"):
        if name not in fields:
            continue
        # Dumps have times beyond any calendar. They stay numbers.
        with contextlib.suppress(ValueError, OverflowError, OSError):
            time = datetime.datetime.fromtimestamp(fields[name], datetime.timezone.utc)
            fields[name] = time.strftime("%Y-%m-%d %H:%M:%S UTC")
    return fields


def _decision(readers: Mapping[str, DatasetReader], row: dict[str, Any]) -> dict[str, Any]:
    """Return a decision of dedupe, with the URL of the kept document, or the files of its text."""
    fields = {name: value for name, value in row.items() if name != "url_id"}
    decisions = readers["duplicates"]
    # Texts of --against have the shard after the last one of the run.
    if row["kept_shard"] >= decisions.num_shards:
        sources = decisions.manifest.sources
        fields["kept_in"] = [source["name"] for source in sources if source["kind"] == "against"]
    elif "clean" in readers:
        for located in find_id(readers["clean"], row["kept_url_id"], [row["kept_shard"]]):
            fields["kept_url"] = located.row["url"]
    return fields


def cut(text: str, length: int = 160) -> str:
    """Return the first `length` characters of a text, on one line."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    return line[:length] + "…"


def say(line: str) -> None:
    """Print a line of untrusted text, with control characters escaped."""
    print(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", line))


def find_id(reader: DatasetReader, url_id: int, shards: Iterable[int]) -> list[LocatedRow]:
    """Return the rows of the id in the first of `shards` that has any, in its data and rejects.

    A row of `tokens/` has only `url_id` and `n_tokens`. Raises UserError for a damaged file.
    """
    columns = ["url_id", "n_tokens"] if reader.name == "tokens" else None
    for shard in shards:
        rows = [
            *reader.rows_by_id(shard, [url_id], columns=columns),
            *reader.rows_by_id(shard, [url_id], kind="rejects"),
        ]
        if rows:
            return rows
    return []


main = Command("owt why", _flags, _why)
