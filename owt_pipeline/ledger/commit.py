"""Committing: files are named by their content, a record makes a part finished, a manifest makes a dataset finished.

Any number of attempts at a part may run, one after the other or at once, and each may fail at any point:

1. Files are spooled to the local disk, hashed, and published under a name that contains their hash. A late attempt that
   writes the same bytes rewrites the same file; one that writes other bytes writes another file.
2. The record is created only if there is none. If attempts differ, the first record decides whose files count.
3. The manifest is written by compare-and-swap on the version that the attempt's plan saw. Of several attempts at
   publishing, one succeeds, and a late one replaces nothing.
4. An attempt deletes only its own spool. Only a successful `publish` removes files that its manifest does not name.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from owt_pipeline import progress
from owt_pipeline.errors import LedgerError, Superseded, UserError
from owt_pipeline.ledger.dataset import Outcome
from owt_pipeline.ledger.exchange import SLICES, Slice, SliceWriter
from owt_pipeline.storage.disk import HashingFile
from owt_pipeline.storage.folder import Entry, Storage, at_once
from schemas import REJECTS, Reason
from schemas.manifest import (
    MANIFEST_NAME,
    Counts,
    FileList,
    FileTable,
    Manifest,
    ManifestError,
    ShardFile,
    ShardRecord,
    ledger_of,
)

logger = logging.getLogger("owt")

ROW_GROUP_BYTES = 16 << 20
"""Bytes of rows that are written at once: enough to compress well, little compared with the memory."""

_ROW_GROUP_BYTES = {"clean": 1 << 19}
"""Smaller row groups for datasets of which later runs read single documents, each of which costs a row group. The files
are 1.4% larger."""

_PLAIN_COLUMNS = {"text", "url", "posted_url", "url_id", "kept_url_id", "detail"}
_LISTING = ".listing"
_PART = re.compile(r"(?:\w+|tokens/(?:train|val))/part-\d{5}-[0-9a-f]{8}\.(?:parquet|arrow|warc\.gz)")
WARC = "warc"
"""Folder of a working directory for the WARC files of pages/, and the kind of these files."""


def shard_name(shard: int) -> str:
    return f"part-{shard:05d}"


def record_name(shard: int) -> str:
    return f"{shard_name(shard)}.json"


class ShardWriter:
    """One attempt at a shard: writes its rows, its rejects, further files, and finally its record.

        with ShardWriter(workdir, records, shard, {"": schema}, dataset="clean") as writer:
            writer.add(batch.num_rows, outcome)

    No file appears under its final name before the block ends without an error. When it ends, raises LedgerError unless
    each row that entered has left or was rejected.
    """

    def __init__(
        self,
        folder: Storage,
        records: Storage,
        shard: int,
        outputs: Mapping[str, pa.Schema],
        *,
        dataset: str = "",
        step: str = "",
        file_format: str = "parquet",
        replaces: str | None = None,
    ):
        """A writer of one shard.

        Args:
          folder: the working directory, or the folder of a plan's work for an intermediate step.
          records: folder of the shard's record.
          outputs: schema of each output; "" is the dataset itself, another name a folder in it. A step has none.
          dataset: the dataset's name; "" for an intermediate step, which has no ledger, so its rows need not balance,
            and whose files are not synced to the disk, which would take some milliseconds each.
          step: an intermediate step's name, which is also that of its folder.
          file_format: `parquet` or `arrow`.
          replaces: version of a damaged record that this one replaces.
        """
        self._replaces = replaces
        self._folder, self._records, self.shard = folder, records, shard
        self._outputs, self._dataset, self._format = outputs, dataset, file_format
        self._step = step
        self._slices: SliceWriter | None = None
        self._entered = 0
        self._rejected: Counter[str] = Counter()
        self._stats: Counter[str] = Counter()
        self._sinks: dict[str, _Sink] = {}
        self._files: list[tuple[str, str, str, HashingFile]] = []  # path without hash and suffix, suffix, kind, file
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ShardWriter:
        place = f"{self._dataset} shard {self.shard}"
        for output, schema in self._outputs.items():
            file = self._open(f"{self._dataset}/{output}".rstrip("/"), f".{self._format}", "data")
            self._sinks[output] = _Sink(place, file, schema, self._format, _ROW_GROUP_BYTES.get(self._dataset))
        if self._dataset:
            file = self._open(f"{ledger_of(self._dataset)}/rejects", ".parquet", "rejects")
            self._sinks["rejects"] = _Sink(place, file, REJECTS, "parquet")
        return self

    def _open(self, place: str, suffix: str, kind: str) -> HashingFile:
        file = self._stack.enter_context(self._folder.spool())
        self._files.append((f"{place}/{shard_name(self.shard)}", suffix, kind, file))
        return file

    def enter(self, rows: int) -> None:
        """Count rows that entered the stage."""
        self._entered += rows

    def write(self, rows: pa.RecordBatch, output: str = "") -> None:
        """Rows that leave the stage."""
        self._sinks[output].write(rows)

    def reject(self, rows: pa.RecordBatch) -> None:
        """Rows of schema `REJECTS`."""
        if rows.num_rows:
            for count in rows.column("reason").value_counts().to_pylist():
                self._rejected[str(Reason.of(count["values"]))] += count["counts"]
            self._sinks["rejects"].write(rows)

    def count(self, stats: Mapping[str, int]) -> None:
        """Add to the shard's further counts."""
        self._stats.update(stats)

    def add(self, entered: int, outcome: Outcome) -> None:
        """Write the outcome of `entered` rows, and report the progress."""
        self.enter(entered)
        kept = outcome.kept if isinstance(outcome.kept, Mapping) else {"": outcome.kept}
        for output, rows in kept.items():
            self.write(rows, output)
        self.reject(outcome.rejects)
        self.count(outcome.stats)
        progress.advance(entered)

    def open_file(self, suffix: str, kind: str) -> HashingFile:
        """A further file of the shard, such as its WARC file; the caller sets its `rows`."""
        place = self._step if not self._dataset else kind if kind == WARC else f"{ledger_of(self._dataset)}/{kind}"
        return self._open(place, suffix, kind)

    def send(self, key: int | np.ndarray, rows: pa.RecordBatch) -> None:
        """Send rows to part `key` of the next step; with an array (rows,), each row to its own part. They stay in a
        file of this part until the stage is finished."""
        self._exchange().send(key, rows)

    def forward(self, key: int, slice: Slice) -> None:
        """Pass a slice that was sent to this part on to part `key` of the next step."""
        self._exchange().forward(key, slice)

    def _exchange(self) -> SliceWriter:
        if self._slices is None:
            self._slices = SliceWriter(self.open_file(".slices", SLICES))
        return self._slices

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._stack.__exit__(kind, error, traceback)  # type: ignore[arg-type]
            return
        with self._stack:
            for sink in self._sinks.values():
                sink.close()
            if self._slices is not None:
                self._slices.close()
            left = sum(self._sinks[name].file.rows for name in self._outputs)
            counts = Counts(self._entered, left, dict(sorted(self._rejected.items())))
            if self._dataset and not counts.balanced:
                raise LedgerError(f"{self._dataset} shard {self.shard}: the ledger does not balance: {counts}")
            files = [self._publish(*file) for file in self._files]
            stats = dict(sorted(self._stats.items()))
            self.record = ShardRecord(self.shard, counts, files, stats)
            name, content = record_name(self.shard), self.record.to_json()
            self.is_first = self._records.swap(name, content, self._replaces, bool(self._dataset)) is not None

    def _publish(self, stem: str, suffix: str, kind: str, file: HashingFile) -> ShardFile:
        path = f"{stem}-{file.sha256[:8]}{suffix}"
        file.publish(path, sync=bool(self._dataset))
        return ShardFile(path, kind, self.shard, file.rows, file.bytes, file.sha256)


class _Sink:
    """A Parquet or Arrow file being written, ROW_GROUP_BYTES at a time, as one row group or several smaller ones.

    Where a group ends depends on the rows alone, not on the batches in which they came.
    """

    def __init__(
        self, place: str, file: HashingFile, schema: pa.Schema, file_format: str, row_group_bytes: int | None = None
    ):
        self.place, self.file, self.schema, self._row_group_bytes = place, file, schema, row_group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        if file_format == "parquet":
            dictionary = [name for name in schema.names if name not in _PLAIN_COLUMNS]
            self._writer = pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=dictionary)
        else:
            self._writer = pa.ipc.new_file(file, schema)

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if not rows.schema.equals(self.schema):
            raise LedgerError(f"{self.place}: rows of schema {rows.schema} for {self.schema}")
        self.file.rows += rows.num_rows
        sizes = _bytes_of_rows(rows)
        while rows.num_rows:
            filled = np.cumsum(sizes) + self._waiting_bytes
            count = min(int(np.searchsorted(filled, ROW_GROUP_BYTES)) + 1, rows.num_rows)
            self._waiting.append(rows.slice(0, count))
            self._waiting_bytes = int(filled[count - 1])
            rows, sizes = rows.slice(count), sizes[count:]
            if self._waiting_bytes >= ROW_GROUP_BYTES:
                self.flush()

    def flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self.schema).combine_chunks()
            groups = self._waiting_bytes // self._row_group_bytes if self._row_group_bytes else 1
            self._writer.write_table(table, -(-len(table) // max(groups, 1)))
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> None:
        self.flush()
        self._writer.close()


def _bytes_of_rows(rows: pa.RecordBatch) -> np.ndarray:
    """About how many bytes each row has, int64 (rows,): texts and lists by their length, other values eight."""
    sizes = np.full(rows.num_rows, 8 * rows.num_columns)
    for column in rows.columns:
        if pa.types.is_list(column.type):
            sizes += pc.fill_null(pc.list_value_length(column), 0).to_numpy() * _item_bytes(column.type.value_type)
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return sizes


def _item_bytes(kind: pa.DataType) -> int:
    return kind.bit_width // 8 if pa.types.is_primitive(kind) else 8


class Listing:
    """The files of a dataset, from one listing of each of its folders, and which of them are known to be intact.

    `.listing`, next to the manifest, stores the version (an etag, or time and inode) that each file had when its hash
    was last found to be right. A file is hashed again only if its version has changed. If `.listing` is lost or
    damaged, all files are hashed once.
    """

    def __init__(self, workdir: Storage, dataset: str, remember: bool = True):
        """List the folders of a dataset; unless `remember`, nothing is written."""
        self._workdir, self._dataset, self._remember = workdir, dataset, remember
        self._cache = f"{ledger_of(dataset)}/{_LISTING}"
        self.entries: dict[str, Entry] = {}
        for folder in (dataset, ledger_of(dataset), *([WARC] if dataset == "pages" else [])):
            self.entries |= {f"{folder}/{entry.name}": entry for entry in (workdir / folder).list()}
        self._seen: dict[str, str] = {}
        if self._cache in self.entries:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, FileNotFoundError):
                self._seen = msgspec.json.decode(workdir.read(self._cache), type=dict[str, str])

    def problems(self, files: Sequence[ShardFile], *, hash_unknown: bool = True) -> dict[str, str]:
        """What is wrong with each damaged file of `files`, by path: it is missing, or its size or content has changed.
        Files of an unknown version are hashed."""
        found: dict[str, str] = {}
        unknown: list[ShardFile] = []
        for file in files:
            entry = self.entries.get(file.path)
            if entry is None:
                found[file.path] = "is missing"
            elif entry.bytes != file.bytes:
                found[file.path] = f"has {entry.bytes} bytes, not {file.bytes}"
            elif self._seen.get(file.path) != entry.version:
                unknown.append(file)
        if unknown and hash_unknown:
            digests = at_once(lambda file: self._sha256(file.path), unknown)
            for file, digest in zip(unknown, digests, strict=True):
                if digest == file.sha256:
                    self._seen[file.path] = self.entries[file.path].version
                else:
                    found[file.path] = "was changed after it was written" if digest else "cannot be read"
            self._save()
        return found

    def _sha256(self, path: str) -> str:
        try:
            return self._workdir.sha256(path)
        except OSError:
            return ""

    def unfinished_plans(self) -> list[str]:
        """Names of the folders of unfinished work."""
        return sorted({name.split("/.work/")[1].split("/")[0] for name in self.entries if "/.work/" in name})

    def trust(self, files: Iterable[ShardFile]) -> None:
        """Consider these files, just written by this run, intact; forget all others."""
        self._seen = {file.path: self.entries[file.path].version for file in files}
        self._save()

    def distrust(self, paths: Iterable[str]) -> None:
        """Let the next run hash these files, and repair those that are damaged."""
        for path in paths:
            self._seen.pop(path, None)
        self._save()

    def _save(self) -> None:
        if self._remember:
            self._workdir.write(self._cache, msgspec.json.encode(self._seen, order="sorted"))

    def foreign(self, known: Collection[str]) -> list[str]:
        """Files in the dataset's folders that are not `known` and are not named as a stage names its files."""
        ledger = f"{ledger_of(self._dataset)}/"
        return sorted(
            name
            for name in self.entries
            if name not in known and not name.startswith(ledger) and not _PART.fullmatch(name)
        )

    def tidy(self, manifest: Manifest, table: FileTable, *more: str) -> None:
        """Remove files of other attempts and earlier outputs: those that the stage has written and the manifest does
        not name. Other files in the dataset's folder are kept (`owt verify` names them).
        """
        ledger = ledger_of(self._dataset)
        keep = {self._cache, manifest_path(self._dataset), manifest.files.path, *more}
        keep |= {file.path for file in table.files}
        extra = [
            name
            for name in self.entries
            if name not in keep and (name.startswith(f"{ledger}/") or _PART.fullmatch(name))
        ]
        self._workdir.delete(*extra)
        gone = set(extra)
        self.entries = {name: entry for name, entry in self.entries.items() if name not in gone}
        if foreign := self.foreign(keep):
            shown = ", ".join(map(self._workdir.path, foreign[:3])) + (", ..." if len(foreign) > 3 else "")
            logger.warning("%s/ holds %d file(s) that no stage wrote: %s", self._dataset, len(foreign), shown)
        if extra and self._workdir.is_local:
            work_of(self._workdir, self._dataset).delete_all()  # the empty folders


def publish(
    workdir: Storage,
    records: Sequence[ShardRecord],
    assets: Sequence[ShardFile],
    confirm: Callable[[], None] = lambda: None,
    contents: Mapping[str, bytes] = {},
    replaces: str | None = None,
    **about: object,
) -> Manifest:
    """Write a dataset's list of files, then its manifest, which makes it finished; then remove all files that it does
    not name.

    Args:
      records: the record of each shard.
      assets: files of the complete dataset.
      confirm: called before anything is replaced or removed; raises if another run has taken over.
      contents: contents of the assets that are not written yet, by path.
      replaces: version of the manifest that this one replaces; None if there is none.
      about: the other fields of the manifest.

    Raises UserError if a file of a record has disappeared since it was written, Superseded if the current manifest is
    not the one to be replaced.
    """
    table = FileTable(records, assets)
    dataset = str(about["dataset"])
    path = manifest_path(dataset)
    found = {name: workdir.read_version(name) or (None, None) for name in (path, *contents)}
    if replaces != found[path][1]:
        raise Superseded(f"{workdir.path(path)} is not what it was when {about['stage']} began")

    def put(name: str, content: bytes, version: str | None) -> None:
        if workdir.swap(name, content, version) is None and workdir.read(name) != content:
            raise Superseded(f"{workdir.path(name)} was written by another attempt or run")

    confirm()
    for name, content in contents.items():
        if found[name][0] != content:
            put(name, content, found[name][1])
    listing = Listing(workdir, dataset)
    gone = listing.problems(table.files, hash_unknown=False)
    if gone:
        name, problem = next(iter(gone.items()))
        raise UserError(f"{workdir.path(name)} {problem}, since the stage wrote it: run the same command again")
    content = table.to_parquet()
    digest = hashlib.sha256(content).hexdigest()
    listed = FileList(f"{ledger_of(dataset)}/files-{digest[:8]}.parquet", len(content), digest, len(table.files))
    workdir.write(listed.path, content)
    manifest = Manifest(files=listed, digest=table.digest, totals=table.totals, **about)  # type: ignore[arg-type]
    put(path, manifest.to_json(), replaces)
    confirm()
    listing.tidy(manifest, table)
    listing.trust(table.files)
    return manifest


def find_record(records: Storage, name: str) -> tuple[ShardRecord | None, str | None]:
    """A part's record, and the version of its file; None for a missing, empty or damaged record, whose part is then
    made again."""
    content, version = records.read_version(name) or (b"", None)
    with contextlib.suppress(ManifestError):
        return ShardRecord.from_json(content, name), version
    return None, version


def manifest_path(dataset: str) -> str:
    """The path of a dataset's manifest in a working directory."""
    return f"{ledger_of(dataset)}/{MANIFEST_NAME}"


def version_of_manifest(workdir: Storage, dataset: str) -> str | None:
    """The version of a dataset's manifest, for `swap`; None if there is none."""
    found = workdir.read_version(manifest_path(dataset))
    return found[1] if found else None


def work_of(workdir: Storage, dataset: str) -> Storage:
    """The folder of a dataset's unfinished work, with one folder per plan, named by its fingerprint."""
    return workdir / ledger_of(dataset) / ".work"
