"""`owt ls`: list the datasets of a run."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from owt_pipeline.command_line import Command, CommandParser, aligned, duration, size
from owt_pipeline.engine.phases import read_log
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.bases import folders_of_chain, out_of_date
from owt_pipeline.ledger.commit import Listing
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest, require_run
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lease import running
from schemas import DATASETS


@dataclass(frozen=True)
class Row:
    """One stage of a run.

    Attributes:
      stage: its name; `import` where text was imported.
      dataset: the folder that it writes.
      state: `finished`, `interrupted`, `running` or `-` for one that has not started.
      rows: rows that left it, None before it is finished.
      rejected: rows that it rejected.
      bytes: of all its files.
      shards: shards of the dataset; of unfinished work, the finished ones.
      finished: the moment it was published, ISO 8601 in UTC; empty if the log has no entry.
      seconds: duration of its last run.
      foreign: files in its folders that no stage wrote.
    """

    stage: str
    dataset: str
    state: str
    rows: int | None = None
    rejected: int = 0
    bytes: int = 0
    shards: int = 0
    finished: str = ""
    seconds: float | None = None
    foreign: Sequence[str] = ()


def rows_of(workdir: Storage) -> Iterator[Row]:
    """One row per dataset, in the order of the stages; raises ManifestError for a damaged manifest."""
    log = {(entry["stage"], entry["fingerprint"]): entry for entry in read_log(workdir) if "stage" in entry}
    held = running(workdir) is not None
    for name in (*DATASETS, "report"):
        manifest = read_manifest(workdir, name)
        stage = manifest.stage if manifest is not None else DATASETS[name].stage if name in DATASETS else name
        listing = Listing(workdir, name, remember=False)
        work = listing.unfinished_plans()
        shards = sum("/.work/" in path and "/shards/" in path for path in listing.entries)
        state = "running" if held else "interrupted"
        if manifest is None:
            yield Row(stage, name, state if work else "-", shards=shards, foreign=listing.foreign(()))
            continue
        files = DatasetReader(workdir, manifest).table_of_files.files
        entry = log.get((stage, manifest.fingerprint), {})
        yield Row(
            stage,
            name,
            state if work else "finished",
            manifest.counts.left if name in DATASETS else None,
            sum(manifest.counts.rejected.values()),
            manifest.total_bytes,
            manifest.num_shards,
            _moment(entry["started"] + entry["seconds"]) if entry else "",
            entry.get("seconds"),
            listing.foreign({file.path for file in files}),
        )


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    cells = [("stage", "writes", "state", "rows", "rejected", "bytes", "finished")]
    for row in rows:
        counts = ("", "") if row.rows is None else (f"{row.rows:,}", f"{row.rejected:,}")
        note = _local(row.finished)
        if row.state in ("running", "interrupted") and row.shards and row.rows is None:
            note = f"{row.shards} shard(s) so far"
        elif row.seconds is not None and note:
            note += f", {duration(row.seconds)}"
        cells.append((row.stage, f"{row.dataset}/", row.state, *counts, size(row.bytes) if row.bytes else "", note))
    return "\n".join(aligned(cells, left=(0, 1, 2, 6)))


def months_of(workdir: Storage) -> list[dict[str, Any]]:
    """The runs of a chain, the oldest first: each one's folder, state, URLs, documents, tokens and bytes."""
    months = []
    for run in [*folders_of_chain(workdir), workdir]:
        found = {row.dataset: row for row in rows_of(run)}
        states = {row.state for row in found.values()}
        unfinished = [name for name in ("running", "interrupted") if name in states]
        made = "finished" if found["corpus"].state != "-" else "no corpus/ yet"
        state: str = "missing" if states == {"-"} else unfinished[0] if unfinished else made
        if state == "finished":
            try:
                stale = out_of_date(run)
            except UserError as error:
                state = str(error)
            else:
                state = f"{', '.join(f'{name}/' for name in stale)} out of date" if stale else state
        counts = {what: found[name].rows for what, name in (("urls", "urls"), ("documents", "corpus"))}
        tokens = read_manifest(run, "tokens")
        total = sum(tokens.stats.get(f"tokens_{split}", 0) for split in ("train", "val")) if tokens else None
        size_of = sum(row.bytes for row in found.values())
        months.append({"run": run.uri, "state": state, **counts, "tokens": total, "bytes": size_of})
    return months


def chain_table(months: Sequence[dict[str, Any]]) -> str:
    cells = [("run", "urls", "documents", "tokens", "bytes", "state")]
    for month in months:
        counts = ["–" if month[name] is None else f"{month[name]:,}" for name in ("urls", "documents", "tokens")]
        cells.append((month["run"], *counts, size(month["bytes"]), month["state"]))
    return "\n".join(aligned(cells, left=(0, 5)))


def _flags(parser: CommandParser) -> None:
    """List the stages of a run: what each has written, how much, and when it finished.

    examples:
      owt ls runs/2013
      owt ls gs://bucket/run --json | jq '.[].rows'
    """
    parser.add_argument("workdir", metavar="DIR", help="folder of the run: a local path, gs://, s3:// or az://")
    parser.add_argument("--chain", action="store_true", help="list the runs that this one builds on, one per line")
    parser.add_argument("--json", action="store_true", help="print JSON: a list of objects, one per stage or run")


def _list(arguments: argparse.Namespace) -> int:
    workdir = Storage(arguments.workdir)
    require_run(workdir)
    if arguments.chain:
        months = months_of(workdir)
        print(json.dumps(months, indent=1) if arguments.json else chain_table(months))
        return 0
    rows = list(rows_of(workdir))
    if arguments.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
        return 0
    print(table(rows))
    if foreign := [workdir.path(path) for row in rows for path in row.foreign]:
        print(f"\nnot written by any stage: {', '.join(foreign)}")
    if bases := folders_of_chain(workdir):
        print(f"\nbuilds on {', '.join(map(str, bases))}")
    if lease := running(workdir):
        print(f"\nin use by {lease}")
    return 0


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")


def _local(moment: str) -> str:
    """A moment in ISO 8601 as this machine's local time, to the minute."""
    return datetime.datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M") if moment else ""


main = Command("owt ls", _flags, _list)
