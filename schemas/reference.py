"""Writes the reference pages from the schemas:

python -m schemas.reference > docs/data.md
python -m schemas.reference stats > docs/stats.md
python -m schemas.reference stats.schema > docs/stats.schema.json
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from schemas.datasets import DATASETS, REJECTS, SCHEMA_VERSION
from schemas.manifest import FILES, Counts, FileList, Manifest, ShardFile, ShardRecord, Total
from schemas.reasons import Reason
from schemas.stats import STATS_VERSION, stats_schema


def data_reference() -> str:
    """docs/data.md: every dataset and its fields, the rejects and their reasons, the manifest."""
    parts = [
        "# Data\n\n"
        "Generated from `schemas/` by `python -m schemas.reference > docs/data.md`; a test fails when it is stale.\n\n"
        f"Schema version {SCHEMA_VERSION}. A dataset is a folder of shards; shard k of one stage is made from shard k "
        "of the stage before it.\nThe folder of a finished dataset holds its rows and nothing else, so pyarrow, "
        "pandas, Polars, DuckDB, datasets and\nSpark can open it. Its manifest, list of files and rejects are in "
        "`ledger/DATASET/`. Our own readers use `manifest.json`\nthere, which is written last.\n"
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
        "## `ledger/DATASET/manifest.json`\n\n"
        + "".join(f"### {title}\n\n{_attributes(cls)}\n" for title, cls in _MANIFEST_PARTS).rstrip("\n")
        + "\n\n## `ledger/DATASET/files-….parquet`\n\nOne row is a file of the dataset, sorted by path.\n\n"
        + _fields(FILES)
    )
    return "\n".join(parts)


_FORMATS = {"parquet": "Parquet (zstd)", "arrow": "Arrow IPC files, uncompressed, to be memory-mapped"}

_MANIFEST_PARTS = (
    ("The manifest", Manifest),
    ("`counts`", Counts),
    ("each of `totals`", Total),
    ("`files`", FileList),
    ("The record of a finished part", ShardRecord),
    ("Each of its `files`", ShardFile),
)


def _fields(schema: pa.Schema) -> str:
    lines = ["| field | type | null | meaning |", "|---|---|---|---|"]
    for field in schema:
        kind = str(field.type).replace("<item: ", "<").replace(" not null>", ">")
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


def stats_reference() -> str:
    """docs/stats.md: every key of report/stats.json with its type and meaning."""
    schema = stats_schema()
    parts = [_ABOUT_STATS]
    for name, section in schema["$defs"]["Stats"]["properties"].items():
        inner = _resolved(section, schema["$defs"])
        more = _resolved(inner.get("items") or inner, schema["$defs"]).get("description")
        text = section["description"] if more in (None, section["description"]) else f"{section['description']} {more}"
        parts.append(f"## `{name}`\n\n{text}\n")
        if rows := list(_keys(section, "", schema["$defs"])):
            parts.append("| key | type | meaning |\n|---|---|---|\n" + "".join(rows))
    return "\n".join(parts)


_ABOUT_STATS = f"""\
# stats.json

Generated from `schemas/stats.py` by `python -m schemas.reference stats > docs/stats.md`; a test fails when it is
stale. The same as JSON Schema: [stats.schema.json](stats.schema.json).

All figures of `report/index.html`, schema version {STATS_VERSION}. The same run gives the same bytes: the file has no
date, and all counts and percentiles are exact. Shares are between 0 and 1, with six digits; `null` is a share of zero
rows, or an unknown value. Below, `a.b` is the key b of the object a, `a[]` each item of the list a, and `a.*` each
value of an object whose keys are names. `schema_version` changes when a key's name or meaning changes.
"""


def _keys(schema: dict[str, Any], path: str, named: dict[str, Any]) -> Iterator[str]:
    """The rows of the table for the keys of `schema`, parents first."""
    schema = _resolved(schema, named)
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        kind = _kind(_resolved(field, named)) + (" or null" if {"type": "null"} in field.get("anyOf", ()) else "")
        yield f"| `{where}` | {kind} | {field['description']} |\n"
        yield from _keys(field, where, named)
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from _keys(values, f"{path}.*", named)
    if isinstance(items := schema.get("items"), dict):
        yield from _keys(items, f"{path}[]", named)


def _resolved(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """The schema that `schema` refers to; of alternatives, the one that is not null."""
    if "anyOf" in schema:
        (schema,) = (one for one in schema["anyOf"] if one != {"type": "null"})
    found: dict[str, Any] = named[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def _kind(schema: dict[str, Any]) -> str:
    return {"array": "list"}.get(schema.get("type", "any"), schema.get("type", "any"))


_PAGES = {
    "data": data_reference,
    "stats": stats_reference,
    "stats.schema": lambda: json.dumps(stats_schema(), indent=1, ensure_ascii=False) + "\n",
}

if __name__ == "__main__":
    print(_PAGES[sys.argv[1] if sys.argv[1:] else "data"](), end="")
