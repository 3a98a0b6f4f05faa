"""Storage: the same promises on a local disk and in every kind of bucket."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.errors import UserError
from owt_pipeline.formats.files import find_files, texts_of_option
from owt_pipeline.formats.records import describe_file
from owt_pipeline.storage import disk
from owt_pipeline.storage.folder import Storage, at_once, describe_source
from owt_pipeline.storage.matching import expand_globs


class TestStorage:
    def test_files_that_were_written_are_read_listed_and_deleted(
        self, folder: Storage, place: str
    ) -> None:
        assert folder.list() == []
        for name in ("part-00000.warc.gz", "a/b/part.parquet", "plain.zst"):
            folder.write(name, b"content" * 1000)
            assert folder.read(name) == b"content" * 1000
            assert folder.size(name) == 7000
            assert folder.sha256(name) == hashlib.sha256(b"content" * 1000).hexdigest()
        assert folder.names() == ["a/b/part.parquet", "part-00000.warc.gz", "plain.zst"]
        assert [(entry.name, entry.bytes) for entry in folder.list("p")] == [
            ("part-00000.warc.gz", 7000),
            ("plain.zst", 7000),
        ]
        assert [entry.name for entry in folder.list("a/b/")] == ["a/b/part.parquet"]
        assert all(map(folder.exists, ["", "a/b", "plain.zst"]))
        assert not any(map(folder.exists, ["a/c", "pla"]))
        run = folder.uri.rpartition("/")[0]
        assert expand_globs((f"{run}/*/*.gz",), "test") == [f"{run}/pages/part-00000.warc.gz"]
        assert expand_globs((f"{run}/pages/plain.zst",), "test") == [f"{run}/pages/plain.zst"]
        for _ in range(2):
            folder.delete("plain.zst")
        assert not folder.exists("plain.zst")
        names = [f"many/{number} %41+ü?#,a=1,50%25.json" for number in range(150)]
        at_once(lambda name: folder.write(name, b""), [*names, "many/kept"])
        for _ in range(2):
            folder.delete(*names, "many/missing")
        assert folder.names() == ["a/b/part.parquet", "many/kept", "part-00000.warc.gz"]

    def test_a_missing_file_is_named(self, folder: Storage) -> None:
        folder.write("there", b"")
        for ask in (
            folder.open,
            folder.read,
            folder.size,
            folder.sha256,
            lambda name: folder.read_range(name, 0, 1),
        ):
            with pytest.raises(FileNotFoundError) as error:
                ask("not-there")
            assert error.value.filename == folder.path("not-there")
        assert folder.read_version("not-there") is None
        assert folder.swap("not-there", b"x", folder.read_version("there")[1]) is None

    def test_ranges_and_arrow_files_are_read(self, folder: Storage) -> None:
        folder.write("bytes", bytes(range(256)))
        assert folder.read_range("bytes", 10, 3) == bytes([10, 11, 12])
        assert folder.read_range("bytes", 250, 100) == bytes(range(250, 256))
        assert folder.read_range("bytes", 5, 0) == b""
        table = pa.table({"id": range(100_000), "text": [f"text {i}" for i in range(100_000)]})
        with folder.spool() as file:
            pq.write_table(table, file, row_group_size=10_000)
            file.publish("part.parquet")
        with folder.spool() as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=10_000)
            file.publish("part.arrow")
        with folder.open("part.parquet") as source:
            assert source.size() == folder.size("part.parquet")
            assert pq.ParquetFile(source).read() == table
        with folder.open("part.arrow") as source:
            assert pa.ipc.open_file(source).read_all() == table
        with folder.open("bytes") as source:
            source.seek(200)
            assert source.read() == bytes(range(200, 256))

    def test_a_file_appears_when_it_is_published_and_not_before(self, folder: Storage) -> None:
        # Any number of spools can be open at a time.
        with folder.spool() as first, folder.spool() as second:
            first.write(b"fil")
            second.write(b"other")
            assert folder.names() == []
            first.write(b"es")
            first.publish("a/b.bin")
            assert folder.names() == ["a/b.bin"]
        assert folder.read("a/b.bin") == b"files"
        assert (first.bytes, first.sha256) == (5, hashlib.sha256(b"files").hexdigest())
        assert not any(map(os.path.exists, [first.path, second.path]))

    def test_an_arrow_writer_after_an_error_writes_nothing(self, folder: Storage) -> None:
        table = pa.table({"id": range(100)})
        with (
            pytest.raises(ZeroDivisionError),
            folder.spool() as file,
            pq.ParquetWriter(file, table.schema) as writer,
        ):
            writer.write_table(table)
            raise ZeroDivisionError
        assert folder.names() == []

    def test_one_of_many_creating_processes_wins(self, folder: Storage) -> None:
        code = (
            "import sys; from owt_pipeline.storage.folder import Storage; folder = "
            "Storage(sys.argv[1])\n"
            "folder.names(); print('ready', flush=True); sys.stdin.read()\n"
            "print(sum(folder.create(f'record-{i}', sys.argv[2].encode()) for i in range(20)))"
        )
        command = [sys.executable, "-c", code, folder.uri]
        children = [
            subprocess.Popen(
                [*command, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for i in range(4)
        ]
        assert [child.stdout.readline() for child in children] == ["ready\n"] * 4
        for child in children:
            child.stdin.close()
            child.stdin = None
        won = [int(child.communicate()[0]) for child in children]
        assert sum(won) == 20
        assert not folder.create("record-0", b"9")
        winners = [int(folder.read(f"record-{i}")) for i in range(20)]
        assert [winners.count(i) for i in range(4)] == won

    def test_swaps_lose_no_update(self, folder: Storage) -> None:
        folder.write("count", b"0")

        def count_to_ten(_: int) -> None:
            done = 0
            while done < 10:
                content, version = folder.read_version("count")
                done += folder.swap("count", b"%d" % (int(content) + 1), version) is not None

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count_to_ten, range(4)))
        assert folder.read("count") == b"40"

    def test_a_swap_needs_the_version_that_is_there(self, folder: Storage) -> None:
        assert folder.create("lease", b"first")
        content, version = folder.read_version("lease")
        assert content == b"first"
        second = folder.swap("lease", b"second", version)
        assert second not in (None, version)
        assert folder.swap("lease", b"third", version) is None
        assert folder.read_version("lease") == (b"second", second)
        folder.write("lease", b"other")
        assert folder.swap("lease", b"third", second) is None
        assert folder.names() == ["lease"]

    def test_a_killed_upload_leaves_nothing_under_the_name(self, folder: Storage) -> None:
        code = (
            "import sys, os; from owt_pipeline.storage.folder import Storage; folder = "
            "Storage(sys.argv[1])\n"
            "folder.names()\n"
            "with folder.spool() as file:\n"
            "    for i in range(50): file.write(os.urandom(1 << 20))\n"
            "    print(file.path, flush=True)\n"
            "    file.publish('part.parquet')\n"
            "print('published', flush=True)\n"
        )
        complete = 50 << 20
        for delay in (0, 0.05, 0.2):
            child = subprocess.Popen(
                [sys.executable, "-c", code, folder.uri], stdout=subprocess.PIPE, text=True
            )
            path = child.stdout.readline().strip()
            time.sleep(delay)
            child.kill()
            done = child.communicate()[0]
            found = {entry.name: entry.bytes for entry in folder.list()}
            assert found in ({}, {"part.parquet": complete})
            assert found or not done
            folder.remove_dead_spools()
            assert not os.path.exists(path)

    def test_a_storage_travels_to_a_worker(self, folder: Storage) -> None:
        folder.write("x", b"1")
        assert pickle.loads(pickle.dumps(folder)).read("x") == b"1"


def test_a_process_stopped_while_it_swaps_hangs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Storage(str(tmp_path))
    folder.write("file", b"before")
    _, version = folder.read_version("file") or pytest.fail("the file is gone")
    stopping = (
        "import os, signal, sys; from owt_pipeline.storage import folder; "
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGSTOP); "
        "folder.Storage(sys.argv[1]).swap('file', b'late', sys.argv[2])"
    )
    with subprocess.Popen([sys.executable, "-c", stopping, str(tmp_path), version]) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        monkeypatch.setattr(disk, "_LOCK_SECONDS", 0.2)
        with pytest.raises(
            TimeoutError, match=r"lock has been locked for 0\.2 s: continue or kill"
        ):
            folder.swap("file", b"now", version)
        process.kill()
    assert folder.swap("file", b"now", version)
    assert folder.read("file") == b"now"


def test_spools_are_removed_unless_their_process_lives(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "run"))
    spool = tmp_path / "run" / ".tmp"
    with storage.spool() as live:
        kept = [Path(live.path), Path(f"{live.path}-tables")]
        kept[1].mkdir()
        (spool / "dead.tmp").write_bytes(b"")
        (spool / "dead.tmp-tables/inner").mkdir(parents=True)
        storage.remove_dead_spools()
        assert sorted(spool.iterdir()) == kept
        assert storage.names() == []
    storage.remove_dead_spools()
    assert not spool.exists()


def test_a_folder_of_a_run_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        (tmp_path / "warc").symlink_to(other)
        for name in ("warc/a", "warc/b/c"):
            with Storage(str(tmp_path)).spool() as file:
                file.write(b"page")
                file.publish(name)
            assert (tmp_path / name).read_bytes() == b"page"
        assert sorted(os.listdir(other)) == ["a", "b"]
        assert os.listdir(f"{other}/b") == ["c"]


@pytest.mark.parametrize(
    "uri",
    ["ftp://host/folder", "hdfs://host/folder", "abfs://c/f", "S3://b/f", "gcs://b/f", "s3:/b"],
)
def test_an_unknown_scheme_is_an_error_with_the_known_ones(uri: str) -> None:
    with pytest.raises(
        UserError, match=r"unknown scheme .*; use a local path, gs://, s3:// or az://$"
    ):
        Storage(uri)


def test_a_file_named_in_two_ways_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_text("{}")
    here = str(tmp_path / "x.jsonl")
    assert expand_globs(("x.jsonl", "./x.jsonl", here), "collect") == ["x.jsonl"]
    assert [record.getMessage() for record in caplog.records] == [
        f"collect: {path} is the same as x.jsonl, and is read once" for path in ("./x.jsonl", here)
    ]
    caplog.clear()
    accepted = texts_of_option("import")
    assert find_files(("./x.jsonl", "x.jsonl", "*.jsonl"), accepted) == ["./x.jsonl"]
    assert len(caplog.records) == 2


def test_globs_folders_and_files_are_expanded_once_and_sorted(tmp_path: Path) -> None:
    for name in ("b.gz", "a.gz", "c.txt"):
        (tmp_path / name).write_bytes(gzip.compress(name.encode()))
    a, b, c = (str(tmp_path / name) for name in ("a.gz", "b.gz", "c.txt"))
    assert expand_globs((str(tmp_path / "*.gz"), a), "--dumps") == [a, b]
    assert expand_globs((str(tmp_path),), "--dumps") == [a, b, c]
    (tmp_path / "A").mkdir()
    later = tmp_path / "A" / "later.gz"
    later.write_bytes(gzip.compress(b"later"))
    assert str(later) < a
    for name in ("g1", "g[1]"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "d.gz").touch()
    assert expand_globs((str(tmp_path / "g[1]"),), "--dumps") == [str(tmp_path / "g[1]" / "d.gz")]
    assert expand_globs((str(later), a), "--dumps") == [a, str(later)], (
        "wherever files lie, their order is the same"
    )
    with pytest.raises(UserError, match=r"--dumps: no file matches '.*\.zst'"):
        expand_globs((a, str(tmp_path / "*.zst")), "--dumps")


def key_part(source: dict[str, Any]) -> dict[str, Any]:
    """Return what of a described source is part of a key."""
    return {name: value for name, value in source.items() if name != "seen"}


@pytest.mark.parametrize("start", [b"", b"PAR1", b"\x28\xb5\x2f\xfd\x00", b"\x1f"])
@pytest.mark.parametrize("place_", [0, 500, 2_000_000, 3_999_999])
def test_a_file_without_a_checksum_is_known_by_its_content(
    tmp_path: Path, start: bytes, place_: int
) -> None:
    content = bytearray(start.ljust(4_000_000, b"x"))
    path = tmp_path / "dump"
    path.write_bytes(content)
    before = describe_source(str(path))
    assert before["name"] == "dump"
    assert before["bytes"] == 4_000_000
    assert before["sha256"] == hashlib.sha256(content).hexdigest()
    content[place_] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    after = describe_source(str(path), before)
    assert after["sha256"] == hashlib.sha256(content).hexdigest() != before["sha256"]


@pytest.mark.parametrize("start", [b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd\x04"])
@pytest.mark.parametrize("place_", [500, 2_000_000, 3_999_999])
def test_a_file_that_ends_in_a_checksum_is_known_by_its_ends(
    tmp_path: Path, start: bytes, place_: int
) -> None:
    content = bytearray(start.ljust(4_000_000, b"x"))
    path = tmp_path / "dump"
    path.write_bytes(content)
    before = describe_source(str(path))
    assert before.keys() == {"name", "bytes", "ends_sha256"}
    content[place_] ^= 1
    path.write_bytes(content)
    assert (describe_source(str(path)) == before) == (place_ == 2_000_000)


def forget_digests() -> None:
    """Let this process be as one that has hashed nothing."""
    from owt_pipeline.storage import folder

    folder._sha256_by_file.clear()


def test_a_file_is_hashed_again_only_if_it_seems_changed(tmp_path: Path, hashed: list[str]) -> None:
    path = tmp_path / "dump"
    path.write_bytes(b"x" * 3_000_000)
    first = describe_source(str(path))
    assert hashed == ["dump"]
    forget_digests()
    assert describe_source(str(path), first) == first
    assert hashed == ["dump"]
    os.utime(path, ns=(5, 5))
    touched = describe_source(str(path), first)
    assert hashed == ["dump"] * 2
    assert key_part(touched) == key_part(first)
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(5, 5))
    copy.replace(path)
    forget_digests()
    assert key_part(describe_source(str(path), touched)) == key_part(first)
    assert hashed == ["dump"] * 3
    path.write_bytes(b"x" * 2_999_999)
    os.utime(path, ns=(5, 5))
    assert describe_source(str(path), touched)["sha256"] != first["sha256"]
    assert hashed == ["dump"] * 4


def test_one_process_hashes_an_unchanged_file_once(tmp_path: Path, hashed: list[str]) -> None:
    path = tmp_path / "dump"
    path.write_bytes(bytes(3 << 20))
    assert describe_source(str(path)) == describe_source(str(path))
    assert hashed == ["dump"]


def test_a_small_file_is_known_by_all_of_its_bytes(tmp_path: Path, hashed: list[str]) -> None:
    """As it is in a bucket, so that a run has the same keys there."""
    path = tmp_path / "dump"
    path.write_bytes(b"x" * (1 << 21))
    described = describe_source(str(path))
    assert described["ends_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(b"x" * (1 << 20) + b"y" + b"x" * ((1 << 20) - 1))
    assert describe_source(str(path)) != described
    assert not hashed


@pytest.mark.parametrize("name", ["links.csv", "links.csv.gz", "links", "links.parquet"])
def test_a_small_table_is_described_the_same_way_twice(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"url,score\nhttps://example.org/,3\n")
    first = describe_file(str(path), name)
    assert describe_file(str(path), name, first) == first


def test_a_gzip_file_recorded_by_its_content_stays_valid(tmp_path: Path) -> None:
    path = tmp_path / "links"
    path.write_bytes(b"\x1f\x8b and the rest")
    old = {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    described = key_part(describe_file(str(path), "links", old))
    assert described == {"name": "links", "uri": str(path), **old}
    assert key_part(describe_file(str(path), "links", described)) == described
