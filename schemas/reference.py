"""Writes the reference pages from the schemas:

python -m schemas.reference > docs/data.md
"""

from __future__ import annotations

import pyarrow as pa

from schemas.datasets import DATASETS, PLACES, REJECTS, SCHEMA_VERSION, Dataset
from schemas.manifest import FILES
from schemas.reasons import Reason


def data_reference() -> str:
    """Return docs/data.md: every dataset and its fields, the rejects and their reasons."""
    parts = [
        "# Data\n\n"
        "Generated from `schemas/` by `python -m schemas.reference > docs/data.md`; a test fails "
        "when it is stale.\n\n"
        f"Schema version {SCHEMA_VERSION}. A dataset is a folder of shards; shard k of one stage "
        "is made from shard k of the stage before it.\nThe folder of a finished dataset holds its "
        "rows and nothing else, so pyarrow, pandas, Polars, DuckDB, datasets and\nSpark can open "
        "it. Its list of files and its rejects are in `ledger/`. A `?` after a type: the field may "
        "be null.\n"
    ]
    for dataset in DATASETS.values():
        parts.append(
            f"## `{dataset.name}/`\n\nWritten by `{dataset.stage}`, {_FORMATS[dataset.format]}. "
            f"One row is {dataset.row}.{_own_fields(dataset)}"
        )
    parts.append(
        "## `ledger/DATASET/rejects/`\n\nFor every dataset, in Parquet. One row is an id that "
        f"entered the stage and did not leave it.\n\n{_fields(REJECTS)}\n{_reasons()}"
    )
    parts.append(
        "## `ledger/pages/places/`\n\nIn Parquet. One row is where a page lies in `warc/`, in the "
        f"order of `pages/`.\n\n{_fields(PLACES)}"
    )
    parts.append(
        "## `ledger/manifest.json`\n\nThe root manifest: the finished datasets, with their "
        "options, counts and digests, and the run's generations. `schemas/manifest.py` describes "
        "its keys.\n\n"
        "## `ledger/DATASET/files-….parquet`\n\nOne row is a file of the dataset, sorted by "
        f"path.\n\n{_fields(FILES)}"
    )
    return "\n".join(parts)


_FORMATS = {
    "parquet": "Parquet (zstd)",
    "arrow": "Arrow IPC files, uncompressed, to be memory-mapped",
}

_EXTENDED = {"clean": "documents", "corpus": "clean"}
"""Datasets whose fields are for the most part those of another one, by name."""


def _own_fields(dataset: Dataset) -> str:
    """Return the table of a dataset's fields.

    Of a dataset that extends another one, a sentence names that one, and the table has only the
    fields that it adds.
    """
    if dataset.name not in _EXTENDED:
        return f"\n\n{_fields(dataset.schema)}"
    extended = DATASETS[_EXTENDED[dataset.name]]
    missing = [field for field in extended.schema if field not in set(dataset.schema)]
    left_out = "".join(f" but `{field.name}`" for field in missing)
    added = [field for field in dataset.schema if field not in set(extended.schema)]
    fields = _fields(pa.schema(added))
    return f" It has the fields of `{extended.name}/`{left_out}, and\n\n{fields}"


def _reasons() -> str:
    """Return the table of reasons."""
    lines = ["| reason | stage | meaning |", "|---|---|---|"]
    lines += [f"| `{reason.value}` | {reason.stage} | {reason.description} |" for reason in Reason]
    return "\n".join(lines) + "\n"


def _fields(schema: pa.Schema) -> str:
    """Return the table of a schema's fields."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for field in schema:
        kind = str(field.type).replace("<item: ", "<").replace(" not null", "")
        if field.nullable:
            kind += "?"
        lines.append(f"| `{field.name}` | `{kind}` | {field.metadata[b'description'].decode()} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(data_reference(), end="")
