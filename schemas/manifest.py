"""The manifest: what a dataset consists of, what made it, and the sum that shows nothing was lost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from schemas.datasets import SCHEMA_VERSION

MANIFEST_NAME = "manifest.json"


class ManifestError(ValueError):
    """A manifest that cannot be read, is of an unknown version, or whose sum does not hold."""


@dataclass(frozen=True)
class ShardFile:
    """One file of a dataset.

    Attributes:
      path: relative to the dataset's folder, with `/`.
      kind: `data`, `rejects`, `warc` or `asset`.
      shard: the shard it belongs to; -1 for an asset of the whole dataset.
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


@dataclass(frozen=True)
class Counts:
    """A stage's sum: `entered = left + Σ rejected[reason]`.

    Attributes:
      entered: rows that entered the stage.
      left: rows that left it.
      rejected: rows rejected, by reason.
    """

    entered: int = 0
    left: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

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


@dataclass(frozen=True)
class ShardSum:
    """One shard's part of the sum, where the stage makes shard k from shard k of its inputs alone.

    Attributes:
      shard: its number.
      made_from: SHA-256 over the digests of the input files it was made from: while it holds, the shard stands.
      counts: the shard's sum.
      stats: the shard's further counts.
    """

    shard: int
    made_from: str
    counts: Counts
    stats: dict[str, int]


@dataclass(frozen=True)
class Manifest:
    """What a dataset is; written last, so a dataset exists when its manifest does.

    Attributes:
      dataset: name of the dataset.
      stage: stage that wrote it.
      stage_version: version of the stage's code.
      fingerprint: SHA-256 over stage, version, options and inputs: what the bytes follow from.
      options: the options that shaped the bytes.
      inputs: digest of each dataset read, by name.
      sources: files from outside the working directory: path, bytes, digest.
      num_shards: shards of the dataset.
      counts: the sum of the ledger.
      stats: further counts of the stage, summed over shards.
      properties: what readers need to know beside the rows, such as the tokenizer.
      files: every file, ordered by path.
      shards: each shard's part of the sum, for stages that work shard by shard; else empty.
      versions: versions of the libraries that shaped the bytes.
      schema_version: version of all schemas; readers refuse one they do not know.
    """

    dataset: str
    stage: str
    stage_version: int
    fingerprint: str
    num_shards: int
    counts: Counts
    options: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    sources: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, int] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    files: list[ShardFile] = field(default_factory=list)
    shards: list[ShardSum] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """SHA-256 over the names and digests of all files: equal for equal bytes, whatever made them."""
        lines = "".join(f"{file.sha256}  {file.path}\n" for file in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()

    def of_kind(self, kind: str, shard: int | None = None) -> list[ShardFile]:
        """The files of one kind (and shard), ordered by path."""
        return [f for f in self.files if f.kind == kind and (shard is None or f.shard == shard)]

    def to_json(self) -> str:
        """JSON, the same for equal manifests; raises ManifestError where the sum does not hold."""
        if not self.counts.balanced:
            raise ManifestError(f"{self.stage}: the ledger does not balance: {self.counts}")
        record = asdict(self)
        record["digest"] = self.digest
        return json.dumps(record, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = MANIFEST_NAME) -> Manifest:
        """The manifest in `text`; `where` names it in a ManifestError."""
        try:
            record = json.loads(text)
            version = record["schema_version"]
            if version != SCHEMA_VERSION:
                raise ManifestError(
                    f"{where} has schema version {version}, this program reads {SCHEMA_VERSION}: "
                    "delete the folder to make it anew, or use the release that wrote it"
                )
            digest = record.pop("digest")
            manifest = cls(
                **{
                    **record,
                    "counts": Counts(**record["counts"]),
                    "files": [ShardFile(**entry) for entry in record["files"]],
                    "shards": [
                        ShardSum(**{**entry, "counts": Counts(**entry["counts"])}) for entry in record.get("shards", [])
                    ],
                }
            )
        except ManifestError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{where} is not a manifest ({error!r}): delete its folder to make it anew") from error
        if manifest.digest != digest:
            raise ManifestError(f"{where} was changed by hand: its digest is not that of its files")
        return manifest
