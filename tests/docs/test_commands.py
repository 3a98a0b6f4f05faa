"""The documentation's commands do what it says: each page's, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from owt_pipeline.demo.command import write_inputs

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"(?:^`(?P<name>[\w.-]+)`:\n\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
NAMED = re.compile(
    r"\b(?:owt_pipeline|trainer|schemas|tests|benchmarks|dags|flex|presets|docs)/[\w./-]+\.(?:py|md|toml|txt)\b"
)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
MADE_BY_MAKE_DOCS = {"api.md", "options/index.md"}
PAGES = [
    page for page in sorted(DOCS.rglob("*.md")) if "```console" in page.read_text() and page.stem != "airflow"
]  # Airflow's command needs its environment: tests/dags


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """Of a page, in order: ("file NAME", its content) and ("run", a command after `$ `, which `\\` continues)."""
    for fence in FENCE.finditer(page.read_text()):
        if fence["name"]:
            yield f"file {fence['name']}", fence["body"]
        elif fence["language"] == "console":
            yield from (("run", command) for command in COMMAND.findall(fence["body"]))


@pytest.mark.slow
@pytest.mark.timeout(1500)  # the tutorial trains, on a machine that may be busy
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_works(page: Path, tmp_path: Path) -> None:
    """The bucket is a folder here, with a dump in it: no real one can be reached."""
    pytest.importorskip("torch", reason="the tutorial trains")
    bucket = tmp_path / "bucket"
    if "gs://BUCKET" in page.read_text():
        write_inputs(bucket / "dumps")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for kind, text in steps(page):
        if kind != "run":
            (tmp_path / kind.split()[1]).write_text(text)
            continue
        command = text.replace("gs://BUCKET", str(bucket))
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}: {text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr


def test_files_that_the_documentation_names_exist() -> None:
    root = DOCS.parent
    made = {"benchmarks/gpu.md"}  # by make gpu-check
    missing = []
    for page in (*root.glob("*.md"), *DOCS.rglob("*.md"), *(root / "dags").glob("*.md")):
        text = page.read_text()
        named = set(NAMED.findall(text)) - made
        missing += [(page.name, path) for path in named if not any((at / path).exists() for at in (root, DOCS))]
        missing += [
            (page.name, path) for path in LINK.findall(text) if not (page.parent / path).exists() and path[0] != "$"
        ]
    assert [found for found in missing if found[1] not in MADE_BY_MAKE_DOCS] == []
