"""forget removes the named documents and no others, permanently."""

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
from owt_pipeline.engine.takedowns import read_takedowns, write_takedowns
from owt_pipeline.formats.urls import host_of, id_of
from owt_pipeline.storage.folder import Storage
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
    takedowns_of,
)


def tokenized_ids(run: Path) -> set[int]:
    """Return the ids of the tokens of a run."""
    ids = set()
    for path in (run / "tokens").glob("*/part-*.arrow"):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        ids |= set(table["url_id"].to_pylist())
    return ids


def forgotten_ids(run: Path) -> set[int]:
    """Return the ids of the documents that export has rejected as forgotten."""
    rejects = rows_of(run, "ledger/corpus/rejects")
    return {row["url_id"] for row in rejects if row["reason"] == "forgotten"}


@pytest.fixture(scope="module")
def request_file(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list with two documents of shard 1.

    One was kept in place of duplicates, and is named by its id. The other is named by a variant of
    its URL.
    """
    kept_ids = {row["kept_url_id"] for row in rows_of(small_run, "duplicates")}
    rows = pq.read_table(shard_file(small_run, "corpus", 1)).to_pylist()
    kept_id = next(row["url_id"] for row in rows if row["url_id"] in kept_ids)
    url = next(row["url"] for row in rows if row["url_id"] not in kept_ids)
    path = tmp_path_factory.mktemp("request") / "takedown.txt"
    path.write_text(f"# by request\n\n{kept_id}\n{url.replace('https', 'HTTP')}?utm_source=x\n")
    return path


@pytest.fixture(scope="module")
def forgotten(
    small_run: Path, request_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The small run after the takedown of the list."""
    run = copy_of(small_run, tmp_path_factory.mktemp("forgotten") / "run")
    ask_owt("forget", run, request_file, "--workers", 1, "--reason", "notice 17")
    return run


@pytest.fixture(scope="module")
def removed_ids(small_run: Path, forgotten: Path) -> set[int]:
    """The ids that left the corpus."""
    ids_before = {row["url_id"] for row in rows_of(small_run, "corpus")}
    return ids_before - {row["url_id"] for row in rows_of(forgotten, "corpus")}


def test_named_documents_leave_corpus_tokens_and_get_a_reason(
    small_run: Path, forgotten: Path, removed_ids: set[int]
) -> None:
    assert len(removed_ids) == 2
    assert tokenized_ids(small_run) - tokenized_ids(forgotten) == removed_ids
    rejects = {row["url_id"]: row for row in rows_of(forgotten, "ledger/corpus/rejects")}
    assert {rejects[url_id]["detail"] for url_id in removed_ids} == {"notice 17"}
    counts = manifest_of(forgotten, "corpus").counts
    assert counts.rejected["forgotten"] == len(forgotten_ids(forgotten))
    assert "no problems found" in ask_owt("verify", forgotten)
    assert "rejected by export: forgotten" in ask_owt("why", forgotten, min(removed_ids))


def test_duplicates_of_a_document_are_forgotten_with_it(
    small_run: Path, forgotten: Path, removed_ids: set[int]
) -> None:
    """Other options of deduplication then do not bring the same text back under another URL."""
    duplicates = rows_of(small_run, "duplicates")
    copy_ids = {row["url_id"] for row in duplicates if row["kept_url_id"] in removed_ids}
    rejects = {row["url_id"]: row for row in rows_of(forgotten, "ledger/corpus/rejects")}
    assert copy_ids
    assert {rejects[url_id]["reason"] for url_id in copy_ids} == {"forgotten"}
    assert all(rejects[url_id]["detail"].startswith("repeats ") for url_id in copy_ids)


def test_it_does_not_matter_which_copy_of_a_text_is_named(small_run: Path, tmp_path: Path) -> None:
    """Deduplication kept a copy, perhaps not the one whose author made the request."""
    decision = next(row for row in rows_of(small_run, "duplicates") if row["kept_shard"] < 3)
    lists = []
    for column in ("url_id", "kept_url_id"):
        run = copy_of(small_run, tmp_path / column)
        (tmp_path / f"{column}.txt").write_text(f"{decision[column]} # by request")
        output = ask_owt("forget", run, tmp_path / f"{column}.txt")
        assert "1 document removed from the corpus" in output
        lists.append(forgotten_ids(run))
    assert lists[0] == lists[1] >= {decision["url_id"], decision["kept_url_id"]}


def test_the_report_shows_no_text_of_a_forgotten_document(
    forgotten: Path, removed_ids: set[int]
) -> None:
    """Not even a pair of duplicates that the report shows has its text."""
    stats = json.loads((forgotten / "report/stats.json").read_text())
    shown_ids = set()
    for row in stats["removals"]:
        shown_ids |= {row["removed"]["url_id"], row["kept"]["url_id"]}
    assert shown_ids
    assert not (removed_ids | forgotten_ids(forgotten)) & shown_ids
    texts = {row["url_id"]: row["text"] for row in rows_of(forgotten, "clean")}
    report = (forgotten / "report/stats.json").read_text()
    report += (forgotten / "report/index.html").read_text()
    for identifier in forgotten_ids(forgotten):
        paragraph = max(texts[identifier].splitlines(), key=len)
        assert json.dumps(paragraph)[1:-1] not in report


def test_the_report_shows_no_text_of_a_rejected_domain(small_run: Path, tmp_path: Path) -> None:
    """Its rows are not in the corpus' rejects, so only the list names them."""
    run = copy_of(small_run, tmp_path / "run")

    def dropped() -> dict[str, str]:
        rows = json.loads((run / "report/stats.json").read_bytes())["dropped"]
        return {row["url"]: row["text"] for reason in rows for row in reason["documents"]}

    dropped_before = dropped()
    host = host_of(next(iter(dropped_before)))
    (tmp_path / "list.txt").write_text(f"{host}\n")
    ask_owt("forget", run, tmp_path / "list.txt")
    expected = {url: text for url, text in dropped_before.items() if host_of(url) != host}
    assert dropped() == expected


def without_digest(path: Path, run: Path) -> str:
    """Return the path of a shard's file in a run, without the digits of its content."""
    return re.sub(r"-[0-9a-f]{8}\.", ".", path.relative_to(run).as_posix())


def test_only_the_shards_it_is_in_are_rewritten(
    small_run: Path, request_file: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    inodes_before = {path: path.stat().st_ino for path in run.rglob("part-*")}
    ask_owt("forget", run, request_file, "--workers", 1)
    written = set()
    for path in run.rglob("part-*"):
        if inodes_before.get(path) != path.stat().st_ino:
            written.add(without_digest(path, run))
    missing = {without_digest(path, run) for path in inodes_before if not path.exists()}
    corpus = set()
    for shard in range(3):
        clean_ids = pq.read_table(shard_file(run, "clean", shard))["url_id"].to_pylist()
        if forgotten_ids(run) & set(clean_ids):
            corpus.add(f"corpus/part-0000{shard}.parquet")
            corpus.add(f"ledger/corpus/rejects/part-0000{shard}.parquet")
    # Duplicates in other shards are rejected for another reason now, but no row of the corpus or
    # the tokens changes.
    tokens = {f"tokens/{split}/part-00001.arrow" for split in ("train", "val")}
    figures = "ledger/report/figures/part-00000.json"
    assert written == corpus | tokens | {"ledger/tokens/rejects/part-00001.parquet", figures}
    assert {"corpus/part-00001.parquet", "tokens/train/part-00001.arrow"} <= missing <= written


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
    assert len(forgotten_ids(run)) == len(forgotten_ids(forgotten))
    assert not forgotten_ids(run) & {row["url_id"] for row in rows_of(run, "corpus")}


def test_a_takedown_works_where_only_corpus_and_tokens_are_left(
    small_run: Path, request_file: Path, forgotten: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    for folder in ("warc", "pages", "documents", "clean"):
        shutil.rmtree(run / folder)
    ask_owt("forget", run, request_file, "--workers", 1, "--reason", "notice 17")
    names = {path.name for path in (run / "corpus").glob("part-*.parquet")}
    assert names == {path.name for path in (forgotten / "corpus").glob("part-*.parquet")}
    assert tokenized_ids(run) == tokenized_ids(forgotten)
    assert "no problems found" in ask_owt("verify", run)


def test_a_domain_goes_with_all_hosts_below_it(small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    host = host_of(rows_of(run, "corpus")[0]["url"])
    (tmp_path / "list.txt").write_text(f"{host}\n")
    output = ask_owt("forget", run, tmp_path / "list.txt", "--dry_run")
    assert differing(small_run, run) == []
    num_documents = sum(host_of(row["url"]) == host for row in rows_of(run, "corpus"))
    removed = pluralize(num_documents, "document")
    assert f"{removed} would be removed from the corpus" in output
    ids_of_host = {row["url_id"] for row in rows_of(run, "clean") if host_of(row["url"]) == host}
    duplicates = rows_of(run, "duplicates")
    staying = {row["kept_url_id"] for row in duplicates if row["url_id"] in ids_of_host}
    staying -= ids_of_host
    others = pluralize(len(staying), "other document")
    assert f"the corpus keeps {others} with the same text: {min(staying)}" in output
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
    assert "saved as UTF-8" in ask_owt("forget", small_run, path, code=1)
    path.write_text("https://example.org/a\n", encoding="utf-8")
    assert "would be removed" in ask_owt("forget", small_run, path, "--dry_run")
    assert not root_of(small_run).takedowns
    assert "is not a run" in ask_owt("forget", tmp_path / "elsewhere", path, code=3)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "entries",
    [
        ["https://nowhere.example/none"],
        ["12345"],
        ["nowhere.example"],
        ["https://nowhere.example/none", "https://nowhere.example/another", "7", "none.example"],
    ],
)
def test_an_entry_without_a_document_counts_as_nothing(
    small_run: Path, tmp_path: Path, entries: list[str]
) -> None:
    path = tmp_path / "list.txt"
    path.write_text("\n".join(entries))
    printed = ask_owt("forget", small_run, path, "--dry_run", "--workers", 1)
    assert "0 documents would be removed from the corpus" in printed.splitlines()


def test_an_entry_outside_the_corpus_is_reported_and_kept(small_run: Path, tmp_path: Path) -> None:
    run = copy_of(small_run, tmp_path / "run")
    (tmp_path / "list.txt").write_text("https://nobody.example/x\n")
    output = ask_owt("forget", run, tmp_path / "list.txt", "--workers", 1)
    assert f"no document of {run} matches 1 entry of the list" in output
    assert id_of("https://nobody.example/x") in takedowns_of(run).detail_by_id
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
def test_any_reason_is_read_as_it_was_written(tmp_path: Path, reason: str) -> None:
    workdir = Storage(str(tmp_path))
    request = parse_request(["https://h.org/a?b=\u2028", "example.org", "17"], "list", reason)
    name = write_takedowns(workdir, request)
    assert set(read_takedowns(workdir, [name]).rows_by_name[name]) == set(request)
