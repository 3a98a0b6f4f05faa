"""A small complete run for tests, and helpers that run `owt` and read a run's files.

The run reads the demo's pages from a WARC file, and the dump that links to them. `run_owt` starts
a process; `ask_owt` runs the command in this process, in a fraction of the time.
"""

from __future__ import annotations

import fcntl
import io
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow.parquet as pq
import pytest

from owt_pipeline.cli import main
from owt_pipeline.engine.takedowns import Takedowns, read_takedowns
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ROOT, FileTable, Generation, Manifest, Root, ShardFile, ledger_of
from tests.owt_pipeline.one_stage import run_alone

R = TypeVar("R", Generation, Manifest)

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
    """Write the dump, the WARC file and a CONFIG.toml; return the path of the last."""
    ask_owt("demo", "--write_inputs", folder)
    config = folder / "config.toml"
    config.write_text(CONFIG.format(folder=folder))
    return config


def owt(*arguments: object) -> list[str]:
    """Return the command line of `owt`."""
    return [sys.executable, "-m", "owt_pipeline", *map(str, arguments)]


def stage_alone(*arguments: object) -> list[str]:
    """Return the command line of `one_stage`."""
    return [sys.executable, "-m", "tests.owt_pipeline.one_stage", *map(str, arguments)]


def start_owt(*arguments: object) -> subprocess.Popen[str]:
    """Start `owt` in a session of its own, so that a signal can reach all of its processes."""
    return subprocess.Popen(
        owt(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_owt(*arguments: object, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run `owt` in a process; return its output, which must not contain a traceback."""
    return run_to_end(owt(*arguments), code, env)


def run_to_end(command: list[str], code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run any command in a process, as `run_owt` does."""
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **(env or {})},
    )
    output = process.stdout + process.stderr
    assert process.returncode == code, output
    assert "Traceback" not in output, output
    return output


def ask_owt(*arguments: object, code: int = 0) -> str:
    """Run `owt` in this process, as `run_owt` does in a process of its own."""
    return run_here(partial(main, [*map(str, arguments)]), code)


def ask_stage(name: str, run: object, *flags: object, code: int = 0) -> str:
    """Run `one_stage` in this process, as `run_owt` does in a process of its own."""
    return run_here(partial(run_alone, name, str(run), [*map(str, flags)]), code)


def run_here(command: Callable[[], int], code: int = 0) -> str:
    """Call a command's function; return its output, which must not contain a traceback."""
    root_logger = logging.getLogger()
    stdout = io.StringIO()
    stderr = io.StringIO()
    handlers = root_logger.handlers[:]
    level = root_logger.level
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            code_of_command = command()
    finally:
        root_logger.handlers[:] = handlers
        root_logger.setLevel(level)
    output = stdout.getvalue() + stderr.getvalue()
    assert code_of_command == code, output
    assert "Traceback" not in output, output
    return output


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder `name` as `make(folder)` leaves it.

    The first of the processes that run tests makes it, and the others wait for it. A test must not
    change it, since tests of another process may be reading it.
    """
    base = temporary.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    finished = base / f"{name}.finished"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


def folders_of(dataset: str) -> tuple[str, ...]:
    """Return the folders of a run that hold a dataset's files."""
    return (dataset, ledger_of(dataset), *(["warc"] if dataset == "pages" else []))


def root_of(run: Path) -> Root:
    """Return the root manifest of a run."""
    return Root.from_json((run / ROOT).read_bytes())


def takedowns_of(run: Path) -> Takedowns:
    """Return the takedowns of a run that its root manifest names."""
    return read_takedowns(Storage(str(run)), root_of(run).takedowns)


def manifest_of(run: Path, dataset: str) -> Manifest:
    """Return the manifest of a finished dataset."""
    return root_of(run).datasets[dataset]


def table_of(run: Path, dataset: str) -> FileTable:
    """Return the list of files of a finished dataset."""
    listed = manifest_of(run, dataset).files
    return FileTable.from_parquet((run / listed.path).read_bytes(), listed.path)


def files_of(
    run: Path, dataset: str, kind: str = "data", shard: int | None = None
) -> list[ShardFile]:
    """Return the files of a kind (and shard) of a finished dataset."""
    return table_of(run, dataset).of_kind(kind, shard)


def shard_file(run: Path, dataset: str, shard: int, kind: str = "data", split: str = "") -> Path:
    """Return a shard's only file of a kind, or of a split of the tokens."""
    (file,) = (file for file in files_of(run, dataset, kind, shard) if f"/{split}" in file.path)
    return run / file.path


def rows_of(run: Path, folder: str) -> list[dict[str, Any]]:
    """Return the rows of a folder of Parquet files."""
    return [
        row
        for file in sorted((run / folder).glob("part-*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]


def is_same_in_all_runs(name: str) -> bool:
    """Return whether equal runs have this file with the same bytes.

    Files with times, locks, flags and versions of files differ, and so do the files that a job
    leaves for its launcher.
    """
    differing_names = {
        "run-log.jsonl",
        "settings.toml",
        "manifest.json.copy",
        ".lock",
        ".job",
        ".outcome",
        ".tmp",
    }
    return not differing_names & set(name.split("/"))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return the bytes of a run's files by path, except files that differ between equal runs."""
    return contents(Storage(str(folder)))


def contents(run: Storage) -> dict[str, bytes]:
    """Return the same of a run in any storage."""
    content_by_name = {name: run.read(name) for name in run.names() if is_same_in_all_runs(name)}
    if ROOT in content_by_name:
        # The root counts its replacements, and names the last run and the places of the sources.
        root = Root.from_json(content_by_name[ROOT])
        generations = [_somewhere(generation) for generation in root.generations]
        datasets = {name: _somewhere(manifest) for name, manifest in root.datasets.items()}
        root = msgspec.structs.replace(
            root, sequence=0, run="", generations=generations, datasets=datasets
        )
        content_by_name[ROOT] = root.to_json()
    return content_by_name


def _somewhere(entry: R) -> R:
    """Return a generation or a manifest without the places and the states of its sources."""
    sources = [{**source, "uri": ""} for source in entry.sources]
    for source in sources:
        source.pop("seen", None)
    return msgspec.structs.replace(entry, sources=sources)


def differing(run: Path, other_run: Path) -> list[str]:
    """Return the names of files that differ between two runs."""
    files = snapshot(run)
    other_files = snapshot(other_run)
    names = files.keys() | other_files.keys()
    return sorted(name for name in names if files.get(name) != other_files.get(name))


def copy_of(run: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    """Copy a run's folder without some of its datasets; return the copy."""
    left_out = {folder for name in without for folder in folders_of(name)}

    def ignore(folder: str, names: list[str]) -> list[str]:
        return [
            name for name in names if (Path(folder) / name).relative_to(run).as_posix() in left_out
        ]

    shutil.copytree(run, target, ignore=ignore)
    if without:
        drop(target, *without)
    return target


def drop(run: Path, *datasets: str) -> None:
    """Change a run as if it had not made these datasets. Their files stay."""
    root = root_of(run)
    for name in datasets:
        if name in root.datasets:
            shutil.rmtree(
                run / ledger_of(root.datasets[name].stage) / "records", ignore_errors=True
            )
    remaining = {name: manifest for name, manifest in root.datasets.items() if name not in datasets}
    (run / ROOT).write_bytes(msgspec.structs.replace(root, datasets=remaining).to_json())
