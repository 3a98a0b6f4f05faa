"""What all workers need is loaded once, in the process that they are forked from."""

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

start_server({needed})
pool = WorkerPool(1)
[(_, found)] = pool.map(has_colorsys, [pa.record_batch({{"a": [1]}})])
print(found)
pool.close()
"""


def has_colorsys(_: pa.RecordBatch) -> bool:
    """Whether this process has a module that nothing else imports."""
    return "colorsys" in sys.modules


def load_colorsys() -> None:
    import colorsys  # noqa: F401


@pytest.mark.parametrize(
    ("needed", "found"),
    [
        ([], "False"),
        (["not_there", "colorsys:not_there", "tests.owt_pipeline.engine.test_preload:load_colorsys"], "True"),
    ],
)
def test_workers_are_forked_with_it_and_what_is_missing_is_ignored(needed: list[str], found: str) -> None:
    script = _SCRIPT.format(needed=needed)
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (found, "")
