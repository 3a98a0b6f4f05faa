"""A process of ours does without pandas, and whoever wants it still gets it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest


def test_arrays_are_made_without_pandas_and_frames_with_it() -> None:
    if importlib.util.find_spec("pandas") is None:
        pytest.skip("pandas is not installed")
    program = """
import sys
import pyarrow as pa
import gc
from owt_pipeline.engine.workers import importing, keep_pandas_out

with importing():
    import apache_beam
assert "pandas" not in sys.modules and gc.isenabled()
keep_pandas_out()
table = pa.table({"a": pa.array(["x", "y"])})
assert "pandas" not in sys.modules
assert table.to_pandas()["a"].tolist() == ["x", "y"]
import pandas
assert pa.array(pandas.Series([1.0, None])).null_count == 1
keep_pandas_out()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
