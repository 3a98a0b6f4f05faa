"""`owt ls`: the datasets of a run."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from owt_pipeline.command_line import Command, CommandParser, aligned
from owt_pipeline.engine.keys import Cause
from owt_pipeline.engine.publish import read_log
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import require_run
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.import_text.stage import STAGE as IMPORT
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import running
from schemas import DATASETS
from schemas.manifest import FileTable, Manifest, Root, ledger_of
from schemas.quantities import format_bytes, format_duration, pluralize

# Sources of a generation that are named.
_MAX_SOURCES = 4


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
      shards: number of its shards; before the stage is finished, of its finished shards.
      gone: number of its missing files.
      finished: when it was finished, in ISO 8601; empty if unknown.
      seconds: seconds that it took.
      outdated: why a later run will build shards of a finished dataset; "" for no known cause.
        Changed settings are not among the causes, which `owt run --dry_run` has.
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
    outdated: str = ""


def rows_of(workdir: Storage, root: Root) -> Iterator[Row]:
    """Yield the stages of a run, in order."""
    is_running = running(workdir) is not None
    # A stage may have run several times. The digest finds the run that wrote the manifest.
    logged = {}
    for entry in read_log(workdir):
        if "stage" in entry:
            logged[entry["stage"], entry.get("digest")] = entry
    tables: dict[str, FileTable] = {}
    for dataset, stage in _datasets_of(root):
        manifest = root.datasets.get(dataset)
        if manifest is None:
            yield _unfinished(workdir, stage, dataset, is_running)
            continue
        tables[dataset] = DatasetReader(workdir, manifest).table_of_files
        entry = logged.get((stage, manifest.digest), {})
        yield Row(
            stage=stage,
            dataset=dataset,
            state="finished",
            rows=manifest.counts.left if dataset in DATASETS else None,
            rejected=sum(manifest.counts.rejected.values()),
            bytes=manifest.total_bytes,
            shards=manifest.num_shards,
            gone=len(lost_files(workdir, tables[dataset].files)),
            finished=_as_iso(entry["started"] + entry["seconds"]) if entry else "",
            seconds=entry.get("seconds"),
            outdated=_why_outdated(root, manifest, tables),
        )


def _why_outdated(root: Root, manifest: Manifest, tables: Mapping[str, FileTable]) -> str:
    """Return why a dataset is older than its inputs or the run's generations and retries."""
    stage = {**STAGES, IMPORT.name: IMPORT}[manifest.stage]
    texts = []
    num_shards = manifest.num_shards if stage.reads != "all" else None
    for name, digest in manifest.inputs.items():
        if name in tables and tables[name].digest_of(stage.kinds, num_shards) != digest:
            texts.append(str(Cause(name, was=digest, now="another digest")))
    if stage.name == "fetch":
        num_requested = 0
        for record in tables[manifest.dataset].records:
            num_requested += record.stats.get("round", 0) != root.rounds.get(str(record.shard), 0)
        if num_requested:
            texts.append(f"pages of {pluralize(num_requested, 'shard')} are requested again")
    if num_shards is not None and num_shards < root.num_shards:
        texts.append(f"{pluralize(root.num_shards - num_shards, 'shard')} added")
    return ", ".join(texts)


def _datasets_of(root: Root) -> list[tuple[str, str]]:
    """Return the datasets of a run, each with its stage, in order."""
    datasets = [(name, dataset.stage) for name, dataset in DATASETS.items()]
    datasets.append(("report", "report"))
    if not root.generations or root.generations[0].stage != "import":
        return datasets
    # `import` takes the place of the stages that make these.
    replaced = ("urls", "pages", "documents")
    remaining = [(name, stage) for name, stage in datasets if name not in replaced]
    return [("documents", "import"), *remaining]


def _unfinished(workdir: Storage, stage: str, dataset: str, is_running: bool) -> Row:
    """Return the row of a stage that has not finished, with the shards that it has made."""
    names = [entry.name for entry in (workdir / ledger_of(stage)).walk()]
    begun = [name for name in names if not name.startswith("files-")]
    state = "-"
    if begun:
        state = "running" if is_running else "interrupted"
    # Records of the last step, which writes the dataset, lie in `records/`. Records of earlier
    # steps lie one folder deeper.
    num_shards = sum("records/" in name and "/records/" not in name for name in begun)
    return Row(stage, dataset, state, shards=num_shards)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text."""
    cells = [("stage", "writes", "state", "rows", "rejected", "bytes", "finished")]
    for row in rows:
        num_rows = ""
        num_rejected = ""
        if row.rows is not None:
            num_rows = f"{row.rows:,}"
            num_rejected = f"{row.rejected:,}"
        size = format_bytes(row.bytes) if row.bytes else ""
        dataset = f"{row.dataset}/"
        cells.append((row.stage, dataset, row.state, num_rows, num_rejected, size, _note(row)))
    return "\n".join(aligned(cells, left=(0, 1, 2, 6)))


def _note(row: Row) -> str:
    """Return when a stage finished and how long it took, or how many shards it has finished.

    What a later run has to do, and missing files, are added.
    """
    notes = []
    if row.state in ("running", "interrupted") and row.shards:
        notes.append(f"{pluralize(row.shards, 'shard')} so far")
    elif row.finished:
        notes.append(_local(row.finished))
        if row.seconds is not None:
            notes.append(format_duration(row.seconds))
    if row.outdated:
        notes.append(row.outdated)
    if row.gone:
        notes.append(f"{pluralize(row.gone, 'file')} missing")
    return ", ".join(notes)


def generations(root: Root) -> str:
    """Return the run's generations as text; empty for a single one."""
    if len(root.generations) < 2:
        return ""
    cells = [("generation", "shards", "sources")]
    for number, generation in enumerate(root.generations):
        last = generation.first + generation.shards - 1
        names = [str(source["name"]) for source in generation.sources]
        sources = ", ".join(names[:_MAX_SOURCES])
        if len(names) > _MAX_SOURCES:
            sources += f" and {len(names) - _MAX_SOURCES} more"
        cells.append((str(number), f"{generation.first}-{last}", sources))
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
    """Print the stages of a run, as a table or as JSON."""
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


def _as_iso(seconds: float) -> str:
    """Return a time, in seconds since 1970, in ISO 8601."""
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return time.isoformat(timespec="seconds")


def _local(iso_time: str) -> str:
    """Return a time in ISO 8601 as this machine's local time, to the minute."""
    return datetime.datetime.fromisoformat(iso_time).astimezone().strftime("%Y-%m-%d %H:%M")


main = Command("owt ls", _ls_flags, _list)
