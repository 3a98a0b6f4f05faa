"""forget removes what is named, nothing else, and permanently."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.commands.forget import parse_request
from owt_pipeline.formats.takedowns import read_takedowns, write_takedowns
from owt_pipeline.formats.urls import host_of, id_of
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Root
from schemas.quantities import pluralize
from tests.owt_pipeline.runs import (
    ask_owt,
    copy_of,
    differing,
    manifest_of,
    owt,
    root_of,
    rows_of,
    run_owt,
    shard_file,
)


def tokenized(run: Path) -> set[int]:
    paths = (run / "tokens").glob("*/part-*.arrow")
    return {
        i
        for path in paths
        for i in pa.ipc.open_file(pa.memory_map(str(path))).read_all()["url_id"].to_pylist()
    }


def named(run: Path) -> set[int]:
    return {
        row["url_id"]
        for row in rows_of(run, "ledger/corpus/rejects")
        if row["reason"] == "forgotten"
    }


@pytest.fixture(scope="module")
def request_file(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two documents of shard 1: one kept in place of duplicates, by its id, and another by a
    variant of its URL."""
    kept = {row["kept_url_id"] for row in rows_of(small_run, "duplicates")}
    rows = pq.read_table(shard_file(small_run, "corpus", 1)).to_pylist()
    kept_id = next(row["url_id"] for row in rows if row["url_id"] in kept)
    alone = next(row["url"] for row in rows if row["url_id"] not in kept)
    path = tmp_path_factory.mktemp("request") / "takedown.txt"
    path.write_text(f"# by request\n\n{kept_id}\n{alone.replace('https', 'HTTP')}?utm_source=x\n")
    return path


@pytest.fixture(scope="module")
def forgotten(
    small_run: Path, request_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    run = copy_of(small_run, tmp_path_factory.mktemp("forgotten") / "run")
    ask_owt("forget", run, request_file, "--workers", 1, "--reason", "notice 17")
    return run


@pytest.fixture(scope="module")
def gone(small_run: Path, forgotten: Path) -> set[int]:
    return {row["url_id"] for row in rows_of(small_run, "corpus")} - {
        row["url_id"] for row in rows_of(forgotten, "corpus")
    }


def test_named_documents_leave_corpus_tokens_and_get_a_reason(
    small_run: Path, forgotten: Path, gone: set[int]
) -> None:
    assert len(gone) == 2
    assert tokenized(small_run) - tokenized(forgotten) == gone
    rejects = {
        row["url_id"]: row
        for row in rows_of(forgotten, "ledger/corpus/rejects")
        if row["reason"] == "forgotten"
    }
    assert {rejects[i]["detail"] for i in gone} == {"notice 17"}
    counts = manifest_of(forgotten, "corpus").counts
    assert counts.rejected["forgotten"] == len(rejects)
    assert "no problems found" in ask_owt("verify", forgotten)
    assert "rejected by export: forgotten" in ask_owt("why", forgotten, min(gone))


def test_duplicates_of_what_goes_are_forgotten_with_it(
    small_run: Path, forgotten: Path, gone: set[int]
) -> None:
    """So other options of deduplication do not bring the same text back under another URL."""
    copies = {
        row["url_id"] for row in rows_of(small_run, "duplicates") if row["kept_url_id"] in gone
    }
    rejects = {row["url_id"]: row for row in rows_of(forgotten, "ledger/corpus/rejects")}
    assert copies
    assert {rejects[i]["reason"] for i in copies} == {"forgotten"}
    assert all(rejects[i]["detail"].startswith("repeats ") for i in copies)


def test_it_does_not_matter_which_copy_of_a_text_is_named(small_run: Path, tmp_path: Path) -> None:
    """Deduplication kept one of them, perhaps not the one whose author asked."""
    decision = next(row for row in rows_of(small_run, "duplicates") if row["kept_shard"] < 3)
    lists = []
    for column in ("url_id", "kept_url_id"):
        run = copy_of(small_run, tmp_path / column)
        (tmp_path / f"{column}.txt").write_text(f"{decision[column]} # by request")
        output = ask_owt("forget", run, tmp_path / f"{column}.txt")
        assert "1 document removed from the corpus" in output
        lists.append(named(run))
    assert lists[0] == lists[1] >= {decision["url_id"], decision["kept_url_id"]}


def test_no_text_of_what_goes_is_left_in_corpus_tokens_or_report(
    forgotten: Path, gone: set[int]
) -> None:
    """Not even as one of the pairs of duplicates that the report shows."""
    stats = json.loads((forgotten / "report/stats.json").read_text())
    shown = [row[side]["url_id"] for row in stats["removals"] for side in ("removed", "kept")]
    assert shown
    assert not (gone | named(forgotten)) & set(shown)
    texts = {row["url_id"]: row["text"] for row in rows_of(forgotten, "clean")}
    report = (forgotten / "report/stats.json").read_text() + (
        forgotten / "report/index.html"
    ).read_text()
    for identifier in named(forgotten):
        paragraph = max(texts[identifier].splitlines(), key=len)
        assert json.dumps(paragraph)[1:-1] not in report


def test_the_report_shows_no_text_of_a_rejected_domain(small_run: Path, tmp_path: Path) -> None:
    """Their rows are not in the corpus' rejects, so only the list says that they are to go."""
    run = copy_of(small_run, tmp_path / "run")

    def dropped() -> dict[str, str]:
        rows = json.loads((run / "report/stats.json").read_bytes())["dropped"]
        return {row["url"]: row["text"] for reason in rows for row in reason["documents"]}

    before = dropped()
    host = host_of(next(iter(before)))
    (tmp_path / "list.txt").write_text(f"{host}\n")
    ask_owt("forget", run, tmp_path / "list.txt")
    assert dropped() == {url: text for url, text in before.items() if host_of(url) != host}


def part(path: Path, run: Path) -> str:
    """A shard's file without the digits of its content."""
    return re.sub(r"-[0-9a-f]{8}\.", ".", path.relative_to(run).as_posix())


def test_only_the_shards_it_is_in_are_rewritten(
    small_run: Path, request_file: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    before = {path: path.stat().st_ino for path in run.rglob("part-*")}
    ask_owt("forget", run, request_file, "--workers", 1)
    written = {
        part(path, run) for path in run.rglob("part-*") if before.get(path) != path.stat().st_ino
    }
    gone = {part(path, run) for path in before if not path.exists()}
    clean = [
        set(pq.read_table(shard_file(run, "clean", k))["url_id"].to_pylist()) for k in range(3)
    ]
    concerned = {k for k in range(3) if clean[k] & named(run)}
    corpus = {
        f"{folder}/part-0000{k}.parquet"
        for k in concerned
        for folder in ("corpus", "ledger/corpus/rejects")
    }
    # Duplicates in other shards are rejected for another reason now, but no row of the corpus or
    # the tokens changes.
    tokens = {f"tokens/{split}/part-00001.arrow" for split in ("train", "val")}
    figures = "ledger/report/figures/part-00000.json"
    assert written == corpus | tokens | {"ledger/tokens/rejects/part-00001.parquet", figures}
    assert {"corpus/part-00001.parquet", "tokens/train/part-00001.arrow"} <= gone <= written


def test_the_bytes_equal_a_run_with_the_list_from_the_start(
    small_config: Path, forgotten: Path, tmp_path: Path
) -> None:
    run = copy_of(forgotten, tmp_path / "run", without=("corpus", "tokens", "report"))
    ask_owt("run", run, small_config, "--workers", 1)
    assert differing(forgotten, run) == []


def test_a_later_run_restores_nothing_and_does_nothing(
    small_config: Path, forgotten: Path, tmp_path: Path
) -> None:
    run = copy_of(forgotten, tmp_path / "run")
    assert ask_owt("run", run, small_config, "--workers", 1).count("(finished)") == 8
    assert differing(forgotten, run) == []
    ask_owt("run", run, small_config, "--until", "export", "--rules", "none")
    assert len(named(run)) == len(named(forgotten))
    assert not named(run) & {row["url_id"] for row in rows_of(run, "corpus")}


def test_a_takedown_works_where_only_corpus_and_tokens_are_left(
    small_run: Path, request_file: Path, forgotten: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    for folder in ("warc", "pages", "documents", "clean"):
        shutil.rmtree(run / folder)
    ask_owt("forget", run, request_file, "--workers", 1, "--reason", "notice 17")
    names = [f"part-*.{suffix}" for suffix in ("parquet", "arrow")]
    made = [
        {path.name for name in names for path in (of / "corpus").glob(name)}
        for of in (run, forgotten)
    ]
    assert made[0] == made[1]
    assert tokenized(run) == tokenized(forgotten)
    assert "no problems found" in ask_owt("verify", run)


def test_a_domain_goes_with_all_hosts_below_it(small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    host = host_of(rows_of(run, "corpus")[0]["url"])
    (tmp_path / "list.txt").write_text(f"{host}\n")
    said = ask_owt("forget", run, tmp_path / "list.txt", "--dry_run")
    assert differing(small_run, run) == []
    documents = sum(host_of(row["url"]) == host for row in rows_of(run, "corpus"))
    removed = pluralize(documents, "document")
    assert f"{removed} would be removed from the corpus" in said
    own = {row["url_id"] for row in rows_of(run, "clean") if host_of(row["url"]) == host}
    instead = {
        row["kept_url_id"] for row in rows_of(run, "duplicates") if row["url_id"] in own
    } - own
    others = pluralize(len(instead), "other document")
    assert f"the corpus keeps {others} with the same text: {min(instead)}" in said
    ask_owt("forget", run, tmp_path / "list.txt", "--workers", 1)
    assert not any(host_of(row["url"]) == host for row in rows_of(run, "corpus"))
    assert "no problems found" in ask_owt("verify", run)


def test_a_wrong_list_is_one_clear_error(small_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("https://example.org/a\nftp://example.org/b\n")
    error = ask_owt("forget", small_run, path, code=1)
    assert "list.txt:2: 'ftp://example.org/b' is not a URL, id or domain" in error
    path.write_text("# nothing\n")
    error = ask_owt("forget", small_run, path, code=1)
    assert "there is nothing to forget: write one per line" in error
    assert "cannot read" in ask_owt("forget", small_run, tmp_path / "none.txt", code=1)
    path.write_text("https://example.org/a\n", encoding="utf-16")
    assert "save it as UTF-8" in ask_owt("forget", small_run, path, code=1)
    path.write_text("https://example.org/a\n", encoding="utf-8")
    assert "would be removed" in ask_owt("forget", small_run, path, "--dry_run")
    assert not root_of(small_run).takedowns
    assert "is not a run" in ask_owt("forget", tmp_path / "elsewhere", path, code=3)
    assert not (tmp_path / "elsewhere").exists()


def test_an_entry_outside_the_corpus_is_reported_and_kept(small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    (tmp_path / "list.txt").write_text("https://nobody.example/x\n")
    output = ask_owt("forget", run, tmp_path / "list.txt", "--workers", 1)
    assert f"no document of {run} matches 1 entry of the list" in output
    assert str(id_of("https://nobody.example/x")) in (run / root_of(run).takedowns).read_text()
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.slow
def test_killed_at_any_moment_it_continues_when_run_again(
    small_run: Path, request_file: Path, forgotten: Path, tmp_path: Path
) -> None:
    rng = random.Random(0)
    run = copy_of(small_run, tmp_path / "run")
    command = owt("forget", run, request_file, "--workers", 1, "--reason", "notice 17")
    for delay in (rng.uniform(0.4, 1.5), rng.uniform(0.6, 3)):
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            time.sleep(delay)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    run_owt(*command[3:])
    assert differing(forgotten, run) == []


@pytest.mark.parametrize("reason", ["a\u2028b", "a\u2029", "\x85 \x0c", "two\nlines\r\n"])
def test_any_reason_is_one_line_of_the_list(tmp_path: Path, reason: str) -> None:
    workdir = Storage(str(tmp_path))
    request = parse_request(["https://h.org/a?b=\u2028", "example.org", "17"], "list", reason)
    assert read_takedowns(workdir, Root(takedowns=write_takedowns(workdir, request))) == request
