"""`owt ls`: the datasets of a run."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from owt_pipeline.command_line import Command, CommandParser, aligned
from owt_pipeline.engine.publish import read_log
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import require_run
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import running
from schemas import DATASETS
from schemas.manifest import Root, ledger_of
from schemas.quantities import format_bytes, format_duration


@dataclass(frozen=True)
class Row:
    """One stage of a run.

    Attributes:
      stage: its name; `import` if text was imported.
      dataset: the dataset that it writes.
      state: `finished`, `interrupted`, `running`, or `-` for one that has not started.
      rows: rows that left it; None before it is finished, and for report.
      rejected: rows that it rejected.
      bytes: bytes of the dataset's files.
      shards: number of its shards, or of those that are finished so far.
      gone: number of its files that are no longer there.
      finished: when it was finished, in ISO 8601; empty if unknown.
      seconds: seconds that it took.
    """

    stage: str
    dataset: str
    state: str
    rows: int | None = None
    rejected: int | None = None
    bytes: int = 0
    shards: int = 0
    gone: int = 0
    finished: str = ""
    seconds: float | None = None


def rows_of(workdir: Storage, root: Root) -> Iterator[Row]:
    """The stages of a run, in order."""
    at_work = running(workdir) is not None
    log = {
        (entry["stage"], entry.get("digest")): entry
        for entry in read_log(workdir)
        if "stage" in entry
    }
    datasets = [(name, dataset.stage) for name, dataset in DATASETS.items()] + [
        ("report", "report")
    ]
    if root.generations and root.generations[0].stage == "import":
        datasets = [
            ("documents", "import"),
            *(each for each in datasets if each[0] not in ("urls", "pages", "documents")),
        ]
    for name, stage in datasets:
        manifest = root.datasets.get(name)
        begun = [
            entry.name
            for entry in (workdir / ledger_of(stage)).walk()
            if not entry.name.startswith("files-")
        ]
        records = sum("records/" in each and "/records/" not in each for each in begun)
        if manifest is None:
            state = ("running" if at_work else "interrupted") if begun else "-"
            yield Row(stage, name, state, shards=records)
            continue
        files = DatasetReader(workdir, manifest).table_of_files.files
        entry = log.get((stage, manifest.digest), {})
        yield Row(
            stage,
            name,
            "finished",
            manifest.counts.left if name in DATASETS else None,
            sum(manifest.counts.rejected.values()),
            manifest.total_bytes,
            manifest.num_shards,
            len(lost_files(workdir, files)),
            _moment(entry["started"] + entry["seconds"]) if entry else "",
            entry.get("seconds"),
        )


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    cells = [("stage", "writes", "state", "rows", "rejected", "bytes", "finished")]
    for row in rows:
        counts = ("", "") if row.rows is None else (f"{row.rows:,}", f"{row.rejected:,}")
        note = _local(row.finished)
        if row.state in ("running", "interrupted") and row.shards:
            note = f"{row.shards} shard(s) so far"
        elif row.seconds is not None and note:
            note += f", {format_duration(row.seconds)}"
        if row.gone:
            note += f"{', ' if note else ''}{row.gone} files are gone"
        cells.append(
            (
                row.stage,
                f"{row.dataset}/",
                row.state,
                *counts,
                format_bytes(row.bytes) if row.bytes else "",
                note,
            )
        )
    return "\n".join(aligned(cells, left=(0, 1, 2, 6)))


def generations(root: Root) -> str:
    """The run's generations as text; empty for a single one."""
    if len(root.generations) < 2:
        return ""
    cells = [("generation", "shards", "sources")]
    for number, each in enumerate(root.generations):
        names = [str(source["name"]) for source in each.sources]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        cells.append(
            (
                str(number),
                f"{each.first}-{each.first + each.shards - 1}",
                ", ".join(names[:4]) + more,
            )
        )
    return "\n\n" + "\n".join(aligned(cells, left=(0, 1, 2)))


def _ls_flags(parser: CommandParser) -> None:
    """List the stages of a run: what each has written, how much, and when it finished.

    examples:
      owt ls runs/2013
      owt ls gs://bucket/run --json | jq '.[].rows'
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: a list of objects, one per stage"
    )


def _list(arguments: argparse.Namespace) -> int:
    workdir = Storage(arguments.run)
    root = require_run(workdir)
    rows = list(rows_of(workdir, root))
    if arguments.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
        return 0
    print(table(rows) + generations(root))
    if holder := running(workdir):
        print(f"\nin use by {holder}")
    return 0


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(
        timespec="seconds"
    )


def _local(moment: str) -> str:
    """A moment in ISO 8601 as this machine's local time, to the minute."""
    return (
        datetime.datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M")
        if moment
        else ""
    )


main = Command("owt ls", _ls_flags, _list)
