"""owt import turns the user's texts into documents/."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline import cli
from owt_pipeline.commands.verify import verify
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats import records
from owt_pipeline.formats.records import MAX_RECORD_BYTES, read_records
from owt_pipeline.formats.urls import canonical_url, id_of
from owt_pipeline.ledger import exchange
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.import_text import groups
from owt_pipeline.stages.import_text.options import Options
from owt_pipeline.stages.import_text.stage import STAGE
from owt_pipeline.storage.folder import Storage
from schemas.manifest import Manifest
from tests.owt_pipeline.runs import ask_owt, snapshot

FOLDER = Path(__file__).parent


def json_lines(*rows: Any) -> bytes:
    """Return rows as JSON lines."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def imported(workdir: Path, *files: Path | str, **options: Any) -> Manifest:
    """Run import over files; return its manifest."""
    chosen = Options(files=tuple(map(str, files)), **{"num_shards": 3, **options})
    return run_stage(STAGE, chosen, Runtime(Storage(str(workdir))))[0]


def reader_of(workdir: Path) -> DatasetReader:
    """Return a reader of the imported documents."""
    return DatasetReader.open(Storage(str(workdir)), "documents")


def documents(workdir: Path) -> list[dict[str, Any]]:
    """Return the imported documents in the order of their texts."""
    return sorted(reader_of(workdir).table().to_pylist(), key=lambda row: row["text"])


def rejects(workdir: Path) -> list[tuple[str, str]]:
    """Return the reasons and details of the rejects, sorted."""
    rows = reader_of(workdir).table(kind="rejects").to_pylist()
    return sorted((row["reason"], row["detail"]) for row in rows)


@pytest.mark.parametrize(("extension", "compress"), [("", bytes), (".zst", zstandard.compress)])
def test_json_lines_are_imported_plain_or_compressed(
    tmp_path: Path, extension: str, compress: Callable[[bytes], bytes]
) -> None:
    url = "http://www.Example.com/a/?utm_source=x"
    rows = [
        {
            "text": "first",
            "url": url,
            "title": "T",
            "author": "A",
            "date": "2013-05-06T07:08",
            "language": "en",
        },
        {"text": "second", "title": 7, "date": "yesterday"},
    ]
    path = tmp_path / f"in.jsonl{extension}"
    path.write_bytes(compress(json_lines(*rows)))
    manifest = imported(tmp_path / "run", path)
    assert str(manifest.counts) == "2 in = 2 out"
    first, second = documents(tmp_path / "run")
    assert {name: value for name, value in first.items() if value is not None} == {
        "url_id": id_of(canonical_url(url)),
        "url": canonical_url(url),
        "text": "first",
        "title": "T",
        "author": "A",
        "date": "2013-05-06",
        "language": "en",
        "subreddits": [],
    }
    assert {name: value for name, value in second.items() if value is not None} == {
        "url_id": xxhash.xxh3_64_intdigest(b"second"),
        "text": "second",
        "subreddits": [],
    }


def test_dates_that_are_not_understood_are_counted(tmp_path: Path) -> None:
    dates = [
        "2019-01-31",
        "Thu, 31 Jan 2019 12:00:00 GMT",
        20190131,
        "01/02/2019",
        None,
        "n/a",
        "Jan 2019",
        43496,
    ]
    for name, part in (("a", dates[:4]), ("b", dates[4:])):
        records = [json.dumps({"text": f"text {date}", "day": date}) for date in part]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(records))
    words = ("import", tmp_path / "run", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    printed = ask_owt(*words, "--date_field", "day")
    assert "import: field day: 3 of 6 dates are not understood and become null" in printed
    assert "the first is '01/02/2019' (a.jsonl:4); understood are 2019-01-31, " in printed
    found = {row["text"]: row["date"] for row in documents(tmp_path / "run")}
    read = {f"text {date}": "2019-01-31" for date in dates[:3]}
    assert found == {f"text {date}": None for date in dates} | read
    # A finished import is not read again.
    assert "not understood" not in ask_owt(*words)


def test_every_record_is_imported_or_rejected_with_its_place(tmp_path: Path) -> None:
    """records.txt has the outcome of each record of records/.

    The first document of a URL is kept, in the order of the names of files.
    """
    manifest = imported(tmp_path, FOLDER / "records/b.jsonl", FOLDER / "records/a.jsonl")
    outcomes = [f"{row['text']} {row['url'] or ''}".strip() for row in documents(tmp_path)]
    outcomes += [f"{reason}: {detail}" for reason, detail in rejects(tmp_path)]
    assert sorted(outcomes) == (FOLDER / "records.txt").read_text().splitlines()
    assert str(manifest.counts) == "14 in = 5 out + 5 bad_record + 2 empty_text + 2 repeated_id"
    for finding in verify(Storage(str(tmp_path))):
        assert finding.problems == []


def test_parquet_is_imported_by_columns_including_nested_ones(tmp_path: Path) -> None:
    table = pa.table(
        {
            "body": ["first", None, "third"],
            "meta": [
                {"link": "http://h.org/1", "on": pa.scalar(0, pa.date32()).as_py()},
                None,
                {"link": None},
            ],
            "rest": [b"x" * 1000] * 3,
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    names = {"text_field": "body", "url_field": "meta.link", "date_field": "meta.on"}
    manifest = imported(tmp_path / "run", tmp_path / "in.parquet", **names)
    assert str(manifest.counts) == "3 in = 2 out + 1 empty_text"
    rows = [(row["text"], row["url"], row["date"]) for row in documents(tmp_path / "run")]
    assert rows == [("first", "https://h.org/1", "1970-01-01"), ("third", None, None)]
    with pytest.raises(UserError, match=r"none of the columns .*text.*; it has body, meta, rest"):
        imported(tmp_path / "run2", tmp_path / "in.parquet")


def test_plain_text_is_one_document_per_file_or_block(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes("\ufeffOne\n two\n\n\nThree\n".encode())
    (tmp_path / "in" / "b.md.gz").write_bytes(gzip.compress(b"\n\nFour"))
    (tmp_path / "in" / "c.txt").write_bytes(b"caf\xe9")
    imported(tmp_path / "run", tmp_path / "in")
    assert [row["text"] for row in documents(tmp_path / "run")] == [
        "\n\nFour",
        "One\n two\n\n\nThree\n",
    ]
    assert rejects(tmp_path / "run") == [
        ("bad_record", "c.txt:1: not UTF-8 at byte 3; convert it first (iconv)")
    ]
    imported(tmp_path / "run", tmp_path / "in", split_text="blank_lines")
    assert [row["text"] for row in documents(tmp_path / "run")] == ["Four", "One\n two", "Three"]


WIKITEXT = (
    " \n = Robert Boulter = \n \n Robert Boulter is an English film , television actor . \n"
    " \n = = Career = = \n \n = = = 2000 – 2005 = = = \n \n In 2000 Boulter had a role ; x = 2 = y "
    ". \n"
    " \n = = \n \n = Du Fu = \n \n Du Fu ( Chinese : 杜甫 ; 712 – 770 ) was a <unk> @-@ poet . \n"
    " = Not a title = \n \n = The sign = of equality = \n \n"
)


@pytest.mark.parametrize("name", ["wiki.valid.raw", "wiki.valid.tokens"])
def test_each_article_of_wikitext_is_a_document_byte_for_byte(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(WIKITEXT)
    all_records = read_records(
        str(tmp_path / name), name, "text", columns=(), split_text="wikitext"
    )
    articles = [record for record in all_records if record.fields]
    texts = [article.fields["text"] for article in articles]
    assert "".join(texts) == WIKITEXT
    assert [text.split(" = ")[1] for text in texts] == ["Robert Boulter", "Du Fu", "The sign"]
    assert [article.where for article in articles] == [f"{name}:{line}" for line in (1, 14, 19)]
    imported(tmp_path / "run", tmp_path / name, split_text="wikitext")
    assert sorted(row["text"] for row in documents(tmp_path / "run")) == sorted(texts)
    imported(tmp_path / "run", tmp_path / name)
    assert [row["text"] for row in documents(tmp_path / "run")] == [WIKITEXT]


def texts_of(path: Path, split_text: str) -> list[str]:
    """Return the texts of a file that is split in a way."""
    texts = read_records(str(path), "in", "text", columns=(), split_text=split_text)
    return [record.fields["text"] for record in texts if record.fields]


LINES = [" = A = \n", " = = B = = \n", " \n", " some words . \n", "\n", " = C =\n"]


@given(st.lists(st.sampled_from(LINES), max_size=20), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=100)
def test_blank_lines_and_titles_lose_no_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str
) -> None:
    path = tmp_path_factory.mktemp("text") / "wiki.test.tokens"
    content = "".join(lines).replace("\n", end)
    path.write_bytes(content.encode())
    texts = texts_of(path, "wikitext")
    assert "".join(texts) == content
    is_blank = [not line.strip() for line in lines]
    title_numbers = []
    for number, line in enumerate(lines):
        is_first = not any(is_blank[:number])
        if line == " = A = \n" and (is_blank[number - 1] or is_first):
            title_numbers.append(number)
    has_text_before_titles = any(lines)
    if title_numbers:
        has_text_before_titles = not all(is_blank[: title_numbers[0]])
    assert len(texts) == len(title_numbers) + has_text_before_titles
    lines_of_blocks = []
    for text in texts_of(path, "blank_lines"):
        lines_of_blocks += text.splitlines()
    assert lines_of_blocks == [line for line in content.splitlines() if line.strip()]


@given(
    st.lists(
        st.dictionaries(st.text(max_size=5), st.text(max_size=30) | st.integers(0, 9)), max_size=8
    )
)
@settings(max_examples=100)
def test_json_lines_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict]
) -> None:
    path = tmp_path_factory.mktemp("json") / "in.jsonl"
    path.write_bytes(json_lines(*rows))
    read = read_records(str(path), "in", "jsonl", columns=(), split_text="file")
    expected = [(f"in:{line}", row) for line, row in enumerate(rows, 1)]
    assert [(record.where, record.fields) for record in read] == expected


def test_an_overlong_line_is_one_bad_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert MAX_RECORD_BYTES == 256 << 20
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 3 << 20)
    (tmp_path / "in.jsonl").write_bytes(json_lines({"text": "a" * (40 << 20)}, {"text": "b"}))
    imported(tmp_path / "run", tmp_path / "in.jsonl")
    assert [row["text"] for row in documents(tmp_path / "run")] == ["b"]
    assert rejects(tmp_path / "run") == [("bad_record", "in.jsonl:1: longer than 3145728 bytes")]
    imported(tmp_path / "none", tmp_path / "in.jsonl", text_field="body")
    assert "is --text_field right?" in caplog.text


def test_shards_follow_ids_and_do_not_depend_on_buffer_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(3):
        rows = [{"text": f"text {i % 700} " * 20} for i in range(part * 400, part * 400 + 400)]
        (tmp_path / f"{part}.jsonl").write_bytes(json_lines(*rows))
    complete = imported(tmp_path / "complete", tmp_path / "*.jsonl")
    assert str(complete.counts) == "1200 in = 700 out + 500 repeated_id"
    reader = reader_of(tmp_path / "complete")
    for shard in range(3):
        ids = reader.table(shard)["url_id"].to_pylist()
        assert ids
        assert {i % 3 for i in ids} == {shard}
    monkeypatch.setattr(exchange, "_MAX_WAITING_BYTES", 10_000)
    monkeypatch.setattr(groups, "_MAX_GROUP_FILES", 1)
    assert imported(tmp_path / "pieces", tmp_path / "*.jsonl").digest == complete.digest


def test_changed_byte_in_a_file_runs_import_again(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(json_lines(*({"text": f"{i} " + "x" * 1000} for i in range(5000))))
    options = Options(files=(str(path),))
    runtime = Runtime(Storage(str(tmp_path / "run")))
    _, ran = run_stage(STAGE, options, runtime)
    assert ran
    _, ran = run_stage(STAGE, options, runtime)
    assert not ran
    with path.open("r+b") as file:
        file.seek(2_500_000)
        file.write(b"y")
    _, ran = run_stage(STAGE, options, runtime)
    assert ran


def test_the_command_takes_files_without_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines({"body": name}))
    run = str(tmp_path / "run")
    arguments = [run, str(tmp_path / "a.jsonl"), "--text_field", "body", str(tmp_path / "b.jsonl")]
    assert cli.main(["import", *arguments]) == 0
    assert [row["text"] for row in documents(tmp_path / "run")] == ["a", "b"]
    # The settings of the run name the files.
    assert cli.main(["import", run]) == 0
    assert "2 in = 2 out (finished)" in capsys.readouterr().err
    assert cli.main(["import", str(tmp_path / "another")]) == 2
    assert "the command has no files to import" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "cut.jsonl.gz",
            gzip.compress(b"x" * 100_000)[:-9],
            "cut.jsonl.gz is damaged or incomplete",
        ),
        (
            "bad.jsonl.zst",
            zstandard.compress(b"x" * 1000)[:9] + b"zz",
            "bad.jsonl.zst is damaged or incomplete",
        ),
        ("no.parquet", b"not parquet", "no.parquet cannot be read as Parquet"),
        ("in.doc", b"x", r"in.doc: unknown extension; use one of .*--format"),
    ],
)
def test_unreadable_file_is_one_clear_error(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=problem):
        imported(tmp_path / "run", tmp_path / name)


def test_a_run_that_collected_is_not_imported_into(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "mine"}\n')
    output = ask_owt("import", small_run, tmp_path / "in.jsonl", code=1)
    assert "contains collected URLs, which import would replace" in output
    assert not (small_run / "ledger/import").exists()


def test_damaged_text_is_imported_again_in_its_place(small_config: Path, tmp_path: Path) -> None:
    post = tmp_path / "post.jsonl"
    run = tmp_path / "run"
    post.write_bytes(json_lines({"text": "one"}, {"text": "two"}))
    command = ("import", run, post, "--num_shards", 1, "--workers", 1)
    ask_owt(*command)
    files_before = snapshot(run)
    (path,) = run.glob("documents/part-00000-*.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    assert f"{path}" in ask_owt("verify", run, "--repair", code=1)
    assert not path.exists()
    output = ask_owt("run", run, small_config, "--min_tokens", 1, "--until", "clean", code=1)
    assert f"run `owt import {run} {small_config}` with the same files to rebuild it" in output
    assert not (run / "ledger/urls").exists()
    ask_owt(*command)
    assert snapshot(run) == files_before


FOLDERS = {
    "spark": (
        ["_SUCCESS", "_temporary/0/part.jsonl", ".part-0.jsonl.crc", "part-0.jsonl"],
        ["part-0.jsonl"],
        ["_SUCCESS", "_temporary/", ".part-0.jsonl.crc"],
    ),
    "hub": (
        ["README.md", "data/a.jsonl", "b/b.jsonl", ".gitattributes"],
        ["data/a.jsonl", "b/b.jsonl"],
        ["README.md", ".gitattributes"],
    ),
    "texts": (["a.md", "notes/a.txt", ".git/x.txt"], ["a.md", "notes/a.txt"], [".git/"]),
    "other": (
        ["a.jsonl", "picture.png", "deep/er/b.jsonl"],
        ["a.jsonl", "deep/er/b.jsonl"],
        ["picture.png"],
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_is_read_with_its_subfolders(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    names, read, left_out = FOLDERS[case]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        content = b"\x89PNG\r\n" if name.endswith(".png") else json_lines({"text": name})
        (tmp_path / "in" / name).write_bytes(content)
    imported(tmp_path / "run", tmp_path / "in")
    assert len(documents(tmp_path / "run")) == len(read)
    assert all(any(name in row["text"] for row in documents(tmp_path / "run")) for name in read)
    messages = [message for message in caplog.messages if "skipped what is not" in message]
    assert len(messages) == bool(left_out)
    for message in messages:
        assert all(name in message for name in left_out)


def test_hidden_files_are_read_if_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "_a.jsonl").write_bytes(json_lines({"text": "one"}))
    (tmp_path / "b.jsonl").write_bytes(json_lines({"text": "two"}))
    text_by_pattern = {"_a.jsonl": "one", "_*.jsonl": "one", "*.jsonl": "two"}
    for number, (pattern, text) in enumerate(text_by_pattern.items()):
        run = tmp_path / str(number)
        imported(run, tmp_path / pattern)
        assert [row["text"] for row in documents(run)] == [text]
