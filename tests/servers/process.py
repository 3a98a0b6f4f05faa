"""Servers as processes, from an environment of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


def program(name: str, folder: str = "bin") -> Path:
    """Return the path of a program of the servers' environment.

    Where it is missing, skips the test, or fails if OWT_REQUIRE_SERVERS is set.
    """
    path = REPOSITORY / ".venv-servers" / folder / name
    if not path.exists():
        missing = f"{name} is not installed here: run `make .venv-servers/installed`"
        if "OWT_REQUIRE_SERVERS" in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    return path


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def serving(
    command: list[str | Path], answers_at: str, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Start a server, wait until it answers at a URL, and run it until the block ends."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        end = time.monotonic() + 120
        while not _answers(answers_at):
            assert process.poll() is None, f"{command[0]} ended with exit code {process.returncode}"
            assert time.monotonic() < end, f"{command[0]} does not answer at {answers_at}"
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
