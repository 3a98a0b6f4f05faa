"""A small whole run for tests: the demo's pages as a WARC file, the dump that links to them, `owt` as a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFIG = """\
[collect]
dumps = ["{folder}/RS_demo.zst"]
num_shards = 3

[fetch]
pages_from = ["{folder}/demo.warc.gz"]

[clean]
min_tokens = 64
"""


def write_sources(folder: Path) -> Path:
    """Write the dump, the WARC file and a CONFIG.toml; returns the last."""
    run_owt("demo", "--write_inputs", folder)
    config = folder / "config.toml"
    config.write_text(CONFIG.format(folder=folder))
    return config


def owt(*arguments: object) -> list[str]:
    """The command line of `owt`."""
    return [sys.executable, "-m", "owt_pipeline", *map(str, arguments)]


def run_owt(*arguments: object, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run `owt` to its end; returns what it printed, which must not be a traceback."""
    done = subprocess.run(
        owt(*arguments), capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **(env or {})}
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert "Traceback" not in output, output
    return output


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a run by its path, but for the log of its times."""
    names = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "run-log.jsonl"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def differing(one: Path, other: Path) -> list[str]:
    """The names of files that are not the same in two runs."""
    ours, theirs = snapshot(one), snapshot(other)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def copy_of(run: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    """A copy of a run's folder but for some of its datasets."""
    shutil.copytree(
        run, target, ignore=lambda folder, names: [n for n in names if Path(folder) == run and n in without]
    )
    return target
