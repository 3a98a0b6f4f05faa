"""Manifests and records: a dataset's files, what it was made from, and the counts that show that no row was lost.

A dataset `NAME` is in two places of a working directory, so that any reader of Parquet or Arrow can open its folder:

    NAME/part-00007-3f2a9c1b.parquet            rows; the name ends in the first digits of the file's SHA-256
    ledger/NAME/manifest.json                   this module's Manifest, written last: a few kB
    ledger/NAME/files-91c0d2aa.parquet          one row per file
    ledger/NAME/rejects/part-00007-….parquet    one row for each id that entered the stage and did not leave it
    warc/part-00007-….warc.gz                   the responses of pages/

Manifests and records end in a checksum, so that any changed byte is noticed. The trainer reads them with `json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.datasets import LEDGER, SCHEMA_VERSION

MANIFEST_NAME = "manifest.json"


class ManifestError(ValueError):
    """A manifest that cannot be read, has an unknown version, or does not balance."""


class ShardFile(msgspec.Struct, frozen=True):
    """One file of a dataset.

    Attributes:
      path: path relative to the working directory, with `/`.
      kind: `data`, `rejects`, `warc`, `sketches` or `asset`.
      shard: the shard it belongs to; -1 for an asset of the complete dataset.
      rows: rows, or records of a WARC file; 0 for an asset.
      bytes: length of the file.
      sha256: hex digest of the file.
    """

    path: str
    kind: str
    shard: int
    rows: int
    bytes: int
    sha256: str


class Counts(msgspec.Struct, frozen=True):
    """The ledger of a stage: `entered = left + Σ rejected[reason]`.

    Attributes:
      entered: rows that entered the stage.
      left: rows that left it.
      rejected: rows rejected, by reason.
    """

    entered: int = 0
    left: int = 0
    rejected: dict[str, int] = {}

    @property
    def balanced(self) -> bool:
        return self.entered == self.left + sum(self.rejected.values())

    def __add__(self, other: Counts) -> Counts:
        rejected = dict(self.rejected)
        for reason, count in other.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + count
        return Counts(self.entered + other.entered, self.left + other.left, dict(sorted(rejected.items())))

    def __str__(self) -> str:
        rejected = " + ".join(f"{count} {reason}" for reason, count in sorted(self.rejected.items()))
        sign = "=" if self.balanced else "≠"
        return f"{self.entered} in {sign} {self.left} out" + (f" + {rejected}" if rejected else "")


class ShardRecord(msgspec.Struct, frozen=True):
    """The files of one shard; `.work/FINGERPRINT/shards/part-00007.json` while the stage is at work.

    It is created last and only if absent, and makes the shard finished: if two attempts at a shard differ, the files of
    the first record count.

    Attributes:
      shard: number of the shard.
      counts: the shard's ledger.
      files: the shard's files.
      stats: the shard's further counts.
      made_from: SHA-256 over the digests of its input files: while they are the same, the shard is kept; empty if the
        stage does not work shard by shard.
      schema_version: version of all schemas.
    """

    shard: int
    counts: Counts
    files: list[ShardFile]
    stats: dict[str, int] = {}
    made_from: str = ""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        return seal(self)

    @classmethod
    def from_json(cls, data: bytes, where: str = "a record") -> ShardRecord:
        """The record in `data`; raises ManifestError, naming `where`, for one that is damaged."""
        return unseal(data, cls, where)


class FileList(msgspec.Struct, frozen=True):
    """The Parquet file that lists a dataset's files.

    Attributes:
      path: path relative to the working directory.
      bytes: length of the file.
      sha256: hex digest of the file.
      files: number of files that it lists.
    """

    path: str
    bytes: int
    sha256: str
    files: int


class Total(msgspec.Struct, frozen=True):
    """The sums over the files of one kind.

    Attributes:
      files: number of files.
      rows: number of rows.
      bytes: number of bytes.
    """

    files: int = 0
    rows: int = 0
    bytes: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a dataset; written last, so a dataset is finished when its manifest exists.

    Attributes:
      dataset: name of the dataset.
      stage: stage that wrote it.
      stage_version: version of the stage's code.
      fingerprint: SHA-256 over stage, version, options, inputs and sources, which determine the bytes.
      num_shards: number of shards.
      counts: the dataset's ledger.
      options: the options that shaped the bytes.
      inputs: digest of each input dataset, by name.
      sources: files from outside the working directory: name, bytes, digest.
      stats: further counts of the stage, summed over shards.
      properties: properties that readers need, such as the tokenizer.
      totals: number of files, rows and bytes, by kind of file.
      files: the list of all files.
      digest: SHA-256 over the paths and digests of all files, so equal for equal bytes.
      versions: versions of the libraries that shaped the bytes.
      schema_version: version of all schemas; readers refuse one they do not know.
    """

    dataset: str
    stage: str
    stage_version: int
    fingerprint: str
    num_shards: int
    counts: Counts
    options: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    sources: list[dict[str, Any]] = []
    stats: dict[str, int] = {}
    properties: dict[str, Any] = {}
    totals: dict[str, Total] = {}
    files: FileList
    digest: str
    versions: dict[str, str] = {}
    schema_version: int = SCHEMA_VERSION

    @property
    def total_bytes(self) -> int:
        """Bytes of all files of the dataset."""
        return sum(total.bytes for total in self.totals.values())

    def total(self, kind: str) -> Total:
        return self.totals.get(kind, Total())

    def to_json(self) -> bytes:
        """JSON, the same bytes for equal manifests; raises ManifestError if the ledger does not balance."""
        if not self.counts.balanced:
            raise ManifestError(f"{self.stage}: the ledger does not balance: {self.counts}")
        return seal(self)

    @classmethod
    def from_json(cls, data: bytes, where: str = MANIFEST_NAME) -> Manifest:
        """The manifest in `data`; raises ManifestError, which names `where`, for a damaged or unknown one."""
        return unseal(data, cls, where)


class FileTable:
    """The files of a dataset and the record of each of its shards; in Parquet, one row per file, sorted by path.

    Attributes:
      files: all files, sorted by path.
      records: the record of each shard, sorted by shard.
      assets: the files that belong to no shard.
    """

    def __init__(self, records: Sequence[ShardRecord], assets: Sequence[ShardFile] = ()):
        self.records = [
            msgspec.structs.replace(record, files=sorted(record.files, key=lambda file: file.path))
            for record in sorted(records, key=lambda record: record.shard)
        ]
        self.assets = list(assets)
        self.files = sorted(
            [*self.assets, *(file for record in self.records for file in record.files)], key=lambda file: file.path
        )
        self._by_kind: dict[tuple[str, int | None], list[ShardFile]] = {}
        for file in self.files:
            self._by_kind.setdefault((file.kind, None), []).append(file)
            self._by_kind.setdefault((file.kind, file.shard), []).append(file)

    def of_kind(self, kind: str, shard: int | None = None) -> list[ShardFile]:
        """The files of one kind (and shard), sorted by path."""
        return self._by_kind.get((kind, shard), [])

    @property
    def digest(self) -> str:
        lines = "".join(f"{file.sha256}  {file.path}\n" for file in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def totals(self) -> dict[str, Total]:
        kinds = sorted({file.kind for file in self.files})
        return {
            kind: Total(len(files), sum(f.rows for f in files), sum(f.bytes for f in files))
            for kind in kinds
            for files in (self.of_kind(kind),)
        }

    def to_parquet(self) -> bytes:
        """The table as a Parquet file; the same bytes for the same files."""
        rows = [msgspec.structs.asdict(file) for file in self.files]
        first = {record.files[0].path: record for record in self.records}
        for row in rows:
            record = first.get(row["path"])
            row["record"] = _encoder.encode(_without_files(record)).decode() if record else None
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, FILES), sink, compression="zstd")
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_parquet(cls, data: bytes, where: str) -> FileTable:
        """The table in `data`; raises ManifestError, which names `where`, if it is damaged."""
        try:
            # Not `read_table`, which imports pyarrow.dataset and with it pandas, in half a second.
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).cast(FILES)
            records = [msgspec.json.decode(text, type=ShardRecord) for text in table["record"].drop_null().to_pylist()]
            rows = table.drop_columns(["record"]).to_pylist()
            files = [ShardFile(**row) for row in rows]
        except (pa.ArrowException, OSError, msgspec.MsgspecError, TypeError, ValueError) as error:
            raise ManifestError(f"{where} is not a list of files ({error})") from error
        of_shard: dict[int, list[ShardFile]] = {}
        for file in files:
            of_shard.setdefault(file.shard, []).append(file)
        return cls(
            [msgspec.structs.replace(record, files=of_shard[record.shard]) for record in records],
            of_shard.get(-1, []),
        )


FILES = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False, metadata={"description": "path in the working directory"}),
        pa.field("kind", pa.string(), nullable=False, metadata={"description": "data, rejects, warc, sketches, asset"}),
        pa.field("shard", pa.int32(), nullable=False, metadata={"description": "the file's shard; -1 for an asset"}),
        pa.field("rows", pa.int64(), nullable=False, metadata={"description": "rows, or records of a WARC file"}),
        pa.field("bytes", pa.int64(), nullable=False, metadata={"description": "length of the file"}),
        pa.field("sha256", pa.string(), nullable=False, metadata={"description": "hex digest of the file"}),
        pa.field(
            "record",
            pa.string(),
            metadata={"description": "for a shard's first file, the shard's record without its files, as JSON"},
        ),
    ]
)
"""The columns of a dataset's list of files."""


def ledger_of(dataset: str) -> str:
    """The folder of a dataset's manifest, list of files and rejects, relative to the working directory."""
    return f"{LEDGER}/{dataset}"


_encoder = msgspec.json.Encoder(order="deterministic")
_S = TypeVar("_S", bound=msgspec.Struct)


def seal(struct: msgspec.Struct) -> bytes:
    """A struct as JSON whose last key is the SHA-256 of the rest."""
    body = msgspec.to_builtins(struct)
    body["checksum"] = hashlib.sha256(_encoder.encode(struct)).hexdigest()
    return msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n"


def unseal(data: bytes, kind: type[_S], where: str) -> _S:
    """The struct that `seal` turned into `data`; raises ManifestError if a single byte differs."""
    try:
        body = msgspec.json.decode(data)
        version = body.get("schema_version", 1)
        if version != SCHEMA_VERSION:
            raise ManifestError(
                f"{where} has schema version {version}, this program reads {SCHEMA_VERSION}: use the "
                "release that wrote it"
            )
        struct = msgspec.convert(body, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError) as error:
        raise ManifestError(f"{where} is damaged: {error}") from error
    if seal(struct) != data:
        raise ManifestError(f"{where} is damaged or was changed by hand: its checksum does not fit its content")
    return struct


def _without_files(record: ShardRecord) -> ShardRecord:
    return msgspec.structs.replace(record, files=[])
