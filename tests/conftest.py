"""Fixtures for every test: where the real data is."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# What an example takes depends on what else the machine does: the tests' timeout is the limit.
settings.register_profile("owt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("owt")

# A shell that runs the tests in the background has them ignore Ctrl-C, and every process they start
# with them.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with few tests first: those start processes, and a long file at the end would leave
    other cores idle."""
    count = Counter(item.path for item in items)
    items.sort(key=lambda item: count[item.path])


@pytest.fixture(scope="session")
def testdata() -> Path:
    """The folder of real data; skips the test where it is absent."""
    folder = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real test data is absent: no folder {folder} (set OWT_TESTDATA)")
    return folder
