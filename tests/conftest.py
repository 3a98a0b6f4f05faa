"""Fixtures for every test: where the real data is."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The time of an example depends on the load of the machine. The tests' timeout is the limit.
settings.register_profile("owt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("owt")

# A shell that runs the tests in the background has them ignore Ctrl-C, and every process they start
# with them.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files with few tests to the front.

    They start processes, and a long file at the end would leave other cores idle.
    """
    num_tests_by_path = Counter(item.path for item in items)
    items.sort(key=lambda item: num_tests_by_path[item.path])


@pytest.fixture(scope="session")
def testdata() -> Path:
    """The folder of real data. Skips the test if it is missing."""
    folder = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real test data is absent: no folder {folder} (set OWT_TESTDATA)")
    return folder
