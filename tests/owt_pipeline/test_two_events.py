"""Two rare events happen at once: growth, takedowns, kills, lost files and a lost root."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import re
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from owt_pipeline.errors import command
from owt_pipeline.ledger.root import COPY
from owt_pipeline.ledger.sweep import sweep
from owt_pipeline.storage import disk
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ROOT
from tests.owt_pipeline.one_process import interrupt
from tests.owt_pipeline.runs import ask_owt, copy_of, differing, manifest_of, root_of, rows_of

_WORDS = (
    "the river carries its slow brown water past old stone houses where people read write walk and "
    "talk about weather music bread small boats long winters and a garden behind every wall"
).split()
_ADDED = range(8, 12)


def write_texts(path: Path, numbers: range) -> Path:
    """Write documents of random words, one per number, as JSONL with a URL each."""
    with path.open("w") as file:
        for number in numbers:
            rng = random.Random(number)
            text = " ".join(rng.choice(_WORDS) for _ in range(120)).capitalize() + "."
            url = f"https://site{number}.example.org/story"
            file.write(json.dumps({"text": text, "url": url}) + "\n")
    return path


def corpus_urls(run: Path) -> set[str]:
    """Return the URLs of a run's corpus."""
    return {row["url"] for row in rows_of(run, "corpus")}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of eight imported documents."""
    folder = tmp_path_factory.mktemp("two-events")
    run = folder / "run"
    ask_owt("import", run, write_texts(folder / "first.jsonl", range(8)), "--num_shards", 2)
    ask_owt("run", run, "--min_tokens", 64, "--languages", "all", "--val_fraction", 0.3)
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return copy_of(finished_run, tmp_path / "run")


def add_generation(run: Path) -> None:
    """Import more documents as another generation."""
    path = write_texts(run.parent / "later.jsonl", _ADDED)
    ask_owt("import", run, path, "--add", "--num_shards", 2)


@pytest.mark.parametrize("until", ["", "clean", "dedupe", "export"])
def test_a_takedown_holds_at_once_in_a_half_added_generation(
    run: Path, until: str, tmp_path: Path
) -> None:
    add_generation(run)
    if until:
        ask_owt("run", run, "--until", until)
    output = ask_owt("verify", run)
    assert " new shard" in output
    forgotten = min(corpus_urls(run))
    (tmp_path / "list.txt").write_text(f"{forgotten}\n")
    staying = corpus_urls(run) - {forgotten}
    ask_owt("forget", run, tmp_path / "list.txt", "--workers", 1)
    assert forgotten not in corpus_urls(run) >= staying
    assert "no problems found" in ask_owt("verify", run)
    assert "forgotten" in ask_owt("why", run, forgotten)
    ask_owt("ls", run)
    ask_owt("run", run)
    assert len(corpus_urls(run)) == 8 + len(_ADDED) - 1
    assert manifest_of(run, "tokens").num_shards == 4
    assert " new shard" not in ask_owt("verify", run)


_OPTION_BY_STAGE = {
    "clean": ("--min_tokens", 65),
    "dedupe": ("--threshold", 0.7),
    "export": ("--min_similarity", 0.1),
    "tokenize": ("--val_fraction", 0.4),
}


@pytest.mark.parametrize("stage", list(_OPTION_BY_STAGE))
@pytest.mark.parametrize("command", ["forget", "run --until clean", "verify --repair"])
def test_other_commands_do_not_sweep_a_killed_stages_shards(
    run: Path, stage: str, command: str, tmp_path: Path
) -> None:
    finished = interrupt(run, stage, *_OPTION_BY_STAGE[stage])
    name, *flags = command.split()
    if name == "forget":
        forgotten = min(corpus_urls(run))
        (tmp_path / "list.txt").write_text(f"{forgotten}\n")
        flags = [str(tmp_path / "list.txt")]
    ask_owt(name, run, *flags)
    # A command sweeps the stages that it runs.
    is_swept = (name, stage) in [("forget", "export"), ("forget", "tokenize"), ("run", "clean")]
    assert sum(path.exists() for path in finished) == (0 if is_swept else 2)
    if name == "forget":
        assert forgotten not in corpus_urls(run)
    inodes = {path: path.stat().st_ino for path in finished if path.exists()}
    ask_owt("run", run, *_OPTION_BY_STAGE[stage])
    assert {path: path.stat().st_ino for path in inodes} == inodes
    assert not list((run / "ledger" / stage).glob("work/*/*"))
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("stage", list(_OPTION_BY_STAGE))
@pytest.mark.parametrize("has_takedown", [False, True])
def test_a_complete_run_sweeps_a_killed_stages_shards(
    run: Path,
    finished_run: Path,
    stage: str,
    has_takedown: bool,
    tmp_path: Path,
) -> None:
    """The folder of a dataset then has each shard once."""
    finished = interrupt(run, stage, *_OPTION_BY_STAGE[stage])
    if has_takedown:
        (tmp_path / "list.txt").write_text(f"{min(corpus_urls(run))}\n")
        ask_owt("forget", run, tmp_path / "list.txt")
    ask_owt("run", run)
    assert not any(path.exists() for path in finished)
    for dataset in ("documents", "clean", "duplicates", "corpus"):
        assert len(list((run / dataset).glob("part-*"))) == 2
    ids = []
    for path in (run / "tokens").glob("*/part-*"):
        ids += pyarrow.ipc.open_file(path).read_all()["url_id"].to_pylist()
    assert len(ids) == len(set(ids)) == len(corpus_urls(run))
    assert not list((run / "ledger" / stage).glob("work/*/*"))
    if not has_takedown:
        assert differing(run, finished_run) == []
    assert "no problems found" in ask_owt("verify", run)


def test_a_complete_run_leaves_the_files_of_its_successor(run: Path) -> None:
    since = os.stat(run / ROOT).st_mtime
    finished = interrupt(run, "export", *_OPTION_BY_STAGE["export"])
    sweep(Storage(str(run)), "late", since, {"export"})
    assert all(path.exists() for path in finished)
    sweep(Storage(str(run)), "late", time.time() + 1, {"export"})
    assert not any(path.exists() for path in finished)


def test_a_lost_list_is_made_again_after_the_inputs_were_deleted(
    run: Path, finished_run: Path
) -> None:
    (file_list,) = (run / "ledger/duplicates").glob("files-*.parquet")
    file_list.unlink()
    shutil.rmtree(run / "clean")
    ask_owt("run", run)
    assert differing(run, finished_run) == []
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("num_writes", [0, 1, 3, 6, 12])
@pytest.mark.usefixtures("with_beam")
def test_a_disk_that_takes_nothing_more_is_one_line(
    run: Path, code: int, num_writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the file with the cause of the stop cannot be written."""
    open_in = disk._open_in
    remaining = itertools.count(num_writes, -1)

    def open_until_full(*arguments: str) -> Any:
        if next(remaining) <= 0:
            raise OSError(code, os.strerror(code), arguments[0])
        return open_in(*arguments)

    monkeypatch.setattr(disk, "_open_in", open_until_full)
    output = ask_owt("run", run, "--min_tokens", 65, "--workers", 1, code=1)
    (line,) = (line for line in output.splitlines() if line.startswith("owt: error: "))
    assert "while running" not in line, "Beam names its transform there"
    monkeypatch.undo()
    ask_owt("run", run, "--min_tokens", 65)


_COMMANDS = ("ls", "verify", "run", "run --until clean", "run --dry_run", "forget")


@pytest.mark.parametrize("damage", ["damaged", "missing", "behind"])
@pytest.mark.parametrize("command", _COMMANDS)
def test_a_damaged_or_older_copy_of_the_root_is_renewed(
    run: Path, damage: str, command: str, tmp_path: Path
) -> None:
    root = run / ROOT
    copy = run / COPY
    if damage == "behind":
        older = msgspec.structs.replace(root_of(run), sequence=1)
        copy.write_bytes(older.to_json())
    elif damage == "damaged":
        os.truncate(copy, 9)
    else:
        copy.unlink()
    (tmp_path / "list.txt").write_text("https://nobody.example/x\n")
    name, *flags = command.split()
    if name == "forget":
        flags = [str(tmp_path / "list.txt")]
    output = ask_owt(name, run, *flags, code=int(name == "verify"))
    assert ("manifest.json.copy" in output) == (name == "verify")
    assert copy.read_bytes() == root.read_bytes()
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("damage", ["lost", "damaged", "both lost"])
@pytest.mark.parametrize("command", ["ls", "verify", "run", "forget"])
def test_a_stale_copy_of_the_root_brings_no_page_back(
    run: Path, finished_run: Path, damage: str, command: str, tmp_path: Path
) -> None:
    stale = (run / COPY).read_bytes()
    forgotten, other_url = sorted(corpus_urls(run))[:2]
    for number, url in enumerate((forgotten, other_url)):
        path = tmp_path / f"{number}.txt"
        path.write_text(f"{url}\n")
    ask_owt("forget", run, tmp_path / "0.txt")
    (run / COPY).write_bytes(stale)
    if damage == "damaged":
        os.truncate(run / ROOT, 9)
    else:
        (run / ROOT).unlink()
    if damage == "both lost":
        (run / COPY).unlink()
    more_words = [tmp_path / "1.txt"] if command == "forget" else []
    # The command may fail, since the copy names lists that were swept.
    with contextlib.suppress(AssertionError):
        ask_owt(command, run, *more_words)
    if damage == "both lost":
        ask_owt("import", run, finished_run.parent / "first.jsonl", "--num_shards", 2)
    ask_owt("run", run)
    assert forgotten not in corpus_urls(run)
    assert len(corpus_urls(run)) >= 6
    assert "no problems found" in ask_owt("verify", run)


_NEVER_DELETED = [
    "ledger/clean/rejects", "ledger/corpus/rejects", "ledger/tokens/rejects",
    "ledger/duplicates/rejects", "ledger/duplicates/kept", "ledger/report/figures",
]  # fmt: skip


@pytest.mark.parametrize("folder", _NEVER_DELETED)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_lost_and_damaged_rejects_are_reported_and_rebuilt(
    run: Path, finished_run: Path, folder: str, is_damaged: bool
) -> None:
    paths = sorted((run / folder).iterdir())
    if is_damaged:
        content = bytearray(paths[0].read_bytes())
        content[len(content) // 2] ^= 1
        paths[0].write_bytes(content)
        assert str(paths[0]) in ask_owt("verify", run, "--repair", code=1)
        assert not paths[0].exists()
    else:
        shutil.rmtree(run / folder)
        assert f"{paths[0]} is missing" in ask_owt("verify", run, code=1)
    ask_owt("run", run)
    assert differing(run, finished_run) == []
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("dataset", ["clean", "corpus"])
def test_why_does_not_guess_the_reason_in_lost_rejects(
    run: Path, dataset: str, tmp_path: Path
) -> None:
    options = ("--min_tokens", 10_000) if dataset == "clean" else ()
    url = min(corpus_urls(run))
    if dataset == "clean":
        ask_owt("run", run, *options, "--until", "clean", code=1)
    else:
        (tmp_path / "list.txt").write_text(f"{url}\n")
        ask_owt("forget", run, tmp_path / "list.txt")
        ask_owt("run", run)
    rejects = run / "ledger" / dataset / "rejects"
    paths = [str(path) for path in rejects.iterdir()]
    shutil.rmtree(rejects)
    output = ask_owt("why", run, url)
    assert "have not run" not in output
    assert any(f"{path} is missing" in output for path in paths) == ("its tokens are" not in output)
    ask_owt("run", run, *options, code=int(dataset == "clean"))
    assert "rejected by" in ask_owt("why", run, url)


@pytest.mark.parametrize("name", ["my run", "it's", "$HOME `x`"])
def test_printed_commands_can_be_pasted(finished_run: Path, tmp_path: Path, name: str) -> None:
    run = copy_of(finished_run, tmp_path / name)
    output = ask_owt("run", run, "--until", "clean")
    (line,) = (line for line in output.splitlines() if line.startswith("next: "))
    assert shlex.split(line)[1:] == ["owt", "run", str(run), "--until", "dedupe"]
    output = ask_owt("run", run)
    (line,) = (line for line in output.splitlines() if line.startswith("next: "))
    assert shlex.split(line)[4:6] == ["--data", str(run / "tokens")]
    assert str(command("owt", "run", run)) == f"`owt run {shlex.quote(str(run))}`"
    os.truncate(next((run / "corpus").glob("part-*")), 9)
    output = ask_owt("verify", run, code=1)
    assert f"run `owt verify {shlex.quote(str(run))} --repair` to remove damaged files" in output
    assert f"then `owt run {shlex.quote(str(run))}` to rebuild them" in output
    ask_owt("verify", run, "--repair", code=1)
    ask_owt("run", run)
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("loss", ["one file", "folder", "cut file", "rejects", "and clean"])
@pytest.mark.parametrize("has_earlier_takedown", [False, True])
def test_a_takedown_from_a_shard_whose_corpus_is_lost(
    run: Path, loss: str, has_earlier_takedown: bool, tmp_path: Path
) -> None:
    earlier, forgotten = sorted(corpus_urls(run))[:2]
    if has_earlier_takedown:
        (tmp_path / "list.txt").write_text(f"{earlier}\n")
        ask_owt("forget", run, tmp_path / "list.txt")
    expected = corpus_urls(run) - {forgotten}
    paths = sorted((run / "corpus").glob("part-*"))
    (path,) = (path for path in paths if forgotten in pq.read_table(path)["url"].to_pylist())
    if loss == "one file":
        path.unlink()
    elif loss == "cut file":
        os.truncate(path, 9)
    elif loss == "rejects":
        shutil.rmtree(run / "ledger/corpus/rejects", ignore_errors=True)
    else:
        shutil.rmtree(run / "corpus")
    if loss == "and clean":
        shutil.rmtree(run / "clean")
    (tmp_path / "list.txt").write_text(f"{forgotten}\n")
    output = ask_owt("forget", run, tmp_path / "list.txt", code=int(loss == "and clean"))
    if loss == "and clean":
        (remedy,) = re.findall(r"run `owt ([^`]+)` to rebuild it", output)
        ask_owt(*shlex.split(remedy))
    assert corpus_urls(run) == expected
    assert "no problems found" in ask_owt("verify", run)
    assert "forgotten" in ask_owt("why", run, forgotten)


@pytest.mark.parametrize("dataset", ["documents", "clean", "duplicates", "corpus", "tokens"])
@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("command", ["run", "import"])
def test_a_lost_list_of_files_after_a_takedown(
    run: Path, finished_run: Path, dataset: str, is_damaged: bool, command: str, tmp_path: Path
) -> None:
    forgotten = min(corpus_urls(run))
    (tmp_path / "list.txt").write_text(f"{forgotten}\n")
    ask_owt("forget", run, tmp_path / "list.txt")
    expected = corpus_urls(run)
    path = run / manifest_of(run, dataset).files.path
    if is_damaged:
        os.truncate(path, 9)
    else:
        path.unlink()
    if command == "import":
        add_generation(run)
    elif dataset == "documents":
        output = ask_owt("run", run, code=1)
        (remedy,) = re.findall(r"run `owt ([^`]+)` with the same files to rebuild it", output)
        ask_owt(*shlex.split(remedy), finished_run.parent / "first.jsonl", "--num_shards", 2)
    ask_owt("run", run)
    assert (run / manifest_of(run, dataset).files.path).exists()
    assert corpus_urls(run) >= expected
    assert forgotten not in corpus_urls(run)
    assert "no problems found" in ask_owt("verify", run)
