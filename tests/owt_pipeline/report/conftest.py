"""The report of a small run, DuckDB over its files, and a browser for its page."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.owt_pipeline.report.browser import Browser
from tests.owt_pipeline.report.queries import queries

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def stats(small_run: Path) -> dict[str, Any]:
    return json.loads((small_run / "report" / "stats.json").read_bytes())


@pytest.fixture(scope="session")
def sql(small_run: Path) -> Callable[[str], list[tuple]]:
    """Rows of a query over the run's files, which DuckDB reads by itself."""
    return queries(small_run)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (apt-get install chromium)")
    profile = tmp_path_factory.mktemp("browser") / "profile"
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={profile}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        opened = Browser(f"http://127.0.0.1:{_port(profile)}")
        yield opened
        opened.close()
    finally:
        process.kill()
        process.wait()


def _port(profile: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (profile / "DevToolsActivePort").exists() and (
            lines := (profile / "DevToolsActivePort").read_text().splitlines()
        ):
            return lines[0]
        time.sleep(0.05)
    pytest.fail("the browser does not start")
