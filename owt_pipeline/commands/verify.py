"""`owt verify`: check everything that a run's ledger says.

Checked are every file's length, SHA-256 and rows, every schema, every sum, that each dataset was
made from the inputs that are there now, and that each id which entered a stage left it exactly
once. Memory is bounded by a shard and the lists of files.
"""

from __future__ import annotations

import argparse
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.command_line import Command, CommandParser, add_output_flags, configure_output
from owt_pipeline.commands.run import lacks_takedowns
from owt_pipeline.engine.stage import FINAL_DATASETS, KINDS_NEVER_DELETED
from owt_pipeline.errors import UserError, command
from owt_pipeline.formats.forgotten_texts import read_forgotten
from owt_pipeline.formats.takedowns import read_takedowns, texts_of
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import COPY, problem_of_copy, require_run
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.import_text.stage import STAGE as IMPORT
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import hold, mention_running
from schemas import DATASETS, REJECTS
from schemas.datasets import LEDGER
from schemas.manifest import FileTable, Manifest, Root, ShardFile
from schemas.settings import ExitCode

_NO_IDS = np.zeros(0, np.uint64)
_UPSTREAM = {
    "pages": "urls",
    "documents": "pages",
    "clean": "documents",
    "duplicates": "clean",
    "corpus": "clean",
    "tokens": "corpus",
}


@dataclass
class Finding:
    """What is known of one dataset.

    Attributes:
      name: the dataset.
      problems: what does not hold, one line each.
      notes: what else a reader should know.
      damaged: files with other bytes than were written.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def verify(workdir: Storage, *, repair: bool = False) -> Iterator[Finding]:
    """Check each dataset of a run, in order; with `repair`, remove damaged files, so that the
    next run makes them again.

    Raises NotFound if the folder is not a run.
    """
    problem = problem_of_copy(workdir)
    root = require_run(workdir)
    if problem:
        path = workdir.path(COPY)
        yield Finding("manifest.json.copy", [f"{path} {problem}; it was written anew"])
    names = [name for name in (*DATASETS, "report") if name in root.datasets]
    lists = {name: _list_of(workdir, root.datasets[name]) for name in names}
    for name in names:
        finding = Finding(name)
        try:
            _examine(workdir, root.datasets[name], root, lists, finding)
        except UserError as error:
            finding.problems.append(str(error))
        if repair:
            workdir.delete(*finding.damaged)
        yield finding


def _list_of(workdir: Storage, manifest: Manifest) -> FileTable | UserError:
    try:
        return DatasetReader(workdir, manifest).table_of_files
    except UserError as error:
        return error


def _examine(
    workdir: Storage,
    manifest: Manifest,
    root: Root,
    lists: Mapping[str, FileTable | UserError],
    finding: Finding,
) -> None:
    """Add to `finding`; raises UserError for a file that stops the examination. Where the list
    of an input's files is damaged, that dataset's own finding says so."""
    if not manifest.counts.balanced:
        finding.problems.append(f"the ledger does not balance: {manifest.counts}")
    for dataset, digest in manifest.inputs.items():
        table = lists.get(dataset)
        if table is None:
            finding.problems.append(f"{dataset}/, from which this was made, is not finished")
        elif isinstance(table, FileTable):
            _compare_input(workdir, manifest, dataset, table, digest, root, finding)
    if not isinstance(listed := lists[finding.name], FileTable):
        finding.damaged.append(manifest.files.path)
        raise listed
    reader, files = DatasetReader(workdir, manifest), listed.files
    gone = {path for path, problem in lost_files(workdir, files).items() if problem == "is missing"}
    missed = {
        file.path
        for file in files
        if file.path in gone
        and (manifest.dataset in FINAL_DATASETS or file.kind in KINDS_NEVER_DELETED)
    }
    finding.problems += [f"{workdir.path(path)} is missing" for path in sorted(missed)]
    if gone - missed:
        finding.notes.append(
            f"{len(gone - missed)} of {len(files)} files are gone: made again if something needs "
            "them"
        )
    if manifest.dataset == "corpus":
        finding.problems += _takedown_problems(workdir, root)
    if manifest.dataset == "corpus" and root.takedowns and not gone and lacks_takedowns(workdir):
        again = command("owt", "run", workdir)
        finding.problems.append(f"the takedowns have changed since this was made: run {again}")
    here = [file for file in files if file.path not in gone]
    with progress.step(
        f"verify {manifest.dataset}", shards=len(here), rows=manifest.total_bytes, unit="bytes"
    ):
        _read_every_byte(workdir, here, finding)
    if finding.damaged or gone:
        return  # what cannot be read cannot be counted
    finding.problems += _row_problems(reader)
    upstream = _UPSTREAM.get(manifest.dataset, "")
    if manifest.stage in ("collect", "import"):
        finding.problems += _unique_problems(reader)
    elif isinstance(table := lists.get(upstream), FileTable) and not lost_files(
        workdir, table.files
    ):
        check = _decision_problems if manifest.dataset == "duplicates" else _id_problems
        finding.problems += check(DatasetReader(workdir, root.datasets[upstream]), reader)


def _compare_input(
    workdir: Storage,
    manifest: Manifest,
    dataset: str,
    table: FileTable,
    digest: str,
    root: Root,
    finding: Finding,
) -> None:
    """Add to `finding` whether the files of an input are those that a dataset was made from.

    While a generation is half added, an input has more shards than the dataset. That is only noted.
    """
    stage = {**STAGES, IMPORT.name: IMPORT}[manifest.stage]
    if table.digest_of(stage.kinds) == digest:
        return
    num_shards = manifest.num_shards
    if stage.reads == "all":
        num_shards = min(root.datasets[name].num_shards for name in stage.inputs)
    num_added = len(table.records) - num_shards
    if num_added > 0 and table.digest_of(stage.kinds, num_shards) == digest:
        finding.notes.append(
            f"{num_added} shards of {dataset}/ were added since: run "
            f"{command('owt', 'run', workdir)} to go on with them"
        )
        return
    finding.problems.append(
        f"{dataset}/ has changed since this was made from it: run "
        f"{command('owt', 'run', workdir)} to make it anew"
    )


def _takedown_problems(workdir: Storage, root: Root) -> list[str]:
    """Return what is wrong with the list of takedowns and its fingerprints of texts."""
    try:
        read_forgotten(workdir, texts_of(read_takedowns(workdir, root)))
    except UserError as error:
        return [str(error)]
    return []


def _read_every_byte(workdir: Storage, files: Sequence[ShardFile], finding: Finding) -> None:
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for file, problem in zip(
            files, threads.map(lambda file: _file_problem(workdir, file), files), strict=True
        ):
            if problem:
                finding.problems.append(f"{workdir.path(file.path)} {problem}")
                finding.damaged.append(file.path)
            progress.advance(file.bytes)
            progress.shard_done()


def _file_problem(workdir: Storage, file: ShardFile) -> str:
    """What is wrong with a file; "" for nothing."""
    try:
        size = workdir.size(file.path)
        if size != file.bytes:
            return f"has {size} bytes, its manifest says {file.bytes}"
        if workdir.sha256(file.path) != file.sha256:
            return "was changed after it was written: its SHA-256 differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error}"
    return ""


def _row_problems(reader: DatasetReader) -> Iterator[str]:
    """Rows of each file, its schema, and the reasons of the rejects against the manifest's
    counts."""
    manifest = reader.manifest
    rejected: Counter[str] = Counter()
    for file in (*reader.files("data"), *reader.files("rejects")):
        path = reader.workdir.path(file.path)
        try:
            schema = reader.schema(file)
            if not _schema_holds(schema, manifest.dataset if file.kind == "data" else "rejects"):
                yield f"{path} has another schema than docs/data.md says: {schema.names}"
            rows = 0
            column = "reason" if file.kind == "rejects" else "url_id"
            for batch in reader.batches_of(file, columns=[column], rows=1 << 16):
                rows += batch.num_rows
                if file.kind == "rejects":
                    rejected.update(batch["reason"].to_pylist())
        except (UserError, KeyError) as error:
            yield f"{path} cannot be read: {error}"
            continue
        if rows != file.rows:
            yield f"{path} has {rows} rows, its manifest says {file.rows}"
    if manifest.dataset == "duplicates":
        decided = sum(manifest.counts.rejected.values())
        if reader.rows() != decided:
            yield f"{reader.rows()} decisions, but {decided} documents counted as duplicates"
    else:
        if dict(rejected) != manifest.counts.rejected:
            yield (
                f"rejects by reason are {dict(rejected)}, the manifest says "
                f"{manifest.counts.rejected}"
            )
        if manifest.dataset in DATASETS and reader.rows() != manifest.counts.left:
            yield f"{reader.rows()} rows, the manifest says {manifest.counts.left} left the stage"


def _schema_holds(schema: pa.Schema, dataset: str) -> bool:
    expected = REJECTS if dataset == "rejects" else DATASETS[dataset].schema
    if dataset == "tokens":  # of a vocabulary over 65,536, the ids are uint32
        wide = pa.list_(pa.field("item", pa.uint32(), nullable=False))
        place = expected.get_field_index("tokens")
        if schema.equals(expected.set(place, expected.field(place).with_type(wide))):
            return True
    return bool(schema.equals(expected))


def _id_problems(source: DatasetReader, reader: DatasetReader) -> Iterator[str]:
    """Shard by shard: the ids that entered are those that left and those that were rejected,
    each once."""
    # While a generation is half added, the source has more.
    if source.num_shards < reader.num_shards:
        yield f"{reader.num_shards} shards, made from {source.num_shards}"
        return
    for shard in range(reader.num_shards):
        entered = np.sort(source.ids(shard))
        left = np.sort(np.concatenate([reader.ids(shard), reader.ids(shard, "rejects")]))
        if np.array_equal(entered, left):
            continue
        for what, ids in (
            ("neither left nor were rejected", np.setdiff1d(entered, left)),
            ("never entered", np.setdiff1d(left, entered)),
            ("left or were rejected more than once", _repeated(left)),
        ):
            if len(ids):
                yield f"shard {shard}: {len(ids)} ids {what}, such as {ids[0]}"


def _unique_problems(reader: DatasetReader) -> Iterator[str]:
    """Where ids begin, each has one row."""
    twice = _repeated(np.concatenate([reader.ids(shard) for shard in range(reader.num_shards)]))
    if len(twice):
        yield f"{len(twice)} ids have more than one row, such as {twice[0]}"


def _repeated(ids: np.ndarray) -> np.ndarray:
    found, counts = np.unique(ids, return_counts=True)
    return found[counts > 1]


def _decision_problems(source: DatasetReader, reader: DatasetReader) -> Iterator[str]:
    """Each decision removes a document that is there, once, in favour of one that is there and
    stays."""
    removed_of_shard = [np.sort(reader.ids(shard)) for shard in range(reader.num_shards)]
    removed = np.concatenate(removed_of_shard) if removed_of_shard else _NO_IDS
    kept_of_shard = _kept_by_shard(reader)
    for shard, ids in enumerate(removed_of_shard):
        present = source.ids(shard)
        unknown = np.setdiff1d(ids, present)
        if len(unknown):
            yield (
                f"shard {shard}: {len(unknown)} decisions about documents that are not there, "
                f"such as {unknown[0]}"
            )
        if len(np.unique(ids)) != len(ids):
            yield f"shard {shard}: a document is removed twice"
        kept = kept_of_shard.get(shard, _NO_IDS)
        lost = np.setdiff1d(kept, present)
        if len(lost):
            yield (
                f"shard {shard}: {len(lost)} documents to be kept are not there, such as {lost[0]}"
            )
        both = np.intersect1d(kept, removed)
        if len(both):
            yield (
                f"shard {shard}: {len(both)} documents to be kept are removed themselves, such "
                f"as {both[0]}"
            )


def _kept_by_shard(decisions: DatasetReader) -> dict[int, np.ndarray]:
    """Ids of the documents in favour of which others were removed, each once, ascending, by
    their `kept_shard`."""
    found: dict[int, list[np.ndarray]] = {}
    for batch in decisions.batches(columns=["kept_url_id", "kept_shard"]):
        ids, shards = batch["kept_url_id"].to_numpy(), batch["kept_shard"].to_numpy()
        for shard in np.unique(shards).tolist():
            found.setdefault(shard, []).append(ids[shards == shard])
    return {shard: np.unique(np.concatenate(parts)) for shard, parts in found.items()}


def _flags(parser: CommandParser) -> None:
    """Check that files are undamaged, counts add up, and every id is accounted for. This reads
    every byte.

    examples:
      owt verify runs/2013
      owt verify runs/2013 --repair && owt run runs/2013 config.toml
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="remove damaged files, so that the next run makes them again",
    )
    add_output_flags(parser)


def _print(arguments: argparse.Namespace) -> int:
    configure_output(arguments)
    workdir = Storage(arguments.run)
    if not arguments.repair:
        mention_running(workdir)
        return _report(
            verify(workdir),
            f"are damaged: {command('owt', 'verify', workdir, '--repair')} removes them, and "
            f"{command('owt', 'run', workdir)} makes them again",
        )
    if not workdir.exists(LEDGER):
        require_run(workdir)  # raises, before the lock makes the folder
    with hold(workdir, uuid.uuid4().hex):
        return _report(
            verify(workdir, repair=True),
            f"were removed; {command('owt', 'run', workdir)} makes them again",
        )


def _report(findings: Iterator[Finding], damaged: str) -> int:
    failed = marked = 0
    for finding in findings:
        verdict = "ok" if not finding.problems else f"{len(finding.problems)} problem(s)"
        print(f"{finding.name}: {verdict}", flush=True)
        for line in (*finding.problems, *finding.notes):
            print(f"  {line}")
        failed += bool(finding.problems)
        marked += len(finding.damaged)
    print("no problems found" if not failed else f"problems in {failed} dataset(s)")
    if marked:
        print(f"{marked} file(s) {damaged}")
    return ExitCode.ERROR if failed else ExitCode.DONE


main = Command("owt verify", _flags, _print)
