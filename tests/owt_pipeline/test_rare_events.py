"""What happens to a run's folder from outside: copies, moves, links, clocks and edits."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.commands import run as run_command
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.remedies import Words, attempt
from tests.owt_pipeline.runs import (
    ask_owt,
    copy_of,
    differing,
    files_of,
    manifest_of,
)

DAY = 86_400.0


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    return copy_of(small_run, tmp_path / "run")


def parts_in(run: Path, dataset: str) -> list[str]:
    """Return the paths of the files of rows in a dataset's folder."""
    return sorted(str(path.relative_to(run)) for path in (run / dataset).rglob("part-*"))


def published_parts(run: Path, dataset: str) -> list[str]:
    return sorted(file.path for file in files_of(run, dataset))


@pytest.mark.slow
@pytest.mark.parametrize("days", [1, 400])
def test_each_shard_is_there_once_after_a_clock_was_set_back(
    run: Path, small_run: Path, small_config: Path, days: int
) -> None:
    future = time.time() + days * DAY
    for path in run.rglob("*"):
        os.utime(path, (future, future))
    for flags in (["--threshold", ".5"], ["--min_tokens", "150"], []):
        ask_owt("run", run, small_config, "--workers", 1, *flags)
        for dataset in ("clean", "duplicates", "corpus", "tokens"):
            assert parts_in(run, dataset) == published_parts(run, dataset)
    assert differing(small_run, run) == []
    sequence = (run / "ledger/manifest.json").read_bytes()
    ask_owt("run", run, small_config, "--workers", 1)
    assert (run / "ledger/manifest.json").read_bytes() == sequence


@pytest.mark.slow
def test_a_half_copied_run_is_completed(
    small_run: Path, small_config: Path, tmp_path: Path
) -> None:
    """As by `cp -r` that was interrupted; whichever files came first, and the last one is cut."""
    paths = sorted(path for path in small_run.rglob("*") if path.is_file())
    for number, order in enumerate((paths, paths[::-1])):
        run = tmp_path / str(number)
        num_copied = len(order) * (2 + number) // 4
        for path in order[: num_copied + 1]:
            copy = run / path.relative_to(small_run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        os.truncate(copy, copy.stat().st_size // 2)
        ask_owt("run", run, small_config, "--workers", 1)
        # Records of published shards, which their dataset's list repeats, are not made again.
        different = [name for name in differing(small_run, run) if "/records/" not in name]
        assert different == []
        assert "no problems found" in ask_owt("verify", run)


def test_a_moved_run_is_finished_also_by_a_link(
    run: Path, small_config: Path, tmp_path: Path
) -> None:
    moved = run.rename(tmp_path / "another place")
    (tmp_path / "link").symlink_to(moved)
    for folder in (moved, tmp_path / "link"):
        printed = ask_owt("run", folder, small_config, "--workers", 1)
        assert printed.count("(finished)") == 8
        assert "no problems found" in ask_owt("verify", folder)


def lead_up(folder: Path) -> None:
    (folder / "latest").symlink_to(".")
    (folder / "parent").symlink_to("..")


def lead_nowhere(folder: Path) -> None:
    (folder / "broken").symlink_to("nowhere")
    (folder / "itself").symlink_to("itself")
    (folder / "one").symlink_to("other")
    (folder / "other").symlink_to("one")


def be_linked(folder: Path) -> None:
    target = folder.parent.parent / "another disk"
    folder.rename(target)
    folder.symlink_to(target)


@pytest.mark.slow
@pytest.mark.parametrize("change", [lead_up, lead_nowhere, be_linked])
def test_links_in_a_run_are_followed_without_loops(
    run: Path, small_config: Path, change: Callable[[Path], None]
) -> None:
    change(run / "corpus")
    started = time.monotonic()
    ask_owt("run", run, small_config, "--workers", 1, "--min_tokens", "150")
    ask_owt("run", run, small_config, "--workers", 1, "--threshold", "0.5")
    assert "no problems found" in ask_owt("verify", run)
    assert time.monotonic() - started < 60
    assert [path for path in parts_in(run, "corpus") if path.count("/") == 1] == published_parts(
        run, "corpus"
    )


def test_a_linked_folder_is_listed_once(tmp_path: Path) -> None:
    for name in ("a/1", "a/b/2", "c/3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "a/up").symlink_to("../a")
    (tmp_path / "a/d").symlink_to("../c")
    assert Storage(str(tmp_path / "a")).names() == ["1", "b/2", "d/3"]


def change_settings_at_end(
    monkeypatch: pytest.MonkeyPatch, run: Path, change: Callable[[str], str]
) -> None:
    """Change the settings of a run just before its stages end."""
    run_stages = run_command.run_stages

    def run_and_change(*arguments: Any) -> Any:
        try:
            return run_stages(*arguments)
        finally:
            settings = run / "settings.toml"
            settings.write_text(change(settings.read_text()))

    monkeypatch.setattr(run_command, "run_stages", run_and_change)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda text: text + "\n[clean]\n[clean]\n", id="a table twice"),
        pytest.param(
            lambda text: text + "\nno toml at all [", id="no TOML", marks=pytest.mark.slow
        ),
        pytest.param(
            lambda text: "clean = 5\n" + text.replace("[clean]", "[fetch2]"),
            id="no table",
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda text: "", id="empty"),
    ],
)
def test_settings_that_were_broken_during_the_run_are_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: Callable[[str], str]
) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "Some text of my own."}\n')
    run = tmp_path / "imported"
    ask_owt("import", run, texts)
    words: Words = ["run", run, "--until", "clean", "--min_tokens", "2", "--workers", "1"]
    ask_owt(*words)
    settings = run / "settings.toml"
    before = settings.read_text()
    words[5] = "3"
    with monkeypatch.context() as editing:
        change_settings_at_end(editing, run, broken)
        code, output = attempt(words)
    if broken(before):
        assert (code, output.count("owt: error")) == (2, 1), output
        assert "correct it, and run the same command again" in output
        settings.write_text(before)
        assert attempt(words)[0] == 0
    assert "min_tokens = 3" in settings.read_text()
    assert manifest_of(run, "clean").options["min_tokens"] == 3


@pytest.mark.parametrize("is_edited", [False, True])
def test_settings_that_were_edited_while_a_first_run_failed_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_edited: bool
) -> None:
    dump = tmp_path / "RS.ndjson"
    dump.write_text("this is not a dump\n")
    run = tmp_path / "run"
    ask_owt("init", run)
    before = (run / "settings.toml").read_text()
    if is_edited:
        change_settings_at_end(monkeypatch, run, lambda text: "# my note\n" + text)
    code, _ = attempt(["run", run, "--dumps", dump, "--until", "collect", "--workers", "1"])
    assert code == 1
    after = (run / "settings.toml").read_text()
    assert after.startswith("# my note\n") == is_edited
    assert (after == before) == (not is_edited)
