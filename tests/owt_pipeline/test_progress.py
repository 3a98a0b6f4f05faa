"""Progress is shown on a terminal and in a log."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from owt_pipeline import progress
from owt_pipeline.progress import ERASE

LIVE = """
import argparse, logging
from owt_pipeline import progress
from owt_pipeline.command_line import add_output_flags, configure_output
add_output_flags(parser := argparse.ArgumentParser())
configure_output(parser.parse_args([]))
progress.name_stages(["collect", "fetch"])
with progress.step("fetch (a step whose name is longer than a line is)", shards=9, rows=90):
    progress.advance(1)
    logging.getLogger("owt").info("a line of the log")
"""


def test_a_terminal_gets_a_live_line_of_its_width() -> None:
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    subprocess.run(
        [sys.executable, "-c", LIVE], stderr=terminal, env=environment, check=True, timeout=60
    )
    os.close(terminal)
    written = os.read(reader, 1 << 16).decode()
    os.close(reader)
    lines = [line.strip() for line in written.replace(ERASE, "\r").split("\r")]
    shown = [line for line in lines if line and line != "a line of the log"]
    assert "a line of the log" in lines
    assert shown
    assert all(line.startswith("stage 2 of 2, fetch (a step whose name") for line in shown)
    assert max(map(len, shown)) <= 40
    assert re.search(r"\r +\r$", written), "the bar is removed"


START = """
import sys
from owt_pipeline.cli import main
import owt_pipeline.cli as cli
cli.command_of = lambda name: lambda words: 0
main(["run", "run"])
"""


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_sees_at_once_that_a_command_starts(term: str) -> None:
    """The line is there before the command is imported."""
    reader, terminal = pty.openpty()
    environment = {**os.environ, "TERM": term}
    subprocess.run(
        [sys.executable, "-c", START], stderr=terminal, env=environment, check=True, timeout=60
    )
    os.write(terminal, b".")
    os.close(terminal)
    written = b""
    while not written.endswith(b"\r." if term == "xterm" else b"."):
        written += os.read(reader, 100)
    os.close(reader)
    assert written == (b"owt ...\r." if term == "xterm" else b".")


def test_a_step_shows_stage_rate_time_left_and_rejects(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_mode", "log")
    progress.name_stages(["collect", "fetch", "extract"])
    with (
        caplog.at_level("INFO", logger="owt"),
        progress.step("fetch", shards=2, rows=2_000_000),
    ):
        progress.shard_done()
        progress.advance(50_000, {"http_404": 2, "robots": 1, "timeout": 1, "dns": 1})
        progress.advance(1, {"robots": 1})
        progress.advance(2, {"timeout": 2})
    line = caplog.records[-1].message
    assert line.startswith("stage 2 of 3, fetch: 50.0k/2.00M rows, ")
    assert re.search(r", [\d.]+[kM]? rows/s, \d\d:\d\d left, 1/2 shards, ", line)
    assert line.endswith(" shards, timeout 3, http_404 2, robots 2")


def test_a_step_over_files_shows_bytes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_mode", "log")
    with (
        caplog.at_level("INFO", logger="owt"),
        progress.step("collect", shards=2, rows=10_000_000, unit="bytes"),
    ):
        progress.advance(2_500_000)
    assert re.search(r" 2\.50M/10\.0MB, .*B/s, .* left, 0/2 shards$", caplog.messages[-1])


def test_steps_without_rows_count_shards_and_quiet_shows_none(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0.0)
    for mode, min_records in (("log", 1), ("quiet", 0)):
        monkeypatch.setattr(progress, "_mode", mode)
        caplog.clear()
        with caplog.at_level("INFO", logger="owt"), progress.step("other", shards=3):
            progress.shard_done()
        assert len(caplog.records) >= min_records
        assert all("other: 1/3 shards, " in line for line in caplog.messages[-1:])
