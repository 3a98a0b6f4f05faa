"""The report of a small run, and DuckDB over its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.owt_pipeline.report.queries import queries


@pytest.fixture(scope="session")
def stats(small_run: Path) -> dict[str, Any]:
    """The figures of the small run's report."""
    return json.loads((small_run / "report" / "stats.json").read_bytes())


@pytest.fixture(scope="session")
def sql(small_run: Path) -> Callable[[str], list[tuple]]:
    """A function that returns the rows of a query over the run's files, read by DuckDB."""
    return queries(small_run)
