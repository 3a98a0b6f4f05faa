"""Remedies: what an error message advises is done, and then the same command works."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from owt_pipeline.cli import main
from tests.owt_pipeline.runs import ask_owt, copy_of, files_of, run_here

Words = list[object]
_COMMAND = re.compile(r"`(owt [^`]+)`")
_RENAMING = re.compile(r"rename its column (\S+) to (\w+)")
_FLAG = re.compile(r"(?:give|with) (--\w+)\b(?! \S+ is)")
_EXAMPLE_OF_FLAG = re.compile(r"(--\w+): [^;]+; give .*, as in ('[^']+')")
_SPELLING = re.compile(r"did you mean '?(-*\w+)")


def attempt(words: Words) -> tuple[int, str]:
    """Run `owt` in this process; return its exit code and what it printed."""
    codes: list[int] = []

    def run() -> int:
        codes.append(main([str(word) for word in words]))
        return 0

    output = run_here(run)
    return codes[0], output


def follow(message: str, words: Words, table: Path | None = None) -> Words:
    """Do what a message advises; return the words of the command to run again.

    Commands are executed as they stand. A flag, or a spelling, goes into the returned command. A
    column is renamed in `table`. Fails if the message advises nothing of these.
    """
    if renaming := _RENAMING.search(message):
        assert table is not None
        table.write_text(table.read_text().replace(renaming[1], renaming[2], 1))
        return words
    if commands := _COMMAND.findall(message):
        for command in commands:
            _, output = attempt(list(shlex.split(command)[1:]))
            assert "owt: error" not in output, f"{command}: {output}"
        return words
    if example := _EXAMPLE_OF_FLAG.search(message):
        return [*words, example[1], *shlex.split(example[2])]
    if spelling := _SPELLING.search(message):
        wrong = next(word for word in words if f"{word}" in message and word != "run")
        return [spelling[1] if word == wrong else word for word in words]
    flag = _FLAG.search(message)
    assert flag is not None, f"nothing is advised: {message}"
    return [*words, flag[1]]


def heal(words: Words, expected: str, table: Path | None = None) -> str:
    """Run a command that fails, do what it advises, run it again; return the first output."""
    code, output = attempt(words)
    assert code != 0, output
    assert expected in output
    message = output[output.index(expected) :]
    code, again = attempt(follow(message, words, table))
    assert code == 0, f"{output}\nafter what it advises: {again}"
    return output


def write_dump(path: Path, number: int) -> Path:
    """Write a dump of one submission with a link of its own."""
    submission = {
        "id": f"a{number}", "url": f"https://example.org/{number}", "score": 9, "is_self": False,
        "over_18": False, "created_utc": 1546300800, "subreddit": "a", "title": "t",
        "num_comments": 1,
    }  # fmt: skip
    path.write_text(json.dumps(submission) + "\n")
    return path


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the demo's pages, with settings of its own. Its path has a space."""
    folder = tmp_path_factory.mktemp("remedies") / "my inputs"
    ask_owt("demo", "--write_inputs", folder)
    run = folder / "a run"
    sources = ("--dumps", folder / "RS_demo.zst", "--pages_from", folder / "demo.warc.gz")
    ask_owt("run", run, *sources, "--num_shards", 2, "--min_tokens", 64, "--workers", 1)
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, whose path has a space, too."""
    return copy_of(finished_run, tmp_path / "a run")


def test_a_damaged_file_is_removed_and_made_again(run: Path) -> None:
    path = run / files_of(run, "corpus")[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-50] + b"x" * 50)
    heal(["verify", run], "file(s) are damaged")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "dataset",
    [
        "clean",
        pytest.param("documents", marks=pytest.mark.slow),
        pytest.param("pages", marks=pytest.mark.slow),
    ],
)
def test_a_file_that_cannot_be_read_is_made_again(run: Path, dataset: str) -> None:
    path = run / files_of(run, dataset)[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-50] + b"x" * 50)
    changed = {
        "clean": ["--threshold", "0.7"],
        "documents": ["--min_tokens", "60"],
        "pages": ["--favor", "recall"],
    }
    heal(["run", run, *changed[dataset], "--workers", "1"], "cannot be read")
    assert path.read_bytes() == content


def test_a_run_without_documents_says_how_to_make_them(run: Path, tmp_path: Path) -> None:
    inputs = run.parent / "inputs"
    ask_owt("demo", "--write_inputs", inputs)
    sources = ("--dumps", inputs / "RS_demo.zst", "--pages_from", inputs / "demo.warc.gz")
    ask_owt("run", tmp_path / "a new run", *sources, "--until", "fetch", "--num_shards", 1)
    heal(["sample-documents", tmp_path / "a new run"], "the run has no documents")


@pytest.fixture
def month(tmp_path: Path) -> Callable[[int], Path]:
    return lambda number: write_dump(tmp_path / f"RS {number}.ndjson", number)


@pytest.mark.parametrize("names_first", [False, True])
def test_a_second_month_is_added(
    tmp_path: Path, month: Callable[[int], Path], names_first: bool
) -> None:
    run = tmp_path / "a run"
    ask_owt("run", run, "--dumps", month(1), "--until", "collect")
    dumps = [month(1), month(2)] if names_first else [month(2)]
    code, output = attempt(["run", run, "--dumps", *dumps, "--until", "collect"])
    assert code == 1
    assert f"owt run {shlex.quote(str(run))} --add --dumps {shlex.quote(str(month(2)))}" in output
    (command,) = _COMMAND.findall(output)
    assert attempt([*shlex.split(command)[1:], "--until", "collect"])[0] == 0
    assert attempt(["run", run, "--until", "collect"])[0] == 0


@pytest.mark.parametrize("flag", ["--links", "--warcs"])
def test_a_second_source_of_another_kind_is_added(
    tmp_path: Path, month: Callable[[int], Path], finished_run: Path, flag: str
) -> None:
    run, links = tmp_path / "a run", tmp_path / "my links.txt"
    links.write_text("https://example.org/other\n")
    ask_owt("run", run, "--dumps", month(1), "--until", "collect")
    source = links if flag == "--links" else finished_run.parent / "demo.warc.gz"
    _, output = attempt(["run", run, flag, source, "--until", "collect"])
    (command,) = _COMMAND.findall(output)
    assert shlex.split(command)[3:] == ["--add", flag, str(source)]
    assert attempt([*shlex.split(command)[1:], "--until", "collect"])[0] == 0


def test_new_text_is_added(tmp_path: Path) -> None:
    first, second = tmp_path / "my first.jsonl", tmp_path / "my second.jsonl"
    first.write_text('{"text": "One text."}\n')
    second.write_text('{"text": "Another text."}\n')
    run = tmp_path / "a run"
    ask_owt("import", run, first)
    heal(["import", run, second], "new in")


def test_settings_name_a_source_again(tmp_path: Path, month: Callable[[int], Path]) -> None:
    run = tmp_path / "a run"
    ask_owt("run", run, "--dumps", month(1), month(2), "--until", "collect")
    (run / "settings.toml").write_text(f'[collect]\ndumps = ["{month(1)}"]\n')
    code, output = attempt(["run", run, "--until", "collect"])
    assert (code, "the settings do not name" in output) == (1, True)
    (command,) = _COMMAND.findall(output)
    assert attempt([*shlex.split(command)[1:], "--until", "collect"])[0] == 0
    assert attempt(["run", run, "--until", "collect"])[0] == 0


@pytest.mark.parametrize("column", ["link", "HREF", "uri", "page_url", "Address"])
def test_a_column_of_links_is_renamed(tmp_path: Path, column: str) -> None:
    table = tmp_path / "links.csv"
    table.write_text(f"points,{column}\n3,https://example.org/x\n")
    words: Words = ["run", tmp_path / "run", "--links", table, "--until", "collect"]
    output = heal(words, "has no column url", table)
    assert "allow_damaged" not in output


@pytest.mark.parametrize("field", ["link", "href", "uri"])
def test_a_field_of_links_is_renamed(tmp_path: Path, field: str) -> None:
    table = tmp_path / "links.jsonl"
    table.write_text(json.dumps({"points": 3, field: "https://example.org/x"}) + "\n")
    words: Words = ["run", tmp_path / "run", "--links", table, "--until", "collect"]
    heal(words, "has a URL", table)


@pytest.mark.parametrize("kind", ["dumps", "warcs"])
def test_a_damaged_archive_is_read_with_allow_damaged(
    tmp_path: Path, month: Callable[[int], Path], finished_run: Path, kind: str
) -> None:
    path = tmp_path / ("RS.gz" if kind == "dumps" else "pages.warc.gz")
    if kind == "dumps":
        content = gzip.compress(month(1).read_bytes() * 1000)
    else:
        content = (finished_run.parent / "demo.warc.gz").read_bytes()
    path.write_bytes(content[:-20])
    words: Words = ["run", tmp_path / "run", f"--{kind}", path, "--until", "collect"]
    heal(words, "expected a complete")


def test_the_example_of_a_user_agent_is_taken(tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("https://example.org/x\n")
    words: Words = ["run", tmp_path / "run", "--links", tmp_path / "links.txt", "--dry_run"]
    heal(words, "--user_agent: missing")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--min_tokns", "64"], "--min_tokns"),
        (["--val_fractoin", "0.5"], "--val_fractoin"),
        (["--alow_damaged"], "--alow_damaged"),
    ],
)
def test_a_mistyped_flag_is_corrected(run: Path, words: Words, expected: str) -> None:
    heal(["run", run, "--dry_run", *words], expected)


def test_a_larger_val_fraction_fills_val(run: Path) -> None:
    _, output = attempt(["run", run, "--val_fraction", "0.0000001", "--workers", "1"])
    assert "val/ is empty at --val_fraction" in output
    code, output = attempt(["run", run, "--val_fraction", "0.5", "--workers", "1"])
    assert (code, "val/ is empty" in output) == (0, False)
