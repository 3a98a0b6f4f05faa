"""The commands of each page work in their order, in an empty folder."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from owt_pipeline.demo.command import write_inputs
from tests.owt_pipeline.runs import run_here

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(
    r"(?:^`(?P<name>[\w.-]+)`:\n\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
# The command of the page on Airflow needs its environment, so tests/dags runs it.
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if "```console" in page.read_text() and page.stem != "airflow"
]

# The output of `owt run`, and of the page that shows the blocks of a page.
OUTPUT_STARTS = ("stage      in", "article ")
SECONDS = re.compile(r" +\d+\.\d(?=  |$)", re.MULTILINE)

# It prints the words after `python -m`, and a blank line.
PRINTING = 'python() { printf "%s\\n" "${@:2}" ""; }; '


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """Yield what a page has, in order.

    It is ("file NAME", its content), ("run", a command after `$ `), where a `\\` at the end of a
    line continues the command, or ("output", what the last command prints).
    """
    for fence in FENCE.finditer(page.read_text()):
        if fence["name"]:
            yield f"file {fence['name']}", fence["body"]
        elif fence["language"] == "console":
            yield from (("run", command) for command in COMMAND.findall(fence["body"]))
        elif fence["body"].startswith(OUTPUT_STARTS):
            yield "output", fence["body"]


def comparable(output: str) -> list[str]:
    """Return the lines of an output, without seconds and trailing spaces."""
    return [line.rstrip() for line in SECONDS.sub(" 0.0", output).splitlines()]


def run_in_shell(command: str, folder: Path) -> str:
    """Run a command by bash, and return its output; fail with the end of it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
    assert "Traceback" not in result.stderr
    return result.stdout


def train_here(command: str) -> None:
    """Call the trainer's modules as a shell would, in this process, which has imported torch."""
    printed = subprocess.check_output(["bash", "-c", PRINTING + command], text=True)
    for words in printed.rstrip("\n").split("\n\n"):
        module, *arguments = words.split("\n")
        if module == "trainer":
            module = "trainer.__main__"
        run_here(partial(importlib.import_module(module).main, arguments))


@pytest.mark.slow
# The tutorial trains, on a machine that may be busy.
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_works(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket is a folder with a dump, since no real bucket can be reached.

    The tutorial's commands run as they stand, also the trainer's commands.
    """
    pytest.importorskip("torch", reason="the tutorial trains")
    monkeypatch.chdir(tmp_path)
    bucket = tmp_path / "bucket"
    if "gs://BUCKET" in page.read_text():
        write_inputs(bucket / "dumps")
    output = ""
    for kind, text in steps(page):
        command = text.replace("gs://BUCKET", str(bucket))
        if kind == "output":
            assert comparable(output) == comparable(text)
        elif kind != "run":
            Path(kind.split()[1]).write_text(text)
        elif re.search(r"python -m (trainer|benchmarks)", command) and page.stem != "tutorial":
            train_here(command)
        else:
            output = run_in_shell(command, tmp_path)
