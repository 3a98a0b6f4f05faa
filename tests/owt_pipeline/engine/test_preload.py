"""Modules that all workers need are imported once, in the process that they are forked from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

_SCRIPT = """
import pyarrow as pa
from owt_pipeline.engine.workers import WorkerPool, start_server
from tests.owt_pipeline.engine.test_preload import has_colorsys

start_server({modules})
pool = WorkerPool(1)
[(_, found)] = pool.map(has_colorsys, [pa.record_batch({{"a": [1]}})])
print(found)
pool.close()
"""


def has_colorsys(_: pa.RecordBatch) -> bool:
    """Whether this process has a module that nothing else imports."""
    return "colorsys" in sys.modules


@pytest.mark.parametrize(
    ("modules", "found"), [(["colorsys"], "True"), ([], "False"), (["not_there", "colorsys"], "True")]
)
def test_workers_are_forked_with_them_and_one_that_is_missing_does_no_harm(modules: list[str], found: str) -> None:
    script = _SCRIPT.format(modules=modules)
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (found, "")
