"""Storage: whole files or none, globs that say what they miss."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from owt_pipeline.runtime.errors import UserError
from owt_pipeline.runtime.storage import Storage, describe_source, expand_globs
from tests.servers.gcs import gcs_bucket
from tests.servers.s3 import s3_bucket


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "new"))
    with pytest.raises(RuntimeError, match="torn"), storage.create_file("a/b.bin") as file:
        file.write(b"half")
        assert not storage.exists("a/b.bin")
        raise RuntimeError("torn")
    assert storage.names() == []
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    with storage.create_file("a/b.bin") as file:
        file.write(b"who")
        file.write(b"le")
    assert storage.names() == ["a/b.bin"]
    assert storage.read("a/b.bin") == b"whole"
    assert (file.bytes, file.sha256) == (5, hashlib.sha256(b"whole").hexdigest())
    assert storage.sha256("a/b.bin") == file.sha256


def test_a_file_that_a_killed_process_left_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / "part.parquet.tmp").write_bytes(b"half")
    storage = Storage(str(tmp_path))
    assert storage.names() == []
    storage.write("part.parquet", b"whole")
    assert storage.names() == ["part.parquet"]
    assert not (tmp_path / ".tmp").exists()


def test_a_storage_travels_to_a_worker(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path)) / "below"
    storage.write("x", b"1")
    assert pickle.loads(pickle.dumps(storage)).read("x") == b"1"


def test_an_unknown_scheme_says_which_are_known() -> None:
    with pytest.raises(UserError, match="use a local path, gs://, s3:// or az://"):
        Storage("ftp://host/folder")


def test_globs_folders_and_files_are_expanded_once_and_sorted(tmp_path: Path) -> None:
    for name in ("b.gz", "a.gz", "c.txt"):
        (tmp_path / name).write_bytes(gzip.compress(name.encode()))
    a, b, c = (str(tmp_path / name) for name in ("a.gz", "b.gz", "c.txt"))
    assert expand_globs((str(tmp_path / "*.gz"), a), "--dumps") == [a, b]
    assert expand_globs((str(tmp_path),), "--dumps") == [a, b, c]
    with pytest.raises(UserError, match=r"--dumps: no file matches '.*\.zst'"):
        expand_globs((a, str(tmp_path / "*.zst")), "--dumps")


@pytest.mark.parametrize("place", [0, 500, 2_000_000, 3_999_999])
def test_a_source_is_known_by_its_name_length_and_ends(tmp_path: Path, place: int) -> None:
    content = bytearray(4_000_000)
    (tmp_path / "dump").write_bytes(content)
    before = describe_source(str(tmp_path / "dump"))
    assert before["name"] == "dump"
    assert before["bytes"] == 4_000_000
    content[place] = 1
    (tmp_path / "dump").write_bytes(content)
    in_the_middle = 1 << 20 <= place < 4_000_000 - (1 << 20)
    assert (describe_source(str(tmp_path / "dump")) == before) == in_the_middle


@pytest.fixture(scope="module", params=[s3_bucket, gcs_bucket], ids=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    with request.param() as uri:
        yield uri


def test_a_bucket_gives_back_the_bytes_that_were_written(bucket: str) -> None:
    folder = Storage(f"{bucket}/run") / "pages"
    for name in ("part-00000.warc.gz", "a/b/part.parquet", "plain.zst"):
        folder.write(name, b"content" * 1000)
        assert folder.read(name) == b"content" * 1000
        assert folder.size(name) == 7000
    assert folder.names() == ["a/b/part.parquet", "part-00000.warc.gz", "plain.zst"]
    assert expand_globs((f"{bucket}/run/*/*.gz",), "test") == [f"{bucket}/run/pages/part-00000.warc.gz"]
    assert expand_globs((f"{bucket}/run/pages/plain.zst",), "test") == [f"{bucket}/run/pages/plain.zst"]
    assert len(expand_globs((f"{bucket}/run",), "test")) == 3
    folder.delete("plain.zst")
    folder.delete("plain.zst")
    assert not folder.exists("plain.zst")
    Storage(f"{bucket}/run/pages2").write("other", b"")
    for _ in range(2):
        folder.delete_all()
        assert not folder.names()
    assert Storage(f"{bucket}/run").names() == ["pages2/other"]


def test_a_file_whose_writing_failed_is_not_in_the_bucket(bucket: str) -> None:
    folder = Storage(f"{bucket}/failed")
    with pytest.raises(ZeroDivisionError), folder.create_file("part.parquet") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert not folder.exists("part.parquet")
