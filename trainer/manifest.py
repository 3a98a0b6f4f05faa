"""What a run's ledger says of its token shards, read with json and pyarrow only.

`RUN/tokens/` holds the shards, `RUN/ledger/manifest.json` describes them, and `RUN/ledger/tokens/` has the list of
files and the tokenizer; to take the tokens elsewhere, copy `tokens/` and these. `schemas.manifest` has the formats.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.datasets import LEDGER, SCHEMA_VERSION

MANIFEST_NAME = "manifest.json"
TOKENS = "tokens"


class ShardError(ValueError):
    """Token shards that are missing, damaged, or of a kind this program does not know."""


@dataclass(frozen=True)
class TokenFile:
    """A file of a token dataset.

    Attributes:
      path: relative to the folder of the shards (`train/part-….arrow`), or, of the tokenizer, to the ledger's folder.
      rows: documents.
      bytes: length of the file.
      sha256: hex digest of the file.
    """

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TokenManifest:
    """What the trainer needs to know of a token dataset.

    Attributes:
      tokenizer: the manifest's entry for the tokenizer.
      ids_checked: whether all ids are known to be within the vocabulary.
      files: the data files by split (`train`, `val`), ordered by path.
      assets: the other files, such as the tokenizer's.
    """

    tokenizer: Any
    ids_checked: bool
    files: dict[str, list[TokenFile]]
    assets: list[TokenFile]


def ledger_of(folder: str) -> str:
    """The folder of the ledger for the token shards in `folder`, a path or URI."""
    parent, slash, _ = folder.rstrip("/").rpartition("/")
    return f"{parent}{slash}{LEDGER}"


def read_manifest(read: Callable[[str], bytes], where: str) -> TokenManifest:
    """The manifest in the ledger's folder `where`, whose files `read` reads.

    Raises FileNotFoundError if there is no manifest, and ShardError for one that is damaged, of another version, or
    without tokens.
    """
    content = read(MANIFEST_NAME)
    name = f"{where}/{MANIFEST_NAME}"
    try:
        record = json.loads(content)
        version = record["schema_version"]
        if version != SCHEMA_VERSION:
            raise ShardError(f"{name} has schema version {version}, this program reads {SCHEMA_VERSION}")
        if TOKENS not in record["datasets"]:
            raise ShardError(f"{name} has no finished tokens: run the tokenize stage first")
        record = record["datasets"][TOKENS]
        listed = record["files"]
        list_name = listed["path"].partition("/")[2]
        table = read(list_name)
        if hashlib.sha256(table).hexdigest() != listed["sha256"]:
            raise ShardError(f"{where}/{list_name} was changed or damaged; copy it again")
        rows = pq.read_table(io.BytesIO(table), columns=["path", "kind", "rows", "bytes", "sha256"]).to_pylist()
        tokenizer = record["properties"].get("tokenizer")
        ids_checked = record["properties"].get("ids_checked") is True
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        if isinstance(error, ShardError):
            raise
        raise ShardError(f"{name} is damaged ({error!r}); copy it again") from error
    except FileNotFoundError as error:
        raise ShardError(f"{where}/{list_name}, the list of files, is missing; copy it again") from error
    files: dict[str, list[TokenFile]] = {}
    assets = []
    for row in rows:
        _, _, below = row["path"].partition("/")
        if row["kind"] == "data":
            file = TokenFile(below, row["rows"], row["bytes"], row["sha256"])
            files.setdefault(below.split("/")[0], []).append(file)
        elif row["kind"] == "asset":
            assets.append(TokenFile(row["path"].partition("/")[2], 0, row["bytes"], row["sha256"]))
    return TokenManifest(tokenizer, ids_checked, files, assets)
