"""One function finds the files of every option: a folder as people have it is given to each."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import zstandard

import owt_pipeline as owt
from owt_pipeline.cli import main
from owt_pipeline.errors import UserError
from owt_pipeline.formats.archives import archives_of_option
from owt_pipeline.formats.files import AcceptedFiles, find_files, texts_of_option
from owt_pipeline.formats.warc import response_record
from owt_pipeline.stages.collect.dumps import Dump
from owt_pipeline.stages.collect.links import LinkTable
from tests.owt_pipeline.remedies import attempt
from tests.owt_pipeline.runs import manifest_of

SUBMISSION = {
    "id": "a1", "url": "https://example.org/1", "score": 9, "is_self": False, "over_18": False,
    "created_utc": 1_546_300_800, "subreddit": "a", "title": "t", "num_comments": 1,
}  # fmt: skip
ROW = (
    json.dumps({"url": "https://example.org/2", "text": "A sentence of the text."}).encode() + b"\n"
)
PAGE = b"<!doctype html><html><body><p>Some words of the page.</p></body></html>"
WARC = response_record(
    "https://example.org/", 0, "HTTP/1.1 200 OK", [("Content-Type", "text/html")], PAGE
)


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def arrow(table: pa.Table, *, is_stream: bool) -> bytes:
    sink = io.BytesIO()
    if is_stream:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        feather.write_feather(table, sink, compression="uncompressed")
    return sink.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(name, content)
    return sink.getvalue()


def in_tar(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return sink.getvalue()


TABLE = pa.table({"url": ["https://example.org/3"], "text": ["Another sentence of the text."]})

DUMPS = {"RS_2013-05.zst": zstandard.compress(json.dumps(SUBMISSION).encode() + b"\n")}
JSON = {"rows.jl": ROW, "more/rows.ndjson.gz": gzip.compress(ROW)}
PARQUET = {"table.parq": parquet(TABLE), "data/train-00000-of-00001.parquet": parquet(TABLE)}
LISTS = {"urls.txt": b"# mine\nhttps://example.org/4\n", "urls": b"https://example.org/5\n"}
TABLES = {"links.csv": b"title,url\nA,https://example.org/6\n"}
WARCS = {"CC-MAIN-0.warc.gz": WARC, "pages": gzip.decompress(WARC)}
TEXTS = {"notes.txt": b"A note.\n", "chapter.md": b"# A chapter\n"}
NEVER_DATA = {
    "README.md": b"---\nlicense: mit\n---\n# Three texts\n",
    "LICENSE": b"MIT License\n",
    "more/license.txt": b"MIT License\n",
    "dataset_infos.json": b'{"default": {"splits": {}}}\n',
    "warc.paths.gz": gzip.compress(b"https://example.org/CC-MAIN-0.warc.gz\n"),
    "_SUCCESS": b"",
    ".gitattributes": b"*.parquet filter=lfs\n",
    ".cache/huggingface/rows.jsonl": ROW,
}
OTHERS = {
    "picture.png": b"\x89PNG\r\n\x1a\n",
    "old.zip": zipped("rows.jsonl", ROW),
    "CC-MAIN-0.warc.gz.md5": b"d41d8cd98f00b204e9800998ecf8427e  CC-MAIN-0.warc.gz\n",
    "CC-MAIN-0.warc.os.cdx.gz": gzip.compress(b" CDX N b a m s k r M S V g\n"),
}
FOLDER = {
    **DUMPS, **JSON, **PARQUET, **LISTS, **TABLES, **WARCS, **TEXTS, **NEVER_DATA, **OTHERS
}  # fmt: skip

TAKEN: dict[str, tuple[AcceptedFiles, dict[str, bytes]]] = {
    "--dumps": (Dump.accepted, {**DUMPS, **JSON}),
    "--links": (LinkTable.accepted, {**DUMPS, **JSON, **PARQUET, **LISTS, **TABLES}),
    "--warcs": (archives_of_option("--warcs"), WARCS),
    "--pages_from": (archives_of_option("--pages_from"), WARCS),
    "import": (texts_of_option("import"), {**DUMPS, **JSON, **PARQUET, **TABLES}),
}  # type: ignore[dict-item]


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("pattern", ["{}", "{}/", "{}/**"])
@pytest.mark.parametrize("option", TAKEN)
def test_an_option_takes_its_files_of_a_folder(
    option: str, pattern: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accepted, taken = TAKEN[option]
    folder = write(tmp_path / "as people have it", FOLDER)
    paths = find_files([pattern.format(folder)], accepted)
    assert {Path(path).relative_to(folder).as_posix() for path in paths} == set(taken)
    find_files([pattern.format(folder)], accepted)
    (message,) = caplog.messages
    assert message.startswith(f"{option}: skipped what is not {accepted.noun}; ")


def test_what_is_left_out_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path / "hub", {**PARQUET, **NEVER_DATA})
    for _ in range(2):
        find_files([str(folder)], texts_of_option("import"))
    (message,) = caplog.messages
    shown = re.findall(r"[^ ,]*/hub/([^ ,]+)", message)
    assert shown == [".cache/", ".gitattributes", "LICENSE", "README.md", "_SUCCESS"]
    assert message.endswith(" and 3 more")


def test_the_rows_of_a_folder_are_the_rows_of_its_tables(tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps for an hour. " * 4
    rows = "".join(json.dumps({"text": row}) + "\n" for row in ("Something else.", text, text))
    folder = write(tmp_path / "hub", {"train.jsonl": rows.encode(), **NEVER_DATA})
    (duplicate,) = owt.near_duplicates(folder, workers=1).to_pylist()
    assert (duplicate["row"], duplicate["kept_row"]) == (2, 1)
    assert owt.near_duplicates(folder / "train.jsonl", workers=1).to_pylist() == [duplicate]


@pytest.mark.parametrize("option", TAKEN)
def test_a_folder_without_its_files_is_an_error(option: str, tmp_path: Path) -> None:
    accepted, _ = TAKEN[option]
    folder = write(tmp_path / "hub", {**NEVER_DATA, **OTHERS})
    with pytest.raises(UserError, match=f"^{option}: no file of .* is one of {accepted.noun}; "):
        find_files([str(folder)], accepted)


@pytest.mark.parametrize("option", TAKEN)
@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet", "x.csv", "RS_x.zst", "x.warc.gz"])
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (PAGE, "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
    ],
)
def test_a_failed_download_in_a_folder_is_an_error(
    name: str, option: str, content: bytes, kind: str, tmp_path: Path
) -> None:
    """A file whose name promises what the option takes must not be left out."""
    accepted, taken = TAKEN[option]
    folder = write(tmp_path / "in", {**taken, name: content})
    if accepted.is_promised(name):
        with pytest.raises(UserError, match=f"this is {kind}"):
            find_files([str(folder)], accepted)
        assert str(folder / name) in find_files([str(folder)], accepted, checks_kinds=False)
    else:
        assert len(find_files([str(folder)], accepted)) == len(taken)


def test_a_link_to_a_missing_file_is_an_error_in_a_folder(tmp_path: Path) -> None:
    """Caches of the Hub have links to their files, which a copy loses."""
    folder = write(tmp_path / "snapshot", PARQUET)
    (folder / "other").symlink_to("gone")
    assert len(find_files([str(folder)], texts_of_option("import"))) == len(PARQUET)
    (folder / "train-1.parquet").symlink_to("../../blobs/gone")
    for pattern in (folder, folder / "train*", folder / "train-1.parquet"):
        with pytest.raises(ValueError, match=r"cannot read .*train-1\.parquet"):
            owt.near_duplicates(pattern, workers=1)


def test_a_text_in_a_folder_of_texts_is_taken_whatever_it_begins_with(tmp_path: Path) -> None:
    texts = {"a.md": b"<!-- toc -->\n# A\n", "b.txt": b"https://example.org/ is down.\n", **TEXTS}
    folder = write(tmp_path / "texts", {**texts, **NEVER_DATA})
    assert len(find_files([str(folder)], texts_of_option("import"))) == len(texts)


def test_files_that_were_read_before_count_without_being_there(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", TABLES)
    known = [str(folder / "README.md"), str(folder / "gone.csv"), str(tmp_path / "elsewhere.csv")]
    paths = find_files([str(folder)], LinkTable.accepted, known=known)
    assert [Path(path).name for path in paths] == ["README.md", "gone.csv", "links.csv"]


# The file, the flag that is given, and the words that do what the message advises.
ADVISED: dict[str, bytes] = {
    "a b.arrow": arrow(TABLE, is_stream=False),
    "stream.arrow": arrow(TABLE, is_stream=True),
    "links.zip": zipped("inner.jsonl", ROW),
    "links.tgz": gzip.compress(in_tar("inner.jsonl", ROW)),
    "links.jsonl.lz4": pa.compress(ROW, codec="lz4", asbytes=True),
    "links.parquet.gz": gzip.compress(parquet(TABLE)),
    "links.parquet.bz2": bz2.compress(parquet(TABLE)),
}


@pytest.mark.parametrize("flag", ["--links", "--dumps", "import"])
@pytest.mark.parametrize("name", ADVISED)
def test_a_file_of_another_kind_is_converted_as_advised(
    name: str, flag: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "in", {name: ADVISED[name]}) / name
    words = ["import", tmp_path / "r", file]
    if flag != "import":
        words = ["run", tmp_path / "r", "--until", "collect", flag, file]
    code, output = attempt(words)
    assert code == 1
    assert "iconv" not in output
    command = output.partition("but this is ")[2].partition(" (")[2].strip().removesuffix(")")
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"{command.split()[0]} is not installed")
    command = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", command)
    subprocess.run(command, shell=True, check=True, cwd=file.parent)
    converted = [path for path in file.parent.rglob("*") if path.is_file() and path != file]
    assert attempt(["run", tmp_path / "ok", "--until", "collect", "--links", *converted])[0] == 0
    assert manifest_of(tmp_path / "ok", "urls").counts.left == 1


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="sqlite3 is not installed")
def test_a_table_of_sqlite_is_exported_as_advised(tmp_path: Path) -> None:
    file = tmp_path / "links.db"
    with sqlite3.connect(file) as database:
        database.execute("create table links (url text)")
        database.execute("insert into links values ('https://example.org/7')")
    database.close()
    code, output = attempt(["run", tmp_path / "r", "--until", "collect", "--links", file])
    assert code == 1
    (command,) = re.findall(r"\((sqlite3 .*)\)\s*$", output)
    subprocess.run(command.replace("TABLE", "links"), shell=True, check=True, cwd=tmp_path)
    words = ["run", tmp_path / "ok", "--until", "collect", "--links", tmp_path / "links.csv"]
    assert attempt(words)[0] == 0


WRITERS: dict[str, Callable[[list[str]], list[str]]] = {
    "near-duplicates": lambda files: ["near-duplicates", *files],
    "import": lambda files: ["import", "run", *files],
}


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("name", ["pages", "links.db", "RS.lz4"])
def test_a_command_of_texts_names_other_kinds(
    command: str,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {
        "pages": gzip.decompress(WARC),
        "links.db": b"SQLite format 3\x00",
        "RS.lz4": pa.compress(ROW, codec="lz4", asbytes=True),
    }
    write(tmp_path, {name: contents[name]})
    assert main(WRITERS[command]([name])) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"{name}: {command} takes tables or texts, but this is " in message
