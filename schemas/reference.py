"""Writes docs/data.md from the schemas: `python -m schemas.reference > docs/data.md`."""

from __future__ import annotations

import pyarrow as pa

from schemas.datasets import DATASETS, PLACES, REJECTS, SCHEMA_VERSION, Dataset
from schemas.manifest import FILES
from schemas.reasons import Reason

_INTRODUCTION = f"""\
# Data

This page is generated from `schemas/` by `python -m schemas.reference > docs/data.md`. A test fails
if it is out of date. The schema version is {SCHEMA_VERSION}.

- A dataset is a folder of shards. A stage builds shard k from shard k of the stage before it.
- The folder of a finished dataset has only rows, so pyarrow, pandas, Polars, DuckDB, datasets and
  Spark can open it. Its list of files and its rejects are in `ledger/`.
- A `?` after a type means that the field may be null.
"""

_REJECTS = """\
## `ledger/DATASET/rejects/`

Every dataset has rejects, in Parquet. One row is an id that entered the stage and did not leave it.

"""

_PLACES = """\
## `ledger/pages/places/`

These files are Parquet. One row is the place of a page in `warc/`, in the order of `pages/`.

"""

_MANIFEST = """\
## `ledger/manifest.json`

The root manifest lists the finished datasets with their options, counts and digests, and the run's
generations. `schemas/manifest.py` describes its keys.

## `ledger/DATASET/files-….parquet`

One row is a file of the dataset. Rows are sorted by path.

"""

_FORMATS = {
    "parquet": "Parquet (zstd)",
    "arrow": "Arrow IPC files, uncompressed, to be memory-mapped",
}

# The dataset whose fields a dataset mostly has, by name.
_EXTENDED = {"clean": "documents", "corpus": "clean"}


def data_reference() -> str:
    """Return docs/data.md: every dataset with its fields, and the rejects with their reasons."""
    datasets = [_describe_dataset(dataset) for dataset in DATASETS.values()]
    rejects = f"{_REJECTS}{_table_of_fields(REJECTS)}\n{_table_of_reasons()}"
    places = _PLACES + _table_of_fields(PLACES)
    manifest = _MANIFEST + _table_of_fields(FILES)
    return "\n".join([_INTRODUCTION, *datasets, rejects, places, manifest])


def _describe_dataset(dataset: Dataset) -> str:
    """Return a dataset's section: its stage, its format, its row and its fields."""
    written = f"Written by `{dataset.stage}`, {_FORMATS[dataset.format]}."
    heading = f"## `{dataset.name}/`\n\n{written} One row is {dataset.row}."
    if dataset.name not in _EXTENDED:
        return f"{heading}\n\n{_table_of_fields(dataset.schema)}"
    extended = _EXTENDED[dataset.name]
    base_schema = DATASETS[extended].schema
    own_fields = [field for field in dataset.schema if field not in set(base_schema)]
    missing = [field.name for field in base_schema if field not in set(dataset.schema)]
    exceptions = "".join(f" except `{name}`" for name in missing)
    shared = f"It has the fields of `{extended}/`{exceptions}, and"
    return f"{heading} {shared}\n\n{_table_of_fields(pa.schema(own_fields))}"


def _table_of_fields(schema: pa.Schema) -> str:
    """Return a table with the name, the type and the description of each field."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for field in schema:
        kind = str(field.type).replace("<item: ", "<").replace(" not null", "")
        if field.nullable:
            kind += "?"
        description = field.metadata[b"description"].decode()
        lines.append(f"| `{field.name}` | `{kind}` | {description} |")
    return "\n".join(lines) + "\n"


def _table_of_reasons() -> str:
    """Return a table with every reason for a reject."""
    lines = ["| reason | stage | meaning |", "|---|---|---|"]
    lines += [f"| `{reason.value}` | {reason.stage} | {reason.description} |" for reason in Reason]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(data_reference(), end="")
