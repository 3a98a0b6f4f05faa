"""`owt verify`: does everything a run's manifests say hold?

Checked are every file's length, SHA-256 and rows, every schema, every sum, that each output was made from the
inputs that are there now, and that each id which entered a stage left it exactly once. Memory is bounded by a
shard.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from owt_pipeline.runtime.command_line import CommandParser
from owt_pipeline.runtime.errors import UserError
from owt_pipeline.runtime.lease import mention_running
from owt_pipeline.runtime.shards import DatasetReader
from owt_pipeline.runtime.stage import read_manifest
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.stages.command import reporting_errors
from schemas import DATASETS, REJECTS, Manifest, ShardFile
from schemas.manifest import MANIFEST_NAME

_UPSTREAM = {
    "pages": "urls",
    "documents": "pages",
    "clean": "documents",
    "duplicates": "clean",
    "corpus": "clean",
    "tokens": "corpus",
}


def verify(workdir: Storage) -> Iterator[tuple[str, list[str]]]:
    """For each dataset of the run, in order: its name and what does not hold, one line each.

    Raises UserError where the folder holds no dataset at all.
    """
    names = set(workdir.names())
    found = [name for name in (*DATASETS, "report") if any(path.startswith(f"{name}/") for path in names)]
    if not found:
        raise UserError(f"{workdir} holds no dataset of a run")
    manifests: dict[str, Manifest] = {}
    for name in found:
        folder = workdir / name
        try:
            manifest = read_manifest(folder)
        except UserError as error:
            yield name, [str(error)]
            continue
        if manifest is None:
            yield name, [f"{folder} has no {MANIFEST_NAME}: its stage was broken off; run it again"]
            continue
        manifests[name] = manifest
        yield name, list(_problems(workdir, manifest, manifests))


def _problems(workdir: Storage, manifest: Manifest, manifests: dict[str, Manifest]) -> Iterator[str]:
    folder = workdir / manifest.dataset
    if not manifest.counts.balanced:
        yield f"the ledger does not balance: {manifest.counts}"
    listed = {file.path for file in manifest.files} | {MANIFEST_NAME}
    for path in folder.names():
        if path not in listed and not path.startswith(".work/"):
            yield f"{folder.path(path)} is not in the manifest"
    for dataset, digest in manifest.inputs.items():
        if dataset in manifests and manifests[dataset].digest != digest:
            yield f"{dataset}/ has changed since this was made from it: run {manifest.stage} again"
        elif not (workdir / dataset).exists(MANIFEST_NAME):
            yield f"{dataset}/, from which this was made, is gone"
    damaged = False
    for file in manifest.files:
        for problem in _file_problems(folder, file):
            damaged = True
            yield problem
    if damaged:
        return  # what cannot be read cannot be counted
    reader = DatasetReader(folder, manifest)
    yield from _row_problems(reader)
    upstream = _UPSTREAM.get(manifest.dataset)
    if manifest.stage in ("collect", "import"):
        yield from _unique_problems(reader)
    elif upstream in manifests:
        source = DatasetReader(workdir / upstream, manifests[upstream])
        check = _decision_problems if manifest.dataset == "duplicates" else _id_problems
        try:
            yield from check(source, reader)
        except UserError as error:
            yield str(error)


def _file_problems(folder: Storage, file: ShardFile) -> Iterator[str]:
    path = folder.path(file.path)
    try:
        size = folder.size(file.path)
        if size != file.bytes:
            yield f"{path} has {size} bytes, its manifest says {file.bytes}"
        elif folder.sha256(file.path) != file.sha256:
            yield f"{path} has other bytes than were written: its SHA-256 differs"
    except FileNotFoundError:
        yield f"{path} is missing"
    except OSError as error:
        yield f"{path} cannot be read: {error}"


def _row_problems(reader: DatasetReader) -> Iterator[str]:
    """Rows of each file, its schema, and the reasons of the rejects against the manifest's counts."""
    manifest = reader.manifest
    rejected: Counter[str] = Counter()
    for file in manifest.files:
        if file.kind not in ("data", "rejects"):
            continue
        single = DatasetReader(reader.folder, _only(manifest, file))
        rows = 0
        try:
            schema = single.schema(file)
            if not _schema_holds(schema, manifest.dataset if file.kind == "data" else "rejects"):
                yield f"{reader.folder.path(file.path)} has another schema than docs/data.md says: {schema.names}"
            table = single.table(kind=file.kind, columns=["reason"] if file.kind == "rejects" else ["url_id"])
        except (UserError, pa.ArrowInvalid) as error:
            yield f"{reader.folder.path(file.path)} cannot be read: {error}"
            continue
        rows = table.num_rows
        if rows != file.rows:
            yield f"{reader.folder.path(file.path)} has {rows} rows, its manifest says {file.rows}"
        if file.kind == "rejects":
            rejected.update(table["reason"].to_pylist())
    if manifest.dataset == "duplicates":
        decided = sum(count for reason, count in manifest.counts.rejected.items())
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
        entered = np.sort(_ids(source, shard, "data"))
        left = np.sort(np.concatenate([_ids(reader, shard, "data"), _ids(reader, shard, "rejects")]))
        if np.array_equal(entered, left):
            continue
        twice = left[1:][left[1:] == left[:-1]]
        for what, ids in (
            ("neither left nor were rejected", np.setdiff1d(entered, left)),
            ("never entered", np.setdiff1d(left, entered)),
            ("left or were rejected more than once", np.unique(twice)),
        ):
            if len(ids):
                yield f"shard {shard}: {len(ids)} ids {what}, such as {ids[0]}"


def _unique_problems(reader: DatasetReader) -> Iterator[str]:
    """Where ids begin, each has one row."""
    ids = np.sort(np.concatenate([_ids(reader, shard, "data") for shard in range(reader.num_shards)]))
    twice = ids[1:][ids[1:] == ids[:-1]]
    if len(twice):
        yield f"{len(twice)} ids have more than one row, such as {twice[0]}"


def _decision_problems(source: DatasetReader, reader: DatasetReader) -> Iterator[str]:
    """Each decision removes a document that is there, once, in favour of one that is there and stays."""
    removed_of_shard = [np.sort(_ids(reader, shard, "data")) for shard in range(reader.num_shards)]
    removed = np.concatenate(removed_of_shard) if removed_of_shard else np.array([], np.uint64)
    kept_of_shard: dict[int, list[np.ndarray]] = {}
    for batch in reader.batches(columns=["kept_url_id", "kept_shard"]):
        for shard in np.unique(batch["kept_shard"].to_numpy()):
            ids = batch["kept_url_id"].to_numpy()[batch["kept_shard"].to_numpy() == shard]
            kept_of_shard.setdefault(int(shard), []).append(ids)
    for shard, ids in enumerate(removed_of_shard):
        present = _ids(source, shard, "data")
        unknown = np.setdiff1d(ids, present)
        if len(unknown):
            yield f"shard {shard}: {len(unknown)} decisions about documents that are not there, such as {unknown[0]}"
        if len(np.unique(ids)) != len(ids):
            yield f"shard {shard}: a document is removed twice"
        kept = np.unique(np.concatenate(kept_of_shard.get(shard, [np.array([], np.uint64)])))
        lost = np.setdiff1d(kept, present)
        if len(lost):
            yield f"shard {shard}: {len(lost)} documents to be kept are not there, such as {lost[0]}"
        both = np.intersect1d(kept, removed)
        if len(both):
            yield f"shard {shard}: {len(both)} documents to be kept are removed themselves, such as {both[0]}"


def _ids(reader: DatasetReader, shard: int, kind: str) -> np.ndarray:
    parts = [batch["url_id"].to_numpy() for batch in reader.batches(shard, kind=kind, columns=["url_id"], rows=1 << 16)]
    return np.concatenate(parts) if parts else np.array([], np.uint64)


def _only(manifest: Manifest, file: ShardFile) -> Manifest:
    import dataclasses

    return dataclasses.replace(manifest, files=[file])


def build_parser() -> argparse.ArgumentParser:
    """The flags of `owt verify`."""
    parser = CommandParser(
        prog="owt verify",
        description="Check a run: every sum, every checksum, and that every id is accounted for.",
        epilog="example:\n  owt verify --workdir runs/2013",
    )
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """`owt verify`; exit code 1 where anything does not hold."""
    return reporting_errors(lambda: _print(build_parser().parse_args(argv)))


def _print(arguments: argparse.Namespace) -> int:
    mention_running(Storage(arguments.workdir))
    failed = 0
    for name, problems in verify(Storage(arguments.workdir)):
        print(f"{name}: {'holds' if not problems else f'{len(problems)} problem(s)'}", flush=True)
        for problem in problems:
            print(f"  {problem}")
        failed += bool(problems)
    print("everything holds" if not failed else f"{failed} dataset(s) do not hold")
    return 1 if failed else 0
