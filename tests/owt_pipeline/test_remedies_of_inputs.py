"""Remedies for files, names and flags: the advice of a message is followed, and works."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import owt_pipeline as owt
from owt_pipeline.commands.setup import preset_names
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.remedies import Words, attempt, follow, heal
from tests.owt_pipeline.runs import ask_owt, manifest_of

TEXTS = [{"text": "Some text of my own."}, {"text": "Another text, with more words."}]
AS_LINES = "".join(json.dumps(text) + "\n" for text in TEXTS)


def shell(command: str, folder: Path) -> None:
    """Run a command of a message in a shell."""
    subprocess.run(["sh", "-c", command], cwd=folder, check=True, timeout=60)


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
@pytest.mark.parametrize(
    "content",
    [
        json.dumps(TEXTS),
        "\n".join(json.dumps(text, indent=2) for text in TEXTS),
    ],
    ids=["array", "pretty"],
)
def test_json_is_converted_to_lines(content: str, tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    path.write_text(content)
    code, output = attempt(["import", tmp_path / "run", path])
    conversion = re.search(r"convert it \((jq .* > (\S+))\)", output)
    assert (code, conversion is not None) == (1, True), output
    assert conversion is not None
    shell(conversion[1], tmp_path)
    assert attempt(["import", tmp_path / "run", conversion[2]])[0] == 0
    assert manifest_of(tmp_path / "run", "documents").counts.left == 2


UTF_16 = {
    "texts.jsonl": ("import", AS_LINES),
    "links.csv": ("--links", "url,score\nhttps://example.org/1,5\nhttps://example.org/2,5\n"),
    "links.txt": ("--links", "https://example.org/1\nhttps://example.org/2\n"),
}


@pytest.mark.skipif(shutil.which("iconv") is None, reason="needs iconv")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", UTF_16)
def test_utf_16_is_converted(name: str, encoding: str, tmp_path: Path) -> None:
    flag, content = UTF_16[name]
    path = tmp_path / name
    run = tmp_path / "run"
    path.write_bytes(content.encode(encoding))
    words: Words = ["import", run, path] if flag == "import" else ["run", run, flag, path]
    until = [] if flag == "import" else ["--until", "collect"]
    code, output = attempt([*words, *until])
    conversion = re.search(r"convert it \((iconv .*?)\)", output)
    assert (code, conversion is not None) == (1, True), output
    assert conversion is not None
    shell(f"{conversion[1]} > converted && mv converted {name}", tmp_path)
    assert attempt([*words, *until])[0] == 0
    dataset = "documents" if flag == "import" else "urls"
    assert manifest_of(run, dataset).counts.left == 2


@pytest.mark.parametrize(
    "content", [b"", gzip.compress(AS_LINES.encode() * 99)[:-40]], ids=["empty", "cut off"]
)
def test_a_damaged_file_of_texts_is_created_again(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl.gz"
    path.write_bytes(content)
    words = ["import", tmp_path / "run", path]
    code, output = attempt(words)
    assert (code, "download or create it again" in output) == (1, True), output
    path.write_bytes(gzip.compress(AS_LINES.encode()))
    assert attempt(words)[0] == 0


def test_a_text_in_another_charset_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    run = tmp_path / "run"
    path.write_bytes("Ein schöner Brief.".encode("latin-1"))
    _, output = attempt(["import", run, path])
    assert "import: imported no document; " in output, output
    rejects = re.search(r"imported no document; (\S+) lists the reasons", output)
    assert rejects is not None
    tables = [pq.read_table(file) for file in Path(rejects[1]).glob("*.parquet")]
    (table,) = [table for table in tables if table.num_rows]
    assert "convert it first (iconv)" in table["detail"][0].as_py()
    shell("iconv -f latin1 -t UTF-8 letter.txt > utf-8 && mv utf-8 letter.txt", tmp_path)
    assert attempt(["import", run, path])[0] == 0
    assert manifest_of(run, "documents").counts.left == 1


def test_a_file_with_an_unknown_extension_has_a_format(tmp_path: Path) -> None:
    path = tmp_path / "texts.data"
    path.write_text("id,text\n1,A sentence of the text.\n")
    words = ["import", tmp_path / "run", path]
    code, output = attempt(words)
    assert (code, "unknown extension; use one of" in output) == (1, True)
    assert attempt([*words, "--format", "csv"])[0] == 0


def test_no_files_are_named_as_in_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_text(AS_LINES)
    code, output = attempt(["import", tmp_path / "a run"])
    advised = re.search(r"as in `owt (import .*)`", output)
    assert (code, advised is not None) == (2, True)
    assert advised is not None
    assert attempt([*shlex.split(advised[1]), "--workers", "1"])[0] == 0
    assert manifest_of(tmp_path / "a run", "documents").counts.left == 2


@pytest.mark.parametrize("source", ["dump as links", "links as dump"])
def test_a_source_of_another_kind_is_given_by_its_own_flag(source: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    run = tmp_path / "run"
    submission = {"id": "a", "permalink": "/r/a", "score": 9, "created_utc": 1546300800}
    is_dump = source == "dump as links"
    path.write_text(json.dumps(submission) + "\n" if is_dump else "https://example.org/1\n" * 3)
    mistake, correction = ("--links", "--dumps") if is_dump else ("--dumps", "--links")
    code, output = attempt(["run", run, mistake, path, "--until", "collect"])
    assert (code, ("check what the file is" if is_dump else "`owt run RUN --links") in output) == (
        1,
        True,
    ), output
    assert attempt(["run", run, correction, path, "--until", "collect"])[0] == 0


def test_collect_has_a_source(tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    words: Words = ["run", tmp_path / "run", "--until", "collect"]
    code, output = attempt(words)
    advised = re.search(r"at least one of --dumps, (--links)", output)
    assert (code, advised is not None) == (1, True), output
    assert advised is not None
    assert attempt([*words, advised[1], tmp_path / "links.txt"])[0] == 0


@pytest.mark.parametrize("typo", ["webtxt", "openwebtxt", "connorj", "strickt", "WebText"])
def test_a_mistyped_preset_is_corrected(typo: str, tmp_path: Path) -> None:
    code, output = attempt(["init", tmp_path / "run", "--preset", typo])
    spelling = re.search(r"did you mean '(\w+)'(?: or '\w+')?\?", output)
    assert (code, spelling is not None) == (2, True), output
    assert spelling is not None
    assert spelling[1] in preset_names()
    assert attempt(["init", tmp_path / "run", "--preset", spelling[1]])[0] == 0


@pytest.mark.parametrize("remedy", ["edit", "delete"])
def test_settings_that_exist_are_edited_or_deleted(remedy: str, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    ask_owt("init", run)
    words: Words = ["init", run, "--preset", "webtext"]
    code, output = attempt(words)
    path = re.search(r"error: (.*) exists: edit it, or delete it", output)
    assert (code, path is not None) == (1, True)
    assert path is not None
    if remedy == "delete":
        Path(path[1]).unlink()
        assert attempt(words)[0] == 0
        return
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    text = Path(path[1]).read_text()
    edited = text.replace("# links = []", f'links = ["{tmp_path}/links.txt"]')
    Path(path[1]).write_text(edited)
    assert attempt(["run", run, "--until", "collect"])[0] == 0


@pytest.mark.parametrize(
    ("mistake", "correction"),
    [
        ("[cleen]\nmin_tokens = 5\n", "[clean]\nmin_tokens = 5\n"),
        ("[clean]\nmin_tokenz = 5\n", "[clean]\nmin_tokens = 5\n"),
        ("[run]\nworkes = 1\n", "[run]\nworkers = 1\n"),
        ("[clean]\nfilters = ['gopher_qualty']\n", "[clean]\nfilters = ['gopher_quality']\n"),
        ("min_tokens = 5\n", "[clean]\nmin_tokens = 5\n"),
    ],
)
def test_a_mistake_in_settings_is_corrected(mistake: str, correction: str, tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    settings = tmp_path / "my.toml"
    settings.write_text(mistake)
    links = ["--links", tmp_path / "links.txt", "--user_agent", "a b@example.org"]
    words: Words = ["run", tmp_path / "run", settings, *links, "--dry_run"]
    code, output = attempt(words)
    assert code == 2
    advice = r"did you mean '(\w+)'|put it under the table of its stage, such as \[clean\]"
    spelling = re.search(advice, output)
    assert spelling is not None, output
    if spelling[1]:
        near = re.search(rf"\W({re.escape(spelling[1])})\W", correction)
        assert near is not None
    settings.write_text(correction)
    assert attempt(words)[0] == 0


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_settings_in_utf_16_are_saved_again(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    text = f'[collect]\nlinks = ["{tmp_path}/links.txt"]\n'
    settings = tmp_path / "my.toml"
    settings.write_text(text, encoding="utf-16")
    words: Words = ["run", tmp_path / "run", settings, "--until", "collect"]
    code, output = attempt(words)
    assert (code, "save it as UTF-8" in output) == (2, True)
    settings.write_text(text, encoding=encoding)
    assert attempt(words)[0] == 0


def test_a_stage_is_run_by_the_command_that_is_advised(tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    run = tmp_path / "a run"
    code, output = attempt(["collect", run, "--links", tmp_path / "links.txt"])
    assert (code, "collect is a stage: run `" in output) == (2, True)
    follow(output, [])
    assert manifest_of(run, "urls").counts.left == 1


@pytest.mark.parametrize("words", [["verfy"], ["ls", "--jsn"], ["near-duplicate", "x"]])
def test_a_mistyped_command_or_flag_is_explained(words: list[str], tmp_path: Path) -> None:
    code, output = attempt(words)
    assert code == 2
    if help_command := re.search(r"see (owt [\w-]+ --help)", output):
        with pytest.raises(SystemExit) as exit_info:
            attempt(help_command[1].split()[1:])
        assert exit_info.value.code == 0
        return
    spelling = re.search(r"did you mean '([\w-]+)'", output)
    assert spelling is not None, output
    with pytest.raises(SystemExit) as exit_info:
        attempt([spelling[1], "--help"])
    assert exit_info.value.code == 0


def test_an_unknown_flag_names_the_help_that_has_all(tmp_path: Path) -> None:
    code, output = attempt(["import", tmp_path / "run", "a.txt", "--min_tokens", "3"])
    help_command = re.search(r"see `(owt import --help)`", output)
    assert (code, help_command is not None) == (2, True)
    assert help_command is not None
    with pytest.raises(SystemExit):
        attempt(help_command[1].split()[1:])


def test_a_run_goes_into_another_folder(tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    (tmp_path / "texts.jsonl").write_text(AS_LINES)
    links = ["--links", tmp_path / "links.txt", "--until", "collect"]
    code, output = attempt(["run", tmp_path, *links])
    assert (code, "give a new folder" in output) == (1, True)
    assert attempt(["run", tmp_path / "new", *links])[0] == 0
    code, output = attempt(["import", tmp_path / "new", tmp_path / "texts.jsonl"])
    assert (code, "use another folder" in output) == (1, True)
    assert attempt(["import", tmp_path / "newer", tmp_path / "texts.jsonl"])[0] == 0
    taken = tmp_path / "links.txt"
    code, output = attempt(["run", taken, *links])
    assert (code, "name another path" in output) == (1, True)
    code, output = attempt(["run", "ftp://somewhere/run", *links])
    assert "use a local path, gs://, s3:// or az://" in output
    code, output = attempt(["run", *links])
    assert (code, "RUN is required" in output) == (2, True)


def test_missing_inputs_are_made_first(tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    code, output = attempt(["ls", tmp_path / "missing"])
    assert code == 3
    assert "check the path" in output or "owt run" in output
    (tmp_path / "texts.jsonl").write_text(AS_LINES)
    run = tmp_path / "a run"
    ask_owt("import", run, tmp_path / "texts.jsonl")
    ask_owt("run", run, "--until", "clean", "--min_tokens", 1, "--languages", "all")
    heal(["train-tokenizer", run, "--vocab_size", "300"], "is missing or not finished")
    advised = re.search(r"use it with `owt (run .*)`", attempt(["train-tokenizer", run])[1])
    assert advised is not None
    assert attempt(list(shlex.split(advised[1])))[0] == 0


def test_copies_have_another_name_than_the_source(tmp_path: Path) -> None:
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one text", "one text", "another"]}), table)
    find: Words = ["near-duplicates", table, "--workers", "1"]
    for mistake in (["--out", table], ["--unique", tmp_path], ["--out", tmp_path]):
        code, output = attempt([*find, *mistake])
        assert (code, "name another one" in output) == (2, True), (mistake, output)
    for name in ("pairs.csv", "pairs.jsonl.gz", "pairs.txt"):
        code, output = attempt([*find, "--out", tmp_path / name])
        assert (code, "the file is Parquet: name it .parquet" in output) == (2, True)
        assert not (tmp_path / name).exists()
    unique = tmp_path / "unique.parquet"
    code, output = attempt([*find, "--unique", unique, "--out", unique])
    assert (code, "or another target: name another one" in output) == (2, True)
    assert attempt([*find, "--unique", unique, "--out", tmp_path / "pairs.parquet"])[0] == 0
    mixed = tmp_path / "a.jsonl"
    mixed.write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "1"}\n')
    words: Words = ["near-duplicates", mixed, "--out", tmp_path / "rows.parquet", "--workers", "1"]
    code, output = attempt([*words, "--unique", tmp_path / "more.parquet"])
    assert (code, "leave the option out; --out writes which records" in output) == (1, True)
    assert attempt(words)[0] == 0


@pytest.mark.parametrize("line", ["min_score = 5", "min_tokens = 16", "workers = 1"])
def test_a_key_outside_a_table_is_put_under_its_table(line: str, tmp_path: Path) -> None:
    key = line.split()[0]
    links = tmp_path / "links.txt"
    links.write_text("https://example.org/\n")
    settings = tmp_path / "my.toml"
    settings.write_text(f"{line}\n")
    words: Words = ["run", tmp_path / "run", settings, "--links", links, "--until", "collect"]
    code, output = attempt(words)
    assert (code, f"'{key}' is outside a table; put it under" in output) == (2, True)
    assert "`owt init` writes has each key in its table" in output
    assert attempt(["init", tmp_path / "other"])[0] == 0
    initial = (tmp_path / "other/settings.toml").read_text()
    # The first table that has the key, which the file has as a comment.
    table = initial.partition(f"\n# {key} = ")[0].rpartition("\n[")[2].partition("]")[0]
    settings.write_text(f"[{table}]\n{line}\n")
    assert attempt(words)[0] == 0


def test_texts_are_given_as_a_list() -> None:
    with pytest.raises(Exception, match="give a list of texts"):
        owt.near_duplicates("one text")  # type: ignore[arg-type]
    assert owt.near_duplicates(["one text"]) is not None


@pytest.mark.parametrize(
    ("mistake", "correction"),
    [
        (["--languages", "eng"], ["--languages", "en"]),
        (["--uncurl_quotes", "--no_fix_text"], ["--uncurl_quotes"]),
        (["--sources", "archive"], ["--sources", "archive", "--pages_from", "ARCHIVE"]),
        (["--cc_crawls", "CC-MAIN-2024-10"], []),
        (["--sources", "commoncrawl"], ["--sources", "live"]),
        (["--user_agent", "nobody"], ["--user_agent", "my-crawl/1.0 (+mailto:me@example.org)"]),
        (["--user_agent", "näme a@b.org"], ["--user_agent", "my-crawl/1.0 (+mailto:me@a.org)"]),
        (["--val_fraction", "2"], ["--val_fraction", "0.2"]),
    ],
)
def test_an_impossible_flag_is_replaced_as_advised(
    mistake: list[str], correction: list[str], tmp_path: Path
) -> None:
    ask_owt("demo", "--write_inputs", tmp_path)
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    words: Words = ["run", tmp_path / "run", "--links", tmp_path / "links.txt", "--dry_run"]
    agent = [] if "--user_agent" in mistake else ["--user_agent", "a b@example.org"]
    code, output = attempt([*words, *agent, *mistake])
    assert code in (1, 2), output
    archive = str(tmp_path / "demo.warc.gz")
    flags = [archive if flag == "ARCHIVE" else flag for flag in correction]
    code, output = attempt([*words, *agent, *flags])
    assert code == 0, output


def test_a_path_that_is_not_utf_8_is_renamed(tmp_path: Path) -> None:
    mistake = os.fsdecode(bytes(tmp_path) + b"/\xff.txt")
    Path(mistake).write_text("https://example.org/1\n")
    words: Words = ["run", tmp_path / "run", "--until", "collect", "--links"]
    code, output = attempt([*words, mistake])
    assert (code, "is not UTF-8: rename it" in output) == (1, True)
    Path(mistake).rename(tmp_path / "links.txt")
    assert attempt([*words, tmp_path / "links.txt"])[0] == 0


def test_a_file_that_cannot_be_opened_gets_another_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error is raised in its place, since the tests may run as root, whom no mode stops."""
    (tmp_path / "links.txt").write_text("https://example.org/1\n")
    words: Words = [
        "run",
        tmp_path / "run",
        "--links",
        tmp_path / "links.txt",
        "--until",
        "collect",
    ]
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied", str(tmp_path / "run"))

        patch.setattr(Storage, "create", refuse)
        patch.setattr(Storage, "swap", refuse)
        code, output = attempt(words)
    assert (code, "check its owner and mode" in output) == (1, True), output
    assert attempt(words)[0] == 0


def test_documents_of_the_same_text_are_named_too(tmp_path: Path) -> None:
    text = " ".join(f"word{n}" for n in range(200))
    rows = [{"text": text + ".", "url": f"https://h.example/{n}"} for n in range(2)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    ask_owt("import", run, tmp_path / "texts.jsonl")
    flags = ["--languages", "all", "--rules", "none", "--workers", "1"]
    assert attempt(["run", run, *flags])[0] == 0
    takedowns = tmp_path / "list.txt"
    takedowns.write_text("https://h.example/0\n")
    _, output = attempt(["forget", run, takedowns, "--workers", "1"])
    if other_document := re.search(r"with the same text: (\S+); add them to the list", output):
        takedowns.write_text(f"{other_document[1]}\n")
        assert attempt(["forget", run, takedowns, "--workers", "1"])[0] == 0
    assert manifest_of(run, "corpus").counts.left == 0
