"""A file that a flag cannot take: the message names what it looks like and the flag that takes
it, and that flag does. Files without a row leave nothing to do next."""

from __future__ import annotations

import gzip
import json
import lzma
import shlex
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from owt_pipeline.cli import main
from owt_pipeline.formats.file_kinds import describe_kind, kind_of
from owt_pipeline.formats.warc import response_record

SUBMISSION = {
    "id": "a1", "url": "https://example.org/1", "score": 9, "is_self": False, "over_18": False,
    "created_utc": 1_546_300_800, "subreddit": "a", "title": "t", "num_comments": 1,
}  # fmt: skip
DUMP = json.dumps(SUBMISSION).encode() + b"\n"
PAGE = b"<!doctype html><html><body><p>Some words of the page.</p></body></html>"
WARC = response_record(
    "https://example.org/", 0, "HTTP/1.1 200 OK", [("Content-Type", "text/html")], PAGE
)


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"url": ["https://example.org/1"]}), path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "RS.zst": lambda path: path.write_bytes(zstandard.compress(DUMP)),
    "RS.xz": lambda path: path.write_bytes(lzma.compress(DUMP)),
    "RS.ndjson.gz": lambda path: path.write_bytes(gzip.compress(DUMP)),
    "pages.warc.gz": lambda path: path.write_bytes(WARC),
    "pages.warc": lambda path: path.write_bytes(gzip.decompress(WARC)),
    "links.csv": lambda path: path.write_text("title,url\nA,https://example.org/1\n"),
    "links.tsv": lambda path: path.write_text("url\tscore\nhttps://example.org/1\t7\n"),
    "links.txt": lambda path: path.write_bytes(b"\xef\xbb\xbfhttps://example.org/1\n"),
    "links.parquet": write_parquet,
}
WRONG_FLAGS = [
    ("RS.zst", "--warcs"),
    ("RS.xz", "--warcs"),
    ("RS.ndjson.gz", "--warcs"),
    ("pages.warc.gz", "--dumps"),
    ("pages.warc", "--dumps"),
    ("pages.warc.gz", "--links"),
    ("pages.warc", "--links"),
    ("links.csv", "--dumps"),
    ("links.csv", "--warcs"),
    ("links.tsv", "--dumps"),
    ("links.txt", "--warcs"),
    ("links.txt", "--dumps"),
    ("links.parquet", "--dumps"),
    ("links.parquet", "--warcs"),
]


def flag_that_takes(name: str) -> str:
    if name.startswith("RS"):
        return "--dumps"
    return "--warcs" if "warc" in name else "--links"


@pytest.mark.parametrize(("name", "flag"), WRONG_FLAGS)
def test_a_file_of_another_kind_is_named_with_its_flag(
    name: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ä folder"
    folder.mkdir()
    file = folder / name
    WRITERS[name](file)
    words = ["run", str(tmp_path / "run"), "--until", "collect", "--workers", "1"]
    assert main([*words, flag, str(file)]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"owt: error: {file}: {flag} takes ")
    assert flag_that_takes(name) in message
    assert main([*words, flag_that_takes(name), str(file)]) == 0


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"", "text"),
        (b"hello\n", "text"),
        (b"\x1f\x8bcompressed twice", "gz"),
        (b"name,age\nAda,36\n", "text"),
        (b"curl,7\n", "text"),
        (b"url\nexample.org\n", "text"),
        (b"{ braces }", "text"),
        (b'"url";"n"\n', "table"),
        (b"HTTPS://EXAMPLE.ORG/\n", "urls"),
        (b"# mine\n\n# of 2013\nhttp://example.org/\n", "urls"),
        (b'\xef\xbb\xbf\n[ {"a b":1}]', "json"),
        (b"\n <HTML>", "html"),
        (b"<?xml version='1.0'?>", "html"),
    ],
)
def test_what_a_file_is_follows_from_its_start(start: bytes, expected: str) -> None:
    assert kind_of(start) == expected
    assert bool(describe_kind(start, "x")) == (expected != "text")


@pytest.mark.parametrize(
    ("flag", "name"), [("--links", "e.csv"), ("--links", "e.txt"), ("--warcs", "e.warc.gz")]
)
@pytest.mark.parametrize("until", ["collect", "tokenize"])
def test_without_a_row_nothing_comes_next(
    flag: str, name: str, until: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / name
    empty.touch()
    pages = tmp_path / "pages.warc.gz"
    pages.write_bytes(WARC)
    words = ["run", str(tmp_path / "run"), flag, str(empty), "--pages_from", str(pages)]
    assert main([*words, "--until", until, "--workers", "1"]) == 0
    output = capsys.readouterr()
    assert f"{name} has nothing to collect" in output.err
    assert "next:" not in output.out


@pytest.mark.parametrize(
    ("name", "content", "flags"),
    [
        ("body.jsonl", '{"body": "A sentence of the text."}\n', ["--text_field", "body"]),
        ("ä body.csv", "id,content\n1,A sentence of the text.\n", ["--text_field", "content"]),
        ("nested.jsonl", '{"raw": {"text": "A sentence."}}\n', ["--text_field", "raw.text"]),
    ],
)
def test_an_import_without_a_text_says_what_the_first_record_lacks(
    name: str,
    content: str,
    flags: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    file.write_text(content)
    words = ["import", str(tmp_path / "run"), str(file), "--workers", "1"]
    assert main(words) == 1
    output = capsys.readouterr()
    assert "next:" not in output.out
    message = output.err.splitlines()[-1]
    assert f"{name}:" in message
    assert "no field 'text'; it has " in message
    assert message.endswith("; give the name of the field with the text as --text_field")
    assert main([*words, *flags]) == 0
    assert "next:" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_import_of_an_empty_file_leaves_nothing_to_do(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text(content)
    assert main(["import", str(tmp_path / "run"), str(empty), "--workers", "1"]) == 1
    output = capsys.readouterr()
    assert "import: the files have no texts" in output.err
    assert "text_field" not in output.err
    assert "next:" not in output.out


def test_texts_in_the_place_of_the_run_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = Path("my texts.jsonl")
    texts.write_text('{"text": "A sentence of the text."}\n')
    assert main(["import", str(texts)]) == 2
    message = capsys.readouterr().err
    advised = message.partition("as in `owt ")[2].partition("`")[0]
    assert shlex.split(advised) == ["import", "run", str(texts)]
    assert main([*shlex.split(advised), "--workers", "1"]) == 0
