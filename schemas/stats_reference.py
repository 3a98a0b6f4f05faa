"""Writes the reference of report/stats.json from its schema.

python -m schemas.stats_reference > docs/stats.md
python -m schemas.stats_reference --json > docs/stats.schema.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from schemas.json_schema import JsonSchema
from schemas.stats import STATS_VERSION, stats_schema


def stats_reference() -> str:
    """docs/stats.md: every key with its type and meaning."""
    parts = [_INTRODUCTION]
    for name, schema in stats_schema()["properties"].items():
        parts.append(f"## `{name}`\n\n{schema['description']}\n")
        rows = list(_rows(schema, ""))
        if rows:
            parts.append("| key | type | meaning |\n|---|---|---|\n" + "".join(rows))
    return "\n".join(parts)


_INTRODUCTION = f"""\
# stats.json

Generated from `schemas/stats.py` by `python -m schemas.stats_reference > docs/stats.md`; a test fails when it is
stale. The same as JSON Schema: [stats.schema.json](stats.schema.json).

Every figure of `report/index.html`, schema version {STATS_VERSION}. The same run gives the same bytes: there is no
date in it, and the statistics merge in any order. A share lies from 0 to 1 and has six digits; `null` means a
share of nothing, or for what is not known. Below, `a.b` is the key b of the object a, `a[]` each item of the list a,
and `a.*` each value of an object whose keys are names. A key's name or meaning changes with the `schema_version`.
"""


def _rows(schema: JsonSchema, path: str) -> Iterator[str]:
    """The rows of the table for what is in `schema`, parents first."""
    if "anyOf" in schema:
        schema = schema["anyOf"][0]
    if schema.get("type") == "object" and "properties" in schema:
        for name, field in schema["properties"].items():
            where = f"{path}.{name}" if path else name
            yield f"| `{where}` | {_kind(field)} | {field['description']} |\n"
            yield from _rows(field, where)
    elif schema.get("type") == "object":
        yield from _rows(schema["additionalProperties"], f"{path}.*")
    elif schema.get("type") == "array" and "items" in schema:
        yield from _rows(schema["items"], f"{path}[]")


def _kind(schema: JsonSchema) -> str:
    if "anyOf" in schema:
        return f"{_kind(schema['anyOf'][0])} or null"
    if "const" in schema:
        return str(schema["const"])
    found = str(schema.get("type", "any"))
    return "list" if found == "array" else found


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(stats_schema(), indent=1, ensure_ascii=False))
    else:
        print(stats_reference(), end="")
