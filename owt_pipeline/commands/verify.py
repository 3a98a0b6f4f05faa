"""`owt verify`: check everything that a run's ledger records.

1. Compare each dataset's inputs with those that it was built from.
2. Read every byte of every file, and compare its length and SHA-256.
3. Compare rows, schemas and counts with the manifest.
4. Check that each id which entered a stage left it exactly once.

Memory is bounded by a shard and the lists of files.
"""

from __future__ import annotations

import argparse
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.command_line import Command, CommandParser, add_output_flags, configure_output
from owt_pipeline.commands.id_accounting import decision_problems, id_problems, unique_problems
from owt_pipeline.engine.keys import Cause, rebuild_advice
from owt_pipeline.engine.stage import FINAL_DATASETS, KINDS_NEVER_DELETED
from owt_pipeline.engine.takedowns import in_force
from owt_pipeline.errors import UserError, command
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import COPY, problem_of_copy, require_run
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.export.corpus import applied_takedowns
from owt_pipeline.stages.import_text.stage import STAGE as IMPORT
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lock import hold, mention_running
from schemas import DATASETS, REJECTS
from schemas.datasets import LEDGER
from schemas.manifest import FileTable, Manifest, Root, ShardFile
from schemas.quantities import pluralize
from schemas.settings import ExitCode

# The dataset whose ids enter the stage that writes the key.
_UPSTREAM = {
    "pages": "urls",
    "documents": "pages",
    "clean": "documents",
    "duplicates": "clean",
    "corpus": "clean",
    "tokens": "corpus",
}

# Of a shard that is published, or of an interrupted run.
_SHARD_NAME = re.compile(r"(?:\w+|tokens/(?:train|val))/part-\d{5}-[0-9a-f]{8}\.(?:parquet|arrow)")


@dataclass
class Finding:
    """The problems of one dataset.

    Attributes:
      name: the dataset.
      problems: one line for each problem.
      notes: lines about things that are allowed, such as deleted files.
      damaged: paths of files whose bytes are not those that were written.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def verify(workdir: Storage, *, repair: bool = False) -> Iterator[Finding]:
    """Check the takedowns of a run, and each dataset in order.

    With `repair`, remove damaged files, so that the next run rebuilds them. Raises NotFound if the
    folder is not a run.
    """
    problem = problem_of_copy(workdir)
    root = require_run(workdir)
    if problem:
        path = workdir.path(COPY)
        yield Finding("manifest.json.copy", [f"{path} {problem}; it was rewritten"])
    try:
        in_force(workdir, root)
    except UserError as error:
        yield Finding("takedowns", [str(error)])
    names = [name for name in (*DATASETS, "report") if name in root.datasets]
    # Each dataset is compared with its inputs, so all lists of files are read first.
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
    """Return the list of a dataset's files, or the error for which it cannot be read."""
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
    """Add the problems of a dataset to `finding`.

    Raises UserError for a file that stops the examination. A damaged list of an input's files is
    a problem of that input only.
    """
    if not manifest.counts.balanced:
        finding.problems.append(f"the ledger does not balance: {manifest.counts}")
    if manifest.dataset == "corpus":
        finding.problems += _takedown_problems(workdir, manifest, root)
    for dataset, digest in manifest.inputs.items():
        table = lists.get(dataset)
        if table is None:
            finding.problems.append(
                f"{manifest.dataset}/ was built from {dataset}/, which is not finished"
            )
        elif isinstance(table, FileTable):
            _compare_input(workdir, manifest, dataset, table, digest, root, finding)
    listed = lists[finding.name]
    if not isinstance(listed, FileTable):
        finding.damaged.append(manifest.files.path)
        raise listed
    missing = _missing_files(workdir, manifest, listed.files, finding)
    finding.problems += _foreign_files(workdir, manifest.dataset, listed.files)
    present = [file for file in listed.files if file.path not in missing]
    with progress.step(
        f"verify {manifest.dataset}", shards=len(present), rows=manifest.total_bytes, unit="bytes"
    ):
        _read_every_byte(workdir, present, finding)
    # Rows of damaged and missing files cannot be counted.
    if not finding.damaged and not missing:
        finding.problems += _count_problems(workdir, manifest, root, lists)


def _missing_files(
    workdir: Storage, manifest: Manifest, files: Sequence[ShardFile], finding: Finding
) -> set[str]:
    """Return the paths of missing files; add to `finding` which of them should be there."""
    lost = lost_files(workdir, files)
    missing = {path for path, problem in lost.items() if problem == "is missing"}
    is_final = manifest.dataset in FINAL_DATASETS
    # The next run always rebuilds these files. Other files are rebuilt only if a stage needs them,
    # so a user may delete them.
    required = {
        file.path
        for file in files
        if file.path in missing and (is_final or file.kind in KINDS_NEVER_DELETED)
    }
    finding.problems += [f"{workdir.path(path)} is missing" for path in sorted(required)]
    num_deleted = len(missing) - len(required)
    if num_deleted:
        finding.notes.append(
            f"{num_deleted:,} of {pluralize(len(files), 'file')} missing; a later run rebuilds "
            "them if it needs them"
        )
    return missing


def _foreign_files(workdir: Storage, dataset: str, files: Sequence[ShardFile]) -> Iterator[str]:
    """Yield a problem for each file in a dataset's folder that no run has written.

    A program that reads the folder takes its rows for the dataset's. It does not read folders below
    it that the dataset does not have, nor names that begin with a dot or an underscore. Files of an
    interrupted run have names of a shard.
    """
    names = {file.path for file in files}
    folders = {dataset, *(name.rpartition("/")[0] for name in names)}
    for entry in workdir.walk(f"{dataset}/"):
        folder, _, name = entry.name.rpartition("/")
        is_read = folder in folders and not name.startswith((".", "_"))
        if entry.name not in names and is_read and not _SHARD_NAME.fullmatch(entry.name):
            yield (
                f"{workdir.path(entry.name)} does not belong to {dataset}/, although programs that "
                "read the folder read it: move it to another folder"
            )


def _count_problems(
    workdir: Storage,
    manifest: Manifest,
    root: Root,
    lists: Mapping[str, FileTable | UserError],
) -> Iterator[str]:
    """Yield the problems of a dataset's rows and ids."""
    reader = DatasetReader(workdir, manifest)
    yield from _row_problems(reader)
    if manifest.stage in ("collect", "import"):
        yield from unique_problems(reader)
        return
    upstream = _UPSTREAM.get(manifest.dataset, "")
    table = lists.get(upstream)
    # Ids can be compared only with the ids of a complete input.
    if not isinstance(table, FileTable) or lost_files(workdir, table.files):
        return
    source = DatasetReader(workdir, root.datasets[upstream])
    if manifest.dataset == "duplicates":
        yield from decision_problems(source, reader)
    else:
        yield from id_problems(source, reader)


def _compare_input(
    workdir: Storage,
    manifest: Manifest,
    dataset: str,
    table: FileTable,
    digest: str,
    root: Root,
    finding: Finding,
) -> None:
    """Add a problem to `finding` if an input has changed since a dataset was built from it.

    While a generation is half added, an input has more shards than the dataset. That is a note.
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
            f"{dataset}/ has {pluralize(num_added, 'new shard')}: run "
            f"{command('owt', 'run', workdir)} to continue with them"
        )
        return
    cause = Cause(dataset, was=digest, now=table.digest_of(stage.kinds))
    finding.problems.append(rebuild_advice(cause, manifest.dataset, workdir))


def _takedown_problems(workdir: Storage, corpus: Manifest, root: Root) -> list[str]:
    """Return the problem of a corpus that was built with other takedowns than are in force."""
    try:
        takedowns = in_force(workdir, root).takedowns
    except UserError:
        # The finding of the takedowns names the file.
        return []
    if takedowns == applied_takedowns(corpus):
        return []
    return [rebuild_advice(Cause("takedowns"), "corpus", workdir)]


def _read_every_byte(workdir: Storage, files: Sequence[ShardFile], finding: Finding) -> None:
    """Read the files, and add to `finding` those that are not as the manifest records them."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        problems = threads.map(lambda file: _file_problem(workdir, file), files)
        for file, problem in zip(files, problems, strict=True):
            if problem:
                finding.problems.append(f"{workdir.path(file.path)} {problem}")
                finding.damaged.append(file.path)
            progress.advance(file.bytes)
            progress.shard_done()


def _file_problem(workdir: Storage, file: ShardFile) -> str:
    """Return the problem of a file; "" for an undamaged one."""
    try:
        size = workdir.size(file.path)
        if size != file.bytes:
            return f"has {pluralize(size, 'byte')}, but its manifest records {file.bytes:,}"
        if workdir.sha256(file.path) != file.sha256:
            return "was changed after it was written: its SHA-256 differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error}"
    return ""


def _row_problems(reader: DatasetReader) -> Iterator[str]:
    """Compare the rows and schemas of a dataset's files, and its rejects, with the manifest."""
    manifest = reader.manifest
    rejected: Counter[str] = Counter()
    for file in (*reader.files("data"), *reader.files("rejects")):
        is_reject = file.kind == "rejects"
        dataset = "rejects" if is_reject else manifest.dataset
        # One column is enough to count the rows, or the rejects by reason.
        column = "reason" if is_reject else "url_id"
        path = reader.workdir.path(file.path)
        num_rows = 0
        try:
            schema = reader.schema(file)
            if not _is_schema_of(schema, dataset):
                yield (
                    f"{path} does not have the schema of docs/data.md; its columns: {schema.names}"
                )
            for batch in reader.batches_of(file, columns=[column], rows=1 << 16):
                num_rows += batch.num_rows
                if is_reject:
                    rejected.update(batch["reason"].to_pylist())
        except (UserError, KeyError) as error:
            yield f"{path} cannot be read: {error}"
            continue
        if num_rows != file.rows:
            yield (
                f"{path} has {pluralize(num_rows, 'row')}, but its manifest records {file.rows:,}"
            )
    # The rows of duplicates/ are decisions. Each stands for one document that dedupe rejected.
    if manifest.dataset == "duplicates":
        num_duplicates = sum(manifest.counts.rejected.values())
        if reader.rows() != num_duplicates:
            yield (
                f"{reader.name}/ has {pluralize(reader.rows(), 'decision')}, but its manifest "
                f"records {pluralize(num_duplicates, 'duplicate')}"
            )
        return
    if dict(rejected) != manifest.counts.rejected:
        yield (
            f"{reader.name}/ has these rejects by reason: {dict(rejected)}, but its manifest "
            f"records {manifest.counts.rejected}"
        )
    if manifest.dataset in DATASETS and reader.rows() != manifest.counts.left:
        yield (
            f"{reader.name}/ has {pluralize(reader.rows(), 'row')}, but its manifest records that "
            f"{manifest.counts.left:,} left the stage"
        )


def _is_schema_of(schema: pa.Schema, dataset: str) -> bool:
    """Return whether a file of a dataset, or of rejects, has the schema of docs/data.md."""
    expected = REJECTS if dataset == "rejects" else DATASETS[dataset].schema
    if dataset == "tokens":
        # The ids of a vocabulary over 65,536 are uint32.
        wide_ids = pa.list_(pa.field("item", pa.uint32(), nullable=False))
        place = expected.get_field_index("tokens")
        if schema.equals(expected.set(place, expected.field(place).with_type(wide_ids))):
            return True
    return bool(schema.equals(expected))


def _flags(parser: CommandParser) -> None:
    """Check that the files of a run are undamaged, that its counts add up, and that every id which
    entered a stage left it or is a reject. The command reads every byte.

    examples:
      owt verify runs/2013
      owt verify runs/2013 --repair; owt run runs/2013
    """
    parser.add_argument(
        "run", metavar="RUN", help="folder of the run: a local path, gs://, s3:// or az://"
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="remove damaged files, so that the next run rebuilds them",
    )
    add_output_flags(parser)


def _print(arguments: argparse.Namespace) -> int:
    """Run the command; returns 1 if there is a problem."""
    configure_output(arguments)
    workdir = Storage(arguments.run)
    if not arguments.repair:
        mention_running(workdir)
        return _report(
            verify(workdir),
            f"damaged: run {command('owt', 'verify', workdir, '--repair')} to remove damaged "
            f"files, then {command('owt', 'run', workdir)} to rebuild them",
        )
    if not workdir.exists(LEDGER):
        # Raises before the lock makes the folder.
        require_run(workdir)
    with hold(workdir, uuid.uuid4().hex):
        return _report(
            verify(workdir, repair=True),
            f"removed: run {command('owt', 'run', workdir)} to rebuild what is missing",
        )


def _report(findings: Iterator[Finding], about_damaged: str) -> int:
    """Print the findings; return the exit code.

    `about_damaged` is the end of the last line, which begins with the number of damaged files.
    """
    num_failed = 0
    num_damaged = 0
    for finding in findings:
        verdict = "ok"
        if finding.problems:
            verdict = pluralize(len(finding.problems), "problem")
        print(f"{finding.name}: {verdict}", flush=True)
        for line in (*finding.problems, *finding.notes):
            print(f"  {line}")
        num_failed += bool(finding.problems)
        num_damaged += len(finding.damaged)
    summary = "no problems found"
    if num_failed:
        summary = f"problems in {pluralize(num_failed, 'dataset')}"
    print(summary)
    if num_damaged:
        print(f"{pluralize(num_damaged, 'file')} {about_damaged}")
    return ExitCode.ERROR if num_failed else ExitCode.DONE


main = Command("owt verify", _flags, _print)
