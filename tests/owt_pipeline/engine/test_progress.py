"""Progress in a pipe, and for a program."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.owt_pipeline.runs import ask_owt, owt


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
    assert ask_owt("run", run, small_config, "--workers", 1, "--until", "collect", "--quiet") == ""
    shown = ask_owt("run", run, small_config, "--workers", 1, "--until", "fetch", "--verbose")
    assert "fetch: done in" in shown
    assert "not allowed with" in ask_owt("run", small_config, "--quiet", "--verbose", code=2)
