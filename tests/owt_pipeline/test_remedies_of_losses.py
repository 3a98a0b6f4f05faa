"""Remedies for lost files, takedowns and locks: the advice of a message is followed, and works."""

from __future__ import annotations

import re
import shlex
import shutil
import threading
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from owt_pipeline.demo.server import serving
from owt_pipeline.engine.takedowns import Takedown, write_takedowns
from owt_pipeline.ledger.root import COPY
from owt_pipeline.storage import lock
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ROOT
from tests.owt_pipeline.remedies import COMMAND, Words, attempt, follow, heal, run_to_copy
from tests.owt_pipeline.runs import ask_owt, copy_of, files_of, manifest_of, root_of

WITH_TEXT = ("warc", "pages", "documents", "clean")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the demo's pages. Its path has a space."""
    return run_to_copy(tmp_path_factory)


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, whose path has a space, too."""
    return copy_of(finished_run, tmp_path / "a run")


def list_of_takedowns(run: Path) -> Path:
    """Write a list that names a document of the corpus."""
    (table, *_) = [pq.read_table(file) for file in (run / "corpus").glob("*.parquet")]
    path = run.parent / "list.txt"
    path.write_text(f"{table['url'][0]}\n")
    return path


def forget(run: Path) -> None:
    """Take a document of the run down."""
    ask_owt("forget", run, list_of_takedowns(run), "--workers", 1)


@pytest.fixture
def crawl(tmp_path: Path) -> Words:
    """The command that crawls some pages of the demo's web."""
    (tmp_path / "links.txt").write_text(
        "http://compendium.demo.test/wiki/Immutable_sequences\n"
        "http://courier.demo.test/2019/01/01/story\n"
    )
    return ["run", tmp_path / "a run", "--until", "extract", "--workers", "1"]


@pytest.mark.parametrize("remedy", ["refetch", pytest.param("restore", marks=pytest.mark.slow)])
def test_lost_segments_are_fetched_again_or_restored(
    crawl: Words, tmp_path: Path, remedy: str
) -> None:
    run = tmp_path / "a run"
    with serving() as address:
        flags = ["--resolve", f"*.demo.test={address}", "--user_agent", "t/1 (+http://a.test)"]
        links = ["--links", tmp_path / "links.txt", "--num_shards", "2", "--host_delay", "0.01"]
        ask_owt(*crawl, *links, *flags)
        copy_of(run, tmp_path / "backup")
        for folder in ("warc", "pages", "documents"):
            shutil.rmtree(run / folder)
        words = [*crawl, "--favor", "recall"]
        if remedy == "refetch":
            output = heal(words, "came from the web")
            assert COMMAND.findall(output) == [f"owt run {shlex.quote(str(run))} --refetch"]
        else:
            code, output = attempt(words)
            assert (code, "restore it from a backup" in output) == (1, True)
            shutil.copytree(tmp_path / "backup/warc", run / "warc", dirs_exist_ok=True)
            assert attempt(words)[0] == 0
    assert manifest_of(run, "documents").counts.left == 1


def test_lost_segments_are_fetched_again_while_sources_are_added(
    crawl: Words, tmp_path: Path
) -> None:
    """The advised command needs the sources of the one that failed."""
    run = tmp_path / "a run"
    (tmp_path / "more links.txt").write_text("http://compendium.demo.test/wiki/Monitor_thread\n")
    with serving() as address:
        flags = ["--resolve", f"*.demo.test={address}", "--user_agent", "t/1 (+http://a.test)"]
        links = ["--links", tmp_path / "links.txt", "--num_shards", "2", "--host_delay", "0.01"]
        ask_owt(*crawl, *links, *flags)
        for folder in ("warc", "pages", "documents"):
            shutil.rmtree(run / folder)
        adding = ["--add", "--links", tmp_path / "more links.txt", "--favor", "recall"]
        output = heal([*crawl, *adding], "came from the web")
    assert COMMAND.findall(output) == [f"owt run {shlex.quote(str(run))} --refetch"]
    assert len(root_of(run).generations) == 2
    assert manifest_of(run, "pages").counts.entered == 3


@pytest.mark.slow
def test_a_lost_archive_is_restored(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    archives = tmp_path / "archives"
    elsewhere = tmp_path / "elsewhere"
    archives.mkdir()
    for name in ("a.warc.gz", "b.warc.gz"):
        shutil.copy(finished_run.parent / "demo.warc.gz", archives / name)
    words = ["run", run, "--until", "extract", "--workers", "1"]
    sources = ["--dumps", finished_run.parent / "RS_demo.zst", "--pages_from", archives]
    assert attempt([*words, *sources, "--num_shards", 2])[0] == 0
    (archives / "b.warc.gz").rename(elsewhere)
    for folder in ("warc", "pages", "documents"):
        shutil.rmtree(run / folder, ignore_errors=True)
    words += ["--favor", "recall"]
    code, output = attempt(words)
    assert (code, f"{archives}/b.warc.gz is missing" in output) == (1, True), output
    assert "restore it" in output
    elsewhere.rename(archives / "b.warc.gz")
    assert attempt(words)[0] == 0


def test_takedowns_are_applied_before_the_corpus_is_published(run: Path) -> None:
    """The file is in the run, as after an `owt forget` that was killed before export ran."""
    write_takedowns(Storage(str(run)), [Takedown(None, None, "courier.demo.test", "on request")])
    code, output = attempt(["verify", run])
    assert (code, "takedowns changed since corpus/ was built: run `" in output) == (1, True)
    heal(["publish", run, "hf://a/b"], "takedowns changed since corpus/")
    assert attempt(["verify", run])[0] == 0
    assert "forgotten" in manifest_of(run, "corpus").counts.rejected


@pytest.mark.parametrize("remedy", ["restore", "replace"])
def test_a_lost_file_of_takedowns_is_restored_or_replaced(
    run: Path, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(run)
    (path,) = (run / "ledger/takedowns").iterdir()
    backup = path.read_bytes()
    path.unlink()
    words = ["run", run, "--min_tokens", "65", "--workers", "1"]
    code, output = attempt(words)
    assert (code, "Restore the file from a backup" in output) == (1, True), output
    if remedy == "restore":
        path.write_bytes(backup)
    else:
        (run.parent / "list.txt").rename(run.parent / "URLS.txt")
        monkeypatch.chdir(run.parent)
        follow(output, words)
    assert attempt(words)[0] == 0


def test_a_lost_root_is_restored_from_a_backup(run: Path) -> None:
    root, copy = run / ROOT, run / COPY
    backup = root.read_bytes()
    for path in (root, copy):
        path.write_bytes(b"{")
    code, output = attempt(["ls", run])
    assert (code, "restore one of them from a backup" in output) == (1, True), output
    root.write_bytes(backup)
    assert attempt(["ls", run])[0] == 0
    assert copy.read_bytes() == backup


@pytest.mark.parametrize("is_quiet", [pytest.param(False, marks=pytest.mark.slow), True])
def test_folders_that_hold_forgotten_texts_can_be_deleted(run: Path, is_quiet: bool) -> None:
    _, output = attempt(["forget", run, list_of_takedowns(run), "--workers", "1"])
    assert "may still contain the removed texts: see `owt forget --help`" in output
    with pytest.raises(SystemExit):
        attempt(["forget", "--help"])
    for folder in WITH_TEXT:
        shutil.rmtree(run / folder, ignore_errors=True)
    for words in (["run", run], ["verify", run], ["publish", run, "hf://a/b"]):
        code, output = attempt(words)
        assert code == 0, output
    if is_quiet:
        return
    code, output = attempt(["run", run, "--min_tokens", "65", "--workers", "1"])
    assert (code, "They may contain texts that were taken down" in output) == (0, True), output


def test_run_finishes_a_takedown_that_forget_has_recorded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takedowns = list_of_takedowns(run)
    with monkeypatch.context() as patch:
        patch.setattr("owt_pipeline.commands.forget.run_stages", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            attempt(["forget", run, takedowns, "--workers", "1"])
    assert attempt(["verify", run])[0] == 1
    assert attempt(["run", run, "--workers", "1"])[0] == 0
    assert attempt(["verify", run])[0] == 0


def test_a_changed_file_of_the_corpus_is_rebuilt_for_publishing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from owt_pipeline.commands import publish

    monkeypatch.setattr(publish, "_send", lambda name, corpus, uploads, fraction, *_, **__: [
        publish._write(corpus, upload, fraction, run.parent / "upload") for upload in uploads
    ])  # fmt: skip
    path = run / files_of(run, "corpus")[0].path
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"x" * 50 + content[250:])
    heal(["publish", run, "hf://a/b", "--yes"], "was changed after it was written")
    assert path.read_bytes() == content


def test_a_lost_list_of_files_is_rebuilt(run: Path) -> None:
    for path in (run / "ledger/clean").glob("files-*.parquet"):
        path.unlink()
    code, output = attempt(["verify", run])
    assert (code, "the list of files " in output) == (1, True)
    follow(output[output.index("the list of files ") :].splitlines()[0], [])
    assert attempt(["verify", run])[0] == 0


def test_a_lost_list_of_imported_files_is_rebuilt(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "Some text of my own."}\n')
    ask_owt("import", run, texts)
    for path in (run / "ledger/documents").glob("files-*.parquet"):
        path.unlink()
    code, output = attempt(["verify", run])
    assert (code, "with the same files to rebuild it" in output) == (1, True)
    command = next(command for command in COMMAND.findall(output) if " import " in command)
    assert attempt([*shlex.split(command)[1:], texts])[0] == 0
    assert attempt(["verify", run])[0] == 0


def test_a_half_added_generation_is_continued(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    for number in (1, 2):
        text = " ".join(f"word{number}{n}" for n in range(200))
        (tmp_path / f"{number}.jsonl").write_text(f'{{"text": "{text}."}}\n')
    flags = ["--languages", "all", "--workers", "1"]
    ask_owt("import", run, tmp_path / "1.jsonl", "--num_shards", 2)
    ask_owt("run", run, *flags)
    ask_owt("import", run, tmp_path / "2.jsonl", "--add", "--num_shards", 2)
    _, output = attempt(["verify", run])
    assert re.search("/ has 1 new shard: run `|/ has [0-9]+ new shards: run `", output)
    follow(output, [])
    code, output = attempt(["verify", run])
    assert (code, " new shard" in output) == (0, False)
    assert manifest_of(run, "corpus").counts.left == 2


@pytest.mark.parametrize(
    ("stage", "flags"),
    [
        ("clean", ["--min_tokens", "150"]),
        pytest.param("dedupe", ["--threshold", "0.5"], marks=pytest.mark.slow),
        pytest.param("extract", ["--favor", "recall"], marks=pytest.mark.slow),
    ],
)
def test_an_output_older_than_its_input_is_rebuilt(run: Path, stage: str, flags: list[str]) -> None:
    report = manifest_of(run, "report").digest
    ask_owt("run", run, "--until", stage, *flags, "--workers", 1)
    heal(["verify", run], "/ was built: run `")
    assert manifest_of(run, "report").digest != report


def test_the_lock_of_a_job_that_has_ended_can_be_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "TERM_SECONDS", 30.0)
    folder = Storage(str(tmp_path))
    dead = lock.Holder("0" * 32, "owt run a --runner Flink", host="a machine that is off")
    folder.write(lock.OBJECT, msgspec.json.encode(dead))
    caplog.set_level("WARNING", logger="owt")

    def run() -> None:
        with lock.hold(folder, "1" * 32, as_object=True):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    while not (advised := re.search(r"if that job has ended, delete (\S+)", caplog.text)):
        assert thread.is_alive()
    Path(advised[1]).unlink()
    thread.join(20)
    assert not thread.is_alive()
