"""Takedowns that are killed, and takedowns next to a sweep that is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.cli import main
from owt_pipeline.engine import publish
from owt_pipeline.ledger import sweep as sweeping
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.one_process import forget_processes, refuse_writes, stopping_at
from tests.owt_pipeline.runs import ask_owt, copy_of, differing, owt, root_of, rows_of, run_here
from tests.owt_pipeline.test_two_events import write_texts

_KILL_AT = """\
import os, sys
from pkgutil import resolve_name
from unittest.mock import patch
from owt_pipeline.cli import main

target, when, *words = sys.argv[1:]
original = resolve_name(target)

def killed(*arguments, **others):
    if when == "after":
        original(*arguments, **others)
    os.kill(os.getpid(), 9)

with patch(target, killed):
    sys.exit(main(words))
"""
_SEARCH = "owt_pipeline.commands.takedown_search"
_FORGET = "owt_pipeline.commands.forget"


def kill_at(target: str, when: str, *words: object) -> None:
    """Run a command of owt in a process that kills itself before or after it calls `target`."""
    command = [sys.executable, "-c", _KILL_AT, target, when, *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert process.returncode == -9, process.stdout + process.stderr


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of eight imported documents."""
    folder = tmp_path_factory.mktemp("killed-takedowns")
    texts = write_texts(folder / "first.jsonl", range(8))
    ask_owt("import", folder / "run", texts, "--num_shards", 2)
    options = ["--min_tokens", 64, "--languages", "all", "--val_fraction", 0.3]
    ask_owt("run", folder / "run", *options, "--workers", 1)
    return folder / "run"


@pytest.fixture(scope="module")
def forgotten(finished_run: Path) -> str:
    """The URL of a document of the corpus, which the tests take down."""
    return min(corpus_urls(finished_run))


@pytest.fixture(scope="module")
def request_list(finished_run: Path, forgotten: str) -> Path:
    """A list of takedowns with this URL."""
    path = finished_run.parent / "list.txt"
    path.write_text(f"{forgotten}\n")
    return path


@pytest.fixture(scope="module")
def run_without(finished_run: Path, request_list: Path) -> Path:
    """The finished run after a takedown that nothing interrupted."""
    run = copy_of(finished_run, finished_run.with_name("without"))
    ask_owt("forget", run, request_list, "--workers", 1)
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    forget_processes()
    return copy_of(finished_run, tmp_path / "run")


def corpus_urls(run: Path) -> set[str]:
    """Return the URLs of a run's corpus."""
    return {row["url"] for row in rows_of(run, "corpus")}


def check_forgotten(run: Path, run_without: Path) -> None:
    """Check that a run equals the run after an uninterrupted takedown."""
    assert differing(run, run_without) == []
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "when", "has_file"),
    [
        (f"{_FORGET}.find_documents", "before", False),
        (f"{_SEARCH}.fingerprints", "before", False),
        (f"{_SEARCH}.fingerprints", "after", False),
        (f"{_FORGET}.write_takedowns", "before", False),
        (f"{_FORGET}.write_takedowns", "after", True),
        (f"{_FORGET}.change_root", "after", True),
        (f"{_FORGET}.run_stages", "before", True),
        ("owt_pipeline.engine.runner.plan_stages", "before", True),
    ],
)
@pytest.mark.parametrize("command", ["run", pytest.param("forget", marks=pytest.mark.slow)])
def test_a_takedown_killed_in_its_search_can_be_continued(
    run: Path,
    run_without: Path,
    forgotten: str,
    request_list: Path,
    target: str,
    when: str,
    has_file: bool,
    command: str,
) -> None:
    """Nothing is forgotten before the file is written. Then owt run continues the takedown."""
    kill_at(target, when, "forget", run, request_list, "--workers", 1)
    if command == "run":
        ask_owt("run", run, "--workers", 1)
        assert (forgotten not in corpus_urls(run)) == has_file
        assert bool(root_of(run).takedowns) == has_file
        assert "no problems found" in ask_owt("verify", run)
    if command == "forget" or not has_file:
        ask_owt("forget", run, request_list, "--workers", 1)
    check_forgotten(run, run_without)


@pytest.mark.slow
@pytest.mark.parametrize("num_writes", range(30))
def test_a_takedown_stopped_at_any_write_is_whole_or_not_begun(
    run: Path, run_without: Path, forgotten: str, request_list: Path, num_writes: int
) -> None:
    with stopping_at(num_writes, refuse_writes):
        run_here(lambda: int(main(["forget", str(run), str(request_list)]) not in (0, 1)))
    has_file = any((run / "ledger").glob("takedowns/*.parquet"))
    forget_processes()
    ask_owt("run", run, "--workers", 1)
    assert (forgotten not in corpus_urls(run)) == has_file
    assert "no problems found" in ask_owt("verify", run)
    ask_owt("forget", run, request_list, "--workers", 1)
    check_forgotten(run, run_without)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.5, 0.7, 0.9, 1.2])
def test_a_takedown_killed_at_once_is_whole_or_not_begun(
    run: Path, run_without: Path, forgotten: str, request_list: Path, seconds: float
) -> None:
    command = owt("forget", run, request_list, "--workers", 1)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.kill()
    ask_owt("run", run, "--workers", 1)
    assert (forgotten in corpus_urls(run)) == (not root_of(run).takedowns)
    assert "no problems found" in ask_owt("verify", run)
    ask_owt("forget", run, request_list, "--workers", 1)
    check_forgotten(run, run_without)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "when"),
    [
        ("owt_pipeline.ledger.sweep.swap_root", "before"),
        ("owt_pipeline.ledger.sweep.swap_root", "after"),
        ("owt_pipeline.storage.folder.Storage.delete", "before"),
        ("owt_pipeline.storage.folder.Storage.delete", "after"),
    ],
)
def test_a_takedown_after_a_killed_sweep(
    run: Path, run_without: Path, forgotten: str, request_list: Path, target: str, when: str
) -> None:
    kill_at(target, when, "run", run, "--val_fraction", 0.4, "--workers", 1, "--until", "report")
    ask_owt("forget", run, request_list, "--workers", 1)
    assert forgotten not in corpus_urls(run)
    assert "no problems found" in ask_owt("verify", run)
    ask_owt("run", run, "--val_fraction", 0.3, "--workers", 1)
    check_forgotten(run, run_without)


def test_a_killed_sweep_after_a_takedown(run: Path, run_without: Path, request_list: Path) -> None:
    sweep = "owt_pipeline.ledger.sweep.swap_root"
    kill_at(sweep, "after", "forget", run, request_list, "--workers", 1)
    ask_owt("run", run, "--workers", 1)
    check_forgotten(run, run_without)


def test_a_takedown_next_to_a_sweep_is_refused_and_then_works(
    run: Path, run_without: Path, request_list: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []

    def sweep_late(workdir: Storage, *arguments: Any, **options: Any) -> None:
        command = owt("forget", run, request_list, "--workers", 1)
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        results.append((process.returncode, process.stderr.strip()))
        sweeping.sweep(workdir, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(publish, "sweep", sweep_late)
        ask_owt("run", run, "--val_fraction", 0.4, "--workers", 1)
    ((code, line),) = results
    assert code == 1
    assert "is in use by" in line
    assert "\n" not in line
    ask_owt("run", run, "--val_fraction", 0.3, "--workers", 1)
    ask_owt("forget", run, request_list, "--workers", 1)
    check_forgotten(run, run_without)
