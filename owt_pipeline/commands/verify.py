"""`owt verify`: check everything that a run's manifests say.

Checked are every file's length, SHA-256 and rows, every schema, every sum, that each output was made from the inputs
that are there now, and that each id which entered a stage left it exactly once. Memory is bounded by a shard and the
lists of files.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from owt_pipeline import progress
from owt_pipeline.command_line import Command, CommandParser, add_output_flags, configure_output
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.bases import BASES, FORGOTTEN, has_new_takedowns, open_chain, out_of_date
from owt_pipeline.ledger.commit import Listing
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest, remedy, require_run
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lease import hold, mention_running
from schemas import DATASETS, REJECTS
from schemas.manifest import MANIFEST_NAME, Manifest, ShardFile, ledger_of
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
      remedy: what makes them again.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    remedy: str = ""


def verify(workdir: Storage, *, repair: bool = False) -> Iterator[Finding]:
    """Check the bases of a run, then each of its datasets, in order.

    With `repair`, damaged files are marked for the next run. Raises NotFound if the folder is not a run.
    """
    require_run(workdir)
    if workdir.exists(BASES):
        finding = Finding("bases")
        try:
            chain = open_chain(workdir)
            finding.notes += [f"{base.name}: {base.workdir} is as it was pinned" for base in chain]
            finding.problems += [
                f"{name}/ was made from bases other than they are now: run it again" for name in out_of_date(workdir)
            ]
            yield finding
        except UserError as error:
            finding.problems.append(str(error))
            yield finding
    yield from _verify(workdir, repair=repair)


def _verify(workdir: Storage, *, repair: bool) -> Iterator[Finding]:
    found = [name for name in (*DATASETS, "report") if workdir.exists(ledger_of(name)) or workdir.exists(name)]
    manifests: dict[str, Manifest] = {}
    for name in found:
        finding = Finding(name)
        try:
            if (manifest := read_manifest(workdir, name)) is not None:
                manifests[name] = manifest
                _examine(workdir, manifest, manifests, finding)
            elif workdir.exists(ledger_of(name)):
                finding.problems.append(
                    f"{workdir.path(f'{ledger_of(name)}/{MANIFEST_NAME}')} is missing: the stage was interrupted, or "
                    "the file was lost; run the same command again"
                )
            else:
                continue
        except UserError as error:
            finding.problems.append(str(error))
        if repair and finding.damaged:
            Listing(workdir, name).distrust(finding.damaged)
        yield finding


def _examine(workdir: Storage, manifest: Manifest, manifests: dict[str, Manifest], finding: Finding) -> None:
    """Add to `finding`; raises UserError for a file that stops the examination."""
    if not manifest.counts.balanced:
        finding.problems.append(f"the ledger does not balance: {manifest.counts}")
    for dataset, digest in manifest.inputs.items():
        if dataset not in manifests:
            finding.problems.append(f"{dataset}/, from which this was made, is not finished or damaged")
        elif manifests[dataset].digest != digest:
            finding.problems.append(f"{dataset}/ has changed since this was made from it: run {manifest.stage} again")
    if manifest.dataset == "corpus" and has_new_takedowns(workdir, manifest):
        finding.problems.append(f"{FORGOTTEN} has changed since this was made: run export again")
    reader = DatasetReader(workdir, manifest)
    files = reader.table_of_files.files
    _look_for_strangers(workdir, manifest.dataset, {file.path for file in files}, finding)
    finding.remedy = remedy(workdir, manifest)
    with progress.step(f"verify {manifest.dataset}", shards=len(files), rows=manifest.total_bytes, unit="bytes"):
        _read_every_byte(workdir, files, finding)
    if finding.damaged or any("missing" in problem for problem in finding.problems):
        return  # what cannot be read cannot be counted
    finding.problems += _row_problems(reader)
    upstream = _UPSTREAM.get(manifest.dataset)
    if manifest.stage in ("collect", "import"):
        finding.problems += _unique_problems(reader)
    elif upstream in manifests:
        check = _decision_problems if manifest.dataset == "duplicates" else _id_problems
        finding.problems += check(DatasetReader(workdir, manifests[upstream]), reader)


def _look_for_strangers(workdir: Storage, dataset: str, known: set[str], finding: Finding) -> None:
    """Find files that the manifest does not name: of unfinished work, or not ours."""
    listing = Listing(workdir, dataset)
    ledger = ledger_of(dataset)
    strangers = [name for name in listing.entries if name not in known and not name.startswith(f"{ledger}/")]
    if listing.unfinished_plans():
        finding.notes.append(
            f"its stage was interrupted while it made this dataset anew ({len(strangers)} of its files are there): run "
            "it again with the same settings"
        )
    else:
        finding.problems += [f"{workdir.path(path)} is not in the manifest" for path in strangers]


def _read_every_byte(workdir: Storage, files: Sequence[ShardFile], finding: Finding) -> None:
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for file, problem in zip(files, threads.map(lambda file: _file_problem(workdir, file), files), strict=True):
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
    """Rows of each file, its schema, and the reasons of the rejects against the manifest's counts."""
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
            yield f"rejects by reason are {dict(rejected)}, the manifest says {manifest.counts.rejected}"
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
    """Shard by shard: the ids that entered are those that left and those that were rejected, each once."""
    if source.num_shards != reader.num_shards:
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
    """Each decision removes a document that is there, once, in favour of one that is there and stays."""
    removed_of_shard = [np.sort(reader.ids(shard)) for shard in range(reader.num_shards)]
    removed = np.concatenate(removed_of_shard) if removed_of_shard else _NO_IDS
    kept_of_shard = _kept_by_shard(reader)
    for shard, ids in enumerate(removed_of_shard):
        present = source.ids(shard)
        unknown = np.setdiff1d(ids, present)
        if len(unknown):
            yield f"shard {shard}: {len(unknown)} decisions about documents that are not there, such as {unknown[0]}"
        if len(np.unique(ids)) != len(ids):
            yield f"shard {shard}: a document is removed twice"
        kept = kept_of_shard.get(shard, _NO_IDS)
        lost = np.setdiff1d(kept, present)
        if len(lost):
            yield f"shard {shard}: {len(lost)} documents to be kept are not there, such as {lost[0]}"
        both = np.intersect1d(kept, removed)
        if len(both):
            yield f"shard {shard}: {len(both)} documents to be kept are removed themselves, such as {both[0]}"


def _kept_by_shard(decisions: DatasetReader) -> dict[int, np.ndarray]:
    """Ids of the documents in favour of which others were removed, each once, ascending, by their `kept_shard`."""
    found: dict[int, list[np.ndarray]] = {}
    for batch in decisions.batches(columns=["kept_url_id", "kept_shard"]):
        ids, shards = batch["kept_url_id"].to_numpy(), batch["kept_shard"].to_numpy()
        for shard in np.unique(shards).tolist():
            found.setdefault(shard, []).append(ids[shards == shard])
    return {shard: np.unique(np.concatenate(parts)) for shard, parts in found.items()}


def _flags(parser: CommandParser) -> None:
    """Check that files are undamaged, counts add up, and every id is accounted for. This reads every byte.

    examples:
      owt verify --workdir runs/2013
      owt verify --workdir runs/2013 --repair && owt run config.toml --workdir runs/2013
    """
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="mark damaged files, so that the command that made them makes them again",
    )
    add_output_flags(parser)


def _print(arguments: argparse.Namespace) -> int:
    configure_output(arguments)
    workdir = Storage(arguments.workdir)
    if not arguments.repair:
        mention_running(workdir)
        return _report(verify(workdir), "are damaged or missing: --repair marks them")
    require_run(workdir)
    with hold(workdir):  # marks are written that a run would not expect
        return _report(verify(workdir, repair=True), "are marked")


def _report(findings: Iterator[Finding], damaged: str) -> int:
    failed = marked = 0
    remedies: list[str] = []
    for finding in findings:
        verdict = "ok" if not finding.problems else f"{len(finding.problems)} problem(s)"
        print(f"{finding.name}: {verdict}", flush=True)
        for line in (*finding.problems, *finding.notes):
            print(f"  {line}")
        failed += bool(finding.problems)
        marked += len(finding.damaged)
        remedies += [finding.remedy] if finding.damaged and finding.remedy not in remedies else []
    print("no problems found" if not failed else f"problems in {failed} dataset(s)")
    if marked:
        print(f"{marked} file(s) {damaged}; then {', then '.join(remedies)} makes them again")
    return ExitCode.ERROR if failed else ExitCode.DONE


main = Command("owt verify", _flags, _print)
