"""A small complete run for tests: the demo's pages as a WARC file, the dump that links to them,
`owt` as a process."""

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
    """Write the dump, the WARC file and a CONFIG.toml; returns the last."""
    ask_owt("demo", "--write_inputs", folder)
    config = folder / "config.toml"
    config.write_text(CONFIG.format(folder=folder))
    return config


def owt(*arguments: object) -> list[str]:
    """The command line of `owt`."""
    return [sys.executable, "-m", "owt_pipeline", *map(str, arguments)]


def stage_alone(*arguments: object) -> list[str]:
    """The command line of `one_stage`."""
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
    """Run `owt` to its end; returns what it printed, which must not be a traceback."""
    return run_to_end(owt(*arguments), code, env)


def run_to_end(command: list[str], code: int = 0, env: dict[str, str] | None = None) -> str:
    """The same of any command."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **(env or {})},
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert "Traceback" not in output, output
    return output


def ask_owt(*arguments: object, code: int = 0) -> str:
    """The same as `run_owt`, in this process: for commands that need no process of their own to
    show what they do."""
    return run_here(partial(main, [*map(str, arguments)]), code)


def ask_stage(name: str, run: object, *flags: object, code: int = 0) -> str:
    """The same of `one_stage`."""
    return run_here(partial(run_alone, name, str(run), [*map(str, flags)]), code)


def run_here(command: Callable[[], int], code: int = 0) -> str:
    """The same of a function that a command calls."""
    root, out, error = logging.getLogger(), io.StringIO(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    try:
        with redirect_stdout(out), redirect_stderr(error):
            ended = command()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    output = out.getvalue() + error.getvalue()
    assert ended == code, output
    assert "Traceback" not in output, output
    return output


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` as `make(folder)` leaves it: the first of the processes that run tests
    makes it for all.

    The others wait for it. It is to be read only: tests of another process may be reading it.
    """
    base = temporary.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, finished = base / name, base / f"{name}.finished"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


def folders_of(dataset: str) -> tuple[str, ...]:
    """The folders of a run that a dataset's files are in."""
    return (dataset, ledger_of(dataset), *(["warc"] if dataset == "pages" else []))


def root_of(run: Path) -> Root:
    """The root manifest of a run."""
    return Root.from_json((run / ROOT).read_bytes())


def manifest_of(run: Path, dataset: str) -> Manifest:
    """The manifest of a finished dataset."""
    return root_of(run).datasets[dataset]


def table_of(run: Path, dataset: str) -> FileTable:
    """The list of files of a finished dataset."""
    listed = manifest_of(run, dataset).files
    return FileTable.from_parquet((run / listed.path).read_bytes(), listed.path)


def files_of(
    run: Path, dataset: str, kind: str = "data", shard: int | None = None
) -> list[ShardFile]:
    """The files of one kind (and shard) of a finished dataset."""
    return table_of(run, dataset).of_kind(kind, shard)


def shard_file(run: Path, dataset: str, shard: int, kind: str = "data", split: str = "") -> Path:
    """A shard's one file of a kind; of the tokens, that of a split."""
    (file,) = (file for file in files_of(run, dataset, kind, shard) if f"/{split}" in file.path)
    return run / file.path


def rows_of(run: Path, folder: str) -> list[dict[str, Any]]:
    """The rows of a folder of Parquet files."""
    return [
        row
        for path in sorted((run / folder).glob("part-*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


def is_same_in_all_runs(name: str) -> bool:
    """Whether a file is none of those that differ between equal runs: times, locks, flags,
    versions of files, and what a job whose launcher was killed leaves for it."""
    others = {
        "run-log.jsonl",
        "settings.toml",
        "manifest.json.copy",
        ".lock",
        ".job",
        ".outcome",
        ".tmp",
    }
    return not others & set(name.split("/"))


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a run by its path, but for those that differ between equal runs."""
    return contents(Storage(str(folder)))


def contents(run: Storage) -> dict[str, bytes]:
    """The same of a run in any storage."""
    found = {name: run.read(name) for name in run.names() if is_same_in_all_runs(name)}
    if (
        ROOT in found
    ):  # which counts how often it was replaced, names the last run, and where the sources were
        root = Root.from_json(found[ROOT])
        generations = [_somewhere(each) for each in root.generations]
        datasets = {name: _somewhere(each) for name, each in root.datasets.items()}
        root = msgspec.structs.replace(
            root, sequence=0, run="", generations=generations, datasets=datasets
        )
        found[ROOT] = root.to_json()
    return found


def _somewhere(read: R) -> R:
    """Return a generation or a manifest without what depends on where its sources lie."""
    sources = [{**source, "uri": ""} for source in read.sources]
    for source in sources:
        source.pop("seen", None)
    return msgspec.structs.replace(read, sources=sources)


def differing(one: Path, other: Path) -> list[str]:
    """The names of files that are not the same in two runs."""
    ours, theirs = snapshot(one), snapshot(other)
    return sorted(
        name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
    )


def copy_of(run: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    """A copy of a run's folder but for some of its datasets."""
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
    """Let a run be as if it had not made these datasets, whose files stay."""
    root = root_of(run)
    for name in datasets:
        if name in root.datasets:
            shutil.rmtree(
                run / ledger_of(root.datasets[name].stage) / "records", ignore_errors=True
            )
    left = {name: manifest for name, manifest in root.datasets.items() if name not in datasets}
    (run / ROOT).write_bytes(msgspec.structs.replace(root, datasets=left).to_json())
