"""DuckDB over a run's files counts independently of the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest


def queries(run: Path) -> Callable[[str], list[tuple]]:
    """Return a function for the rows of a query over a run's datasets, and over `NAME_rejects`."""
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    for name in ("urls", "pages", "documents", "clean", "duplicates", "corpus"):
        connection.execute(f"create view {name} as select * from '{run}/{name}/part-*.parquet'")
        connection.execute(
            f"create view {name}_rejects as select * from "
            f"'{run}/ledger/{name}/rejects/part-*.parquet'"
        )
    paths = sorted(run.glob("tokens/*/part-*.arrow"))
    connection.register(
        "tokens", pa.concat_tables(pa.ipc.open_file(path).read_all() for path in paths)
    )
    return lambda query: connection.execute(query).fetchall()
