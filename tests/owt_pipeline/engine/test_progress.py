"""Progress on a terminal that changes its size, in a pipe, and for a program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from tests.owt_pipeline.runs import owt, run_owt

WORK = """
import argparse, logging, select, sys, time
from owt_pipeline.command_line import add_output_flags, configure_output
from owt_pipeline import progress
parser = argparse.ArgumentParser()
add_output_flags(parser)
configure_output(parser.parse_args())
with progress.step("a step whose name is rather long, as some are", shards=300, rows=300_000):
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        progress.advance(100)
        progress.shard_done()
logging.getLogger("owt").info("the step is done")
"""


LINES_BYTES = 3_000  # of what is read before the terminal changes


def set_size(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def test_a_live_line_fits_the_terminal_whatever_its_size_becomes() -> None:
    master, slave = pty.openpty()
    set_size(slave, 120)
    environment = {**os.environ, "TERM": "xterm"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    pipes = {"stdin": subprocess.PIPE, "stdout": slave, "stderr": slave}
    with subprocess.Popen([sys.executable, "-c", WORK], **pipes, env=environment) as process:
        os.close(slave)
        written, sizes, enough = [], [50, 100], LINES_BYTES
        with contextlib.suppress(OSError):  # at the end
            while piece := os.read(master, 65536):
                written.append(piece)
                if sum(map(len, written)) > enough:  # not after some time: on a busy machine it may not have begun
                    enough += LINES_BYTES
                    if sizes:
                        set_size(master, sizes[0])
                        written.append(f"\x00{sizes.pop(0)}\x00".encode())
                    else:
                        process.stdin.close()
    os.close(master)
    assert process.returncode == 0
    before, small, large = re.split(r"\x00\d+\x00", b"".join(written).decode())
    widths = [
        max(len(line.rstrip()) for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part)))
        for part in (before, small.split("\n", 1)[-1][200:], large)
    ]
    assert 80 < widths[0] <= 120
    assert 0 < widths[1] <= 50
    assert widths[2] <= 100
    assert "the step is done" in large


def test_in_a_pipe_there_are_lines_with_their_time_and_no_control_characters(
    small_config: Path, tmp_path: Path
) -> None:
    command = owt("run", tmp_path / "run", small_config, "--workers", 1, "--until", "fetch")
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", done.stdout + done.stderr)
    assert re.match(r"\d\d:\d\d:\d\d collect: ", done.stderr)
    table = done.stdout.splitlines()
    assert table[0].split() == ["stage", "in", "out", "seconds", "rejected"]
    assert [line.split()[0] for line in table[1:3]] == ["collect", "fetch"]
    assert table[-1] == f"next:   owt run {tmp_path / 'run'} --until extract"


def test_quiet_says_nothing_and_verbose_more(small_config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert run_owt("run", run, small_config, "--workers", 1, "--until", "collect", "--quiet") == ""
    shown = run_owt("run", run, small_config, "--workers", 1, "--until", "fetch", "--verbose")
    assert "fetch: done in" in shown
    assert "not allowed with" in run_owt("run", small_config, "--quiet", "--verbose", code=2)
