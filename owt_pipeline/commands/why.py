"""`owt why`: what happened to one URL at every stage, from who posted it to where its tokens
are."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.config import read_config, settings_of
from owt_pipeline.errors import NotFound, UserError, command
from owt_pipeline.formats.records import format_of, read_records
from owt_pipeline.formats.urls import BadURL, canonicalize, host_hash, id_of, unescaped
from owt_pipeline.ledger.commit import surviving_files
from owt_pipeline.ledger.dataset import DatasetReader, LocatedRow
from owt_pipeline.ledger.root import require_run
from owt_pipeline.storage.folder import Storage, expand_globs
from owt_pipeline.storage.lock import mention_running
from schemas import DATASETS, Reason


def _flags(parser: CommandParser) -> None:
    """Show what happened to a URL at every stage: who posted it, what the fetch answered, what was
    extracted, which document it repeats and how closely, or in which shard and row its tokens are.

    examples:
      owt why runs/2013 https://example.org/article
      owt why runs/2013 10266087034311239731 --json | jq .verdict

    Exit code 3 if it does not appear in the run.
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument("url", help="the URL in any spelling, or its id")
    parser.add_argument("--json", action="store_true", help="print JSON: one object")


def _why(arguments: argparse.Namespace) -> int:
    workdir, as_json = Storage(arguments.run), arguments.json
    mention_running(workdir)
    found = history(readers := readers_of(workdir), asked := asked_for(arguments.url))
    if found is None:
        looked_for = f", looked for as {asked.url}" if asked.url and asked.url != asked.text else ""
        lost = (
            ""
            if not any(reader.lost for reader in readers.values())
            else ", of which files are gone (owt ls)"
        )
        raise NotFound(
            f"{asked.text} (id {asked.url_id}{looked_for}) does not appear in any stage of "
            f"{workdir}{lost}"
        )
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
            if (
                key in ("stage", "verdict")
                or value is None
                or (shown.get(key) == value and key != "row")
            ):
                continue  # unchanged values are not shown again
            shown[key] = value
            say(f"  {key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")


def _verdict(found: dict[str, Any]) -> str:
    last = found["stages"][-1]
    if found["verdict"] == "rejected":
        return f"rejected by {last['stage']}: {last.get('reason', 'a duplicate')}"
    if found["verdict"] == "pending":
        return f"kept by {last['stage']}; the stages after it have not run"
    if found["verdict"] == "unknown":
        return (
            f"kept by {last['stage']}; what happened then is not known, since "
            f"{found['lost'][0]} is gone: the next run makes it again"
        )
    return "kept; its tokens are in tokens/"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Asked:
    """What the user asked for: an id, and its URL if a URL was given.

    Attributes:
      text: as the user wrote it.
      url_id: the id that rows have.
      url: its canonical form; None for an id, or a URL that has none.
      host: the host of `url`.
    """

    text: str
    url_id: int
    url: str | None = None
    host: str | None = None


def asked_for(text: str) -> Asked:
    """What `text` names: a decimal id, or a URL in any spelling, with or without its scheme."""
    if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64:
        return Asked(text, int(text))
    for spelling in (text, f"https://{text}"):
        try:
            url, host = canonicalize(spelling)
            return Asked(text, id_of(url), url, host)
        except BadURL:
            continue
    return Asked(
        text, id_of(unescaped(text))
    )  # as collect names a URL that it rejects for having no canonical form


def readers_of(workdir: Storage) -> dict[str, DatasetReader]:
    """A reader for what is left of each finished dataset, in the order of the stages.

    Raises NotFound if the folder is not a run, or has no finished dataset.
    """
    root = require_run(workdir)
    if not root.datasets:
        raise NotFound(
            f"no stage of {workdir} has finished yet; "
            f"{command('owt', 'ls', workdir)} shows how far it is"
        )
    return {
        name: surviving_files(workdir, root.datasets[name])
        for name in DATASETS
        if name in root.datasets
    }


def history(readers: Mapping[str, DatasetReader], asked: Asked) -> dict[str, Any] | None:
    """What happened to a URL, or None if no stage has it.

    The result has `asked`, `url` (canonical), `url_id`, `host`, `shard`, `verdict` (that of the
    last stage: `kept`, `rejected`, `pending` if later stages have not run, or `unknown` if files of
    later stages are `lost`), and `stages`: an
    entry per stage in order, with `stage`, `verdict` (`kept`, `rejected` or `duplicate`) and what
    the stage knows of it.
    """
    entries: list[dict[str, Any]] = []
    shard: int | None = None
    url = asked.url
    for name, reader in readers.items():
        found = _first(asked, reader) if shard is None else find_id(reader, asked.url_id, [shard])
        if found:
            shard = found[0].file.shard
            url = url or found[0].row.get("url")
            entries += _entries(readers, reader, found)
        elif name == "duplicates" and shard is not None:
            entries += _removed_for(reader, asked.url_id)
    if not entries:
        return None
    verdict = "rejected" if entries[-1]["verdict"] == "duplicate" else entries[-1]["verdict"]
    lost: list[str] = []
    if verdict == "kept" and entries[-1]["stage"] != "tokenize":
        lost = _lost_after(readers, entries[-1]["stage"], shard)
        verdict = "unknown" if lost else "pending"
    about = {
        "asked": asked.text,
        "url": url,
        "url_id": asked.url_id,
        "host": asked.host,
        "shard": shard,
    }
    more = {"lost": lost} if lost else {}
    return {**about, "verdict": verdict, **more, "stages": entries}


def _lost_after(readers: Mapping[str, DatasetReader], stage: str, shard: int | None) -> list[str]:
    """Return the paths of lost files in which a later stage may have said what it did."""
    stages = [reader.manifest.stage for reader in readers.values()]
    later = list(readers.values())[stages.index(stage) + 1 :]
    paths = []
    for reader in later:
        for kind in ("data", "rejects"):
            for file in reader.table_of_files.of_kind(kind, shard):
                if file.path in reader.lost:
                    paths.append(reader.workdir.path(file.path))
    return paths


def _first(asked: Asked, reader: DatasetReader) -> list[LocatedRow]:
    """The rows in a dataset of which the shard is not known: of several generations that have
    some, of the one that accepted the URL, else of the last."""
    root = require_run(reader.workdir)
    homes = []
    for generation in root.generations:
        bucket = asked.url_id % generation.shards
        if generation.stage != "import":
            bucket = host_hash(asked.host) % generation.shards if asked.host is not None else 0
        homes.append(generation.first + bucket)
    found = [rows for shard in homes if (rows := find_id(reader, asked.url_id, [shard]))]
    accepted = [rows for rows in found if any(row.file.kind == "data" for row in rows)]
    if found:
        return (accepted or found)[-1]
    return find_id(
        reader, asked.url_id, (shard for shard in range(reader.num_shards) if shard not in homes)
    )


def _entries(
    readers: Mapping[str, DatasetReader], reader: DatasetReader, found: list[LocatedRow]
) -> Iterator[dict[str, Any]]:
    stage = reader.manifest.stage
    kept = any(row.file.kind == "data" for row in found) and stage != "dedupe"
    repeats = [row.row["detail"] for row in found if kept and row.file.kind == "rejects"]
    for file, number, row in found:
        where = {"file": reader.workdir.path(file.path), "row": number}
        if file.kind == "rejects":
            if kept:
                continue  # another submission of a URL that is kept: shown with its row
            reason = Reason.of(row["reason"])
            what = {"reason": str(reason), "meaning": reason.description, "detail": row["detail"]}
            yield {"stage": stage, "verdict": "rejected", "url": row["url"], **what, **where}
        elif stage == "dedupe":
            yield {"stage": stage, "verdict": "duplicate", **_decision(readers, row), **where}
        elif stage == "tokenize":
            split = file.path.split("/")[1]
            yield {
                "stage": stage,
                "verdict": "kept",
                "split": split,
                "n_tokens": row["n_tokens"],
                **where,
            }
        else:
            again = {"repeated_by": repeats} if repeats else {}
            yield {"stage": stage, "verdict": "kept", **_shown(row), **again, **where}


def _removed_for(decisions: DatasetReader, identifier: int) -> Iterator[dict[str, Any]]:
    removed: list[int] = []
    for batch in decisions.batches(columns=["url_id", "kept_url_id"], rows=1 << 16):
        ours = pc.equal(batch["kept_url_id"], pa.scalar(identifier, pa.uint64()))
        removed += batch["url_id"].filter(ours).to_pylist()
    if removed:
        yield {
            "stage": "dedupe",
            "verdict": "kept",
            "kept_for": len(removed),
            "duplicates": removed,
        }


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row to show: its text cut, its empty fields left out."""
    shown = {key: value for key, value in row.items() if value not in (None, [], "")}
    if "text" in shown:
        shown["characters"] = len(row["text"])
        shown["text"] = cut(row["text"])
    for key in ("created_utc", "fetched_at"):
        if key in shown:
            with contextlib.suppress(
                ValueError, OverflowError, OSError
            ):  # dumps have dates of no calendar
                moment = datetime.datetime.fromtimestamp(shown[key], datetime.timezone.utc)
                shown[key] = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return shown


def _decision(readers: Mapping[str, DatasetReader], row: dict[str, Any]) -> dict[str, Any]:
    """A dedupe decision, with the URL of the kept document."""
    shown = {key: value for key, value in row.items() if key != "url_id"}
    kept = (
        find_id(readers["clean"], row["kept_url_id"], [row["kept_shard"]])
        if "clean" in readers
        else []
    )
    if kept:
        shown["kept_url"] = kept[0].row["url"]
    elif place := _place_among_known_texts(readers["duplicates"], row["kept_url_id"]):
        shown["kept_in"] = place
    return shown


def _place_among_known_texts(decisions: DatasetReader, text_id: int) -> str | None:
    """Return the file of `--against` and the line or row that has the text with this id; only the
    names of the files if none has it any more; None without `--against`."""
    names = [source["name"] for source in decisions.manifest.sources if source["kind"] == "against"]
    if not names:
        return None
    settings = read_config(settings_of(decisions.workdir)).get("dedupe", {})
    # Files may be gone or changed since: the answer names what is known.
    with contextlib.suppress(UserError, OSError):
        for path in expand_globs(tuple(settings.get("against", ())), "against"):
            for record in read_records(path, path, format_of(path), columns=["text"]):
                text = (record.fields or {}).get("text")
                if isinstance(text, str) and text_id == _id_of_known_text(text):
                    return record.where
    return f"one of the files of --against, which have changed since: {', '.join(names)}"


def _id_of_known_text(text: str) -> int:
    """Return the id by which dedupe knows a text that has no URL."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "replace"))


def cut(text: str, length: int = 160) -> str:
    """The beginning of a text, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[:length] + "…"


def say(line: str) -> None:
    """Print a line of untrusted text, with control characters escaped."""
    print(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", line))


def find_id(reader: DatasetReader, identifier: int, shards: Iterable[int]) -> list[LocatedRow]:
    """Return the rows of the id in the first of `shards` that has any, in its data and rejects.

    A row of `tokens/` has only `url_id` and `n_tokens`. Raises UserError for a damaged file.
    """
    columns = ["url_id", "n_tokens"] if reader.name == "tokens" else None
    for shard in shards:
        rows = [
            *reader.rows_by_id(shard, [identifier], columns=columns),
            *reader.rows_by_id(shard, [identifier], kind="rejects"),
        ]
        if rows:
            return rows
    return []


main = Command("owt why", _flags, _why)
