"""Fetch's client makes few calls more than a bare loop that fetches the same pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_client_makes_at_most_1_3_times_the_calls_of_a_bare_loop() -> None:
    command = [sys.executable, "benchmarks/fetch.py", "--calls", "--hosts", "20", "--pages", "40"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    match = re.search(r": ([\d.]+) times$", result.stdout)
    assert match is not None, result.stderr
    assert float(match[1]) <= 1.3, result.stdout
    assert result.returncode == 0
