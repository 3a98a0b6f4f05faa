"""Writes the reference pages from the schemas:

python -m schemas.reference > docs/data.md
"""

from __future__ import annotations

import inspect
import re

import msgspec
import pyarrow as pa

from schemas.datasets import DATASETS, PLACES, REJECTS, SCHEMA_VERSION
from schemas.manifest import FILES, Counts, FileList, Generation, Manifest, Root, ShardFile, ShardRecord, Total
from schemas.reasons import Reason


def data_reference() -> str:
    """docs/data.md: every dataset and its fields, the rejects and their reasons, the manifest."""
    parts = [
        "# Data\n\n"
        "Generated from `schemas/` by `python -m schemas.reference > docs/data.md`; a test fails when it is stale.\n\n"
        f"Schema version {SCHEMA_VERSION}. A dataset is a folder of shards; shard k of one stage is made from shard k "
        "of the stage before it.\nThe folder of a finished dataset holds its rows and nothing else, so pyarrow, "
        "pandas, Polars, DuckDB, datasets and\nSpark can open it. Its manifest, list of files and rejects are in "
        "`ledger/`. Our own readers use the root\nmanifest, `ledger/manifest.json`, which is written last.\n"
    ]
    for dataset in DATASETS.values():
        parts.append(
            f"## `{dataset.name}/`\n\nWritten by `{dataset.stage}`, {_FORMATS[dataset.format]}. "
            f"One row is {dataset.row}.\n\n{_fields(dataset.schema)}"
        )
    parts.append(
        "## `ledger/DATASET/rejects/`\n\nFor every dataset, in Parquet. One row is an id that entered the stage and "
        f"did not leave it.\n\n{_fields(REJECTS)}\n"
        "| reason | stage | meaning |\n|---|---|---|\n"
        + "".join(f"| `{reason.value}` | {reason.stage} | {reason.description} |\n" for reason in Reason)
    )
    parts.append(
        f"## `ledger/pages/places/`\n\nIn Parquet. One row is where a page lies in `warc/`, in the order of `pages/`."
        f"\n\n{_fields(PLACES)}"
    )
    parts.append(
        "## `ledger/manifest.json`\n\n"
        + "".join(f"### {title}\n\n{_attributes(cls)}\n" for title, cls in _MANIFEST_PARTS).rstrip("\n")
        + "\n\n## `ledger/DATASET/files-….parquet`\n\nOne row is a file of the dataset, sorted by path.\n\n"
        + _fields(FILES)
    )
    return "\n".join(parts)


_FORMATS = {"parquet": "Parquet (zstd)", "arrow": "Arrow IPC files, uncompressed, to be memory-mapped"}

_MANIFEST_PARTS = (
    ("The root manifest of a run", Root),
    ("Each of its `generations`", Generation),
    ("Each of its `datasets`", Manifest),
    ("`counts`", Counts),
    ("each of `totals`", Total),
    ("`files`", FileList),
    ("The record of a finished part", ShardRecord),
    ("Each of its `files`", ShardFile),
)


def _fields(schema: pa.Schema) -> str:
    lines = ["| field | type | null | meaning |", "|---|---|---|---|"]
    for field in schema:
        kind = str(field.type).replace("<item: ", "<").replace(" not null", "")
        null = "yes" if field.nullable else ""
        lines.append(f"| `{field.name}` | `{kind}` | {null} | {field.metadata[b'description'].decode()} |")
    return "\n".join(lines) + "\n"


def _attributes(cls: type[msgspec.Struct]) -> str:
    """The first line of the class's docstring, and its attributes as a table."""
    text = inspect.getdoc(cls) or ""  # without indentation, which Python 3.13 leaves out itself
    said = dict(re.findall(r"^  (\w+): (.*?)(?=^  \w+: |\Z)", text, re.M | re.S))
    lines = [text.splitlines()[0], "", "| key | meaning |", "|---|---|"]
    for name in cls.__struct_fields__:
        lines.append(f"| `{name}` | {' '.join(said.get(name, '').split())} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(data_reference(), end="")
