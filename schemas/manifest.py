"""The ledger's documents: the root manifest, the manifest of each dataset, records of shards.

A dataset `NAME` is in two places of a run's folder, so that any reader of Parquet or Arrow can open
the first:

    NAME/part-00007-3f2a9c1b.parquet            rows; the name ends in digits of the SHA-256
    warc/part-00007/live-….warc.gz              responses of pages/
    ledger/pages/places/part-00007-….parquet    the file and the range of bytes of each response
    ledger/manifest.json                        the Root: every dataset's Manifest, and the history
    ledger/NAME/files-91c0d2aa.parquet          the dataset's list of files, one row per file
    ledger/NAME/rejects/part-00007-….parquet    one row for each id that did not leave the stage
    ledger/STAGE/records/00007-5e884898….json   the record of a shard that is made
    ledger/takedowns/1f2e3d4c….parquet          the documents that `owt forget` has removed

Documents end in a checksum, so that any changed byte is noticed. The trainer reads the root with
`json`, without this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.datasets import LEDGER, SCHEMA_VERSION, field

ROOT = f"{LEDGER}/manifest.json"
"""Path of the root manifest in a run's folder."""

PAGES = "pages"
"""The kind of a generation's sources of pages. Its other sources have links or texts."""


class ManifestError(ValueError):
    """A manifest that cannot be read, has an unknown version, or does not balance."""


class ShardFile(msgspec.Struct, frozen=True):
    """One file of a dataset.

    Attributes:
      path: path relative to the run's folder, with `/`.
      kind: `data`, `rejects`, `warc`, `places` (where pages lie in `warc`), `figures`, `kept`
        (decisions by kept document) or `asset`.
      shard: the shard it belongs to; -1 for an asset of the complete dataset.
      rows: rows, or answers in a WARC file; 0 for an asset.
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
        """Return whether every row that entered has left or is rejected."""
        return self.entered == self.left + sum(self.rejected.values())

    def __add__(self, other: Counts) -> Counts:
        rejected = dict(self.rejected)
        for reason, count in other.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + count
        # Sorted, so that equal sums are equal JSON, whatever the order of the terms.
        return Counts(
            self.entered + other.entered, self.left + other.left, dict(sorted(rejected.items()))
        )

    def __str__(self) -> str:
        sign = "=" if self.balanced else "≠"
        terms = [f"{self.left} out"]
        terms += [f"{count} {reason}" for reason, count in sorted(self.rejected.items())]
        return f"{self.entered} in {sign} {' + '.join(terms)}"


class ShardRecord(msgspec.Struct, frozen=True):
    """The files that were made for a key: of a shard, or of a part of an intermediate step.

    The record is created last and only if absent, and finishes the shard. If two attempts at a
    shard differ, the files of the first record count.

    Attributes:
      shard: number of the shard.
      counts: the shard's ledger.
      files: the shard's files.
      stats: the shard's further counts.
      key: hex SHA-256 of everything that the shard is built from; empty for a part of an
        intermediate step.
      parts: the digest of each part of the key, by name (owt_pipeline/engine/keys.py).
      versions: versions of the libraries that shaped the bytes.
      schema_version: version of all schemas.
    """

    shard: int
    counts: Counts
    files: list[ShardFile]
    stats: dict[str, int] = {}
    key: str = ""
    parts: dict[str, str] = {}
    versions: dict[str, str] = {}
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        return seal(self)

    @classmethod
    def from_json(cls, data: bytes, where: str = "a record") -> ShardRecord:
        """Return the record in `data`; raise ManifestError, which names `where`, for damage."""
        return unseal(data, cls, where)


class FileList(msgspec.Struct, frozen=True):
    """The Parquet file that lists a dataset's files.

    Attributes:
      path: path relative to the run's folder.
      bytes: length of the file.
      sha256: hex digest of the file.
      files: number of files that it lists.
    """

    path: str
    bytes: int
    sha256: str
    files: int


class Total(msgspec.Struct, frozen=True):
    """The sums over the files of one kind: their number, rows and bytes."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a finished dataset, in the root manifest.

    Attributes:
      dataset: name of the dataset.
      stage: stage that wrote it.
      stage_version: version of the stage's code.
      num_shards: number of shards.
      counts: the dataset's ledger.
      options: the options that shaped the bytes.
      inputs: digest of the files that were read of each input dataset, by name.
      sources: files from outside the run's folder: name, bytes, digest; `uri` and `seen`, as below.
      stats: further counts of the stage, summed over shards.
      properties: properties that readers need, such as the tokenizer.
      totals: number of files, rows and bytes, by kind of file.
      files: the list of all files.
      digest: SHA-256 over the paths and digests of all files, so equal for equal bytes.
    """

    dataset: str
    stage: str
    stage_version: int
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

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all files of the dataset."""
        return sum(total.bytes for total in self.totals.values())

    def total(self, kind: str) -> Total:
        """Return the sums over the files of one kind."""
        return self.totals.get(kind, Total())


class Generation(msgspec.Struct, frozen=True):
    """The sources of a first run or one `--add`, and their shards in every dataset but report.

    Attributes:
      stage: the stage that reads the sources: `collect` or `import`.
      first: the first of its shards.
      shards: number of its shards.
      sources: the files that it reads: kind, name, length, digest; `uri`, their latest path or URI
        (that of a source that moved is updated); `stored`, the path of a copy in the run; `seen`,
        their mtime and their inode when they were hashed.
      later: further sets of sources of pages, each for the URLs that had no page before.
    """

    stage: str
    first: int
    shards: int
    sources: list[dict[str, Any]] = []
    later: list[list[dict[str, Any]]] = []

    @property
    def shard_numbers(self) -> range:
        """Return the numbers of the generation's shards."""
        return range(self.first, self.first + self.shards)

    @property
    def links(self) -> list[dict[str, Any]]:
        """Return the sources that the first stage reads: of links, or of texts."""
        return [source for source in self.sources if source["kind"] != PAGES]

    @property
    def pages(self) -> list[dict[str, Any]]:
        """Return the sources in which `fetch` looks for pages of the generation's links."""
        return [source for source in self.sources if source["kind"] == PAGES]

    @property
    def page_sets(self) -> list[list[dict[str, Any]]]:
        """Return `pages`, and the sets that were added later."""
        return [self.pages, *self.later]


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """The root manifest: a dataset is finished when it is named here.

    Attributes:
      sequence: number of times that it was replaced, so that no two versions have equal bytes.
      run: id of the process or job that wrote it.
      generations: the sources that were added to the run, in order.
      rounds: how often the failed or lost URLs of a shard of `pages/` were requested again, by
        shard.
      takedowns: names of the files of takedowns that the run has seen, sorted.
      datasets: the finished datasets, by name.
      schema_version: version of all schemas.
    """

    sequence: int = 0
    run: str = ""
    generations: list[Generation] = []
    rounds: dict[str, int] = {}
    takedowns: list[str] = []
    datasets: dict[str, Manifest] = {}
    schema_version: int = SCHEMA_VERSION

    @property
    def num_shards(self) -> int:
        """Return the number of shards of every dataset except report."""
        return sum(generation.shards for generation in self.generations)

    def generation_number_of(self, shard: int) -> int:
        """Return the number of a shard's generation."""
        numbered = enumerate(self.generations)
        return next(number for number, generation in numbered if shard in generation.shard_numbers)

    def to_json(self) -> bytes:
        """Return JSON, the same bytes for equal roots.

        Raises ManifestError if a ledger does not balance.
        """
        for manifest in self.datasets.values():
            if not manifest.counts.balanced:
                raise ManifestError(
                    f"{manifest.stage}: the ledger does not balance: {manifest.counts}"
                )
        ordered = dict(sorted(self.datasets.items()))
        return seal(msgspec.structs.replace(self, datasets=ordered))

    @classmethod
    def from_json(cls, data: bytes, where: str = ROOT) -> Root:
        """Return the root in `data`; raise ManifestError, which names `where`.

        A root may be damaged, or have an unknown version.
        """
        return unseal(data, cls, where)


class FileTable:
    """The files of a dataset and the record of each of its shards.

    In Parquet, it has one row per file, sorted by path.

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
            [*self.assets, *(file for record in self.records for file in record.files)],
            key=lambda file: file.path,
        )
        # By kind and shard; with None for the shard, the files of all shards.
        self._by_kind: dict[tuple[str, int | None], list[ShardFile]] = {}
        for file in self.files:
            self._by_kind.setdefault((file.kind, None), []).append(file)
            self._by_kind.setdefault((file.kind, file.shard), []).append(file)

    def of_kind(self, kind: str, shard: int | None = None) -> list[ShardFile]:
        """Return the files of one kind (and shard), sorted by path."""
        return self._by_kind.get((kind, shard), [])

    @property
    def digest(self) -> str:
        """Return the SHA-256 over the paths and digests of all files."""
        return self.digest_of({file.kind for file in self.files})

    def digest_of(self, kinds: Collection[str], num_shards: int | None = None) -> str:
        """Return the SHA-256 over the paths and digests of the files of some kinds.

        With `num_shards`, only the files of the first shards count.
        """
        # Assets, whose shard is -1, always count.
        end = len(self.records) if num_shards is None else num_shards
        lines = "".join(
            f"{file.sha256}  {file.path}\n"
            for file in self.files
            if file.kind in kinds and file.shard < end
        )
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def totals(self) -> dict[str, Total]:
        """Return the sums over the files of each kind."""
        totals = {}
        for kind in sorted({file.kind for file in self.files}):
            files = self.of_kind(kind)
            num_rows = sum(file.rows for file in files)
            num_bytes = sum(file.bytes for file in files)
            totals[kind] = Total(len(files), num_rows, num_bytes)
        return totals

    def to_parquet(self) -> bytes:
        """Return the table as a Parquet file; the same bytes for the same files."""
        rows = [msgspec.structs.asdict(file) for file in self.files]
        record_by_path = {record.files[0].path: record for record in self.records if record.files}
        for row in rows:
            # The record of a shard is in the row of its first file.
            row["record"] = None
            record = record_by_path.get(row["path"])
            if record is not None:
                without_files = msgspec.structs.replace(record, files=[])
                row["record"] = _encoder.encode(without_files).decode()
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, FILES), sink, compression="zstd")
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_parquet(cls, data: bytes, where: str) -> FileTable:
        """Return the table in `data`; raise ManifestError, which names `where`, for damage."""
        try:
            # `read_table` would import pyarrow.dataset and with it pandas, in half a second.
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).cast(FILES)
            records = [
                msgspec.json.decode(text, type=ShardRecord)
                for text in table["record"].drop_null().to_pylist()
            ]
            rows = table.drop_columns(["record"]).to_pylist()
            files = [ShardFile(**row) for row in rows]
        except (pa.ArrowException, OSError, msgspec.MsgspecError, TypeError, ValueError) as error:
            raise ManifestError(f"{where} is not a list of files ({error})") from error
        files_by_shard: dict[int, list[ShardFile]] = {}
        for file in files:
            files_by_shard.setdefault(file.shard, []).append(file)
        complete_records = [
            msgspec.structs.replace(record, files=files_by_shard[record.shard])
            for record in records
        ]
        return cls(complete_records, assets=files_by_shard.get(-1, []))


FILES = pa.schema(
    [
        field("path", pa.string(), "path in the working directory"),
        field("kind", pa.string(), "data, rejects, warc, places, figures, kept or asset"),
        field("shard", pa.int32(), "the file's shard; -1 for an asset"),
        field("rows", pa.int64(), "rows, or answers in a WARC file"),
        field("bytes", pa.int64(), "length of the file"),
        field("sha256", pa.string(), "hex digest of the file"),
        field(
            "record",
            pa.string(),
            "for a shard's first file, the shard's record without its files, as JSON",
            nullable=True,
        ),
    ]
)
"""The columns of a dataset's list of files."""


def ledger_of(dataset: str) -> str:
    """Return the folder of a dataset's list of files and rejects, relative to the run's folder."""
    return f"{LEDGER}/{dataset}"


_encoder = msgspec.json.Encoder(order="deterministic")
_S = TypeVar("_S", bound=msgspec.Struct)


def seal(struct: msgspec.Struct) -> bytes:
    """Return a struct as JSON whose last key is the SHA-256 of the other keys."""
    body = msgspec.to_builtins(struct)
    body["checksum"] = hashlib.sha256(_encoder.encode(struct)).hexdigest()
    return msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n"


def unseal(data: bytes, kind: type[_S], where: str) -> _S:
    """Return the struct that `seal` turned into `data`.

    Raises ManifestError, which names `where`, if a single byte differs.
    """
    try:
        body = msgspec.json.decode(data)
        version = body.get("schema_version", 1)
        if version != SCHEMA_VERSION:
            raise ManifestError(
                f"{where} has schema version {version}, this program reads {SCHEMA_VERSION}: use "
                "the release that wrote it"
            )
        struct = msgspec.convert(body, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError) as error:
        raise ManifestError(f"{where} is damaged: {error}") from error
    # Unknown keys and changed white space are damage, too.
    if seal(struct) != data:
        raise ManifestError(
            f"{where} is damaged or was changed by hand: its checksum does not fit its content"
        )
    return struct
