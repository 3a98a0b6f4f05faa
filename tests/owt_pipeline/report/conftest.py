"""A browser for the report's page."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.owt_pipeline.report.browser import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed (apt-get install chromium)")
    profile = tmp_path / "profile"
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
