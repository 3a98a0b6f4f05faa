"""No cost of a run is a product of two sizes, such as shards times archive files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_two_doubled_sizes_cost_the_sum_of_both() -> None:
    command = [sys.executable, "benchmarks/scale.py", "products", "--size", "4"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("of the growth is a product") == 5
