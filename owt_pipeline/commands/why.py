"""`owt why`: what happened to one URL at every stage.

It begins with who posted the URL and ends with where its tokens are.
"""

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
    """Print what happened to a URL; raises NotFound if no stage has it."""
    workdir = Storage(arguments.run)
    mention_running(workdir)
    readers = readers_of(workdir)
    asked = asked_for(arguments.url)
    told = history(readers, asked)
    if told is None:
        raise _not_found(workdir, readers, asked)
    if arguments.json:
        print(json.dumps(told, indent=1, ensure_ascii=False))
    else:
        _print_history(told)
    return 0


def _not_found(workdir: Storage, readers: Mapping[str, DatasetReader], asked: Asked) -> NotFound:
    """Return the error for a URL that no stage has."""
    searched_as = ""
    if asked.url and asked.url != asked.text:
        searched_as = f", looked for as {asked.url}"
    lost = ""
    if any(reader.lost for reader in readers.values()):
        lost = f", of which files are gone ({command('owt', 'ls', workdir)})"
    return NotFound(
        f"{asked.text} (id {asked.url_id}{searched_as}) does not appear in any stage of "
        f"{workdir}{lost}"
    )


def _print_history(told: dict[str, Any]) -> None:
    """Print what happened, stage by stage, without values that have not changed."""
    say(f"{told['url'] or told['asked']}: {_verdict(told)}")
    if told["stages"]:
        say(f"  id {told['url_id']}, shard {told['shard']}")
    shown = {name: told[name] for name in ("url", "url_id", "host")}
    for entry in told["stages"]:
        say(f"{entry['stage']}: {entry['verdict']}")
        for name, value in entry.items():
            if name in ("stage", "verdict") or value is None:
                continue
            # The same row number in two datasets is no repetition.
            if name != "row" and shown.get(name) == value:
                continue
            shown[name] = value
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            say(f"  {name}: {text}")


def _verdict(told: dict[str, Any]) -> str:
    """Return the verdict of a history in words."""
    last = told["stages"][-1]
    if told["verdict"] == "rejected":
        return f"rejected by {last['stage']}: {last.get('reason', 'a duplicate')}"
    if told["verdict"] == "pending":
        return f"kept by {last['stage']}; the stages after it have not run"
    if told["verdict"] == "unknown":
        return (
            f"kept by {last['stage']}; what happened then is not known, since "
            f"{told['lost'][0]} is gone: the next run makes it again"
        )
    return "kept; its tokens are in tokens/"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Asked:
    """The id that the user asked for, and its URL if a URL was given.

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
    """Return what `text` names: a decimal id, or a URL in any spelling, also without a scheme."""
    if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64:
        return Asked(text, int(text))
    for spelling in (text, f"https://{text}"):
        try:
            url, host = canonicalize(spelling)
        except BadURL:
            continue
        return Asked(text, id_of(url), url, host)
    # As collect names a URL that it rejects for having no canonical form.
    return Asked(text, id_of(unescaped(text)))


def readers_of(workdir: Storage) -> dict[str, DatasetReader]:
    """Return a reader for what is left of each finished dataset, in the order of the stages.

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
    """Return what happened to a URL; None if no stage has it.

    The result has `asked`, `url` (canonical), `url_id`, `host`, `shard`, `verdict` and `stages`.
    The verdict is that of the last stage: `kept`, `rejected`, `pending` if later stages have not
    run, or `unknown` if files of later stages are `lost`. `stages` has an entry per stage in order,
    with `stage`, `verdict` (`kept`, `rejected` or `duplicate`) and what the stage recorded.
    """
    entries: list[dict[str, Any]] = []
    shard: int | None = None
    url = asked.url
    for name, reader in readers.items():
        rows = _first(asked, reader) if shard is None else find_id(reader, asked.url_id, [shard])
        if rows:
            shard = rows[0].file.shard
            url = url or rows[0].row.get("url")
            entries += _entries(readers, reader, rows)
        elif name == "duplicates" and shard is not None:
            entries += _removed_for(reader, asked.url_id)
    if not entries:
        return None
    last = entries[-1]
    verdict = "rejected" if last["verdict"] == "duplicate" else last["verdict"]
    lost: list[str] = []
    if verdict == "kept" and last["stage"] != "tokenize":
        lost = _lost_after(readers, last["stage"], shard)
        verdict = "unknown" if lost else "pending"
    told: dict[str, Any] = {
        "asked": asked.text,
        "url": url,
        "url_id": asked.url_id,
        "host": asked.host,
        "shard": shard,
        "verdict": verdict,
    }
    if lost:
        told["lost"] = lost
    return {**told, "stages": entries}


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


def _first(asked: Asked, reader: DatasetReader) -> list[LocatedRow]:
    """Return the rows of an id whose shard is not known.

    If several generations have some, these are the rows of the one that accepted the URL, else of
    the last one.
    """
    likely_shards = _likely_shards(asked, reader)
    candidates = []
    for shard in likely_shards:
        rows = find_id(reader, asked.url_id, [shard])
        if rows:
            candidates.append(rows)
    accepted = [rows for rows in candidates if any(row.file.kind == "data" for row in rows)]
    if accepted:
        return accepted[-1]
    if candidates:
        return candidates[-1]
    others = (shard for shard in range(reader.num_shards) if shard not in likely_shards)
    return find_id(reader, asked.url_id, others)


def _likely_shards(asked: Asked, reader: DatasetReader) -> list[int]:
    """Return the shard of each generation in which a URL lies if its host is known."""
    shards = []
    for generation in require_run(reader.workdir).generations:
        if generation.stage == "import":
            bucket = asked.url_id % generation.shards
        elif asked.host is not None:
            bucket = host_hash(asked.host) % generation.shards
        else:
            bucket = 0
        shards.append(generation.first + bucket)
    return shards


def _entries(
    readers: Mapping[str, DatasetReader], reader: DatasetReader, rows: list[LocatedRow]
) -> Iterator[dict[str, Any]]:
    """Yield what a stage recorded of an id, from its rows and rejects."""
    stage = reader.manifest.stage
    is_kept = stage != "dedupe" and any(row.file.kind == "data" for row in rows)
    repeats = []
    for located in rows:
        if is_kept and located.file.kind == "rejects":
            repeats.append(located.row["detail"])
    for file, number, row in rows:
        place = {"file": reader.workdir.path(file.path), "row": number}
        if file.kind == "rejects" and is_kept:
            # Another submission of a URL that is kept is shown with its row.
            continue
        if file.kind == "rejects":
            reason = Reason.of(row["reason"])
            recorded = {
                "url": row["url"],
                "reason": str(reason),
                "meaning": reason.description,
                "detail": row["detail"],
            }
            yield {"stage": stage, "verdict": "rejected", **recorded, **place}
        elif stage == "dedupe":
            yield {"stage": stage, "verdict": "duplicate", **_decision(readers, row), **place}
        elif stage == "tokenize":
            split = file.path.split("/")[1]
            recorded = {"split": split, "n_tokens": row["n_tokens"]}
            yield {"stage": stage, "verdict": "kept", **recorded, **place}
        else:
            recorded = _shown(row)
            if repeats:
                recorded["repeated_by"] = repeats
            yield {"stage": stage, "verdict": "kept", **recorded, **place}


def _removed_for(decisions: DatasetReader, url_id: int) -> Iterator[dict[str, Any]]:
    """Yield the documents that were removed since they repeat this one, if there are any."""
    removed: list[int] = []
    for batch in decisions.batches(columns=["url_id", "kept_url_id"], rows=1 << 16):
        repeats_it = pc.equal(batch["kept_url_id"], pa.scalar(url_id, pa.uint64()))
        removed += batch["url_id"].filter(repeats_it).to_pylist()
    if removed:
        recorded = {"kept_for": len(removed), "duplicates": removed}
        yield {"stage": "dedupe", "verdict": "kept", **recorded}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row to show: its text is cut, and its empty fields are left out."""
    shown = {name: value for name, value in row.items() if value not in (None, [], "")}
    if "text" in shown:
        shown["characters"] = len(row["text"])
        shown["text"] = cut(row["text"])
    for name in ("created_utc", "fetched_at"):
        if name not in shown:
            continue
        # Dumps have times that are in no calendar; these are shown as numbers.
        with contextlib.suppress(ValueError, OverflowError, OSError):
            time = datetime.datetime.fromtimestamp(shown[name], datetime.timezone.utc)
            shown[name] = time.strftime("%Y-%m-%d %H:%M:%S UTC")
    return shown


def _decision(readers: Mapping[str, DatasetReader], row: dict[str, Any]) -> dict[str, Any]:
    """Return a decision of dedupe, with the URL of the kept document or its place."""
    shown = {name: value for name, value in row.items() if name != "url_id"}
    kept: list[LocatedRow] = []
    if "clean" in readers:
        kept = find_id(readers["clean"], row["kept_url_id"], [row["kept_shard"]])
    if kept:
        shown["kept_url"] = kept[0].row["url"]
        return shown
    place = _place_among_known_texts(readers["duplicates"], row["kept_url_id"])
    if place:
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
    """Return the first `length` characters of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[:length] + "…"


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
