"""Writes docs/data.md from the schemas: `python -m schemas.reference > docs/data.md`."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pyarrow as pa

from schemas.datasets import DATASETS, REJECTS, SCHEMA_VERSION
from schemas.manifest import Counts, Manifest, ShardFile, ShardSum
from schemas.reasons import Reason


def data_reference() -> str:
    """docs/data.md: every dataset and its fields, the rejects and their reasons, the manifest."""
    parts = [
        "# Data\n\n"
        "Generated from `schemas/` by `python -m schemas.reference > docs/data.md`; a test fails when it is stale.\n\n"
        f"Schema version {SCHEMA_VERSION}. A dataset is a folder of shards; shard k of one stage is made from shard k "
        "of the stage before it. Readers go by `manifest.json`, which is written last.\n"
    ]
    for dataset in DATASETS.values():
        parts.append(
            f"## `{dataset.name}/`\n\nWritten by `{dataset.stage}`, {_FORMATS[dataset.format]}. "
            f"One row is {dataset.row}.\n\n{_fields(dataset.schema)}"
        )
    parts.append(
        "## `rejects/`\n\nBeside every dataset: one row for each id that entered the stage and did not leave it, "
        f"Parquet.\n\n{_fields(REJECTS)}\n"
        "| reason | stage | meaning |\n|---|---|---|\n"
        + "".join(f"| `{reason.value}` | {reason.stage} | {reason.description} |\n" for reason in Reason)
    )
    parts.append(
        "## `manifest.json`\n\n"
        + "".join(f"### {title}\n\n{_attributes(cls)}\n" for title, cls in _MANIFEST_PARTS).rstrip("\n")
        + "\n"
    )
    return "\n".join(parts)


_FORMATS = {"parquet": "Parquet (zstd)", "arrow": "Arrow IPC files, uncompressed, to be memory-mapped"}

_MANIFEST_PARTS = (
    ("The manifest", Manifest),
    ("`counts`", Counts),
    ("each of `files`", ShardFile),
    ("each of `shards`", ShardSum),
)


def _fields(schema: pa.Schema) -> str:
    lines = ["| field | type | null | meaning |", "|---|---|---|---|"]
    for field in schema:
        kind = str(field.type).replace("<item: ", "<").replace(" not null>", ">")
        null = "yes" if field.nullable else ""
        lines.append(f"| `{field.name}` | {kind} | {null} | {field.metadata[b'description'].decode()} |")
    return "\n".join(lines) + "\n"


def _attributes(cls: type) -> str:
    """The class' first line and its fields, with what the docstring says of each."""
    text = inspect.getdoc(cls) or ""  # without indentation, which Python 3.13 leaves out itself
    said = dict(re.findall(r"^  (\w+): (.*?)(?=^  \w+: |\Z)", text, re.M | re.S))
    lines = [text.splitlines()[0], "", "| key | meaning |", "|---|---|"]
    for field in dataclasses.fields(cls):
        lines.append(f"| `{field.name}` | {' '.join(said.get(field.name, '').split())} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(data_reference(), end="")
